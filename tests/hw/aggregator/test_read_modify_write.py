"""ReadModifyWrite against a list, with words that come again after any few cycles."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, FallingEdge
from support.bench import parameters, run_sizes, start

from p4sgd.hw.aggregator.slots import ReadModifyWrite

WIDTH = 16


@cocotb.test()
@cocotb.parametrize(hot=[1, 2, 4, 64])
async def words_change_in_the_order_of_their_readings(dut, hot):
    """A word becomes something that depends on what it was and on when, or stays: only the right order gives it."""
    depth = parameters()["depth"]
    words = {}
    # Every reading is told what becomes of its word; here those before the first one are told, which are in flight.
    dut.address.value, dut.made.value, dut.write.value = 0, 0, 1
    await start(dut)
    await ClockCycles(dut.clk, 2 * ReadModifyWrite.LATENCY)
    for address in range(depth):  # the test before has left something
        words[address] = None
    few = random.sample(range(depth), min(hot, depth))
    addresses = []
    known = 0
    for cycle in range(5000):
        await FallingEdge(dut.clk)
        if cycle >= ReadModifyWrite.LATENCY:
            here, after = addresses[-4], addresses[-3]
            assert bool(dut.follows.value) == (here == after)
            if words[after] is not None:
                assert int(dut.before.value) == words[after]
            old = int(dut.old.value)
            if words[here] is not None:
                known += 1
                assert old == words[here], (cycle, addresses[-10:])
            write = random.random() < 0.6
            words[here] = (3 * old + cycle) % (1 << WIDTH) if write else old
            dut.made.value, dut.write.value = words[here], write
        addresses.append(random.choice(few) if random.random() < 0.95 else random.randrange(depth))
        dut.address.value = addresses[-1]
    assert known > 4000


@pytest.mark.rtl
def test_read_modify_write():
    run_sizes({f"depth{n}": (ReadModifyWrite(WIDTH, n), {"depth": n}) for n in (2, 16, 4096)}, __file__)
