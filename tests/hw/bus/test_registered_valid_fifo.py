"""RegisteredValidFIFO: the order of items, an item in the cycle after it was written, and its depth."""

import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import parameters, run_sizes, start

from p4sgd.hw.bus.stream import RegisteredValidFIFO


@cocotb.test()
async def behaves_like_a_queue(dut):
    depth = parameters()["depth"]
    dut.i__valid.value = dut.o__ready.value = 0
    await start(dut)
    queue: list[int] = []
    for sends, takes in ((0.5, 0.5), (1.0, 1.0), (0.9, 0.1), (0.1, 0.9), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        for _ in range(8 * depth + 20):
            ready = random.random() < takes
            valid = random.random() < sends and (len(queue) < depth)
            item = random.getrandbits(24)
            dut.i__valid.value, dut.i__payload.value, dut.o__ready.value = int(valid), item, int(ready)
            await ReadOnly()
            assert dut.o__valid.value == bool(queue)
            if queue:
                assert dut.o__payload.value == queue[0]
            await RisingEdge(dut.clk)
            if ready and queue:
                queue.pop(0)
            if valid:
                queue.append(item)


@pytest.mark.rtl
def test_registered_valid_fifo():
    run_sizes({f"depth{n}": (RegisteredValidFIFO(24, n), {"depth": n}) for n in (1, 2, 16)}, __file__)
