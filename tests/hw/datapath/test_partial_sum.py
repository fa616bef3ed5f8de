"""PartialSum against golden.partial; tests/system/test_cycles.py holds it to its latency."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles
from support.bench import run_bench, start, worker_config
from support.differences import assert_same
from support.signals import Cycles, drive
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden


def random_sums(limit: int, top: int) -> list[int]:
    """Sums of eight samples: none beyond the limits, which many have, or one, just or far; or of any magnitude.

    Those that no activation holds include the least that it cannot.
    """
    if random.random() < 0.3:
        reach = min(top, 1 << random.randint(1, 43))
        return [random.randint(-reach, reach - 1) for _ in range(8)]
    near = (limit, limit - 1, 1 - limit, -limit, 0, random.randint(-limit, limit))
    sums = [random.choice(near) for _ in range(8)]
    if random.random() < 0.7:
        edge = random.choice([limit, ACTIVATION.maximum, -limit - 1, ACTIVATION.minimum])
        distance = random.choice([0, 1, 2, 1 << random.randrange(40)])
        sums[random.randrange(8)] = edge + distance if edge > 0 else edge - distance
    return sums


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
        top = 1 << (config.dot_bits - 1 - form.fraction)
        for index in range(30):
            if index < 2:  # the extremes of the width
                shares = np.full((config.engines, 8), (-top, top - 1)[index])
            else:
                reach = min(top >> 1, 1 << random.randint(1, 43))
                shares = np.array([[random.randint(-reach, reach - 1) for _ in range(8)] for _ in sources])
                shares[-1] = random_sums(settings.partial_limit, top >> 1) - shares[:-1].sum(axis=0)
                shares = np.clip(shares, -top, top - 1)
            flags = golden.Flags()
            expected += golden.partial(shares.sum(axis=0), settings, flags).tolist()
            clamps += flags.partial_clamped
            for source, share in zip(sources, shares, strict=True):
                source.send([pack((share << form.fraction).tolist(), config.dot_bits)])
        items = await sink.receive(len(expected) // 8)
        await ClockCycles(dut.clk, 5)
        assert len(clamped) == clamps, f"micro-batches before {len(items)} that are flagged as clamped"
    assert_same("partial", [value for item in items for value in unpack(item, 32, 8)], expected, "sample")
    assert 0 < clamps < len(items)


@pytest.mark.rtl
@pytest.mark.parametrize("engines", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_partial_sum(engines):
    config = WorkerConfig(engines=engines, lanes=8, chunks=65536, line_fifo_depth=128, slots=64, table_segments=64)
    run_bench(PartialSum(config), __file__, config=config)
