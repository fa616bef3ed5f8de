"""Link: delay, loss and order; Merge: fairness and origin."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.sim.cluster.link import Link
from p4sgd.sim.cluster.merge import Merge

DELAY = 20


async def configure(dut, *, loss=0, stall=0):
    dut.seed.value, dut.loss.value, dut.stall.value = random.getrandbits(32), loss, stall
    await start(dut)


@cocotb.test()
async def delays(dut):
    dut.i__valid.value, dut.o__ready.value = 0, 1
    await configure(dut)
    dut.i__payload.value, dut.i__valid.value = 7, 1
    await RisingEdge(dut.clk)
    dut.i__valid.value = 0
    cycles = 0
    while not cycles or not dut.o__valid.value:
        await RisingEdge(dut.clk)
        cycles += 1
    assert cycles == DELAY


@cocotb.test()
@cocotb.parametrize(stall=[0, 128])
async def keeps_order(dut, stall):
    source, sink = StreamSource(dut, "i", 0.7), StreamSink(dut, "o", stall / 256)
    await configure(dut, stall=stall // 2)
    items = [random.getrandbits(577) for _ in range(300)]
    source.send(items)
    assert list(await sink.receive(300)) == items


@cocotb.test()
async def loses_the_share_it_was_told(dut):
    source, sink = StreamSource(dut, "i"), StreamSink(dut, "o")
    await configure(dut, loss=65536 // 4)
    items = list(range(2000))
    source.send(items)
    await source.drained()
    for _ in range(2 * DELAY):
        await RisingEdge(dut.clk)
    assert sink.items == sorted(sink.items)
    assert 1350 < len(sink.items) < 1650  # 1500 expected, standard deviation 19


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def merges(dut, stall):
    count = parameters()["count"]
    sources = [StreamSource(dut, f"i__{port}", stall) for port in range(count)]
    sink = StreamSink(dut, "o", stall)
    await start(dut)
    items = [[random.getrandbits(16) for _ in range(100)] for _ in range(count)]
    for source, own in zip(sources, items, strict=True):
        source.send(own)
    got = await sink.receive(100 * count)
    for port, own in enumerate(items):
        assert [item & 0xFFFF for item in got if item >> 16 == port] == own


@pytest.mark.rtl
def test_link():
    run_bench(Link(DELAY, 3), __file__, only="delays|keeps_order|loses")


@pytest.mark.rtl
def test_merge():
    run_bench(Merge(16, 3), __file__, only="merges", count=3)
