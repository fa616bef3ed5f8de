"""Chaining against a model that knows which weights every chunk has."""

import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.chaining import Chaining


@cocotb.test()
async def never_reads_old_weights(dut):
    await start(dut)
    for _ in range(30):
        chunks, micro_batches, mini_batches = random.randint(1, 8), random.randint(1, 3), random.randint(1, 4)
        dut.chunks.value, dut.micro_batches.value = chunks, micro_batches
        dut.clear.value = 1
        await RisingEdge(dut.clk)
        dut.clear.value = 0
        version = [0] * chunks  # mini-batch whose weights each chunk has
        forward = backward = 0  # chunks begun, chunks updated in last passes
        waited = 0
        speed_forward, speed_backward = random.random(), random.random()
        while backward < chunks * mini_batches:
            micro_batch, chunk = divmod(forward, chunks)
            mini_batch = micro_batch // micro_batches
            done = mini_batch == mini_batches
            # The last backward pass of a mini-batch follows the last forward pass of that mini-batch.
            may_update = forward >= (backward // chunks + 1) * chunks * micro_batches
            updated = may_update and random.random() < speed_backward
            dut.updated.value = int(updated)
            dut.took_chunk.value = 0
            await RisingEdge(dut.clk)  # both idle inputs of this cycle are set; permit settles below
            dut.updated.value = 0
            if updated:
                version[backward % chunks] += 1
                backward += 1
            await ReadOnly()
            permitted = bool(dut.permit.value)
            await RisingEdge(dut.clk)
            if done:
                continue
            first = micro_batch % micro_batches == 0
            assert permitted == (not first or version[chunk] == mini_batch), (chunk, version, mini_batch)
            waited += not permitted
            if permitted and random.random() < speed_forward:
                dut.took_chunk.value = 1
                await ReadOnly()
                assert dut.took_last_chunk.value == (chunk == chunks - 1)
                await RisingEdge(dut.clk)
                dut.took_chunk.value = 0
                forward += 1
        await RisingEdge(dut.clk)
        await ReadOnly()
        assert forward == chunks * micro_batches * mini_batches
        assert dut.settled.value == 1
        await RisingEdge(dut.clk)


@pytest.mark.rtl
def test_chaining():
    run_bench(Chaining(WorkerConfig.tiny()), __file__)
