"""AdderTree against Python's sum."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_sizes, start
from support.streams import pack, unpack

from p4sgd.hw.primitives import AdderTree


@cocotb.test()
async def sums_every_cycle(dut):
    p = parameters()
    low, high = -(1 << (p["width"] - 1)), (1 << (p["width"] - 1)) - 1
    sets = [[low] * p["terms"], [high] * p["terms"]]
    sets += [[random.randint(low, high) for _ in range(p["terms"])] for _ in range(100)]
    await start(dut)
    expected = []
    for cycle, values in enumerate(sets + [sets[0]] * p["latency"]):
        dut.i.value = pack(values, p["width"])
        expected.append(sum(values))
        await RisingEdge(dut.clk)
        if cycle >= p["latency"]:
            got = unpack(int(dut.o.value), len(dut.o), 1)[0]
            assert got == expected[cycle - p["latency"]], cycle


@pytest.mark.rtl
def test_adder_tree():
    trees = {terms: AdderTree(terms, 12) for terms in (3, 8, 9, 16, 64)}
    run_sizes(
        {f"terms{n}": (tree, {"terms": n, "width": 12, "latency": tree.latency}) for n, tree in trees.items()}, __file__
    )
