"""DotProduct against golden.dot and Round 1, with random stalls, configurations and runs."""

import dataclasses
import random
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import parameters, run_sizes, start
from support.model_memory import serve_weights
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import round_half_up
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim import golden


def lines_of(config, q, stored):
    layout = ImageLayout(config, q.shape[1], q.shape[0], stored, config.lanes)
    packed = layout.pack_lines(q)[0].reshape(-1, config.line_bytes)
    return layout, [int.from_bytes(line.tobytes(), "little") for line in packed]


async def begin(dut):
    """Start a run once the settings have been there for two cycles."""
    for start_now in (0, 0, 1):
        dut.start.value = start_now
        await RisingEdge(dut.clk)
    dut.start.value = 0


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
            used = dut.took.value and all(flag.value for flag in needing)
            permitted = bool(permit.value)
            assert permitted or not used
            await RisingEdge(dut.clk)
            if used or not permitted:
                permit.value = int(random.random() > stall)

    cocotb.start_soon(deny(dut.permit_chunk, dut.first_plane))
    cocotb.start_soon(deny(dut.permit_micro_batch, dut.first_plane, dut.first_chunk))
    sent: list[int] = []
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
        for chunk in range(used):
            chunks[chunk] = pack(w[chunk * config.lanes : (chunk + 1) * config.lanes].tolist(), 32)
        layout, words = lines_of(config, q, precision)
        assert layout.chunks == used
        dut.unit_chunks.value = unit_chunks
        dut.precision.value, dut.signed.value = precision, int(is_signed)
        dut.chunks.value, dut.micro_batches.value = used, random.randint(1, 3)
        await begin(dut)
        lines.send(words)
        sent += words
        form = FeatureFormat(precision, precision, is_signed)
        t = golden.dot(q, w, config.lanes << unit_chunks)
        sums = round_half_up(t, form.forward_shift).sum(axis=1) << form.fraction
        for micro_batch in range(micro_batches):
            expected += sums[8 * micro_batch : 8 * micro_batch + 8].tolist()
        got = await dots.receive(len(expected) // 8)
    flat = [value for item in got for value in unpack(item, config.dot_bits, 8)]
    assert flat == expected
    assert list(kept.items) == sent


@cocotb.test()
async def a_line_every_cycle(dut):
    dut.kept__ready.value = 1
    dut.permit_chunk.value = dut.permit_micro_batch.value = 1
    chunks = min(3, parameters()["config"]["chunks"])
    lines = 2 * chunks
    dut.precision.value, dut.signed.value, dut.chunks.value, dut.micro_batches.value = 2, 0, chunks, 4
    dut.unit_chunks.value = 0
    await start(dut)
    await begin(dut)
    dut.lines__valid.value = 1
    seen, last = [], []
    for cycle in range(lines * 20 + 40):
        dut.lines__valid.value = int(cycle < lines * 20)
        await ReadOnly()
        if dut.took.value and dut.last_line.value:
            last.append((cycle, int(dut.last_micro_batch.value)))
        assert dut.lines__ready.value, f"refused a line in cycle {cycle}"
        if dut.dots__valid.value:
            seen.append(cycle)
        await RisingEdge(dut.clk)
    latency = parameters()["latency"]
    assert seen == [lines * (item + 1) - 1 + latency for item in range(20)]
    assert last == [(lines * (item + 1) - 1, int(item % 4 == 3)) for item in range(20)]


def example(lanes: int, chunks: int) -> tuple[DotProduct, dict[str, Any]]:
    config = WorkerConfig(engines=1, lanes=lanes, chunks=chunks, line_fifo_depth=128, slots=4, table_segments=64)
    return DotProduct(config), {"config": dataclasses.asdict(config), "latency": DotProduct.latency(config)}


@pytest.mark.rtl
def test_dot_product():
    """The second has fewer chunks than the largest unit."""
    run_sizes({"lanes8": example(8, 8), "lanes16": example(16, 2)}, __file__)


@pytest.mark.rtl
@pytest.mark.slow
def test_more_sizes():
    """With 64 lanes every chunk is a unit."""
    run_sizes({"lanes8": example(8, 2), "lanes16": example(16, 8), "lanes64": example(64, 8)}, __file__)
