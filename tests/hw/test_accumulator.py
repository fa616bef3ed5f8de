"""Accumulator against Python's sum."""

import random

import cocotb
import pytest
from cocotb.triggers import NextTimeStep, ReadOnly, RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.primitives import Accumulator

IN, OUT = 43, 55


@cocotb.test()
async def sums_with_gaps(dut):
    dut.valid.value = 0
    await start(dut)
    low, high = -(1 << IN - 1), (1 << IN - 1) - 1
    total = 0
    history = [0] * (Accumulator.LATENCY + 1)
    for step in range(3000):
        extreme = (low, high, -1, 1, 1 << 32, -(1 << 32))
        value = random.choice(extreme) if step % 3 else random.randint(low, high)
        first = step == 0 or random.random() < 0.01
        valid = step == 0 or random.random() < 0.7
        dut.i.value, dut.first.value, dut.valid.value = value, int(first), int(valid)
        if valid:
            total = value if first else total + value
        await RisingEdge(dut.clk)
        history.append(total)
        await ReadOnly()
        if step >= Accumulator.LATENCY:
            assert dut.o.value.to_signed() == history[-Accumulator.LATENCY], step
        await NextTimeStep()


@pytest.mark.rtl
def test_accumulator():
    run_bench(Accumulator(IN, OUT), __file__)
