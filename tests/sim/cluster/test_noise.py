"""Noise: xorshift32 of the whole period, the same again from the same seed, and another from another."""

import random
from functools import reduce
from itertools import combinations, pairwise
from math import prod

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import parameters, run_bench, start

from p4sgd.sim.cluster.link import Noise

MASK = (1 << 32) - 1


def xorshift(x):
    """The generator [13, 17, 5] of the paper."""
    x ^= x << 13 & MASK
    x ^= x >> 17
    return x ^ x << 5 & MASK


class Generators(wiring.Component):
    """Several generators with one seed."""

    def __init__(self, instances):
        self._instances = instances
        super().__init__({"seed": In(32)} | {f"value{index}": Out(32) for index in range(len(instances))})

    def elaborate(self, platform):
        m = Module()
        for index, instance in enumerate(self._instances):
            m.submodules[f"noise{index}"] = noise = Noise(instance)
            m.d.comb += [noise.seed.eq(self.seed), getattr(self, f"value{index}").eq(noise.value)]
        return m


async def sequences(dut, seed, cycles, *, disturb=False):
    """Values of each generator after a reset; ``disturb`` changes the seed once it is taken."""
    dut.seed.value = seed
    dut.rst.value = 1
    await ClockCycles(dut.clk, random.randint(1, 3))
    dut.rst.value = 0
    await RisingEdge(dut.clk)  # the first cycle after reset ends
    values: list[list[int]] = [[] for _ in parameters()["instances"]]
    for _ in range(cycles):
        if disturb:
            dut.seed.value = random.getrandbits(32)
        await RisingEdge(dut.clk)
        for index, own in enumerate(values):
            own.append(int(getattr(dut, f"value{index}").value))
    return values


def random_seed():
    """Any seed, or one that the salt of a generator, see there, would turn into 0 or nearly so."""
    salt = (random.choice(parameters()["instances"]) + 1) * 0x9E3779B9 & MASK
    return random.choice([random.getrandbits(32), 0, 1, MASK, salt, salt ^ 1, salt ^ MASK])


@cocotb.test()
async def is_xorshift_and_repeats_with_its_seed(dut):
    dut.seed.value = 0
    await start(dut)
    for _ in range(15):
        seed = random_seed()
        first = await sequences(dut, seed, 50)
        for own in first:
            assert own[0] != 0, "0 would stay 0"
            assert all(after == xorshift(value) for value, after in pairwise(own))
        assert await sequences(dut, seed, 50) == first
        assert await sequences(dut, seed, 50, disturb=True) == first, "taken in the first cycle"
        other = random.getrandbits(32)  # and its neighbour; of two that are 0 or nearly so one would stay 0
        for one, two in ((seed, seed ^ 1 << random.randrange(1, 32)), (other, other ^ 1)):
            for own, its in zip(await sequences(dut, one, 50), await sequences(dut, two, 50), strict=True):
                assert all(a != b for a, b in zip(own, its, strict=True)), "another seed, another sequence"
        for one, two in combinations(first, 2):
            assert all(a != b for a, b in zip(one, two, strict=True)), "another generator, another sequence"


@pytest.mark.rtl
def test_noise():
    # Neighbours among them, and numbers that a cluster has: links from 0, 500 and 4000, memories from 1000, pauses from
    # 5000.
    instances = [0, 1, 37, 500, 1000, 1001, 4000, 5000]
    run_bench(Generators(instances), __file__, instances=instances)


def test_xorshift_has_the_whole_period():
    """Every number but 0 comes before one comes again: xorshift is linear, and its order as a matrix is 2^32 − 1."""

    def apply(matrix, x):
        return reduce(lambda y, bit: y ^ matrix[bit] if x >> bit & 1 else y, range(32), 0)

    def power(exponent):
        result, square = [1 << bit for bit in range(32)], [xorshift(1 << bit) for bit in range(32)]
        while exponent:
            if exponent & 1:
                result = [apply(square, column) for column in result]
            square = [apply(square, column) for column in square]
            exponent >>= 1
        return result

    identity = power(0)
    primes = (3, 5, 17, 257, 65537)
    assert prod(primes) == MASK
    assert power(MASK) == identity
    assert all(power(MASK // prime) != identity for prime in primes)
