"""PartialSum against golden.partial."""

import random
from dataclasses import asdict

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import PulseCounter
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def adds_and_clamps(dut, stall):
    config = WorkerConfig(**parameters()["config"])
    sources = [StreamSource(dut, f"dots__{engine}", stall, flow=True) for engine in range(config.engines)]
    sink = StreamSink(dut, "partials", stall)
    await start(dut)
    clamps = PulseCounter(dut, "status_partial_clamped")
    expected: list[int] = []
    expected_clamps = 0
    for _ in range(12):
        precision, is_signed = random.randint(1, 8), bool(random.getrandbits(1))
        settings = RunSettings(
            FeatureFormat(8, precision, is_signed), 1, 1, 1, LabelMode(), 1, 10, workers=random.randint(1, 32)
        )
        dut.format_precision.value, dut.format_signed.value = precision, int(is_signed)
        dut.partial_limit.value = settings.partial_limit
        for _ in range(4):
            await RisingEdge(dut.clk)
        # Magnitudes around the limits, and the extremes of the width.
        fraction = settings.features.fraction
        top = 1 << (config.dot_bits - 1 - fraction)
        for index in range(30):
            reach = top if index < 2 else min(top, 1 << random.randint(1, 43))
            shares = np.array([[random.randint(-reach, reach - 1) for _ in range(8)] for _ in range(config.engines)])
            if index == 0:
                shares[:] = -top
            if index == 1:
                shares[:] = top - 1
            flags = golden.Flags()
            expected += golden.partial(shares.sum(axis=0), settings, flags).tolist()
            expected_clamps += flags.partial_clamped
            for engine, source in enumerate(sources):
                source.send([pack((shares[engine] << fraction).tolist(), config.dot_bits)])
        items = await sink.receive(len(expected) // 8)
        for _ in range(5):
            await RisingEdge(dut.clk)
    assert [value for item in items for value in unpack(item, 32, 8)] == expected
    assert 0 < expected_clamps == clamps.count


@cocotb.test()
async def latency(dut):
    """From the last engine's dots to the partials."""
    config = WorkerConfig(**parameters()["config"])
    sources = [StreamSource(dut, f"dots__{engine}", flow=True) for engine in range(config.engines)]
    dut.format_precision.value, dut.format_signed.value, dut.partial_limit.value = 8, 0, 1 << 20
    dut.partials__ready.value = 1
    await start(dut)
    complete, answered = [], []

    async def watch():
        cycle, came = 0, [0] * config.engines
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            for engine in range(config.engines):
                came[engine] += int(getattr(dut, f"dots__{engine}__valid").value)
            if min(came) > len(complete):
                complete.append(cycle)
            if dut.partials__valid.value:
                answered.append(cycle)

    cocotb.start_soon(watch())
    for _ in range(50):
        for engine in random.sample(range(config.engines), config.engines):
            sources[engine].send([random.getrandbits(8 * config.dot_bits)])
            await ClockCycles(dut.clk, random.randint(2, 5))
    for source in sources:  # and a micro-batch a cycle
        source.send(random.getrandbits(8 * config.dot_bits) for _ in range(config.in_flight))
    await ClockCycles(dut.clk, 2 * config.in_flight + parameters()["latency"] + 5)
    assert len(complete) == 50 + config.in_flight
    assert answered == [cycle + parameters()["latency"] for cycle in complete]


@pytest.mark.rtl
@pytest.mark.parametrize("engines", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_partial_sum(engines):
    config = WorkerConfig(engines=engines, lanes=8, chunks=65536, line_fifo_depth=128, slots=64, table_segments=64)
    component = PartialSum(config)
    run_bench(component, __file__, config=asdict(config), latency=component.latency(config))
