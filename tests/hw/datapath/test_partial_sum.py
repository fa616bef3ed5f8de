"""PartialSum against golden.partial; tests/system/test_cycles.py holds it to its latency."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles
from support.bench import run_bench, start, worker_config
from support.signals import Cycles, drive
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def adds_and_clamps(dut, stall):
    config = worker_config()
    sources = [StreamSource(dut, f"dots__{engine}", stall, flow=True) for engine in range(config.engines)]
    sink = StreamSink(dut, "partials", stall)
    await start(dut)
    clamped = Cycles(dut, "status_partial_clamped")
    expected, clamps = [], 0
    for _ in range(12):
        form = FeatureFormat(8, random.randint(1, 8), bool(random.getrandbits(1)))
        settings = RunSettings(form, 1, 1, 1, LabelMode(), 1, 10, workers=random.randint(1, 32))
        drive(dut, format_precision=form.precision, format_signed=form.signed, partial_limit=settings.partial_limit)
        await ClockCycles(dut.clk, 4)
        # Magnitudes around the limits, and the extremes of the width.
        top = 1 << (config.dot_bits - 1 - form.fraction)
        for index in range(30):
            reach = min(top, 1 << random.randint(1, 43))
            shares = np.array([[random.randint(-reach, reach - 1) for _ in range(8)] for _ in sources])
            if index < 2:
                shares[:] = (-top, top - 1)[index]
            flags = golden.Flags()
            expected += golden.partial(shares.sum(axis=0), settings, flags).tolist()
            clamps += flags.partial_clamped
            for source, share in zip(sources, shares, strict=True):
                source.send([pack((share << form.fraction).tolist(), config.dot_bits)])
        items = await sink.receive(len(expected) // 8)
        await ClockCycles(dut.clk, 5)
    assert [value for item in items for value in unpack(item, 32, 8)] == expected
    assert 0 < clamps == len(clamped)


@pytest.mark.rtl
@pytest.mark.parametrize("engines", [*(pytest.param(count, marks=pytest.mark.slow) for count in (1, 4)), 3])
def test_partial_sum(engines):
    config = WorkerConfig(engines=engines, lanes=8, chunks=65536, line_fifo_depth=128, slots=64, table_segments=64)
    run_bench(PartialSum(config), __file__, config=config)
