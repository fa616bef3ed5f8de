"""Model against golden.update and golden.regularize, at the closest spacing that is allowed."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.axi import PulseCounter
from support.bench import parameters, run_bench, start
from support.streams import pack, unpack

from p4sgd.hw.datapath.backward import GRADIENT_BITS
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden


async def load(dut, w, lanes):
    dut.load_clear.value = 1
    await RisingEdge(dut.clk)
    dut.load_clear.value = 0
    for chunk in w.reshape(-1, lanes):
        while random.random() < 0.3:
            dut.load__valid.value = 0
            await RisingEdge(dut.clk)
        dut.load__payload.value = pack(chunk.tolist(), 32)
        dut.load__valid.value = 1
        await RisingEdge(dut.clk)
    dut.load__valid.value = 0
    while True:
        await RisingEdge(dut.clk)
        if not dut.load_busy.value:
            break


async def read(dut, chunk, lanes):
    dut.read__address.value, dut.read__enable.value = chunk, 1
    await RisingEdge(dut.clk)
    dut.read__enable.value = 0
    await RisingEdge(dut.clk)
    await ReadOnly()
    values = unpack(int(dut.read__data.value), 32, lanes)
    await RisingEdge(dut.clk)
    return values


async def begin(dut):
    """No gradients, weights or reads yet, and no shift, penalty or exempt weight."""
    dut.gradients__valid.value = dut.load__valid.value = dut.read__enable.value = dut.write_half.value = 0
    dut.gradient_shift.value = dut.shrink.value = dut.threshold.value = dut.exempt.value = 0
    await start(dut)


def random_settings():
    return RunSettings(
        FeatureFormat(8, 8, False),
        1,
        1,
        1,
        LabelMode(),
        1,
        random.randint(-1, 30),  # any gradient_shift
        shrink=random.choice([0, 1, SHRINK.maximum, random.randint(0, SHRINK.maximum)]),
        threshold=random.choice([0, 1, WEIGHT.maximum, random.randint(0, 1 << 24)]),
    )


@cocotb.test()
async def updates_at_the_closest_spacing(dut):
    p = parameters()
    lanes, chunks, spacing = p["lanes"], p["chunks"], p["spacing"]
    rng = np.random.default_rng(random.getrandbits(32))
    await begin(dut)
    pulses = [PulseCounter(dut, name) for name in ("saturated", "updated", "wrote_first", "wrote_last")]
    for case in range(30):
        settings = random_settings()
        dut.gradient_shift.value = settings.gradient_shift
        dut.shrink.value, dut.threshold.value = settings.shrink, settings.threshold
        exempt = random.choice([None, *range(chunks * lanes)])
        dut.exempt.value = int(exempt is not None)
        dut.exempt_chunk.value, dut.exempt_lane.value = divmod(
            random.randrange(999) if exempt is None else exempt, lanes
        )
        w = rng.integers(-(1 << 31), 1 << 31, chunks * lanes)
        w[:2] = WEIGHT.minimum, WEIGHT.maximum
        await load(dut, w, lanes)
        flags = golden.Flags()
        final_writes, finals = w.copy(), 0
        w_next = w.copy()
        before = [each.count for each in pulses]
        # Rounds over 1 to `chunks` chunks: the same chunk comes again after exactly `spacing` cycles or more.
        order = []
        used = random.randint(1, chunks)
        for _ in range(5):
            final = random.random() < 0.4
            order += [(chunk, final) for chunk in range(used)]
            order += [None] * max(0, spacing - used)
        bits = GRADIENT_BITS if case < 3 else random.randint(8, GRADIENT_BITS)
        for step in order:
            dut.gradients__valid.value = int(step is not None)
            if step is not None:
                chunk, final = step
                g = rng.integers(-(1 << bits - 1), 1 << bits - 1, lanes)
                dut.gradients__chunk.value, dut.gradients__final.value = chunk, int(final)
                dut.gradients__last.value = int(chunk == used - 1)
                dut.gradients__values.value = pack(g.tolist(), GRADIENT_BITS)
                here = slice(chunk * lanes, (chunk + 1) * lanes)
                w_next[here] = golden.update(w_next[here], g, settings, flags)
                if final:
                    own = exempt - chunk * lanes if exempt is not None and exempt // lanes == chunk else None
                    w_next[here] = golden.regularize(w_next[here], settings, exempt=own)
                    final_writes[here] = w_next[here]
                    finals += 1
            await RisingEdge(dut.clk)
        dut.gradients__valid.value = 0
        for _ in range(spacing):
            await RisingEdge(dut.clk)
        got = [value for chunk in range(chunks) for value in await read(dut, chunk, lanes)]
        assert got == final_writes.tolist()
        saturated, *others = (each.count - count for each, count in zip(pulses, before, strict=True))
        assert bool(saturated) == flags.weight_saturated
        assert others == [finals, 5, 5], "first and last chunk once a round"
        # w_next shows in a last update that changes nothing but what it regularises.
        for chunk in range(chunks):
            dut.gradients__valid.value, dut.gradients__chunk.value = 1, chunk
            dut.gradients__final.value, dut.gradients__values.value = 1, 0
            await RisingEdge(dut.clk)
        dut.gradients__valid.value = 0
        for _ in range(spacing):
            await RisingEdge(dut.clk)
        got = [value for chunk in range(chunks) for value in await read(dut, chunk, lanes)]
        assert got == golden.regularize(w_next, settings, exempt=exempt).tolist()


@cocotb.test()
async def a_read_after_updated_sees_the_update(dut):
    lanes = parameters()["lanes"]
    await begin(dut)
    await load(dut, np.zeros(lanes, np.int64), lanes)
    dut.gradients__valid.value, dut.gradients__chunk.value, dut.gradients__final.value = 1, 0, 1
    dut.gradients__values.value = pack([-7] * lanes, GRADIENT_BITS)
    await RisingEdge(dut.clk)
    dut.gradients__valid.value = 0
    while True:
        await ReadOnly()
        if dut.updated.value:
            break
        await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)  # the cycle after the pulse
    assert await read(dut, 0, lanes) == [7] * lanes


@cocotb.test()
async def the_upper_half_keeps_another_version(dut):
    lanes, chunks = parameters()["lanes"], parameters()["chunks"]
    await begin(dut)
    await load(dut, np.arange(chunks // 2 * lanes), lanes)
    for half in (1, 0, 1):
        dut.write_half.value = half
        before = [await read(dut, chunk + chunks // 2 * (1 - half), lanes) for chunk in range(chunks // 2)]
        dut.gradients__final.value, dut.gradients__values.value = 1, pack([-7] * lanes, GRADIENT_BITS)
        for chunk in range(chunks // 2):
            dut.gradients__valid.value, dut.gradients__chunk.value = 1, chunk
            await RisingEdge(dut.clk)
        dut.gradients__valid.value = 0
        for _ in range(parameters()["spacing"]):
            await RisingEdge(dut.clk)
        for chunk in range(chunks // 2):
            assert await read(dut, chunk + chunks // 2 * (1 - half), lanes) == before[chunk]
            assert await read(dut, chunk + chunks // 2 * half, lanes) == [value + 7 for value in before[chunk]]


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_model(lanes):
    config = WorkerConfig(engines=1, lanes=lanes, chunks=16, line_fifo_depth=128, slots=4, table_segments=64)
    run_bench(Model(config), __file__, lanes=lanes, chunks=config.chunks, spacing=Model.UPDATE_SPACING)
