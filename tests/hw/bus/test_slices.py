"""RegisterSlice cuts all paths; Axi4Slice: every channel hands on its own beats, in its own direction.

Order and throughput of a RegisterSlice are proved (tests/formal/test_fifos_proved.py).
"""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support.bench import default_seed, parameters, run_bench, start
from support.signals import check_registered
from support.streams import StreamSink, StreamSource

from p4sgd.hw.bus.axi import Axi4Signature, Axi4Slice
from p4sgd.hw.bus.stream import RegisterSlice

TO_MEMORY = {"aw", "w", "ar"}


@cocotb.test()
async def all_outputs_are_registers(dut):
    await start(dut)
    inputs, outputs = (dut.i__payload, dut.i__valid, dut.o__ready), (dut.i__ready, dut.o__valid, dut.o__payload)
    await check_registered(dut, inputs, outputs, cycles=300)


async def begin(dut, count, stall=0.0):
    """Sources, sinks and what is to be sent, by channel."""
    sources, sinks, sent = {}, {}, {}
    for channel in parameters()["channels"]:
        ends = ("master", "memory") if channel in TO_MEMORY else ("memory", "master")
        source, sink = (f"{end}__{channel}" for end in ends)
        sources[channel] = StreamSource(dut, source, random.random() * stall)
        sinks[channel] = StreamSink(dut, sink, random.random() * stall)
        bits = len(getattr(dut, f"{source}__payload"))
        assert bits == len(getattr(dut, f"{sink}__payload"))
        sent[channel] = [random.getrandbits(bits) for _ in range(count)]
    await start(dut)
    return sources, sinks, sent


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3, 0.9])
async def every_channel_on_its_own(dut, stall):
    sources, sinks, sent = await begin(dut, 300, stall)
    for channel, source in sources.items():
        source.send(sent[channel])
    for sink in sinks.values():
        await sink.receive(300)
    await ClockCycles(dut.clk, 20)
    assert {channel: sink.items for channel, sink in sinks.items()} == sent


@pytest.mark.rtl
def test_register_slice():
    run_bench(RegisterSlice(70), __file__, only="outputs")


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("read", "write"), [(True, True), (True, False), pytest.param(False, True, marks=pytest.mark.slow)]
)
def test_axi4_slice(read, write, monkeypatch):
    """Of any width, which the seed that a failure names gives again."""
    seed = default_seed()
    monkeypatch.setenv("P4SGD_SEED", str(seed))
    bus = Axi4Signature(data_bits=8 << random.Random(seed).randrange(8), read=read, write=write)
    run_bench(Axi4Slice(bus), __file__, only="channel", channels=list(bus.members))
