"""Gradient against golden.gradient."""

import random
from dataclasses import asdict

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import parameters, run_sizes, start
from support.streams import StreamSource, pack, unpack

from p4sgd.hw.datapath.backward import GRADIENT_BITS, Gradient
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.sim import golden

SPACING = Model.UPDATE_SPACING


class Collector:
    """Notes every gradient with its cycle."""

    def __init__(self, dut, lanes: int) -> None:
        self.items: list[tuple[int, int, int, list[int]]] = []
        self._dut = dut
        self._lanes = lanes
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        dut, cycle = self._dut, 0
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            if dut.gradients__valid.value:
                values = unpack(int(dut.gradients__values.value), GRADIENT_BITS, self._lanes)
                self.items.append((cycle, int(dut.gradients__chunk.value), int(dut.gradients__final.value), values))


async def begin(dut):
    """Start a run once the settings have been there for two cycles."""
    for start_now in (0, 0, 1):
        dut.start.value = start_now
        await RisingEdge(dut.clk)
    dut.start.value = 0


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3])
async def exact_gradients(dut, stall):
    config = WorkerConfig(**parameters()["config"])
    rng = np.random.default_rng(random.getrandbits(32))
    lines = StreamSource(dut, "lines", stall)
    deltas = StreamSource(dut, "deltas", stall, flow=True)
    await start(dut)
    collector = Collector(dut, config.lanes)
    for run in range(10):
        collector.items.clear()
        precision, is_signed = random.randint(1, 8), bool(random.getrandbits(1))
        chunks = config.chunks if run == 0 else random.randint(1, 4)
        of_mini_batch, mini_batches = random.randint(1, 3), random.randint(1, 3)
        micro_batches = of_mini_batch * mini_batches
        low, high = (-(1 << precision - 1), 1 << precision - 1) if is_signed else (0, 1 << precision)
        q = rng.integers(low, high, (8 * micro_batches, chunks * config.lanes))
        d = rng.integers(1 - (1 << 31), 1 << 31, 8 * micro_batches)
        if run == 1:
            q[:], d[:] = (low if is_signed else high - 1), 1 - (1 << 31)
        layout = ImageLayout(config, q.shape[1], q.shape[0], precision, config.lanes)
        words = layout.pack_lines(q)[0].reshape(-1, config.line_bytes)
        dut.precision.value, dut.signed.value = precision, int(is_signed)
        dut.chunks.value, dut.micro_batches.value = chunks, of_mini_batch
        await begin(dut)
        lines.send(int.from_bytes(word.tobytes(), "little") for word in words)
        deltas.send(pack(d[8 * t : 8 * t + 8].tolist(), 32) for t in range(micro_batches))
        for _ in range(20_000):
            await RisingEdge(dut.clk)
            if len(collector.items) == micro_batches * chunks:
                break
        expected = []
        for t in range(micro_batches):
            g = golden.gradient(q[8 * t : 8 * t + 8], d[8 * t : 8 * t + 8]).reshape(chunks, -1)
            final = int(t % of_mini_batch == of_mini_batch - 1)
            expected += [(chunk, final, g[chunk].tolist()) for chunk in range(chunks)]
        assert [item[1:] for item in collector.items] == expected
        cycles = [item[0] for item in collector.items]
        for earlier, later in zip(cycles, cycles[chunks:], strict=False):
            assert later - earlier >= SPACING, "the same chunk came again too soon"
        if stall == 0.0:  # nothing but the spacing holds a micro-batch up
            distance = max(SPACING, chunks * precision)
            assert cycles[chunks::chunks] == [cycles[0] + distance * t for t in range(1, micro_batches)]


@cocotb.test()
async def begins_as_soon_as_it_says(dut):
    begin_latency, latency = parameters()["begin_latency"], parameters()["latency"]
    dut.precision.value, dut.signed.value, dut.chunks.value, dut.micro_batches.value = 3, 0, 2, 1
    dut.lines__valid.value = 1
    dut.deltas__valid.value = 0
    await start(dut)
    await begin(dut)
    await ReadOnly()
    assert not dut.busy.value
    assert not dut.lines__ready.value
    await RisingEdge(dut.clk)
    seen = {"began": [], "busy": [], "took": [], "gradients__valid": []}
    places = []
    for cycle in range(40):
        dut.deltas__valid.value = int(cycle in (0, 1))
        await ReadOnly()
        if dut.took.value:
            places.append((int(dut.first_line.value), int(dut.last_line.value)))
        for name, cycles in seen.items():
            if getattr(dut, name).value:
                cycles.append(cycle)
        await RisingEdge(dut.clk)
    first = begin_latency
    second = first + SPACING  # more than the six lines of a micro-batch
    assert seen["took"] == [*range(first, first + 6), *range(second, second + 6)]
    assert places == 2 * [(1, 0), *4 * [(0, 0)], (0, 1)]
    assert seen["busy"] == list(range(first, second + 6))
    assert seen["began"] == [first - 1, first + 5]
    assert seen["gradients__valid"] == [line + latency for line in (first + 2, first + 5, second + 2, second + 5)]


@pytest.mark.rtl
def test_gradient():
    sizes = {}
    for lanes in (8, 16):
        config = WorkerConfig(engines=1, lanes=lanes, chunks=8, line_fifo_depth=128, slots=32, table_segments=64)
        component = Gradient(config, spacing=SPACING)
        latencies = {"begin_latency": component.BEGIN_LATENCY, "latency": component.LATENCY}
        sizes[f"lanes{lanes}"] = component, {"config": asdict(config), **latencies}
    run_sizes(sizes, __file__)
