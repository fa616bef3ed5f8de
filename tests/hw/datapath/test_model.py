"""Update against golden.update and golden.regularize, every cycle; and Model: which weights are read, and when."""

import random
from collections import deque
from itertools import product

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import parameters, run_bench, start, worker_config
from support.differences import assert_same
from support.line_sequences import engine_config
from support.signals import cycles_until, drive, pulse
from support.streams import pack, unpack

from p4sgd.hw.datapath.backward import GRADIENT_BITS
from p4sgd.hw.datapath.model import MODEL_READ_LATENCY, Model, Update
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT, FeatureFormat, LabelMode, RunSettings
from p4sgd.hw.spec.timing import forward_stages
from p4sgd.sim import golden

LOW, HIGH = -(1 << GRADIENT_BITS - 1), (1 << GRADIENT_BITS - 1) - 1
CYCLES = 80


def settings_of(shift, shrink, threshold):
    form = FeatureFormat(8, 8, False)
    settings = RunSettings(form, 1, 1, 1, LabelMode(), 1, shift - 1, shrink=shrink, threshold=threshold)
    assert settings.gradient_shift == shift
    return settings


def set_up(dut, settings):
    drive(dut, gradient_shift=settings.gradient_shift, shrink=settings.shrink, threshold=settings.threshold)


def telling_weights(settings):
    """Weights at the limits, those that shrink to 0 or just not, and one whose shrink is at or beside half a step."""
    reached = round(settings.threshold / (1 - settings.shrink / SHRINK.one))
    power = settings.shrink & -settings.shrink or 1
    modulus = SHRINK.one // power
    halfway = (modulus // 2 + random.randint(-1, 1)) * pow(settings.shrink // power or 1, -1, modulus) % modulus
    halfway += modulus * random.randrange(WEIGHT.minimum // modulus, WEIGHT.maximum // modulus)
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
            random.randint(0, SHRINK.maximum) >> (bits := random.randrange(9)) << bits if shrink is None else shrink,
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


class Weights:
    """The exact model of a `Model`; loads it, and drives its gradients and reads, a cycle a step.

    ``w`` has the weights that reads see, an array for each version and chunk, ``w_next`` the latest of each chunk.
    """

    def __init__(self, dut, settings, chunks, stale):
        self.dut, self.settings, self.chunks, self.stale = dut, settings, chunks, stale
        self.config = worker_config()
        self.exempt = random.choice([None, (random.randrange(chunks), random.randrange(self.config.lanes))])
        self.w, self.w_next, self.version = {}, [], int(stale)  # `version` is written next
        self.cycle, self.came = 0, {}  # cycles of the last gradients by chunk
        self.finals, self.reads = deque(), deque(maxlen=MODEL_READ_LATENCY + forward_stages(self.config.lanes))
        self.pulses = {name: [] for name in ("updated", "updated_last", "wrote_first", "wrote_last", "saturated")}
        self.expected = {name: [] for name in self.pulses}

    async def load(self):
        """Load random weights; those of the first half of chunk 0 are sent twice, with a fresh start between."""
        loaded = [[random_weight(self.settings) for _ in range(self.config.lanes)] for _ in range(self.chunks)]
        halves = [row[half:][: len(row) // 2] for row in loaded for half in (0, len(row) // 2)]
        for words in (halves[:1], halves):
            await pulse(self.dut, "load_clear")
            for word in words:
                drive(self.dut, load__valid=1, load__payload=pack(word, WEIGHT.width))
                await RisingEdge(self.dut.clk)
                drive(self.dut, load__valid=0)
                await ClockCycles(self.dut.clk, random.choice([0, 0, 1, 5]))
            await RisingEdge(self.dut.clk)
            assert self.dut.load_busy.value
            assert await cycles_until(self.dut, lambda: not self.dut.load_busy.value) <= Update.LOAD_LATENCY
        self.w_next = [np.array(row) for row in loaded]
        self.w = {(0, chunk): row for chunk, row in enumerate(self.w_next)}

    async def step(self, **gradients):
        """A cycle, in which weights are read at random."""
        dut, lanes, stages = self.dut, self.config.lanes, forward_stages(self.config.lanes)
        version, chunk = place = random.choice(list(self.w))
        enable = random.getrandbits(1)
        drive(dut, write_half=self.version, read__enable=enable)
        drive(dut, read__address=chunk | version << self.config.chunk_bits - 1)
        noise = {f"gradients__{name}": random.getrandbits(1) for name in ("chunk", "final", "last")}
        drive(dut, **gradients or noise | {"gradients__valid": 0})
        self.reads.appendleft((place, self.w[place]) if enable else None)
        await RisingEdge(dut.clk)
        got = np.array(unpack(int(dut.read__data.value), WEIGHT.width, lanes)).reshape(stages, -1)
        for stage, read in enumerate(list(self.reads)[MODEL_READ_LATENCY:]):
            if read is not None and self.w[read[0]] is read[1]:  # else it is being updated
                assert_same(f"read weight of stage {stage}", got[stage], read[1].reshape(stages, -1)[stage], "lane")
        for name, cycles in self.pulses.items():
            if getattr(dut, name).value and (name != "updated_last" or dut.updated.value):
                cycles.append(self.cycle)
        if dut.updated.value:
            chunk, row = self.finals.popleft()
            self.w[self.version, chunk] = row
            self.version ^= self.stale and chunk == self.chunks - 1
        self.cycle += 1

    async def micro_batch(self, final):
        """Gradients of some chunks, or all of the last micro-batch, as early as they may come or later."""
        last = self.chunks - 1
        chunks = [chunk for chunk in range(self.chunks) if final or chunk == last or random.random() < 0.6]
        for place, chunk in enumerate(chunks):
            wait = max(self.came.get(None, -9) + 2, self.came.get(chunk, -99) + Model.UPDATE_SPACING) - self.cycle
            for _ in range(max(0, wait) + random.choice([0, 0, 0, 3])):
                await self.step()
            g = np.array([random_gradient(int(weight), self.settings) for weight in self.w_next[chunk]])
            self.came |= {None: self.cycle, chunk: self.cycle}
            self._expect(chunk, g, final, place == 0)
            drive(self.dut, gradients__chunk=chunk, gradients__final=final, gradients__last=chunk == last)
            await self.step(gradients__valid=1, gradients__values=pack(g.tolist(), GRADIENT_BITS))

    def _expect(self, chunk, g, final, first):
        """Update the weights of a chunk, and note in which cycles this is to be told."""
        written, half = self.cycle + Model.WRITE_LATENCY, g.size // 2
        for higher in (0, 1):
            flags, own = golden.Flags(), slice(higher * half, higher * half + half)
            golden.update(self.w_next[chunk][own], g[own], self.settings, flags)
            self.expected["saturated"] += [self.cycle + Update.SATURATED_LATENCY + higher] * flags.weight_saturated
        row = golden.update(self.w_next[chunk], g, self.settings, golden.Flags())
        if final:
            own = self.exempt is not None and self.exempt[0] == chunk
            row = golden.regularize(row, self.settings, exempt=self.exempt[1] if own else None)
            self.finals.append((chunk, row))
        self.w_next[chunk] = row
        told = {"updated": final, "wrote_first": first, "wrote_last": chunk == self.chunks - 1}
        for name, happens in (told | {"updated_last": final and told["wrote_last"]}).items():
            self.expected[name] += [written] * happens


@cocotb.test()
async def trains_and_shows_weights(dut):
    config = worker_config()
    drive(dut, load__valid=0, load_clear=0, gradients__valid=0, halves__enable=0, read__enable=0, write_half=0)
    await start(dut)
    for run in range(6):
        stale = bool(run % 2)
        chunks = random.randint(1, config.chunks // 2 if stale else config.chunks)
        settings = settings_of(random.randint(0, 31), random.choice([0, random.randint(0, SHRINK.maximum)]), run)
        set_up(dut, settings)
        weights = Weights(dut, settings, chunks, stale)
        chunk, lane = weights.exempt or (0, 0)
        drive(dut, exempt=weights.exempt is not None, exempt_chunk=chunk, exempt_lane=lane)
        await weights.load()
        micro_batches = random.randint(1, 3)
        for number in range(3 * micro_batches):
            await weights.micro_batch(final=number % micro_batches == micro_batches - 1)
        for _ in range(20):  # until all is written, and then read again
            await weights.step()
        for name, cycles in weights.pulses.items():
            assert_same(f"cycle with {name}", cycles, weights.expected[name], "pulse")
        for half in random.sample(range(2 * chunks), 2 * chunks):
            drive(dut, halves__enable=1, halves__address=half)
            await RisingEdge(dut.clk)
            drive(dut, halves__enable=0, halves__address=random.randrange(2 * config.chunks))
            await ClockCycles(dut.clk, MODEL_READ_LATENCY + random.randint(0, 2))
            got = unpack(int(dut.halves__data.value), WEIGHT.width, config.lanes // 2)
            assert_same(
                f"latest weight of half {half}", got, weights.w_next[half // 2].reshape(2, -1)[half % 2], "lane"
            )


@pytest.mark.rtl
def test_update():
    run_bench(Update(2), __file__, only="updates_every", lanes=2)


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_model(lanes):
    config = engine_config(lanes, 8)
    run_bench(Model(config), __file__, only="trains", config=config)
