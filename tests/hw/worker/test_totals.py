"""Totals: products of the run's dimensions."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.spec.run import COUNT_BITS
from p4sgd.hw.worker.totals import Totals


@cocotb.test()
async def multiplies(dut):
    await start(dut)
    cases = [(1, 1, 1), (65535, 1 << 24, 1), (1, (1 << 32) - 1, 1), (3, 5, 65536), (1, 1, 65536)]
    while len(cases) < 60:
        case = (
            random.randrange(1, 1 << 16),
            random.randrange(1, 1 << random.randrange(1, 33)),
            random.randrange(1, 65537),
        )
        if case[0] * case[1] * case[2] < 1 << COUNT_BITS:
            cases.append(case)
    for micro, mini, chunks in cases:
        dut.micro_batches.value, dut.mini_batches.value, dut.chunks.value = micro, mini, chunks
        dut.start.value = 1
        await RisingEdge(dut.clk)
        dut.start.value = 0
        for _ in range(60):
            await RisingEdge(dut.clk)
            if dut.done.value:
                break
        else:
            raise AssertionError("never done")
        assert int(dut.total_micro_batches.value) == micro * mini
        assert int(dut.total_chunks.value) == micro * mini * chunks


@pytest.mark.rtl
def test_totals():
    run_bench(Totals(), __file__)
