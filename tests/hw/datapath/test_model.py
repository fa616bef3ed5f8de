"""Update and Model against golden.update and golden.regularize: every cycle, and a chunk as often as is allowed."""

import random
from itertools import product

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.bench import parameters, run_bench, start
from support.signals import Cycles, cycles_until, drive, pulse
from support.streams import pack, unpack

from p4sgd.hw.datapath.backward import GRADIENT_BITS
from p4sgd.hw.datapath.model import Model, Update
from p4sgd.hw.spec.config import WorkerConfig
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


# -- Update ------------------------------------------------------------------------------------------------------------


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


def random_cycle(settings, lanes):
    """Gradients and weights of a chunk; now and then no lane but perhaps one overflows."""
    weights = [random_weight(settings.threshold) for _ in range(lanes)]
    chosen = {random.randrange(lanes)} if random.random() < 0.3 else range(lanes)
    shift, threshold = settings.gradient_shift, settings.threshold
    gradients = [
        random_gradient(weight, shift, threshold) if lane in chosen else 0 for lane, weight in enumerate(weights)
    ]
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
            random.randint(0, SHRINK.maximum) if shrink is None else shrink,
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
        loaded = [[random_weight(settings.threshold) for _ in range(lanes)] for _ in range(CYCLES)]
        expected, saturated = [], []
        for cycle, (gradients, weights) in enumerate(inputs):
            flags = golden.Flags()
            w = golden.update(np.array(weights), np.array(gradients), settings, flags)
            kept = np.array([exempt[cycle] and exempt_lanes >> lane & 1 for lane in range(lanes)], bool)
            w = np.where(kept, w, golden.regularize(w, settings)) if finals[cycle] else w
            expected.append(loaded[cycle] if loads[cycle] else w.tolist())
            saturated.append(flags.weight_saturated)
        for cycle in range(CYCLES + Update.LATENCY):
            # Weights come later than their gradients, and what is loaded later still; they matter in no other cycle.
            noise = [random_weight(0) for _ in range(lanes)]
            here, before = cycle < CYCLES, cycle - Update.WEIGHTS_LATENCY
            place = cycle - (Update.LATENCY - Update.LOAD_LATENCY)
            load = 0 <= place < CYCLES and loads[place]
            drive(dut, load=load, loaded=pack(loaded[place] if load else noise, WEIGHT.width))
            drive(dut, gradients=pack(inputs[cycle][0] if here else noise, GRADIENT_BITS))
            drive(dut, weights=pack(inputs[before][1] if 0 <= before < CYCLES else noise, WEIGHT.width))
            drive(dut, regularize=finals[cycle] if here else random.getrandbits(1))
            drive(dut, exempt=exempt[cycle] if here else random.getrandbits(1))
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


# -- Model -------------------------------------------------------------------------------------------------------------


class Bench:
    """A model, of whose chunks some are given gradients."""

    def __init__(self, dut):
        self.dut, self.lanes, self.chunks = dut, parameters()["lanes"], parameters()["chunks"]

    async def begin(self):
        """No gradients, weights or reads yet, and no shift, penalty or exempt weight."""
        drive(self.dut, gradients__valid=0, load__valid=0, read__enable=0, write_half=0, exempt=0)
        set_up(self.dut, settings_of(0, 0, 0))
        await start(self.dut)

    async def load(self, w):
        await pulse(self.dut, "load_clear")
        for chunk in w.reshape(-1, self.lanes):
            while random.random() < 0.3:
                drive(self.dut, load__valid=0)
                await RisingEdge(self.dut.clk)
            drive(self.dut, load__payload=pack(chunk.tolist(), 32), load__valid=1)
            await RisingEdge(self.dut.clk)
        drive(self.dut, load__valid=0)
        await cycles_until(self.dut, lambda: not self.dut.load_busy.value)

    async def give(self, chunk, g, *, final, last=False):
        """Gradients of a chunk, for one cycle."""
        drive(self.dut, gradients__chunk=chunk, gradients__final=final, gradients__last=last)
        drive(self.dut, gradients__values=pack(g, GRADIENT_BITS))
        await pulse(self.dut, "gradients__valid")

    async def read(self, chunk):
        drive(self.dut, read__address=chunk)
        await pulse(self.dut, "read__enable")
        await RisingEdge(self.dut.clk)
        await ReadOnly()
        values = unpack(int(self.dut.read__data.value), 32, self.lanes)
        await RisingEdge(self.dut.clk)
        return values

    async def weights(self):
        await ClockCycles(self.dut.clk, Model.UPDATE_SPACING)
        return [value for chunk in range(self.chunks) for value in await self.read(chunk)]


@cocotb.test()
async def model_updates_at_the_closest_spacing(dut):
    bench = Bench(dut)
    lanes, chunks = bench.lanes, bench.chunks
    rng = np.random.default_rng(random.getrandbits(32))
    await bench.begin()
    pulses = [Cycles(dut, name) for name in ("saturated", "updated", "wrote_first", "wrote_last")]
    for case in range(30):
        shrink = random.choice([0, 1, SHRINK.maximum, random.randint(0, SHRINK.maximum)])
        threshold = random.choice([0, 1, WEIGHT.maximum, random.randint(0, 1 << 24)])
        settings = settings_of(random.randint(0, MAX_GRADIENT_SHIFT), shrink, threshold)
        set_up(dut, settings)
        exempt = random.choice([None, *range(chunks * lanes)])
        drive(dut, exempt=exempt is not None)
        dut.exempt_chunk.value, dut.exempt_lane.value = divmod(exempt or 0, lanes)
        w = rng.integers(-(1 << 31), 1 << 31, chunks * lanes)
        w[:2] = WEIGHT.minimum, WEIGHT.maximum
        await bench.load(w)
        for cycles in pulses:
            cycles.clear()
        flags, w_next, finals = golden.Flags(), w.copy(), 0
        # Rounds over 1 to all chunks: the same chunk comes again after exactly UPDATE_SPACING cycles or more.
        used, bits = random.randint(1, chunks), GRADIENT_BITS if case < 3 else random.randint(8, GRADIENT_BITS)
        for _ in range(5):
            final = random.random() < 0.4
            for chunk in range(used):
                g = rng.integers(-(1 << bits - 1), 1 << bits - 1, lanes)
                here = slice(chunk * lanes, (chunk + 1) * lanes)
                w_next[here] = golden.update(w_next[here], g, settings, flags)
                if final:
                    own = exempt - chunk * lanes if exempt is not None and exempt // lanes == chunk else None
                    w[here] = w_next[here] = golden.regularize(w_next[here], settings, exempt=own)
                    finals += 1
                await bench.give(chunk, g.tolist(), final=final, last=chunk == used - 1)
            await ClockCycles(dut.clk, max(0, Model.UPDATE_SPACING - used))
        assert await bench.weights() == w.tolist()
        saturated, *others = map(len, pulses)
        assert (bool(saturated), others) == (flags.weight_saturated, [finals, 5, 5]), "first and last once a round"
        # w_next shows in a last update that changes nothing but what it regularises.
        for chunk in range(chunks):
            await bench.give(chunk, [0] * lanes, final=True, last=chunk == chunks - 1)
        assert await bench.weights() == golden.regularize(w_next, settings, exempt=exempt).tolist()


@cocotb.test()
async def model_keeps_another_version_in_the_upper_half(dut):
    """And a read after ``updated`` sees the update."""
    bench = Bench(dut)
    half_chunks = bench.chunks // 2
    await bench.begin()
    await bench.load(np.arange(half_chunks * bench.lanes))
    for half in (1, 0, 1):
        drive(dut, write_half=half)
        middle, before = half_chunks * bench.lanes, await bench.weights()
        kept = before[:middle] if half else before[middle:]
        for chunk in range(half_chunks):
            await bench.give(chunk, [-7] * bench.lanes, final=True)
            if chunk == 0:
                await cycles_until(dut, lambda: dut.updated.value)
                assert await bench.read(half_chunks * half) == [7 + value for value in kept[: bench.lanes]]
        made = [value + 7 for value in kept]
        assert await bench.weights() == (kept + made if half else made + kept)


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_update(lanes):
    run_bench(Update(lanes), __file__, only="updates_every", lanes=lanes)


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_model(lanes):
    config = WorkerConfig(lanes=lanes, chunks=16, line_fifo_depth=128, slots=4, table_segments=64)
    run_bench(Model(config), __file__, only="model_", lanes=lanes, chunks=config.chunks)
