"""AdderTree against Python's sum."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_sizes, start
from support.streams import pack, unpack

from p4sgd.hw.primitives import AdderTree

WIDTH = 12


@cocotb.test()
async def sums_every_cycle(dut):
    terms, latency = parameters()["terms"], parameters()["latency"]
    low, high = -(1 << WIDTH - 1), (1 << WIDTH - 1) - 1
    sets = [[low] * terms, [high] * terms, *([random.randint(low, high) for _ in range(terms)] for _ in range(100))]
    await start(dut)
    for cycle, values in enumerate(sets + [sets[0]] * latency):
        dut.i.value = pack(values, WIDTH)
        await RisingEdge(dut.clk)
        if cycle >= latency:
            assert unpack(int(dut.o.value), len(dut.o), 1) == [sum(sets[cycle - latency])], cycle


@pytest.mark.rtl
def test_adder_tree():
    trees = {terms: AdderTree(terms, WIDTH) for terms in (3, 8, 9, 16, 64)}
    run_sizes({f"terms{n}": (tree, {"terms": n, "latency": tree.latency}) for n, tree in trees.items()}, __file__)
