"""LinePosition against counting."""

import itertools
import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.datapath.lines import LinePosition
from p4sgd.hw.spec.config import WorkerConfig


@cocotb.test()
async def counts(dut):
    dut.start.value = dut.step.value = 0
    await start(dut)
    for run in range(40):
        totals = [random.randint(1, most) for most in (8, 16, 4)]
        if run == 0:
            totals = [1, 1, 1]
        precision, chunks, micro_batches = totals
        dut.precision.value, dut.chunks.value, dut.micro_batches.value = totals
        for begin in (0, 0, 1):
            dut.start.value = begin
            await RisingEdge(dut.clk)
        dut.start.value = 0
        lines = list(itertools.product(range(micro_batches), range(chunks), range(precision)))
        lines = (lines * 2)[: random.randint(1, 2 * len(lines))]  # a run may begin anywhere in the one before
        for micro_batch, chunk, plane in lines:
            while random.random() < 0.3:
                dut.step.value = 0
                await RisingEdge(dut.clk)
            dut.step.value = 1
            await ReadOnly()
            assert dut.chunk.value == chunk
            for name, index, total in (
                ("plane", plane, precision),
                ("chunk", chunk, chunks),
                ("micro_batch", micro_batch, micro_batches),
            ):
                assert getattr(dut, f"first_{name}").value == (index == 0)
                assert getattr(dut, f"last_{name}").value == (index == total - 1)
            await RisingEdge(dut.clk)
        dut.step.value = 0


@pytest.mark.rtl
def test_line_position():
    run_bench(LinePosition(WorkerConfig.tiny()), __file__)
