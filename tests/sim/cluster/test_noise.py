"""Noise: xorshift32 of the whole period, the same again from the same seed, and another from another."""

import random
from functools import reduce
from itertools import combinations, pairwise

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import run_bench, start

from p4sgd.sim.cluster.link import Noise

MASK = (1 << 32) - 1

INSTANCES = (0, 1, 37, 500, 1000, 1001, 4000, 5000)
"""Neighbours, and numbers that a cluster has: of links from 0, 500 and 4000, memories from 1000, pauses from 5000."""


def xorshift(x):
    """The generator [13, 17, 5] of the paper."""
    x ^= x << 13 & MASK
    x ^= x >> 17
    return x ^ x << 5 & MASK


class Generators(wiring.Component):
    """Several generators with one seed."""

    def __init__(self):
        super().__init__({"seed": In(32)} | {f"value{index}": Out(32) for index in range(len(INSTANCES))})

    def elaborate(self, platform):
        m = Module()
        for index, instance in enumerate(INSTANCES):
            m.submodules[f"noise{index}"] = noise = Noise(instance)
            m.d.comb += [noise.seed.eq(self.seed), getattr(self, f"value{index}").eq(noise.value)]
        return m


async def sequences(dut, seed, *, disturb=False):
    """50 values of each generator after a reset; ``disturb`` changes the seed once it is taken."""
    dut.seed.value, dut.rst.value = seed, 1
    await ClockCycles(dut.clk, random.randint(1, 3))
    dut.rst.value = 0
    await RisingEdge(dut.clk)  # the first cycle after reset ends
    values = []
    for _ in range(50):
        if disturb:
            dut.seed.value = random.getrandbits(32)
        await RisingEdge(dut.clk)
        values.append([int(getattr(dut, f"value{index}").value) for index in range(len(INSTANCES))])
    return list(zip(*values, strict=True))


@cocotb.test()
async def is_xorshift_and_repeats_with_its_seed(dut):
    dut.seed.value = 0
    await start(dut)
    # Any seeds, and some that the salt of a generator, see there, would turn into 0 or nearly so.
    salts = [(instance + 1) * 0x9E3779B9 & MASK for instance in INSTANCES]
    for seed in (*(random.getrandbits(32) for _ in range(6)), 0, 1, MASK, *salts, *(salt ^ 1 for salt in salts)):
        first = await sequences(dut, seed)
        for own in first:
            assert own[0] != 0, "0 would stay 0"
            assert all(after == xorshift(value) for value, after in pairwise(own))
        assert await sequences(dut, seed, disturb=True) == first, "taken in the first cycle, and again the same"
        other = await sequences(dut, seed ^ 1 << random.randrange(1, 32))
        for one, two in (*zip(first, other, strict=True), *combinations(first, 2)):
            assert all(a != b for a, b in zip(one, two, strict=True)), "another seed or generator, another sequence"


@pytest.mark.rtl
def test_noise():
    run_bench(Generators(), __file__)


def test_xorshift_has_the_whole_period():
    """Every number but 0 comes before one comes again: its order as a matrix, xorshift being linear, is 2^32 − 1."""

    def apply(matrix, x):
        return reduce(lambda y, bit: y ^ matrix[bit] if x >> bit & 1 else y, range(32), 0)

    def power(exponent):
        result, square = [1 << bit for bit in range(32)], [xorshift(1 << bit) for bit in range(32)]
        for bit in range(32):
            if exponent >> bit & 1:
                result = [apply(square, column) for column in result]
            square = [apply(square, column) for column in square]
        return result

    assert power(MASK) == power(0)
    assert all(power(MASK // prime) != power(0) for prime in (3, 5, 17, 257, 65537))
