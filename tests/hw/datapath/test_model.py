"""Update against golden.update and golden.regularize, every cycle; simulated workers have the memories around it."""

import random
from itertools import product

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import parameters, run_bench, start
from support.differences import assert_same
from support.signals import drive
from support.streams import pack, unpack

from p4sgd.hw.datapath.backward import GRADIENT_BITS
from p4sgd.hw.datapath.model import Update
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT, FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden

LOW, HIGH = -(1 << GRADIENT_BITS - 1), (1 << GRADIENT_BITS - 1) - 1
CYCLES = 120


def settings_of(shift, shrink, threshold):
    form = FeatureFormat(8, 8, False)
    settings = RunSettings(form, 1, 1, 1, LabelMode(), 1, shift - 1, shrink=shrink, threshold=threshold)
    assert settings.gradient_shift == shift
    return settings


def set_up(dut, settings):
    drive(dut, gradient_shift=settings.gradient_shift, shrink=settings.shrink, threshold=settings.threshold)


def telling_weights(settings):
    """Weights at the limits, those that shrink to 0 or just not, and one whose shrink is halfway between two steps."""
    reached = round(settings.threshold / (1 - settings.shrink / SHRINK.one))
    step = (1 << SHRINK.fraction - 1) // (settings.shrink & -settings.shrink or 1)
    halfway = step * (2 * random.randrange(WEIGHT.minimum // (2 * step), WEIGHT.maximum // (2 * step) + 1) + 1)
    return [WEIGHT.minimum, WEIGHT.maximum, settings.threshold, -settings.threshold, reached, -reached, 0, halfway]


def random_weight(settings):
    return random.choice(
        [
            min(WEIGHT.maximum, max(WEIGHT.minimum, random.choice(telling_weights(settings)) + random.randint(-2, 2))),
            random.randint(WEIGHT.minimum, WEIGHT.maximum) >> random.randrange(WEIGHT.width),
        ]
    )


def random_gradient(weight, settings):
    """Any gradient, or one that leads to a telling weight or beside; often at a half."""
    kind, shift = random.randrange(6), settings.gradient_shift
    if kind == 0:
        return random.choice([LOW, LOW + 1, HIGH - 1, HIGH, -1, 0, 1])
    if kind == 1:
        return random.randint(LOW, HIGH) >> random.randrange(GRADIENT_BITS)
    half = (1 << shift) >> 1
    offset = random.choice([0, half - 1, half, -half, -half - 1, random.randint(-half, half)])
    if kind == 2:
        return random.choice([offset, random.randint(-(1 << shift), 1 << shift)])
    target = random.choice(telling_weights(settings)) + random.randint(-2, 2)
    return min(HIGH, max(LOW, ((weight - target) << shift) + offset))


def random_cycle(settings, lanes):
    """Gradients and weights of a chunk; now and then no lane but perhaps one overflows."""
    weights = [random_weight(settings) for _ in range(lanes)]
    chosen = {random.randrange(lanes)} if random.random() < 0.3 else range(lanes)
    gradients = [random_gradient(weight, settings) if lane in chosen else 0 for lane, weight in enumerate(weights)]
    return gradients, weights


@cocotb.test()
async def updates_every_cycle(dut):
    lanes = parameters()["lanes"]
    shrinks, thresholds = [0, 1, SHRINK.maximum, None], [0, 1, WEIGHT.maximum, None]  # None: random
    cases = [*product(range(MAX_GRADIENT_SHIFT + 1), [None], [None]), *product([None], shrinks, thresholds)]
    random.shuffle(cases)
    drive(dut, load=0)
    await start(dut)
    saturations = 0
    for shift, shrink, threshold in cases:
        settings = settings_of(
            random.randint(0, MAX_GRADIENT_SHIFT) if shift is None else shift,
            random.randrange(1, SHRINK.maximum + 1, 1 << random.randrange(18)) - 1 if shrink is None else shrink,
            random.randint(0, WEIGHT.maximum) >> random.randrange(WEIGHT.width) if threshold is None else threshold,
        )
        set_up(dut, settings)
        exempt_lanes = random.choice([0, 1 << random.randrange(lanes), random.getrandbits(lanes)])
        drive(dut, exempt_lanes=exempt_lanes)
        await ClockCycles(dut.clk, 2)
        often = random.choice([0.0, 0.1, 0.5, 0.5, 0.9, 1.0])
        inputs = [random_cycle(settings, lanes) for _ in range(CYCLES)]
        finals = [random.random() < often for _ in range(CYCLES)]
        exempt = [random.random() < 0.5 for _ in range(CYCLES)]
        loads = [not final and random.random() < 0.2 for final in finals]
        loaded = [[random_weight(settings) for _ in range(lanes)] for _ in range(CYCLES)]
        expected, saturated, got, flagged = [], [], [], []
        for cycle, (gradients, weights) in enumerate(inputs):
            flags = golden.Flags()
            w = golden.update(np.array(weights), np.array(gradients), settings, flags)
            kept = np.array([exempt[cycle] and exempt_lanes >> lane & 1 for lane in range(lanes)], bool)
            w = np.where(kept, w, golden.regularize(w, settings)) if finals[cycle] else w
            expected.append(loaded[cycle] if loads[cycle] else w.tolist())
            saturated.append(flags.weight_saturated)
        for cycle in range(CYCLES + Update.LATENCY):
            # Weights come later than their gradients, and what is loaded later still; they matter in no other cycle.
            noise = [random.randint(WEIGHT.minimum, WEIGHT.maximum) for _ in range(lanes)]
            here, before = cycle < CYCLES, cycle - Update.WEIGHTS_LATENCY
            place = cycle - (Update.LATENCY - Update.LOAD_LATENCY)
            load = 0 <= place < CYCLES and loads[place]
            drive(dut, load=load, loaded=pack(loaded[place] if load else noise, WEIGHT.width))
            drive(dut, gradients=pack(inputs[cycle][0] if here else noise, GRADIENT_BITS))
            drive(dut, weights=pack(inputs[before][1] if 0 <= before < CYCLES else noise, WEIGHT.width))
            drive(dut, regularize=finals[cycle] if here else random.getrandbits(1))
            drive(dut, exempt=exempt[cycle] if here else random.getrandbits(1))
            await RisingEdge(dut.clk)
            if 0 <= cycle - Update.SATURATED_LATENCY < CYCLES:
                flagged.append(int(dut.saturated.value))
            if cycle >= Update.LATENCY:
                got.append(unpack(int(dut.updated.value), WEIGHT.width, lanes))
        cycles = [f"{inputs[cycle]} in cycle {cycle}, final {finals[cycle]}, {settings}" for cycle in range(CYCLES)]
        assert_same("weight", got, expected, cycles, "lane")
        assert_same("flag of saturation", flagged, saturated, cycles)
        saturations += sum(saturated)
    assert 0.02 < saturations / (CYCLES * len(cases)) < 0.98, "one kind of cycle is rare"


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_update(lanes):
    run_bench(Update(lanes), __file__, only="updates_every", lanes=lanes)
