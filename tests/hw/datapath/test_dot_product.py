"""DotProduct against golden.dot and Round 1, with random stalls, configurations and runs."""

import random
from dataclasses import asdict
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import parameters, run_sizes, start
from support.line_sequences import begin_run, engine_config, line_sequence, make_sparse, pack_kept
from support.model_memory import serve_weights
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.lines import place_layout
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import round_half_up
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim import golden


def place_flag(dut, config: WorkerConfig, name: str) -> bool:
    """A flag of the place that is shown."""
    return bool(int(dut.place.value) >> place_layout(config)[name].offset & 1)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3])
async def rounded_dot_products(dut, stall):
    config = WorkerConfig(**parameters()["config"])
    rng = np.random.default_rng(random.getrandbits(32))
    lines = StreamSource(dut, "lines", stall)
    kept = StreamSink(dut, "kept", stall)
    dots = StreamSink(dut, "dots", flow=True)
    dut.permit_chunk.value = dut.permit_micro_batch.value = 1
    chunks: list[int] = [0] * config.chunks
    cocotb.start_soon(serve_weights(dut, chunks))
    await start(dut)

    async def deny(permit, *needing):
        """Withdraw a permit now and then, as its rule is: only with a line taken that needs it."""
        while stall:
            await ReadOnly()
            used = dut.took.value and all(place_flag(dut, config, flag) for flag in needing)
            permitted = bool(permit.value)
            assert permitted or not used
            await RisingEdge(dut.clk)
            if used or not permitted:
                permit.value = int(random.random() > stall)

    cocotb.start_soon(deny(dut.permit_chunk, "first_plane"))
    cocotb.start_soon(deny(dut.permit_micro_batch, "first_plane", "first_chunk"))
    passed_over = [0]

    async def count_passed_over():
        while True:
            await ReadOnly()
            passed_over[0] += int(dut.passed_over.value)
            assert not dut.passed_over.value or dut.permit_chunk.value
            await RisingEdge(dut.clk)

    cocotb.start_soon(count_passed_over())
    sent: list[int] = []
    absent = 0
    expected: list[int] = []
    for run in range(8):
        precision, is_signed = random.randint(1, 8), bool(random.getrandbits(1))
        used = config.chunks if run == 0 else random.randint(1, min(4, config.chunks))
        micro_batches = random.randint(1, 5)
        unit_chunks = random.randint(0, (64 // config.lanes - 1).bit_length())
        low, high = (-(1 << precision - 1), 1 << precision - 1) if is_signed else (0, 1 << precision)
        q = rng.integers(low, high, (8 * micro_batches, used * config.lanes))
        w = rng.integers(-(1 << 31), 1 << 31, used * config.lanes)
        if run == 1:  # the largest magnitude there is
            q[:], w[:] = (low if is_signed else high - 1), -(1 << 31)
        directory = run in (2, 3) or (run > 3 and bool(random.getrandbits(1)))
        if directory:
            q = make_sparse(rng, q, config.lanes)
        for chunk in range(used):
            chunks[chunk] = pack(w[chunk * config.lanes : (chunk + 1) * config.lanes].tolist(), 32)
        layout = ImageLayout(config, q.shape[1], q.shape[0], precision, config.lanes, directory)
        assert layout.chunks == used
        items = line_sequence(layout, q)
        of_mini_batch = random.randint(1, 3)
        dut.unit_chunks.value, dut.directory.value = unit_chunks, int(directory)
        dut.precision.value, dut.signed.value = precision, int(is_signed)
        dut.chunks.value, dut.micro_batches.value = used, of_mini_batch
        await begin_run(dut)
        lines.send(item.word for item in items)
        sent += [pack_kept(config, item) for item in items if item.place is not None]
        absent += sum(item.absent for item in items if item.micro_batch % of_mini_batch == 0)
        form = FeatureFormat(precision, precision, is_signed)
        t = golden.dot(q, w, config.lanes << unit_chunks)
        sums = round_half_up(t, form.forward_shift).sum(axis=1) << form.fraction
        for micro_batch in range(micro_batches):
            expected += sums[8 * micro_batch : 8 * micro_batch + 8].tolist()
        got = await dots.receive(len(expected) // 8)
    flat = [value for item in got for value in unpack(item, config.dot_bits, 8)]
    assert flat == expected
    assert list(kept.items) == sent
    assert passed_over[0] == absent


@cocotb.test()
async def a_line_every_cycle(dut):
    config = WorkerConfig(**parameters()["config"])
    dut.kept__ready.value = 1
    dut.permit_chunk.value = dut.permit_micro_batch.value = 1
    chunks = min(3, config.chunks)
    lines = 2 * chunks
    dut.precision.value, dut.signed.value, dut.chunks.value, dut.micro_batches.value = 2, 0, chunks, 4
    dut.unit_chunks.value = dut.directory.value = 0
    await start(dut)
    await begin_run(dut)
    await RisingEdge(dut.clk)
    dut.lines__valid.value = 1
    seen, last = [], []
    for cycle in range(lines * 20 + 40):
        dut.lines__valid.value = int(cycle < lines * 20)
        await ReadOnly()
        if dut.took.value and all(place_flag(dut, config, flag) for flag in ("last_plane", "last_chunk")):
            last.append((cycle, int(dut.last_micro_batch.value)))
        assert dut.lines__ready.value, f"refused a line in cycle {cycle}"
        if dut.dots__valid.value:
            seen.append(cycle)
        await RisingEdge(dut.clk)
    latency = parameters()["latency"]
    assert seen == [lines * (item + 1) - 1 + latency for item in range(20)]
    assert last == [(lines * (item + 1) - 1, int(item % 4 == 3)) for item in range(20)]


@cocotb.test()
async def a_directory_takes_two_cycles(dut):
    """Lines of one chunk, the last, so that the directories of micro-batches follow each other."""
    config = WorkerConfig(**parameters()["config"])
    dut.kept__ready.value = dut.permit_chunk.value = dut.permit_micro_batch.value = 1
    dut.precision.value, dut.signed.value, dut.chunks.value, dut.micro_batches.value = 2, 0, 1, 4
    dut.unit_chunks.value, dut.directory.value = 0, 1
    await start(dut)
    await begin_run(dut)
    items = line_sequence(ImageLayout(config, 1, 32, 2, 8, directory=True), np.full((32, 1), 3))
    dut.lines__valid.value = 1
    cycles = []
    for item in items:
        dut.lines__payload.value = item.word
        cycles.append(0)
        ready = False
        while not ready:
            await ReadOnly()
            ready = bool(dut.lines__ready.value)
            assert dut.passes.value or (ready and dut.took.value)
            await RisingEdge(dut.clk)
            cycles[-1] += 1
    assert cycles == 4 * [1, 2, 1]


def example(lanes: int, chunks: int) -> tuple[DotProduct, dict[str, Any]]:
    config = engine_config(lanes, chunks)
    return DotProduct(config), {"config": asdict(config), "latency": DotProduct.latency(config)}


@pytest.mark.rtl
def test_dot_product():
    """The second has fewer chunks than the largest unit."""
    run_sizes({"lanes8": example(8, 8), "lanes16": example(16, 2)}, __file__)


@pytest.mark.rtl
@pytest.mark.slow
def test_more_sizes():
    """With 64 lanes every chunk is a unit."""
    run_sizes({"lanes8": example(8, 2), "lanes16": example(16, 8), "lanes64": example(64, 8)}, __file__)
