"""The RTL endpoint and the Python aggregator, over links that lose, repeat and reorder."""

import dataclasses
import random
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.axi import PulseCounter, pulse
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.sim.network.aggregator import Aggregator, Job, Member
from p4sgd.sim.network.endpoint import Endpoint as EndpointModel

JOB = 9
MAC, GROUP, LOCAL = 0x0250_0000_0001, 0x0150_0000_0000, 0x0250_0000_1000
KEEP = (1 << 64) - 1


def frame_of(item: int) -> bytes:
    assert item >> 512 == KEEP | 1 << 64, "every frame is one beat of 64 bytes"
    return (item & ((1 << 512) - 1)).to_bytes(64, "little")


def beat_of(frame: bytes) -> int:
    return int.from_bytes(frame, "little") | KEEP << 512 | 1 << 576


async def begin(dut, resend: int) -> None:
    """Settings and a reset; before it, nothing may look at outputs: they may be those of the test before."""
    who = parameters()
    dut.job.value, dut.shard.value, dut.workers.value = JOB, who["shard"], who["workers"]
    dut.local_mac.value, dut.peer_mac.value, dut.resend_cycles.value = LOCAL, MAC, resend
    dut.join.value = dut.rx__valid.value = dut.partials__valid.value = 0
    await start(dut)


async def begin_joined(dut, resend: int) -> tuple[StreamSink, StreamSource, StreamSink, StreamSource]:
    """Settings, a reset and a job that begins in round 1; its streams ``tx``, ``rx``, ``sums`` and ``partials``."""
    await begin(dut, resend)
    streams = StreamSink(dut, "tx"), StreamSource(dut, "rx"), StreamSink(dut, "sums"), StreamSource(dut, "partials")
    dut.join_round.value = 1
    await pulse(dut, "join")
    return streams


def packet_to_it(kind: PacketType, slot: int, round: int, values=(0,) * 8) -> Packet:
    """What the aggregator sends to the endpoint alone."""
    shard, workers = parameters()["shard"], parameters()["workers"]
    return Packet(kind, JOB, slot, round, shard, workers, (1 << workers) - 1, values, destination=LOCAL, source=MAC)


class Lab:
    """The other workers as models, the aggregator, and links with faults in both directions."""

    def __init__(self, dut, fault: float, first_round: int, sink_stall: float) -> None:
        slots, workers, self.shard = (parameters()[name] for name in ("slots", "workers", "shard"))
        self.dut = dut
        self.fault = fault
        self.workers = workers
        self.aggregator = Aggregator(slots, mac=MAC)
        macs = [LOCAL if shard == self.shard else LOCAL + 1 + shard for shard in range(workers)]
        members = tuple(Member(mac, port) for port, mac in enumerate(macs))
        self.aggregator.begin(0, Job(JOB, members, GROUP, (1 << workers) - 1), first_round)
        self.others = {
            shard: EndpointModel(
                slots,
                job=JOB,
                shard=shard,
                workers=workers,
                local_mac=LOCAL + 1 + shard,
                peer_mac=MAC,
                first_round=first_round,
                resend_after=400,
            )
            for shard in range(workers)
            if shard != self.shard
        }
        self.todo = {shard: [] for shard in self.others}
        self.rx = StreamSource(dut, "rx")
        self.tx = StreamSink(dut, "tx", sink_stall, on_item=lambda item: self._send_up(frame_of(item), self.shard))
        self.events: list[tuple[int, object]] = []
        self.now = 0
        cocotb.start_soon(self._run())

    def _after(self, action) -> None:
        if random.random() < self.fault:
            return
        for _ in range(2 if random.random() < self.fault else 1):
            self.events.append((self.now + random.randint(1, 1 + int(200 * self.fault)), action))

    def _send_up(self, frame: bytes, port: int) -> None:
        self._after(lambda: self._at_aggregator(frame, port))

    def _at_aggregator(self, frame: bytes, port: int) -> None:
        answer = self.aggregator.receive_frame(frame, port)
        if answer is None:
            return
        for shard in range(self.workers):
            if answer.ports >> shard & 1:
                self._after(lambda shard=shard: self._at_worker(answer.packet.to_bytes(), shard))

    def _at_worker(self, frame: bytes, shard: int) -> None:
        if shard == self.shard:
            self.rx.send([beat_of(frame)])
            return
        reply = self.others[shard].receive_frame(frame, self.now)
        if reply is not None:
            self._send_up(reply.to_bytes(), shard)

    async def _run(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            self.now += 1
            due = [action for time, action in self.events if time <= self.now]
            self.events = [event for event in self.events if event[0] > self.now]
            for action in due:
                action()
            for shard, endpoint in self.others.items():
                todo = self.todo[shard]
                for packet in endpoint.resend(self.now):
                    self._send_up(packet.to_bytes(), shard)
                if todo and endpoint.can_submit and random.random() < 0.2:
                    self._send_up(endpoint.submit(todo.pop(0), self.now).to_bytes(), shard)


@cocotb.test()
@cocotb.parametrize(fault=[0.0, 0.15], first_round=[1, 65530])
async def sums_in_order(dut, fault, first_round):
    workers, shard = parameters()["workers"], parameters()["shard"]
    count = parameters()["slots"] * (15 if workers < 10 else 7)  # past round 65535
    await begin(dut, random.choice([0, 20, 300]) if fault else 300)
    lab = Lab(dut, fault, first_round, fault)
    partials = StreamSource(dut, "partials", fault)
    sums = StreamSink(dut, "sums", fault)
    dut.join_round.value = first_round
    await pulse(dut, "join")
    values = [[[random.randint(-1000, 1000) for _ in range(8)] for _ in range(count)] for _ in range(workers)]
    for other, todo in lab.todo.items():
        todo += values[other]
    partials.send(pack(item, 32) for item in values[shard])
    got = [unpack(item, 32, 8) for item in await sums.receive(count)]
    assert got == [[sum(column) for column in zip(*items, strict=True)] for items in zip(*values, strict=True)]
    for _ in range(20_000):
        await RisingEdge(dut.clk)
        if not dut.busy.value:
            break
    assert not dut.busy.value


@cocotb.test()
async def ignores_what_is_not_its_own(dut):
    """No frame with one wrong bit changes anything: the run goes on as if it had not come."""
    workers, shard = parameters()["workers"], parameters()["shard"]
    tx, rx, sums, partials = await begin_joined(dut, 1_000_000)
    received, dropped = PulseCounter(dut, "received"), PulseCounter(dut, "dropped")
    partials.send([pack(range(8), 32)])
    (item,) = await tx.receive(1)
    assert Packet.from_bytes(frame_of(item)) == Packet(
        PacketType.PARTIAL, JOB, 0, 1, shard, workers, 1 << shard, tuple(range(8)), destination=MAC, source=LOCAL
    )
    good = packet_to_it(PacketType.FULL, 0, 1, tuple(range(8))).to_bytes()
    bits = range(shard == 0, 32 * 8)  # every bit of the header; the first is the group bit: to all, if shard is 0
    for bit in bits:
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        rx.send([beat_of(bytes(bad))])
    rx.send([beat_of(good) & ~(1 << 576), beat_of(good)])  # a frame of two beats
    rx.send([beat_of(good) & ~(1 << 575)])  # a runt
    await rx.drained()
    for _ in range(10):
        await RisingEdge(dut.clk)
    assert not sums.items
    assert received.count == dropped.count == len(bits) + 2
    rx.send([beat_of(good)])
    assert list(await sums.receive(1)) == [pack(range(8), 32)]
    for _ in range(10):
        await RisingEdge(dut.clk)
    assert dropped.count == len(bits) + 2
    assert Packet.from_bytes(frame_of(tx.items[1])).type is PacketType.ACK
    rx.send([beat_of(good)])  # again: stale now
    await rx.drained()
    for _ in range(10):
        await RisingEdge(dut.clk)
    assert dropped.count == len(bits) + 3
    assert len(sums.items) == 1


@cocotb.test()
async def acts_on_repeated_packets_once(dut):
    """Also where one comes in the cycle after the other."""
    tx, rx, sums, partials = await begin_joined(dut, 1_000_000)
    received, dropped = PulseCounter(dut, "received"), PulseCounter(dut, "dropped")
    partials.send([0, 0])
    await tx.receive(2)
    for kind in (PacketType.FULL, PacketType.CLEAR):
        rx.send(beat_of(packet_to_it(kind, slot, 1, (slot,) * 8).to_bytes()) for slot in (0, 0, 0, 1, 1, 0))
        await rx.drained()
        await ClockCycles(dut.clk, 20)
    assert [unpack(item, 32, 8) for item in sums.items] == [[slot] * 8 for slot in range(2)]
    assert (received.count, dropped.count) == (12, 8)
    acks = [Packet.from_bytes(frame_of(item)) for item in tx.items[2:]]
    assert [(packet.type, packet.slot) for packet in acks] == [(PacketType.ACK, slot) for slot in range(2)]
    assert not dut.busy.value


@cocotb.test()
async def urgent_packets_first(dut):
    """Partials before acknowledgements before resends; a blocked transmitter does not stop the receiver."""
    tx, rx, sums, partials = await begin_joined(dut, 50)
    sent, resent = PulseCounter(dut, "sent"), PulseCounter(dut, "resent")
    partials.send([0, 0, 0])
    await tx.receive(3)
    tx.stall = 1.0
    rx.send(beat_of(packet_to_it(PacketType.FULL, slot, 1, (slot,) * 8).to_bytes()) for slot in (2, 0, 1))
    assert [unpack(item, 32, 8) for item in await sums.receive(3)] == [[slot] * 8 for slot in range(3)]
    await ClockCycles(dut.clk, 200)  # all are due again
    partials.send([0])
    await ClockCycles(dut.clk, 20)
    tx.stall = 0.0
    order = [Packet.from_bytes(frame_of(item)) for item in (await tx.receive(10))[3:]]
    assert [(packet.type, packet.slot) for packet in order[:4]] == [
        (PacketType.ACK, 2),  # was offered before the partial came
        (PacketType.PARTIAL, 3),
        (PacketType.ACK, 0),
        (PacketType.ACK, 1),
    ]
    await ClockCycles(dut.clk, 100)
    tx.stall = 1.0
    await ClockCycles(dut.clk, 3)
    assert sent.count - len(tx.items) in (0, 1)  # one may be on offer
    assert sent.count - resent.count == 4 + 3
    resends = [Packet.from_bytes(frame_of(item)) for item in tx.items[7:]]
    assert {packet.slot for packet in resends} == {0, 1, 2, 3}
    assert all((packet.type is PacketType.PARTIAL) == (packet.slot == 3) for packet in resends)


@cocotb.test()
async def resends_when_due(dut):
    """Not before ``resend_cycles`` have gone, and at most a scan later: 4 cycles a slot in use, 1 an idle one."""
    resend = 100
    await begin(dut, resend)
    times = []
    cycle = 0
    tx = StreamSink(dut, "tx", on_item=lambda item: times.append(cycle))
    partials = StreamSource(dut, "partials")
    dut.join_round.value = 1
    await pulse(dut, "join")
    partials.send([0])
    for _ in range(20 * resend):
        await RisingEdge(dut.clk)
        cycle += 1
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) > 15
    assert all(resend <= gap <= resend + parameters()["slots"] + 5 for gap in gaps), gaps
    assert len(set(tx.items)) == 1


@cocotb.test()
async def join_forgets(dut):
    """After a join in the middle of things the next partial is slot 0 of the round joined at."""
    await begin(dut, 1_000_000)
    tx = StreamSink(dut, "tx")
    rx = StreamSource(dut, "rx")
    partials = StreamSource(dut, "partials")
    dut.sums__ready.value = 0
    expected = []
    for first_round in (1, 40_000):
        dut.join_round.value = first_round
        await pulse(dut, "join")
        await ClockCycles(dut.clk, 2)
        assert not dut.busy.value
        assert not dut.sums__valid.value
        partials.send([0] * 3)
        await partials.drained()
        rx.send(beat_of(packet_to_it(PacketType.FULL, slot, first_round).to_bytes()) for slot in (0, 2))
        await rx.drained()
        await ClockCycles(dut.clk, 20)
        assert dut.busy.value
        assert dut.sums__valid.value
        expected += [(PacketType.PARTIAL, slot, first_round) for slot in range(3)]
        expected += [(PacketType.ACK, slot, first_round) for slot in (0, 2)]
        packets = [Packet.from_bytes(frame_of(item)) for item in tx.items]
        assert [(packet.type, packet.slot, packet.round) for packet in packets] == expected


@cocotb.test()
async def latency(dut):
    await begin(dut, 1_000_000)
    dut.tx__ready.value = dut.sums__ready.value = 1
    dut.join_round.value = 1
    await pulse(dut, "join")

    async def cycles_until(signal) -> int:
        for cycle in range(20):
            await ReadOnly()
            if signal.value:
                return cycle
            await RisingEdge(dut.clk)
            dut.partials__valid.value = dut.rx__valid.value = 0
        raise AssertionError("never")

    dut.partials__payload.value = 5
    dut.partials__valid.value = 1
    assert await cycles_until(dut.tx__valid) == 1
    await RisingEdge(dut.clk)
    dut.rx__payload.value = beat_of(packet_to_it(PacketType.FULL, 0, 1, (5,) * 8).to_bytes())
    dut.rx__valid.value = 1
    assert await cycles_until(dut.sums__valid) == 3


@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "workers", "shard"), [(2, 1, 0), (4, 3, 1), (8, 32, 31)])
def test_endpoint(slots, workers, shard):
    config = dataclasses.replace(WorkerConfig.tiny(), slots=slots)
    only = "sums|ignores|acts|resends|latency" if slots < 4 else None  # the others need four slots
    run_bench(Endpoint(config), __file__, only=only, slots=slots, workers=workers, shard=shard)
