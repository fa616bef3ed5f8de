"""LineFIFO holds a micro-batch, and then takes and gives a line a cycle; its proof says the rest."""

import cocotb
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.bench import run_bench, start
from support.signals import drive

from p4sgd.hw.datapath.lines import LineFIFO
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig.tiny()


@cocotb.test()
async def holds_a_micro_batch_and_streams(dut):
    depth = CONFIG.line_fifo_depth
    drive(dut, o__ready=0, i__valid=1)
    await start(dut)
    taken = 0
    for _ in range(2 * depth):
        await ReadOnly()
        taken += int(dut.i__ready.value)
        await RisingEdge(dut.clk)
    assert taken >= depth - 1  # one was taken while the bench started
    drive(dut, o__ready=1)
    await ClockCycles(dut.clk, 2 * LineFIFO.LATENCY)  # room shows after as long as a line takes
    for cycle in range(depth):
        await ReadOnly()
        assert (dut.i__ready.value, dut.o__valid.value) == (1, 1), f"no room or no line in cycle {cycle}"
        await RisingEdge(dut.clk)


@pytest.mark.rtl
def test_line_fifo():
    run_bench(LineFIFO(CONFIG), __file__)
