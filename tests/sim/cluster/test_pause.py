"""Pause: none without a chance, else as often and as long as it says."""

import random
from itertools import groupby

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start

from p4sgd.sim.cluster.link import PAUSE_BITS, Pause

LONGEST = 1 << PAUSE_BITS


async def phases(dut, chance, cycles):
    """Whether the worker was paused, and for how long, one after the other."""
    dut.seed.value, dut.chance.value = random.getrandbits(32), chance
    await start(dut)
    paused = []
    for _ in range(cycles):
        await RisingEdge(dut.clk)
        paused.append(bool(dut.paused.value))
    return [(kind, len(list(run))) for kind, run in groupby(paused)]


@cocotb.test()
async def never_pauses_without_a_chance(dut):
    assert [kind for kind, _ in await phases(dut, 0, 5000)] == [False]


@cocotb.test()
async def pauses_as_often_and_as_long_as_told(dut):
    chance = 1 / 256
    _, *whole, _ = await phases(dut, round(65536 * chance), 400_000)
    pauses = [length for paused, length in whole if paused]
    between = [length for paused, length in whole if not paused]
    assert len(pauses) > 100
    assert max(pauses) <= LONGEST
    mean = (LONGEST + 1) / 2
    assert abs(sum(pauses) / len(pauses) - mean) < 6 * LONGEST / (12 * len(pauses)) ** 0.5
    # At least one cycle lies between pauses, and the deviation of such times is their mean.
    assert abs(sum(between) / len(between) - 1 / chance) < 6 / chance / len(between) ** 0.5


@pytest.mark.rtl
@pytest.mark.slow
def test_pause():
    run_bench(Pause(5000), __file__)
