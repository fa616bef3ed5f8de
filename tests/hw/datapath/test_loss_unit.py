"""LossUnit against golden.residual and golden.delta."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import PulseCounter, pulse
from support.bench import parameters, run_bench, start
from support.jobs import random_table
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.loss import LossUnit
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IMPORTANCE
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def exact_deltas(dut, stall):
    segments = parameters()["segments"]
    rng = np.random.default_rng(random.getrandbits(32))
    sums = StreamSource(dut, "sums", stall)
    labels = StreamSource(dut, "labels", stall)
    deltas = StreamSink(dut, "deltas", flow=True)
    dut.table_index_strobe.value = dut.table_intercept_strobe.value = 0
    await start(dut)
    saturated = PulseCounter(dut, "status_residual_saturated")
    expected: list[int] = []
    for setting in range(12):
        weighted = setting % 3 == 1
        table = random_table(rng, segments, wild=setting % 2 == 0)
        mode = LabelMode(*(bool(random.getrandbits(1)) for _ in range(3)))
        settings = RunSettings(FeatureFormat(8, 8, False), 1, 1, 1, mode, random.randint(0, 255), 10)
        dut.label_mode_sign.value, dut.label_mode_offset.value = int(mode.sign), int(mode.offset)
        dut.label_mode_constant.value, dut.label_mode_weighted.value = int(mode.constant), int(weighted)
        dut.rate_mantissa.value, dut.table_shift.value = settings.rate_mantissa, table.shift
        first = random.randrange(segments)  # the segment after the last is the first
        dut.table_index.value = first
        await pulse(dut, "table_index_strobe")
        for index in range(first, first + segments):
            dut.table_slope.value = int(table.slope[index % segments])
            dut.table_intercept.value = int(table.intercept[index % segments])
            await pulse(dut, "table_intercept_strobe")
            await ClockCycles(dut.clk, random.randint(0, 2))
        before = saturated.count
        expect_saturation = False
        for item in range(25):
            reach = (1 << 31) if item < 4 else 1 << random.randint(4, 31)
            z = rng.integers(-reach, reach, 8)
            y = rng.integers(-reach, reach, 8) if item % 2 else np.sign(rng.integers(-9, 9, 8) | 1) << 16
            if item == 0:
                z[:], y[:] = -(1 << 31), [-(1 << 31), (1 << 31) - 1] * 4
            if item == 1:
                z[:], y[:] = (1 << 31) - 1, [-(1 << 31), (1 << 31) - 1] * 4
            flags = golden.Flags()
            g = golden.residual(z, y, table, mode, flags)
            importances = rng.choice([0, 1, IMPORTANCE.one, int(rng.integers(1, IMPORTANCE.one))], 8)
            expected += golden.delta(g, settings, importances if weighted else None).tolist()
            expect_saturation |= flags.residual_saturated
            sums.send([pack(z.tolist(), 32)])
            labels.send([pack(y.tolist(), 32), *([pack(importances.tolist(), 32)] if weighted else [])])
        items = await deltas.receive(len(expected) // 8)
        for _ in range(3):
            await RisingEdge(dut.clk)
        assert (saturated.count > before) == expect_saturation
    assert [value for item in items for value in unpack(item, 32, 8)] == expected


@cocotb.test()
@cocotb.parametrize(weighted=[0, 1])
async def latency(dut, weighted):
    """From sums whose labels have come to deltas, and full rate: a micro-batch every two cycles, or three."""
    sums, labels = StreamSource(dut, "sums"), StreamSource(dut, "labels")
    dut.table_index_strobe.value = dut.table_intercept_strobe.value = 0
    dut.label_mode_weighted.value = weighted
    await start(dut)
    taken, answered = [], []

    async def watch():
        cycle = 0
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            if dut.sums__valid.value and dut.sums__ready.value:
                taken.append(cycle)
            if dut.deltas__valid.value:
                answered.append(cycle)

    cocotb.start_soon(watch())
    for burst in (1, 1, 1, 2, 5, 100):
        for source, items in random.sample([(sums, burst), (labels, (1 + weighted) * burst)], 2):
            source.send(random.getrandbits(256) for _ in range(items))
            await ClockCycles(dut.clk, random.randint(1, 5))
        await ClockCycles(dut.clk, 4 * burst + LossUnit.LATENCY)
    assert len(taken) == 110
    assert answered == [cycle + LossUnit.LATENCY for cycle in taken]
    assert taken[-1] - taken[-100] == (2 + weighted) * 99


@pytest.mark.rtl
@pytest.mark.parametrize("segments", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_loss_unit(segments):
    config = WorkerConfig(engines=1, lanes=8, chunks=8, line_fifo_depth=128, slots=4, table_segments=segments)
    run_bench(LossUnit(config), __file__, segments=segments)
