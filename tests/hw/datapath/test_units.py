"""UnitAccumulator against sums of rounded numbers."""

import random

import cocotb
import pytest
from cocotb.triggers import NextTimeStep, ReadOnly, RisingEdge
from support.bench import parameters, run_sizes, start

from p4sgd.hw.datapath.units import UnitAccumulator

IN, OUT = 43, 48


@cocotb.test()
async def rounds_units_with_gaps(dut):
    whole_units = parameters()["whole_units"]
    latency = UnitAccumulator.LATENCY
    low, high = -(1 << IN - 1), (1 << IN - 1) - 1
    dut.valid.value = 0
    await start(dut)
    for step in (0, 8, *random.sample(range(1, 8), 3)):
        dut.step.value = step
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        units = total = unit = 0  # finished units, whole sum, unit under way
        history = []
        for index in range(800):
            extreme = (low, high, -1, 1, 127, 128, 1 << 32, -(1 << 32))
            value = random.choice(extreme) if index % 3 else random.randint(low, high)
            first = index == 0 or random.random() < 0.01
            first_of_unit = first or whole_units or random.random() < 0.4
            valid = index == 0 or random.random() < 0.7
            dut.i.value, dut.first.value = value, int(first)
            dut.first_of_unit.value, dut.valid.value = int(first_of_unit), int(valid)
            if valid:
                units = 0 if first else total if first_of_unit else units
                unit = value if first_of_unit else unit + value
                total = units + (unit >> 7 + step << step)  # floor: half a step comes with the first chunk
            await RisingEdge(dut.clk)
            history.append(total)
            await ReadOnly()
            if index >= latency:
                assert dut.o.value.to_signed() == history[-latency], (step, index)
            await NextTimeStep()


@pytest.mark.rtl
def test_unit_accumulator():
    run_sizes(
        {
            name: (UnitAccumulator(IN, OUT, whole_units=whole_units), {"whole_units": whole_units})
            for name, whole_units in (("chunks", False), ("whole_units", True))
        },
        __file__,
    )
