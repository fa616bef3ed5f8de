"""DotProduct against golden.dot and Round 1, with random stalls, configurations and runs."""

import random
from collections import deque
from typing import Any

import cocotb
import numpy as np
import pytest
from amaranth.sim import Simulator
from cocotb.triggers import ReadOnly, RisingEdge
from cocotb.utils import get_sim_time
from support.bench import default_seed, parameters, run_sizes, start, worker_config
from support.differences import assert_same
from support.line_sequences import begin_run, engine_config, line_sequence, make_sparse, pack_kept
from support.signals import Cycles, drive
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.forward import DotProduct, MaskedSum
from p4sgd.hw.datapath.lines import place_layout
from p4sgd.hw.datapath.model import MODEL_READ_LATENCY
from p4sgd.hw.spec.fixed import round_half_up
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.hw.spec.timing import forward_stages
from p4sgd.sim import golden


def shows(dut, *flags: str) -> bool:
    """Whether these flags of the place that is shown are all set."""
    layout, place = place_layout(worker_config()), int(dut.place.value)
    return all(place >> layout[flag].offset & 1 for flag in flags)


async def serve_weights(dut, chunks):
    """Answer on ``weights`` for ever; ``chunks`` are the words. Weights that nobody reads now are random."""
    lanes = worker_config().lanes
    stages = forward_stages(lanes)
    bits = 32 * lanes // stages  # of a stage
    reads: deque[int] = deque(maxlen=stages + MODEL_READ_LATENCY)  # the latest first; random words if there are none
    while True:
        await ReadOnly()
        enabled, address = dut.weights__enable.value, int(dut.weights__address.value)
        reads.appendleft(chunks[address] if enabled else random.getrandbits(stages * bits))
        await RisingEdge(dut.clk)
        stagewise = list(reads)[MODEL_READ_LATENCY - 1 :]
        words = [word >> bits * stage & (1 << bits) - 1 for stage, word in enumerate(stagewise)]
        dut.weights__data.value = pack(words, bits)


def lead_to_ties(rng, q, w, unit, shift):
    """Change weights and features so that most exact dot products are at half a step, at a whole one, or 1 beside.

    All weights become multiples of half a step. One of each unit may be 1 beside; its features are −1, 0 and 1.
    """
    w[:] = np.clip(w >> shift - 1 << shift - 1, -(1 << 31) + 1, None)  # so that one less still fits
    odd = np.arange(0, w.size, unit) + rng.integers(unit, size=-(-w.size // unit))
    odd = odd[odd < w.size]
    w[odd] += rng.integers(-1, 2, odd.size)
    q[:, odd] = np.clip(q[:, odd], -1, 1)


async def watch(dut, ends, last):
    """Note of every line that is taken whether its micro-batch is the first or last, and cycles of last lines.

    A line that is there is taken, unless one is told to pass over chunks first.
    """
    while True:
        await ReadOnly()
        ends_micro_batch = bool(dut.took.value) and shows(dut, "last_plane", "last_chunk")
        if dut.took.value:
            ends.append((int(dut.first_micro_batch.value), int(dut.last_micro_batch.value)))
            assert not dut.passes.value
        elif all(port.value for port in (dut.lines__valid, dut.kept__ready, dut.permit_chunk, dut.permit_micro_batch)):
            assert dut.passes.value
        await RisingEdge(dut.clk)
        last += [int(get_sim_time("ns")) // 4] * ends_micro_batch  # as `Cycles` counts


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3])
async def rounded_dot_products(dut, stall):
    config = worker_config()
    rng = np.random.default_rng(random.getrandbits(32))
    lines, kept = StreamSource(dut, "lines", stall), StreamSink(dut, "kept", stall)
    dots = StreamSink(dut, "dots", flow=True)
    drive(dut, permit_chunk=1, permit_micro_batch=1)
    chunks: list[int] = [0] * config.chunks
    cocotb.start_soon(serve_weights(dut, chunks))
    await start(dut)

    async def deny(permit, *needing):
        """Withdraw a permit now and then for some cycles, as its rule is: only with a line taken that needs it."""
        while stall:
            await ReadOnly()
            used, permitted = dut.took.value and shows(dut, *needing), bool(permit.value)
            assert permitted or not used
            await RisingEdge(dut.clk)
            if used or not permitted:
                permit.value = int(random.random() > (0.5 if used else 1 - stall))

    cocotb.start_soon(deny(dut.permit_chunk, "first_plane"))
    cocotb.start_soon(deny(dut.permit_micro_batch, "first_plane", "first_chunk"))
    passed_over, permitted = Cycles(dut, "passed_over"), Cycles(dut, "passed_over", "permit_chunk")
    ends: list[tuple[int, int]] = []
    last: list[int] = []
    cocotb.start_soon(watch(dut, ends, last))
    answered = Cycles(dut, "dots__valid")
    sent: list[int] = []
    sent_ends: list[tuple[bool, bool]] = []
    absent = 0
    expected: list[int] = []
    for run in range(8):
        precision, is_signed = random.randint(1, 8), run == 2 or (run != 1 and bool(random.getrandbits(1)))
        used = config.chunks if run == 0 else random.randint(1, min(4, config.chunks))
        micro_batches = random.randint(1, 5)
        unit_chunks = random.randint(0, (64 // config.lanes - 1).bit_length())
        low, high = (-(1 << precision - 1), 1 << precision - 1) if is_signed else (0, 1 << precision)
        q = rng.integers(low, high, (8 * micro_batches, used * config.lanes))
        w = rng.integers(-(1 << 31), 1 << 31, used * config.lanes)
        if run in (1, 2):  # the largest magnitudes there are
            q[:], w[:] = (low if is_signed else high - 1), -(1 << 31)
        directory = run in (3, 4, 6)
        if directory:
            q = make_sparse(rng, q, config.lanes)
        form, unit = FeatureFormat(precision, precision, is_signed), config.lanes << unit_chunks
        if run not in (1, 2) and random.random() < 0.7:
            lead_to_ties(rng, q, w, unit, form.forward_shift)
        for chunk in range(used):
            chunks[chunk] = pack(w[chunk * config.lanes : (chunk + 1) * config.lanes].tolist(), 32)
        layout = ImageLayout(config, q.shape[1], q.shape[0], precision, config.lanes, directory)
        assert layout.chunks == used
        items = line_sequence(layout, q)
        of_mini_batch = random.randint(1, 3)
        drive(dut, unit_chunks=unit_chunks, directory=directory, precision=precision, signed=is_signed)
        drive(dut, chunks=used, micro_batches=of_mini_batch)
        await begin_run(dut)
        lines.send(item.word for item in items)
        for item in items:
            if item.place is not None:
                sent.append(pack_kept(config, item))
                place = item.micro_batch % of_mini_batch
                sent_ends.append((place == 0, place == of_mini_batch - 1))
        absent += sum(item.absent for item in items if item.micro_batch % of_mini_batch == 0)
        t = golden.dot(q, w, unit)
        sums = round_half_up(t, form.forward_shift).sum(axis=1) << form.fraction
        expected += sums.tolist()
        got = await dots.receive(len(expected) // 8)
    assert_same("dot", [value for item in got for value in unpack(item, config.dot_bits, 8)], expected, "sample")
    latencies = np.array(answered) - last
    assert_same("cycles to the dots", latencies, np.full_like(latencies, parameters()["latency"]), "micro-batch")
    assert list(kept.items) == sent
    assert_same("first and last micro-batch", ends, sent_ends, "line", "flag")
    assert len(passed_over) == len(permitted) == absent


@pytest.mark.parametrize("lanes", [8, 64])
def test_masked_sum(lanes):
    """With one cascade and with several, of random and of extreme weights, every cycle."""
    rng = np.random.default_rng(default_seed())
    config = engine_config(lanes, 2)
    dut, stages = MaskedSum(config), forward_stages(lanes)
    cycles, latency = 40, MaskedSum.latency(config)
    bits = rng.random((cycles, lanes)) < rng.choice([0, 0.5, 1], (cycles, 1))
    negative = rng.random(cycles) < 0.3
    weights = rng.integers(-(1 << 31), 1 << 31, (cycles, lanes))
    weights = np.where(rng.random((cycles, 1)) < 0.5, rng.choice([-(1 << 31), (1 << 31) - 1], (cycles, 1)), weights)
    stage = np.arange(lanes) // (lanes // stages)
    sums = []

    async def drive_and_look(ctx):
        for cycle in range(cycles + latency):
            ctx.set(dut.bits, pack(bits[cycle % cycles].tolist(), 1))
            ctx.set(dut.negative, int(negative[cycle % cycles]))
            ctx.set(dut.weights, weights[(cycle - stage) % cycles, np.arange(lanes)].tolist())
            sums.append(ctx.get(dut.o))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(4e-9)
    simulator.add_testbench(drive_and_look)
    simulator.run()
    expected = np.where(bits, weights, 0).sum(axis=1) * np.where(negative, -1, 1)
    assert_same("sum of a plane", sums[latency:], expected, "cycle")


def example(lanes: int, chunks: int) -> tuple[DotProduct, dict[str, Any]]:
    config = engine_config(lanes, chunks)
    return DotProduct(config), {"config": config, "latency": DotProduct.latency(config)}


@pytest.mark.rtl
def test_dot_product():
    """The second has fewer chunks than the largest unit."""
    run_sizes({"lanes8": example(8, 8), "lanes16": example(16, 2)}, __file__)


@pytest.mark.rtl
@pytest.mark.slow
def test_lanes_of_a_unit():
    """With 64 lanes every chunk is a unit."""
    run_sizes({"lanes64": example(64, 8)}, __file__)
