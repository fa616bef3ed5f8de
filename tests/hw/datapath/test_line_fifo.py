"""LineFIFO: order, capacity, and a line a cycle."""

import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.hw.datapath.lines import LineFIFO, kept_layout
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig.tiny()


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def keeps_lines_in_order(dut, stall):
    source, sink = StreamSource(dut, "i", stall), StreamSink(dut, "o", stall)
    await start(dut)
    lines = [random.getrandbits(kept_layout(CONFIG).size) for _ in range(500)]
    source.send(lines)
    assert list(await sink.receive(500)) == lines


@cocotb.test()
async def holds_a_micro_batch_and_streams(dut):
    depth = parameters()["depth"]
    dut.o__ready.value = 0
    dut.i__valid.value = 1
    await start(dut)
    taken = 0
    for _ in range(2 * depth):
        await ReadOnly()
        taken += int(dut.i__ready.value)
        await RisingEdge(dut.clk)
    assert taken >= depth - 1  # one was taken while the bench started
    dut.o__ready.value = 1
    for _ in range(2 * parameters()["latency"]):  # room shows after as long as a line takes
        await RisingEdge(dut.clk)
    for cycle in range(depth):
        await ReadOnly()
        assert dut.i__ready.value, f"no room in cycle {cycle}"
        assert dut.o__valid.value, f"no line in cycle {cycle}"
        await RisingEdge(dut.clk)


@pytest.mark.rtl
def test_line_fifo():
    run_bench(LineFIFO(CONFIG), __file__, depth=CONFIG.line_fifo_depth, latency=LineFIFO.LATENCY)
