"""Two aggregators in RTL, one the parent of the other: sums of 31 workers and 31 other racks, and their cycles."""

import random
from dataclasses import replace

import cocotb
import pytest
from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ClockCycles
from support.aggregator import MAC, Host, packet_of
from support.axi import LiteMaster
from support.bench import run_bench, start
from support.frames import beat, frame_in
from support.signals import Cycles, drive
from support.streams import StreamSink, StreamSource

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

CONFIG = AggregatorConfig(slots=2, jobs=1, ports=2)
NEAR, BETWEEN = 0, 1
"""Ports of both: to workers or other racks, and to each other."""


class Levels(wiring.Component):
    """The aggregator of a rack below another one: ``rx`` and ``tx`` are its workers', ``others`` are other racks."""

    rack: In(Axi4LiteSignature())
    top: In(Axi4LiteSignature())
    rx: In(stream.Signature(FrameBeat))
    others: In(stream.Signature(FrameBeat))
    tx: Out(stream.Signature(FrameBeat))

    def elaborate(self, platform):
        m = Module()
        m.submodules.rack_part, m.submodules.top_part = rack, top = Aggregator(CONFIG), Aggregator(CONFIG)
        wiring.connect(m, wiring.flipped(self.rack), rack.control)
        wiring.connect(m, wiring.flipped(self.top), top.control)
        for source, outside, sink in ((rack, self.others, top), (top, self.rx, rack)):
            passes = source.tx.valid & source.tx.payload.ports[BETWEEN]
            m.d.comb += [
                source.tx.ready.eq(1),
                sink.rx.valid.eq(passes | outside.valid),
                sink.rx.payload.beat.eq(Mux(passes, source.tx.payload.beat, outside.payload)),
                sink.rx.payload.port.eq(Mux(passes, BETWEEN, NEAR)),
                outside.ready.eq(~passes),
            ]
        m.d.comb += [
            self.tx.valid.eq(rack.tx.valid & rack.tx.payload.ports[NEAR]),
            self.tx.payload.eq(rack.tx.payload.beat),
        ]
        return m


@cocotb.test()
async def sums_of_all_racks(dut):
    """Whoever comes last: three passes through aggregators, of which the one at the top waits for all racks."""
    drive(dut, rx__valid=0, others__valid=0)
    rack, top = (Host(dut, CONFIG, master=LiteMaster(dut, name, 0.0)) for name in ("rack", "top"))
    rx, others = StreamSource(dut, "rx"), StreamSource(dut, "others")
    await start(dut)
    tx, top_mac, shard = StreamSink(dut, "tx"), MAC + 1, random.randrange(MAX_WORKERS)
    parent = Parent(top_mac, BETWEEN, shard, MAX_WORKERS)
    group, both = 0x0150_0000_0000, 1 << NEAR | 1 << BETWEEN
    workers = tuple(Member(0x0250_0000_1000 + each, NEAR) for each in range(MAX_WORKERS - 1))
    below = Job(7, workers, group, 1 << NEAR, parent=parent)
    racks = [Member(0x0250_0000_2000 + each, NEAR) for each in range(MAX_WORKERS)]
    racks[shard] = Member(MAC, BETWEEN)
    above = Job(7, tuple(racks), group, both)
    for host, mac, job in ((rack, MAC, below), (top, top_mac, above)):
        await host.write_pair(registers.MAC, mac)
        await host.begin(0, job, 1)

    def frames(job, number, kind, mac, values):
        """What all members of a job send but the rack, in any order."""
        packets = [packet_of(job, kind, each, 1, number, values) for each in range(len(job.members))]
        packets = [replace(packet, destination=mac) for packet in packets if packet.source != MAC]
        return [beat(packet.to_bytes()) for packet in random.sample(packets, len(packets))]

    sent, other, came = (Cycles(dut, f"{name}__valid") for name in ("rx", "others", "tx"))
    for number in range(1, 9):
        low, high = ([random.randrange(-(1 << 25), 1 << 25) for _ in range(8)] for _ in range(2))
        total = tuple(31 * (one + another) for one, another in zip(low, high, strict=True))
        for kind, answer, values in (
            (PacketType.PARTIAL, PacketType.FULL, total),
            (PacketType.ACK, PacketType.CLEAR, (0,) * 8),
        ):
            for source, job, mac, own in random.sample([(rx, below, MAC, low), (others, above, top_mac, high)], 2):
                source.send(frames(job, number, kind, mac, own if kind is PacketType.PARTIAL else (0,) * 8))
                await ClockCycles(dut.clk, random.choice([0, 0, 5, 60]))
            await rx.drained()
            await others.drained()
            await ClockCycles(dut.clk, 4 * Aggregator.LATENCY)
            (item,) = tx.items
            tx.items.clear()
            found = Packet.from_bytes(frame_in(item))
            assert (found.type, found.destination, found.values) == (answer, group, values)
            assert came[-1] == max(sent[-1] + Aggregator.LATENCY, other[-1]) + 2 * Aggregator.LATENCY
    for host in (rack, top):
        counted = await host.counters()
        assert counted["FULLS_TO_ALL"] == counted["CLEARS_TO_ALL"] == 8
        assert counted["PARTIALS_TO_PARENT"] == counted["ACKS_TO_PARENT"] == (8 if host is rack else 0)


@pytest.mark.slow
@pytest.mark.rtl
def test_levels():
    run_bench(Levels(), __file__)
