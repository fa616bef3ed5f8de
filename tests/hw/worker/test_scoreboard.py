"""Scoreboard against a model that keeps the version of each chunk in each half of the memory."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.bench import run_bench, start
from support.signals import drive

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.engine import Scoreboard

PULSES = ("start", "reload", "spend", "read_all", "earn", "earned_last")


async def cycle(dut, **pulses):
    """One clock cycle with these pulses."""
    drive(dut, **dict.fromkeys(PULSES, 0) | pulses)
    await RisingEdge(dut.clk)
    drive(dut, **dict.fromkeys(PULSES, 0))


@cocotb.test()
async def reads_the_right_version(dut):
    drive(dut, **dict.fromkeys(PULSES, 0))
    await start(dut)
    halves = [[0] * 8, [0] * 8]  # version of each chunk's weights in each half of the memory
    version = 0  # of the whole model
    for run in range(30):
        chunks, micro_batches, mini_batches = random.randint(1, 8), random.randint(1, 3), random.randint(1, 5)
        stale = random.random() < 0.5  # a new choice for every run, on weights that an earlier one left
        drive(dut, chunks=chunks, stale=stale)
        await ClockCycles(dut.clk, 2)
        if run == 0 or random.random() < 0.3:
            await cycle(dut, reload=True)
            halves[0] = [version] * 8
        else:  # kept weights: chunks beyond those of the last run have none
            await ReadOnly()
            latest = int(dut.latest_half.value)
            await RisingEdge(dut.clk)
            halves[latest] = [version] * 8
        first_version = version
        await cycle(dut, start=True)
        forward = backward = 0  # lines (a chunk is one) taken, chunks updated by last passes
        spent = 0  # chunks begun in first micro-batches
        speed_forward, speed_backward = (random.uniform(0.05, 1) for _ in range(2))  # not so near 0 that it takes ages
        while backward < chunks * mini_batches:
            micro_batch, chunk = divmod(forward, chunks)
            mini_batch, micro_batch = divmod(micro_batch, micro_batches)
            done = mini_batch == mini_batches
            await ReadOnly()
            has_credit = bool(dut.credit.value)
            assert has_credit == (spent < backward + (chunks << stale)), "neither too early nor too late"
            permitted = has_credit or micro_batch > 0
            read_half, write_half = int(dut.read_half.value), int(dut.write_half.value)
            await RisingEdge(dut.clk)
            # The last backward pass of a mini-batch follows the last forward pass of that mini-batch.
            updating, updated_chunk = divmod(backward, chunks)
            may_update = forward >= (updating + 1) * chunks * micro_batches
            earn = may_update and random.random() < speed_backward
            take = not done and permitted and random.random() < speed_forward
            wanted = first_version + (max(mini_batch - 1, 0) if stale else mini_batch)
            if take:
                assert halves[read_half][chunk] == wanted
            if earn:
                halves[write_half][updated_chunk] = first_version + updating + 1
                backward += 1
            forward += take
            spent += take and micro_batch == 0
            await cycle(
                dut,
                spend=take and micro_batch == 0,
                read_all=take and chunk == chunks - 1 and micro_batch == micro_batches - 1,
                earn=earn,
                earned_last=earn and updated_chunk == chunks - 1,
            )
        await ClockCycles(dut.clk, 2)
        await ReadOnly()
        version = first_version + mini_batches
        assert forward == chunks * micro_batches * mini_batches
        assert dut.settled.value == 1
        assert halves[int(dut.latest_half.value)][:chunks] == [version] * chunks
        await RisingEdge(dut.clk)


@pytest.mark.rtl
def test_scoreboard():
    run_bench(Scoreboard(WorkerConfig.tiny()), __file__)
