"""Axi4Slice: every channel hands on its own beats, in its own direction, whatever the others do."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support.bench import default_seed, parameters, run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.hw.bus.axi import Axi4Signature, Axi4Slice

TO_MEMORY = {"aw", "w", "ar"}


class Ends:
    """Of all channels: the sources, the sinks, and what is sent."""

    def __init__(self, dut, count):
        self.count = count
        self.sources, self.sinks, self.sent = {}, {}, {}
        for channel in parameters()["channels"]:
            ends = ("master", "memory") if channel in TO_MEMORY else ("memory", "master")
            source, sink = (f"{end}__{channel}" for end in ends)
            self.sources[channel], self.sinks[channel] = StreamSource(dut, source), StreamSink(dut, sink)
            bits = len(getattr(dut, f"{source}__payload"))
            assert bits == len(getattr(dut, f"{sink}__payload"))
            self.sent[channel] = [random.getrandbits(bits) for _ in range(count)]

    def send(self):
        for channel, source in self.sources.items():
            source.send(self.sent[channel])


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3, 0.9])
async def every_channel_on_its_own(dut, stall):
    ends = Ends(dut, 300)
    for end in (*ends.sources.values(), *ends.sinks.values()):
        end.stall = random.random() * stall
    await start(dut)
    ends.send()
    for channel, sink in ends.sinks.items():
        assert list(await sink.receive(ends.count)) == ends.sent[channel], channel
    await ClockCycles(dut.clk, 20)
    assert {len(sink.items) for sink in ends.sinks.values()} == {ends.count}


@cocotb.test()
async def a_channel_that_waits_stops_no_other(dut):
    ends = Ends(dut, 40)
    await start(dut)
    for blocked, sink in ends.sinks.items():
        for each in ends.sinks.values():
            each.items.clear()
        sink.stall = 1.0
        await ClockCycles(dut.clk, 2)
        ends.send()
        await ClockCycles(dut.clk, 60)
        assert {channel: each.items for channel, each in ends.sinks.items()} == {
            channel: [] if channel == blocked else ends.sent[channel] for channel in ends.sinks
        }
        sink.stall = 0.0
        assert list(await sink.receive(ends.count)) == ends.sent[blocked]


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("read", "write"),
    [(True, True), (True, False), pytest.param(False, True, marks=pytest.mark.slow)],
    ids=["both", "read", "write"],
)
def test_axi4_slice(read, write, monkeypatch):
    """Of any width, which the seed that a failure names gives again."""
    seed = default_seed()
    monkeypatch.setenv("P4SGD_SEED", str(seed))
    bus = Axi4Signature(data_bits=8 << random.Random(seed).randrange(8), read=read, write=write)
    run_bench(Axi4Slice(bus), __file__, channels=list(bus.members), data_bits=bus.data_bits)
