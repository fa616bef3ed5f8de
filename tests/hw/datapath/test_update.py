"""Update against golden.update and golden.regularize, a chunk a cycle."""

import random
from itertools import product

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import parameters, run_bench, start
from support.streams import pack, unpack

from p4sgd.hw.datapath.backward import GRADIENT_BITS
from p4sgd.hw.datapath.model import Update
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT, FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden

LOW, HIGH = -(1 << GRADIENT_BITS - 1), (1 << GRADIENT_BITS - 1) - 1
CYCLES = 120


def settings_of(shift, shrink, threshold):
    settings = RunSettings(
        FeatureFormat(8, 8, False), 1, 1, 1, LabelMode(), 1, shift - 1, shrink=shrink, threshold=threshold
    )
    assert settings.gradient_shift == shift
    return settings


def random_weight(threshold):
    return random.choice(
        [
            random.choice([WEIGHT.minimum, WEIGHT.maximum, WEIGHT.minimum + 1, WEIGHT.maximum - 1]),
            random.choice([-1, 1]) * min(WEIGHT.maximum, threshold + random.randint(0, 2)),
            random.randint(-2, 2),
            random.randint(WEIGHT.minimum, WEIGHT.maximum) >> random.randrange(WEIGHT.width),
        ]
    )


def random_gradient(weight, shift, threshold):
    """Any gradient, or one that leads to a weight around the limits, the threshold or 0; often at a half."""
    kind = random.randrange(6)
    if kind == 0:
        return random.choice([LOW, LOW + 1, HIGH - 1, HIGH, -1, 0, 1])
    if kind == 1:
        return random.randint(LOW, HIGH) >> random.randrange(GRADIENT_BITS)
    if kind == 2:
        return random.randint(-(1 << shift), 1 << shift)
    target = random.choice([WEIGHT.minimum, WEIGHT.maximum, threshold, -threshold, 0]) + random.randint(-2, 2)
    half = (1 << shift) >> 1
    offset = random.choice([0, half - 1, half, -half, -half - 1, random.randint(-half, half)])
    return min(HIGH, max(LOW, ((weight - target) << shift) + offset))


def regularized(w, settings, exempt):
    """Weights of a chunk after golden.regularize; the lanes ``exempt``, bits of a number, keep theirs."""
    kept = np.array([exempt >> lane & 1 for lane in range(w.size)], bool)
    return np.where(kept, w, golden.regularize(w, settings))


def random_cycle(settings, lanes):
    weights = [random_weight(settings.threshold) for _ in range(lanes)]
    if random.random() < 0.3:  # no lane but perhaps one overflows
        gradients = [0] * lanes
        lane = random.randrange(lanes)
        gradients[lane] = random_gradient(weights[lane], settings.gradient_shift, settings.threshold)
    else:
        gradients = [random_gradient(weight, settings.gradient_shift, settings.threshold) for weight in weights]
    return gradients, weights


@cocotb.test()
async def updates_every_cycle(dut):
    lanes = parameters()["lanes"]
    shrinks = [0, 1, SHRINK.maximum, None]  # None: random
    thresholds = [0, 1, WEIGHT.maximum, None]
    cases = [*product(range(MAX_GRADIENT_SHIFT + 1), [None], [None]), *product([None], shrinks, thresholds)]
    random.shuffle(cases)
    dut.load.value = 0
    await start(dut)
    saturations = 0
    for shift, shrink, threshold in cases:
        settings = settings_of(
            random.randint(0, MAX_GRADIENT_SHIFT) if shift is None else shift,
            random.randint(0, SHRINK.maximum) if shrink is None else shrink,
            random.randint(0, WEIGHT.maximum) >> random.randrange(WEIGHT.width) if threshold is None else threshold,
        )
        dut.gradient_shift.value = settings.gradient_shift
        dut.shrink.value, dut.threshold.value = settings.shrink, settings.threshold
        exempt_lanes = random.choice([0, 1 << random.randrange(lanes), random.getrandbits(lanes)])
        dut.exempt_lanes.value = exempt_lanes
        await ClockCycles(dut.clk, 2)
        often = random.choice([0.0, 0.1, 0.5, 0.5, 0.9, 1.0])
        inputs = [random_cycle(settings, lanes) for _ in range(CYCLES)]
        finals = [random.random() < often for _ in range(CYCLES)]
        exempt = [random.random() < 0.5 for _ in range(CYCLES)]
        loads = [not final and random.random() < 0.2 for final in finals]
        loaded = [[random_weight(settings.threshold) for _ in range(lanes)] for _ in range(CYCLES)]
        expected, saturated = [], []
        for cycle, ((gradients, weights), final) in enumerate(zip(inputs, finals, strict=True)):
            flags = golden.Flags()
            w = golden.update(np.array(weights), np.array(gradients), settings, flags)
            w = regularized(w, settings, exempt_lanes if exempt[cycle] else 0) if final else w
            expected.append(loaded[cycle] if loads[cycle] else w.tolist())
            saturated.append(flags.weight_saturated)
        for cycle in range(CYCLES + Update.LATENCY):
            # Weights come later than their gradients, and what is loaded later still; they matter in no other cycle.
            here, before = cycle < CYCLES, 0 <= cycle - Update.WEIGHTS_LATENCY < CYCLES
            place = cycle - (Update.LATENCY - Update.LOAD_LATENCY)
            load = 0 <= place < CYCLES and loads[place]
            dut.load.value = int(load)
            dut.loaded.value = pack(loaded[place] if load else [random_weight(0) for _ in range(lanes)], WEIGHT.width)
            gradients = inputs[cycle][0] if here else [random.randint(LOW, HIGH) for _ in range(lanes)]
            weights = inputs[cycle - Update.WEIGHTS_LATENCY][1] if before else [random_weight(0) for _ in range(lanes)]
            dut.gradients.value = pack(gradients, GRADIENT_BITS)
            dut.weights.value = pack(weights, WEIGHT.width)
            dut.regularize.value = int(finals[cycle]) if here else random.getrandbits(1)
            dut.exempt.value = int(exempt[cycle]) if here else random.getrandbits(1)
            await RisingEdge(dut.clk)
            of = cycle - Update.SATURATED_LATENCY
            if 0 <= of < CYCLES:
                assert dut.saturated.value == saturated[of], (settings, *inputs[of])
            of = cycle - Update.LATENCY
            if of >= 0:
                got = unpack(int(dut.updated.value), WEIGHT.width, lanes)
                assert got == expected[of], (settings, *inputs[of], finals[of])
        saturations += sum(saturated)
    assert 0.02 < saturations / (CYCLES * len(cases)) < 0.98, "one kind of cycle is rare"


@cocotb.test()
async def latency(dut):
    """One gradient, alone: each result is there in its cycle and not in the ones beside it."""
    lanes = parameters()["lanes"]
    dut.gradients.value = dut.weights.value = dut.load.value = 0
    dut.gradient_shift.value = dut.threshold.value = dut.regularize.value = dut.shrink.value = 0
    dut.exempt.value = dut.exempt_lanes.value = 0
    await start(dut)
    await ClockCycles(dut.clk, Update.LATENCY + 1)
    updated, saturated = [], []
    for cycle in range(2 * Update.LATENCY):
        dut.gradients.value = pack([-1 if cycle == 0 else 0] * lanes, GRADIENT_BITS)
        dut.weights.value = pack([WEIGHT.maximum if cycle == Update.WEIGHTS_LATENCY else 0] * lanes, WEIGHT.width)
        await RisingEdge(dut.clk)
        if dut.saturated.value:
            saturated.append(cycle)
        if int(dut.updated.value):
            updated.append(cycle)
            assert unpack(int(dut.updated.value), WEIGHT.width, lanes) == [WEIGHT.maximum] * lanes
    assert updated == [Update.LATENCY]
    assert saturated == [Update.SATURATED_LATENCY]


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_update(lanes):
    run_bench(Update(lanes), __file__, lanes=lanes)
