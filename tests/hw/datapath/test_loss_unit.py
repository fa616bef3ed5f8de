"""LossUnit against golden.residual and golden.delta."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles
from support.bench import parameters, run_bench, start
from support.jobs import random_table
from support.signals import Cycles, drive, pulse
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
    sums, labels = StreamSource(dut, "sums", stall), StreamSource(dut, "labels", stall)
    deltas = StreamSink(dut, "deltas", flow=True)
    drive(dut, table_index_strobe=0, table_intercept_strobe=0)
    await start(dut)
    saturated = Cycles(dut, "status_residual_saturated")
    expected: list[int] = []
    for setting in range(12):
        weighted = setting % 3 == 1
        table = random_table(rng, segments, wild=setting % 2 == 0)
        mode = LabelMode(*(bool(random.getrandbits(1)) for _ in range(3)))
        settings = RunSettings(FeatureFormat(8, 8, False), 1, 1, 1, mode, random.randint(0, 255), 10)
        drive(dut, **{f"label_mode_{name}": on for name, on in vars(mode).items()}, label_mode_weighted=weighted)
        first = random.randrange(segments)  # the segment after the last is the first
        drive(dut, rate_mantissa=settings.rate_mantissa, table_shift=table.shift, table_index=first)
        await pulse(dut, "table_index_strobe")
        for index in range(first, first + segments):
            drive(dut, table_slope=table.slope[index % segments], table_intercept=table.intercept[index % segments])
            await pulse(dut, "table_intercept_strobe")
            await ClockCycles(dut.clk, random.randint(0, 2))
        before, flags = len(saturated), golden.Flags()
        for item in range(25):
            reach = (1 << 31) if item < 4 else 1 << random.randint(4, 31)
            z = rng.integers(-reach, reach, 8)
            y = rng.integers(-reach, reach, 8) if item % 2 else np.sign(rng.integers(-9, 9, 8) | 1) << 16
            if item < 2:
                z[:], y[:] = (-(1 << 31), (1 << 31) - 1)[item], [-(1 << 31), (1 << 31) - 1] * 4
            g = golden.residual(z, y, table, mode, flags)
            importances = rng.choice([0, 1, IMPORTANCE.one, int(rng.integers(1, IMPORTANCE.one))], 8)
            expected += golden.delta(g, settings, importances if weighted else None).tolist()
            sums.send([pack(z.tolist(), 32)])
            labels.send([pack(y.tolist(), 32), *([pack(importances.tolist(), 32)] if weighted else [])])
        items = await deltas.receive(len(expected) // 8)
        await ClockCycles(dut.clk, 3)
        assert (len(saturated) > before) == flags.residual_saturated
    assert [value for item in items for value in unpack(item, 32, 8)] == expected


@cocotb.test()
@cocotb.parametrize(weighted=[0, 1])
async def latency(dut, weighted):
    """From sums whose labels have come to deltas, and full rate: a micro-batch every two cycles, or three."""
    sums, labels = StreamSource(dut, "sums"), StreamSource(dut, "labels")
    drive(dut, table_index_strobe=0, table_intercept_strobe=0, label_mode_weighted=weighted)
    await start(dut)
    taken, answered = Cycles(dut, "sums__valid", "sums__ready"), Cycles(dut, "deltas__valid")
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
