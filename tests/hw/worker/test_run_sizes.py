"""RunSizes: products of the dimensions of a run, and which runs it refuses."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_sizes, start
from support.run_limits import ORDINARY, ROOMS, cases

from p4sgd.build.fpga.packaging import SETTLE_CYCLES
from p4sgd.hw.spec.run import COUNT_BITS
from p4sgd.hw.worker.sequencer import RunSizes


async def cycles_until_done(dut) -> int:
    for cycle in range(1, 1000):
        await RisingEdge(dut.clk)
        if dut.done.value:
            return cycle
    raise AssertionError("never done")


@cocotb.test()
async def multiplies(dut):
    await start(dut)
    set_format(dut)
    products = [(1, 1, 1), (65535, 1 << 24, 1), (1, (1 << 32) - 1, 1), (3, 5, 65536), (1, 1, 65536)]
    while len(products) < 60:
        case = (
            random.randrange(1, 1 << 16),
            random.randrange(1, 1 << random.randrange(1, 33)),
            random.randrange(1, 65537),
        )
        if case[0] * case[1] * case[2] < 1 << COUNT_BITS:
            products.append(case)
    for micro, mini, chunks in products:
        dut.micro_batches.value, dut.mini_batches.value, dut.chunks.value = micro, mini, chunks
        dut.start.value = 1
        await RisingEdge(dut.clk)
        dut.start.value = 0
        assert SETTLE_CYCLES <= await cycles_until_done(dut) <= 60
        assert int(dut.total_micro_batches.value) == micro * mini
        assert int(dut.total_chunks.value) == micro * mini * chunks


def set_format(dut, precision=1, stored=1, unit_chunks=0, stale=0, directory=0, lines=1):
    dut.format_precision.value, dut.format_stored.value = precision, stored
    dut.format_unit_chunks.value, dut.run_stale.value, dut.format_directory.value = unit_chunks, stale, directory
    dut.no_lines.value = lines == 0


@cocotb.test()
async def refuses_what_cannot_be(dut):
    await start(dut)
    for impossible, case in cases(parameters()["lanes"]):
        micro, mini, chunks, *form = (ORDINARY | case).values()
        set_format(dut, *form)
        dut.micro_batches.value, dut.mini_batches.value, dut.chunks.value = micro, mini, chunks
        dut.start.value = 1
        await RisingEdge(dut.clk)
        dut.start.value = 0
        assert await cycles_until_done(dut) >= SETTLE_CYCLES
        assert bool(dut.impossible.value) == impossible, case


@pytest.mark.rtl
def test_totals():
    run_sizes({f"lanes{room.lanes}": (RunSizes(room), {"lanes": room.lanes}) for room in ROOMS}, __file__)
