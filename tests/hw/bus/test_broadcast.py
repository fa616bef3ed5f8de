"""Broadcast: every taker gets every item, in order, whatever the others do."""

import random

import cocotb
import pytest
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.hw.bus.broadcast import Broadcast


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def everyone_gets_everything(dut, stall):
    source = StreamSource(dut, "i", stall)
    sinks = [StreamSink(dut, f"o__{index}", random.choice([0.0, 0.9, stall])) for index in range(parameters()["count"])]
    await start(dut)
    items = [random.getrandbits(16) for _ in range(200)]
    source.send(items)
    for sink in sinks:
        assert await sink.receive(len(items)) == items


@pytest.mark.rtl
def test_broadcast():
    run_bench(Broadcast(16, 3), __file__, count=3)
