"""Gradient against golden.gradient; tests/system/test_cycles.py holds it to its latency."""

import itertools
import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import run_sizes, start, worker_config
from support.differences import assert_same
from support.directory_cycles import BackwardPass
from support.line_sequences import Line, begin_run, engine_config, line_sequence, make_sparse, pack_kept
from support.signals import Cycles, cycles_until, drive
from support.streams import StreamSource, pack, unpack

from p4sgd.hw.datapath.backward import GRADIENT_BITS, Gradient
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.timing import TABLE_ENTRIES
from p4sgd.sim import golden

SPACING = Model.UPDATE_SPACING


async def collect(dut, lanes: int, items: list[tuple[int, int, int, int, list[int]]]) -> None:
    """Note every gradient with its cycle, its chunk and its flags."""
    for cycle in itertools.count(1):
        await RisingEdge(dut.clk)
        if dut.gradients__valid.value:
            values = unpack(int(dut.gradients__values.value), GRADIENT_BITS, lanes)
            place = (int(getattr(dut, f"gradients__{name}").value) for name in ("chunk", "final", "last"))
            items.append((cycle, *place, values))


def gradient_cycles(items: list[Line], of_mini_batch: int) -> list[int]:
    """Cycles in which gradients come, from the first one on, if nothing but their distance holds lines up."""
    backward, cycles = BackwardPass(), []
    for micro_batch, lines in itertools.groupby(items, lambda item: item.micro_batch):
        chunks: dict[int, list[int]] = {}
        for line in lines:
            chunks.setdefault(line.place["chunk"], []).append(line.plane)
        listed = [(chunk, len(planes), planes[-1] - planes[0] + 1) for chunk, planes in chunks.items()]
        final = micro_batch % of_mini_batch == of_mini_batch - 1
        cycles += [cycle for cycle, _ in backward.take(listed, 0, final=final)[1]]
    return [cycle - cycles[0] for cycle in cycles]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3])
async def exact_gradients(dut, stall):
    config = worker_config()
    rng = np.random.default_rng(random.getrandbits(32))
    lines = StreamSource(dut, "lines", stall)
    deltas = StreamSource(dut, "deltas", stall, flow=True)
    await start(dut)
    got: list[tuple[int, int, int, int, list[int]]] = []
    cocotb.start_soon(collect(dut, config.lanes, got))
    pulses = [Cycles(dut, *names) for names in (["began"], ["took", "first_line"], ["took", "last_line"], ["took"])]
    for run in range(20):
        got.clear()
        precision, is_signed = random.randint(1, 8), bool(random.getrandbits(1))
        chunks = config.chunks if run == 0 else random.randint(1, random.choice([4, config.chunks]))
        of_mini_batch, mini_batches = random.randint(1, 3), random.randint(1, 3)
        if run in (2, 3):  # a line a micro-batch, each of the same chunk
            precision, chunks = 1, 1
        micro_batches = of_mini_batch * mini_batches
        low, high = (-(1 << precision - 1), 1 << precision - 1) if is_signed else (0, 1 << precision)
        q = rng.integers(low, high, (8 * micro_batches, chunks * config.lanes))
        d = rng.integers(1 - (1 << 31), 1 << 31, 8 * micro_batches)
        if run == 1:
            q[:], d[:] = (low if is_signed else high - 1), 1 - (1 << 31)
        directory = run > 1 and bool(random.getrandbits(1))
        if directory:
            q = make_sparse(rng, q, config.lanes)
        layout = ImageLayout(config, q.shape[1], q.shape[0], precision, config.lanes, directory)
        items = [item for item in line_sequence(layout, q) if item.place is not None]
        drive(dut, signed=is_signed, micro_batches=of_mini_batch)
        await begin_run(dut)
        await ClockCycles(dut.clk, SPACING)  # lines come later than this
        deltas.send(pack(d[8 * t : 8 * t + 8].tolist(), 32) for t in range(micro_batches))
        if stall:  # now and then until tables are filled for two micro-batches
            await ClockCycles(dut.clk, random.choice([0, 3 * TABLE_ENTRIES]))
        lines.send(pack_kept(config, item) for item in items)
        expected, places = [], []
        for t in range(micro_batches):
            g = golden.gradient(q[8 * t : 8 * t + 8], d[8 * t : 8 * t + 8]).reshape(chunks, -1)
            final = int(t % of_mini_batch == of_mini_batch - 1)
            listed = {item.place["chunk"] for item in items if item.micro_batch == t}
            here = [chunk for chunk in range(chunks) if final or chunk in listed]
            expected += [(chunk, final, int(chunk == chunks - 1), g[chunk]) for chunk in here]
            places += [f"micro-batch {t}, chunk {chunk}" for chunk in here]
        await cycles_until(dut, lambda: len(got) == len(expected))  # noqa: B023
        assert_same("chunk, final, last", [item[1:4] for item in got], [item[:3] for item in expected], places, "field")
        assert_same("gradient", [item[4] for item in got], [item[3] for item in expected], places, "lane")
        counts = [micro_batches] * 3 + [len(items)]
        assert_same("number of pulses", [len(cycles) for cycles in pulses], counts, ["began", "first", "last", "took"])
        for cycles in pulses:
            cycles.clear()
        came: dict[int, int] = {}
        for cycle, chunk, *_ in got:
            assert cycle - came.get(chunk, -SPACING) >= SPACING, "the same chunk came again too soon"
            came[chunk] = cycle
        if stall == 0.0:
            assert [item[0] - got[0][0] for item in got] == gradient_cycles(items, of_mini_batch)


@pytest.mark.rtl
def test_gradient():
    configs = [engine_config(8, 8, slots=32), engine_config(16, 16, slots=32)]
    run_sizes({f"lanes{each.lanes}": (Gradient(each, spacing=SPACING), {"config": each}) for each in configs}, __file__)
