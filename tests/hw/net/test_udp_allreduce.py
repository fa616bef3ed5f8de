"""Endpoints and an aggregator with packets in UDP: sums through a bad network, and how many cycles they take."""

import random
from collections import Counter
from functools import partial

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ClockCycles, RisingEdge
from support.aggregator import Host
from support.axi import pulse
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource, pack, unpack
from support.udp import IP, beats, frames

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.net.packet import VALUES_LAYOUT
from p4sgd.hw.net.udp import UdpReceiver, UdpSender
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet
from p4sgd.hw.spec.udp import decapsulate

JOB = 9
AGGREGATOR, LOCAL, GROUP = 0x0200_0A00_0001, 0x0200_0A00_0100, 0x0300_EF01_0203
"""10.0.0.1, 10.0.1.0 and those that follow, 239.1.2.3."""
AGGREGATOR_MAC, WORKER_MAC, ROUTER_MAC = 0x0250_0000_0001, 0x0250_0000_1000, 0x0250_0000_0002
GROUP_MAC = 0x0100_5E01_0203
SLOTS = 16


class Site(wiring.Component):
    """Endpoints behind sender and receiver, and an aggregator; the network between them is up to the bench.

    Members
    -------
    partials : In(stream).array(workers), sums : Out(stream).array(workers)
    tx : Out(stream of FrameBeat).array(workers), rx : In(stream of FrameBeat).array(workers)
        Of the workers.
    control : In(AXI4-Lite), above_rx : In(stream of {beat, port}), above_tx : Out(stream of {beat, ports})
        Of the aggregator; worker i is behind port i.
    join : In(1)
        Pulse: all endpoints join the job.
    resend_cycles : In(32)
    """

    def __init__(self, workers: int) -> None:
        self._config = AggregatorConfig(SLOTS, jobs=1, ports=workers, udp=True)
        above_rx = data.StructLayout({"beat": FrameBeat, "port": self._config.port_bits})
        above_tx = data.StructLayout({"beat": FrameBeat, "ports": workers})
        super().__init__(
            {
                "partials": In(stream.Signature(VALUES_LAYOUT)).array(workers),
                "sums": Out(stream.Signature(VALUES_LAYOUT)).array(workers),
                "tx": Out(stream.Signature(FrameBeat)).array(workers),
                "rx": In(stream.Signature(FrameBeat)).array(workers),
                "control": In(Axi4LiteSignature()),
                "above_rx": In(stream.Signature(above_rx)),
                "above_tx": Out(stream.Signature(above_tx)),
                "join": In(1),
                "resend_cycles": In(32),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        workers = self._config.ports
        m.submodules.aggregator = aggregator = Aggregator(self._config)
        wiring.connect(m, wiring.flipped(self.control), aggregator.control)
        connect_stream(m, wiring.flipped(self.above_rx), aggregator.rx)
        connect_stream(m, aggregator.tx, wiring.flipped(self.above_tx))
        config = WorkerConfig(engines=1, lanes=8, chunks=8, line_fifo_depth=64, slots=SLOTS, table_segments=16)
        for index in range(workers):
            m.submodules[f"endpoint{index}"] = endpoint = Endpoint(config)
            m.submodules[f"sender{index}"] = sender = UdpSender()
            m.submodules[f"receiver{index}"] = receiver = UdpReceiver()
            connect_stream(m, wiring.flipped(self.partials[index]), endpoint.partials)
            connect_stream(m, endpoint.sums, wiring.flipped(self.sums[index]))
            m.d.comb += [
                sender.frames.payload.beat.eq(endpoint.tx.payload),
                sender.frames.valid.eq(endpoint.tx.valid),
                endpoint.tx.ready.eq(sender.frames.ready),
                self.tx[index].payload.eq(sender.tx.payload.beat),
                self.tx[index].valid.eq(sender.tx.valid),
                sender.tx.ready.eq(self.tx[index].ready),
                receiver.rx.payload.beat.eq(self.rx[index].payload),
                receiver.rx.valid.eq(self.rx[index].valid),
                self.rx[index].ready.eq(receiver.rx.ready),
                endpoint.rx.payload.eq(receiver.frames.payload.beat),
                endpoint.rx.valid.eq(receiver.frames.valid),
                sender.ipv4.eq((LOCAL + index) & 0xFFFFFFFF),
                sender.ethernet_mac.eq(WORKER_MAC + index),
                sender.next_hop_mac.eq(ROUTER_MAC),
                endpoint.job.eq(JOB),
                endpoint.shard.eq(index),
                endpoint.workers.eq(workers),
                endpoint.local_mac.eq(LOCAL + index),
                endpoint.peer_mac.eq(AGGREGATOR),
                endpoint.resend_cycles.eq(self.resend_cycles),
                endpoint.join.eq(self.join),
                endpoint.join_round.eq(1),
            ]
        return m


class Network:
    """Carries frames between workers and aggregator; with chance ``fault`` each is lost, repeated or spoiled."""

    def __init__(self, dut, workers: int, fault: float, stall: float) -> None:
        self._fault = fault
        self._up = StreamSource(dut, "above_rx", stall)
        self._down = [StreamSource(dut, f"rx__{index}", stall) for index in range(workers)]
        self._begun: dict[int, list[int]] = {}
        self.seen: Counter[str] = Counter()
        StreamSink(dut, "above_tx", stall, on_item=partial(self._take, workers))
        for index in range(workers):
            StreamSink(dut, f"tx__{index}", stall, on_item=partial(self._take, index))

    def _take(self, sender: int, payload: int) -> None:
        """A beat of a worker, or of the aggregator, whose number is the one after theirs."""
        self._begun.setdefault(sender, []).append(payload)
        if not payload >> 576 & 1:
            return
        ((frame, ports),) = frames(self._begun.pop(sender))
        packet = Packet.from_bytes(decapsulate(frame))
        from_worker = sender < len(self._down)
        own = WORKER_MAC + sender if from_worker else AGGREGATOR_MAC
        link = GROUP_MAC if packet.destination == GROUP else ROUTER_MAC
        assert frame[:12] == link.to_bytes(6, "big") + own.to_bytes(6, "big")
        assert packet.source == (LOCAL + sender if from_worker else AGGREGATOR)
        self.seen[packet.type.name] += 1
        targets = [(self._up, sender, "up")] if from_worker else []
        targets += [
            (down, 0, "down") for index, down in enumerate(self._down) if not from_worker and ports >> index & 1
        ]
        for target, tag, way in targets:
            copies = [frame]
            if random.random() < self._fault:
                spoiled = bytearray(frame)
                spoiled[random.randrange(IP.start, IP.stop)] ^= 1 << random.randrange(8)
                copies = random.choice(([], [frame] * 2, [bytes(spoiled)]))
                self.seen[f"spoiled {way}"] += copies == [spoiled]
            for copy in copies:
                target.send(beats(copy, tag))


async def begin(dut, *, fault: float, stall: float, resend_cycles: int) -> tuple[list, list, Network, Host]:
    workers = parameters()["workers"]
    sources = [StreamSource(dut, f"partials__{index}") for index in range(workers)]
    sinks = [StreamSink(dut, f"sums__{index}") for index in range(workers)]
    network = Network(dut, workers, fault, stall)
    dut.join.value, dut.resend_cycles.value = 0, resend_cycles
    await start(dut)
    host = Host(dut, AggregatorConfig(SLOTS, jobs=1, ports=workers, udp=True))
    pairs = (
        (registers.MAC, AGGREGATOR),
        (registers.ETHERNET_MAC, AGGREGATOR_MAC),
        (registers.NEXT_HOP_MAC, ROUTER_MAC),
    )
    for (low, high), value in pairs:
        await host.write((low, {"value": value & 0xFFFFFFFF}), (high, {"value": value >> 32}))
    assert (await host.read(registers.GEOMETRY))["udp"] == 1
    members = tuple(Member(LOCAL + index, index) for index in range(workers))
    await host.begin(0, Job(JOB, members, GROUP, (1 << workers) - 1), 1)
    await pulse(dut, "join")
    return sources, sinks, network, host


@cocotb.test()
@cocotb.parametrize((("fault", "stall"), [(0.0, 0.0), (0.1, 0.2)]))
async def adds(dut, fault, stall):
    count = 200
    sources, sinks, network, host = await begin(dut, fault=fault, stall=stall, resend_cycles=500)
    partials = [[[random.randint(-(2**27), 2**27) for _ in range(8)] for _ in range(count)] for _ in sources]
    for source, items in zip(sources, partials, strict=True):
        source.send(pack(item, 32) for item in items)
    expected = [[sum(column) for column in zip(*items, strict=True)] for items in zip(*partials, strict=True)]
    for sink in sinks:
        assert [unpack(item, 32, 8) for item in await sink.receive(count)] == expected
    await ClockCycles(dut.clk, 2000)
    counted = await host.counters()
    seen = network.seen
    assert counted["DROPPED_ETHERTYPE"] == seen["spoiled up"]
    assert counted["OVERRUNS"] == 0
    if fault:
        assert seen["spoiled up"] > 5
        assert seen["spoiled down"] > 5
        assert counted["FULLS_TO_ONE"] > 5
    else:
        once = count * len(sources)
        assert (seen["PARTIAL"], seen["ACK"], seen["FULL"], seen["CLEAR"]) == (once, once, count, count)


@cocotb.test()
async def takes_as_long_as_its_parts(dut):
    """From the last worker's partial to its sums, without the time on the way."""
    sources, sinks, _, _ = await begin(dut, fault=0.0, stall=0.0, resend_cycles=1 << 20)
    last = len(sources) - 1
    for source in sources[:-1]:
        source.send([pack(range(8), 32)])
    await ClockCycles(dut.clk, 200)
    seen: dict[str, list[int]] = {}
    signals = {
        "given": f"partials__{last}",
        "sent": f"tx__{last}",
        "asked": "above_rx",
        "answered": "above_tx",
        "told": f"rx__{last}",
        "came": f"sums__{last}",
    }

    async def watch():
        cycle = 0
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            for name, signal in signals.items():
                if getattr(dut, f"{signal}__valid").value:
                    seen.setdefault(name, []).append(cycle)

    cocotb.start_soon(watch())
    sources[-1].send([pack(range(8), 32)])
    for sink in sinks:
        await sink.receive(1)
    (given, *_), sent, asked, answered, told, (came, *_) = (seen[name] for name in signals)
    for first, second, *_ in (sent, asked, answered, told):
        assert second - first == 1
    assert sent[0] - given == Endpoint.TX_LATENCY + UdpSender.LATENCY
    assert answered[0] - asked[1] == UdpReceiver.LATENCY + Aggregator.LATENCY + UdpSender.LATENCY
    assert came - told[1] == UdpReceiver.LATENCY + Endpoint.RX_LATENCY


@pytest.mark.rtl
@pytest.mark.slow
def test_udp_allreduce():
    run_bench(Site(2), __file__, workers=2)
