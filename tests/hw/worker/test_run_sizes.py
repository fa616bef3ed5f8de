"""RunSizes: products of the dimensions of a run, and which runs it refuses."""

import dataclasses
import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.run import COUNT_BITS
from p4sgd.hw.worker.sequencer import RunSizes

ROOM = dataclasses.replace(WorkerConfig.tiny(), chunks=16, line_fifo_depth=64)


@cocotb.test()
async def multiplies(dut):
    await start(dut)
    set_format(dut)
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


def set_format(dut, precision: int = 1, stored: int = 1, stale: int = 0) -> None:
    dut.precision.value, dut.stored.value, dut.stale.value = precision, stored, stale


@cocotb.test()
async def refuses_what_cannot_be(dut):
    """No micro-batch, chunk or plane; more planes than there are; more chunks or lines than there is room for."""
    await start(dut)
    cases = [
        (False, {"chunks": ROOM.chunks, "precision": 4, "stored": 8}),
        (False, {"chunks": ROOM.chunks // 2, "precision": 8, "stored": 8, "stale": 1}),
        (True, {"micro": 0}),
        (True, {"mini": 0}),
        (True, {"chunks": 0}),
        (True, {"precision": 0}),
        (True, {"precision": 3, "stored": 2}),
        (True, {"precision": 8, "stored": 9}),
        (True, {"chunks": ROOM.chunks + 1}),
        (True, {"chunks": ROOM.chunks // 2 + 1, "stale": 1}),
        (True, {"chunks": ROOM.chunks, "precision": 5, "stored": 8}),
        (False, {}),
    ]
    for impossible, case in cases:
        settings = {"micro": 2, "mini": 3, "chunks": 1, "precision": 1, "stored": 1, "stale": 0} | case
        set_format(dut, settings["precision"], settings["stored"], settings["stale"])
        dut.micro_batches.value, dut.mini_batches.value = settings["micro"], settings["mini"]
        dut.chunks.value = settings["chunks"]
        dut.start.value = 1
        await RisingEdge(dut.clk)
        dut.start.value = 0
        while not dut.done.value:
            await RisingEdge(dut.clk)
        assert bool(dut.impossible.value) == impossible, settings


@pytest.mark.rtl
def test_totals():
    run_bench(RunSizes(ROOM), __file__)
