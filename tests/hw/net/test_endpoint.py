"""The RTL endpoint and the Python aggregator, over links that lose, repeat and reorder."""

import dataclasses
import random
from collections import Counter
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.aggregator_model import Aggregator
from support.axi import PulseCounter, pulse
from support.bench import parameters, run_bench, start, times
from support.mutation import mutated
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import BROADCAST, DropReason, Packet, PacketType
from p4sgd.sim.network.endpoint import Endpoint as EndpointModel

JOB = 9
MAC, GROUP, LOCAL = 0x0250_0000_0001, 0x0150_0000_0000, 0x0250_0000_1000
KEEP = (1 << 64) - 1


def frame_of(item: int) -> bytes:
    assert item >> 512 == KEEP | 1 << 64, "every frame is one beat of 64 bytes"
    return (item & ((1 << 512) - 1)).to_bytes(64, "little")


def beat_of(frame: bytes) -> int:
    return int.from_bytes(frame, "little") | KEEP << 512 | 1 << 576


async def begin(dut, resend: int, *, doublings: int = 0, limit: int = 0) -> None:
    """Settings and a reset; before it, nothing may look at outputs: they may be those of the test before."""
    who = parameters()
    dut.job.value, dut.shard.value, dut.workers.value = JOB, who["shard"], who["workers"]
    dut.local_mac.value, dut.peer_mac.value, dut.resend_cycles.value = LOCAL, MAC, resend
    dut.doublings.value, dut.resend_limit.value = doublings, limit
    dut.join.value = dut.leave.value = dut.rx__valid.value = dut.partials__valid.value = dut.probe__valid.value = 0
    await start(dut)


async def begin_joined(dut, resend: int, **settings: int) -> tuple[StreamSink, StreamSource, StreamSink, StreamSource]:
    """Settings, a reset and a job that begins in round 1; its streams ``tx``, ``rx``, ``sums`` and ``partials``."""
    await begin(dut, resend, **settings)
    streams = StreamSink(dut, "tx"), StreamSource(dut, "rx"), StreamSink(dut, "sums"), StreamSource(dut, "partials")
    dut.join_round.value = 1
    await pulse(dut, "join")
    return streams


def packet_to_it(kind: PacketType, slot: int, round: int, values=(0,) * 8) -> Packet:
    """What the aggregator sends to the endpoint alone."""
    shard, workers = parameters()["shard"], parameters()["workers"]
    return Packet(kind, JOB, slot, round, shard, workers, (1 << workers) - 1, values, destination=LOCAL, source=MAC)


def beats_to_it(kind: PacketType, slots, round: int = 1) -> list[int]:
    """Such packets of these slots; values are the number of the slot."""
    return [beat_of(packet_to_it(kind, slot, round, (slot,) * 8).to_bytes()) for slot in slots]


def packets_on(tx: StreamSink, begin: int = 0) -> list[Packet]:
    """What has been sent, from that number on."""
    return [Packet.from_bytes(frame_of(item)) for item in tx.items[begin:]]


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


class DropCounter:
    """Counts what is dropped, by reason."""

    def __init__(self, dut) -> None:
        self.drops = Counter()
        self._dut = dut
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        while True:
            await RisingEdge(self._dut.clk)
            if self._dut.dropped.value:
                self.drops[DropReason(int(self._dut.drop.value))] += 1


@cocotb.test()
async def mutated_frames_change_nothing(dut):
    """But counters, each as in the model; slots are in every state, and go on where they were."""
    workers, shard, slots, count = (parameters()[name] for name in ("workers", "shard", "slots", "count"))
    tx, _, sums, partials = await begin_joined(dut, (1 << 31) - 1)
    twin = EndpointModel(slots, job=JOB, shard=shard, workers=workers, local_mac=LOCAL, peer_mac=MAC)

    async def give(kind, slot):
        (payload,) = beats_to_it(kind, [slot])
        twin.receive_frame(frame_of(payload), 0)
        dut.rx__payload.value, dut.rx__valid.value = payload, 1
        await RisingEdge(dut.clk)
        dut.rx__valid.value = 0

    # Slots 0 and 1 are through, 2 and 3 wait for CLEAR, 4 and 5 for FULL, the others have carried nothing.
    partials.send(pack([slot] * 8, 32) for slot in range(6))
    for slot in range(6):
        twin.submit([slot] * 8, 0)
    await tx.receive(6)
    for slot in range(4):
        await give(PacketType.FULL, slot)
    for slot in range(2):
        await give(PacketType.CLEAR, slot)
    await tx.receive(10)
    await sums.receive(4)
    await ClockCycles(dut.clk, 10)

    right = [packet_to_it(kind, slot, round_) for kind in PacketType for slot in range(slots) for round_ in range(3)]
    right += [dataclasses.replace(packet, shard=0, destination=GROUP) for packet in right]
    right.append(dataclasses.replace(packet_to_it(PacketType.ECHO, 0, 1), destination=BROADCAST))
    frames = [int.from_bytes(packet.to_bytes(), "little") for packet in right]
    states = [dataclasses.replace(slot) for slot in twin._slots]
    dropped, echoes = DropCounter(dut), PulseCounter(dut, "echo__valid")
    sent = heard = skipped = 0
    before = twin.drops.copy()
    dut.rx__valid.value = 1
    while sent < count:
        beats = mutated(frames, random)
        data, keep = beats[0]
        if len(beats) > 1:
            twin.drops[DropReason.LONG] += 1
        else:
            frame = data.to_bytes(64, "little")
            twin.echo = None
            twin.receive_frame(frame if keep == KEEP else frame[: keep.bit_length()], 0)
            heard += twin.echo is not None
            if twin._slots != states:  # it was a good one, or as good as one
                twin._slots = [dataclasses.replace(slot) for slot in states]
                twin.sums.clear()
                twin._delivered = 4
                skipped += 1
                continue
        for index, (data, keep) in enumerate(beats):
            dut.rx__payload.value = data | keep << 512 | int(index == len(beats) - 1) << 576
            await RisingEdge(dut.clk)
        sent += 1
    dut.rx__valid.value = 0
    await ClockCycles(dut.clk, 10)
    assert skipped < count / 20
    assert dropped.drops == twin.drops - before
    assert dropped.drops.keys() == set(DropReason)
    assert echoes.count == heard > 0
    assert dropped.drops.total() + heard == count
    assert (len(tx.items), len(sums.items)) == (10, 4)
    assert dut.busy.value

    for kind, rest in ((PacketType.CLEAR, (2, 3)), (PacketType.FULL, (5, 4)), (PacketType.CLEAR, (4, 5))):
        for slot in rest:
            await give(kind, slot)
        await ClockCycles(dut.clk, 10)
    assert [unpack(item, 32, 8) for item in sums.items[4:]] == [[4] * 8, [5] * 8]
    assert not dut.busy.value


@cocotb.test()
async def acts_on_repeated_packets_once(dut):
    """Also where one comes in the cycle after the other."""
    tx, rx, sums, partials = await begin_joined(dut, 1_000_000)
    received, dropped = PulseCounter(dut, "received"), PulseCounter(dut, "dropped")
    partials.send([0, 0])
    await tx.receive(2)
    for kind in (PacketType.FULL, PacketType.CLEAR):
        rx.send(beats_to_it(kind, (0, 0, 0, 1, 1, 0)))
        await rx.drained()
        await ClockCycles(dut.clk, 20)
    assert [unpack(item, 32, 8) for item in sums.items] == [[slot] * 8 for slot in range(2)]
    assert (received.count, dropped.count) == (12, 8)
    acks = packets_on(tx, 2)
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
    rx.send(beats_to_it(PacketType.FULL, (2, 0, 1)))
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
    resends = packets_on(tx, 7)
    assert {packet.slot for packet in resends} == {0, 1, 2, 3}
    assert all((packet.type is PacketType.PARTIAL) == (packet.slot == 3) for packet in resends)


@cocotb.test()
@cocotb.parametrize(doublings=[0, 3])
async def resends_when_due(dut, doublings):
    """Not before it is time, and at most a scan later: 5 cycles a slot in use, 1 an idle one. Then anew for the ACK."""
    resend = 100
    await begin(dut, resend, doublings=doublings)
    times = []
    cycle = 0
    tx = StreamSink(dut, "tx", on_item=lambda item: times.append(cycle))
    rx, partials = StreamSource(dut, "rx"), StreamSource(dut, "partials")
    dut.sums__ready.value = 1
    dut.join_round.value = 1
    await pulse(dut, "join")
    partials.send([0])
    count = 0
    for kind in (PacketType.PARTIAL, PacketType.ACK):
        while len(times) < count + 8:
            await RisingEdge(dut.clk)
            cycle += 1
        gaps = [later - earlier for earlier, later in pairwise(times[count:])]
        for number, gap in enumerate(gaps):
            wait = resend << min(number, doublings)
            assert wait <= gap <= wait + parameters()["slots"] + 6, gaps
        packets = set(packets_on(tx, count))
        assert {packet.type for packet in packets} == {kind}
        assert len(packets) == 1
        count = len(times)
        rx.send(beats_to_it(PacketType.FULL, [0]))


@cocotb.test()
async def gives_up(dut):
    """After so many resends; it is told which slot and why, nothing more is sent, and a join makes all well."""
    limit, resend = 3, 60
    tx, rx, _, partials = await begin_joined(dut, resend, limit=limit)
    first_round = 1
    for phase in (PacketType.PARTIAL, PacketType.ACK):
        sent_before = len(tx.items)
        partials.send([pack([slot] * 8, 32) for slot in range(3)])
        await tx.receive(sent_before + 3)
        answers = [0, 1, 2] if phase is PacketType.ACK else [0, 2]
        rx.send(beats_to_it(PacketType.FULL, answers, first_round))
        cleared = [0, 2]
        await rx.drained()
        await ClockCycles(dut.clk, 20)
        rx.send(beats_to_it(PacketType.CLEAR, cleared, first_round))
        for _ in range((limit + 2) * (resend + 40)):
            await RisingEdge(dut.clk)
            if dut.given_up.value:
                break
        assert dut.given_up.value
        assert int(dut.given_up_slot.value) == 1
        assert int(dut.given_up_round.value) == first_round
        assert bool(dut.given_up_partial.value) == (phase is PacketType.PARTIAL)
        await ClockCycles(dut.clk, 5)
        packets = packets_on(tx, sent_before)
        assert sum((packet.type, packet.slot) == (phase, 1) for packet in packets) == 1 + limit
        assert not dut.busy.value
        count = len(tx.items)
        partials.send([0])
        rx.send(beats_to_it(PacketType.FULL, [1], first_round))
        await ClockCycles(dut.clk, 5 * resend)
        assert len(tx.items) == count, "it has given up"
        assert dut.given_up.value
        first_round = 77
        dut.join_round.value = first_round
        await pulse(dut, "join")
        await ClockCycles(dut.clk, 3)
        assert not dut.given_up.value
        packet = Packet.from_bytes(frame_of((await tx.receive(count + 1))[-1]))  # the partial that waited
        assert (packet.type, packet.slot, packet.round) == (PacketType.PARTIAL, 0, first_round)
        dut.join_round.value = first_round
        await pulse(dut, "join")
        await ClockCycles(dut.clk, 5)


@cocotb.test()
async def gives_up_behind_a_blocked_way_out(dut):
    """A packet that is not taken for as long as another is waited for counts as sent again."""
    limit, resend = 3, 60
    tx, _, _, partials = await begin_joined(dut, resend, limit=limit)
    tx.stall = 1.0
    partials.send([0, 0])
    for cycle in range((limit + 1) * (resend + 40)):  # noqa: B007
        await RisingEdge(dut.clk)
        if dut.given_up.value:
            break
    assert dut.given_up.value
    assert int(dut.given_up_slot.value) == 0
    assert dut.given_up_partial.value
    assert cycle >= (limit + 1) * resend
    # An offer that is taken in the end has the number of resends that it took.
    tx.stall = 0.0
    await pulse(dut, "join")
    await tx.receive(1)
    tx.stall = 1.0
    await ClockCycles(dut.clk, 2 * resend + 20)  # due, and passed over once
    tx.stall = 0.0
    await ClockCycles(dut.clk, (limit - 2) * (resend + 20))
    assert not dut.given_up.value
    await ClockCycles(dut.clk, 2 * (resend + 20))
    assert dut.given_up.value


@cocotb.test()
@cocotb.parametrize(anew=[False, True])
async def gives_up_a_partial_that_never_leaves(dut, anew):
    """A packet of the past, of the last run or of a slot that is idle again, blocks the way out to the next partial."""
    limit, resend, doublings, first_round = 2, 60, 1, 40
    tx, rx, _, partials = await begin_joined(dut, resend, limit=limit, doublings=doublings)
    partials.send([0])
    await tx.receive(1)
    rx.send(beats_to_it(PacketType.FULL, [0]))
    await tx.receive(2)
    tx.stall = 1.0
    await ClockCycles(dut.clk, resend + 20)  # its ACK is offered again
    assert dut.tx__valid.value
    rx.send(beats_to_it(PacketType.CLEAR, [0]))
    await ClockCycles(dut.clk, 10)
    assert not dut.busy.value
    if anew:
        dut.join_round.value = first_round
        await pulse(dut, "join")
    # Without a partial nothing is waited for; one that leaves in the end was in time.
    total = sum(resend << min(number, doublings) for number in range(limit + 1))
    await ClockCycles(dut.clk, 2 * total)
    partials.send([0])
    await ClockCycles(dut.clk, total - 10)
    assert not dut.given_up.value
    tx.stall = 0.0
    await partials.drained()
    slot, round_ = (0, first_round) if anew else (1, 1)
    tx.stall = 1.0
    await ClockCycles(dut.clk, 3)
    for kind in (PacketType.FULL, PacketType.CLEAR):
        rx.send(beats_to_it(kind, [slot], round_))
        await ClockCycles(dut.clk, 10)
    assert not dut.busy.value
    partials.send([0])
    cycle = 0
    while not dut.given_up.value and cycle < 2 * total:
        await RisingEdge(dut.clk)
        cycle += 1
    assert total <= cycle <= total + 20
    assert (int(dut.given_up_slot.value), int(dut.given_up_round.value)) == (slot + 1, round_)
    assert dut.given_up_partial.value
    assert not dut.joined.value


@cocotb.test()
async def leaves(dut):
    """All is forgotten, what comes for it is dropped and no partial is taken, until a join."""
    await begin(dut, 50)
    tx, rx, partials = StreamSink(dut, "tx"), StreamSource(dut, "rx"), StreamSource(dut, "partials")
    dut.sums__ready.value = 0  # they are withdrawn, which a sink would not have
    dut.join_round.value = 1
    await pulse(dut, "join")
    received, dropped = PulseCounter(dut, "received"), PulseCounter(dut, "dropped")
    partials.send([0] * 2)
    await tx.receive(2)
    rx.send(beats_to_it(PacketType.FULL, [0]))
    await tx.receive(3)
    for leaves in (1, 0):
        # One comes in the cycle before, and as many as the reset of a run takes while it leaves.
        rx.send(beats_to_it(PacketType.FULL, range(2)))
        rx.send(beats_to_it(PacketType.CLEAR, [0]))
        await ClockCycles(dut.clk, 2)
        dut.leave.value = leaves
        await rx.drained()
        await ClockCycles(dut.clk, 3)
        assert not dut.joined.value
        assert not dut.busy.value
    partials.send([0])
    count = len(tx.items)
    await ClockCycles(dut.clk, 200)
    assert (received.count, dropped.count) == (1 + 6, 6)
    assert len(tx.items) == count, "it has left"
    assert not dut.sums__valid.value
    assert not dut.busy.value
    assert not dut.given_up.value
    dut.join_round.value = 9
    await pulse(dut, "join")
    packet = Packet.from_bytes(frame_of((await tx.receive(count + 1))[-1]))  # the partial that waited
    assert (packet.type, packet.slot, packet.round) == (PacketType.PARTIAL, 0, 9)
    assert dut.joined.value


@cocotb.test()
async def probes(dut):
    """A probe says who the worker is, and its echo is handed on whatever job, version or sender it is of."""
    shard, workers, slots = (parameters()[name] for name in ("shard", "workers", "slots"))
    tx, rx, _, _ = await begin_joined(dut, 1_000_000)
    probe, echo = StreamSource(dut, "probe"), StreamSink(dut, "echo", flow=True)
    dropped = PulseCounter(dut, "dropped")
    twin = EndpointModel(slots, job=JOB, shard=shard, workers=workers, local_mac=LOCAL, peer_mac=MAC)
    expected = []
    for number in range(20):
        slot, broadcast = random.getrandbits(16), random.getrandbits(1)
        probe.send([slot | number << 16 | broadcast << 24])
        packet = Packet.from_bytes(frame_of((await tx.receive(number + 1))[-1]))
        assert packet == twin.probe(slot, number, BROADCAST if broadcast else None)
        values = tuple(random.randint(-(1 << 31), (1 << 31) - 1) for _ in range(8))
        answer = dataclasses.replace(
            packet_to_it(PacketType.ECHO, random.getrandbits(16), random.getrandbits(16), values),
            job=random.getrandbits(8),
            shard=random.getrandbits(8),
            workers=random.getrandbits(8),
            bitmap=random.getrandbits(32),
            source=random.getrandbits(48),
            version=random.getrandbits(4),
        )
        rx.send([beat_of(answer.to_bytes())])
        await echo.receive(number + 1)
        words = [(answer.version, 4), (answer.source, 48), (answer.round, 16), (answer.bitmap, 32)]
        words += [(value & 0xFFFFFFFF, 32) for value in values]
        payload = position = 0
        for word, bits in words:
            payload |= word << position
            position += bits
        expected.append(payload)
    assert echo.items == expected
    assert dropped.count == 0
    assert not dut.busy.value


@cocotb.test()
async def a_packet_a_cycle_each_way(dut):
    """PARTIAL and ACK leave, FULL and CLEAR come, back to back, for ten thousand AllReduces."""
    count = 10_000
    await begin(dut, 1_000_000)
    rx, sums, partials = StreamSource(dut, "rx"), StreamSink(dut, "sums"), StreamSource(dut, "partials")
    sent, came = [], []
    cycle = 0

    def answer(item: int) -> None:
        packet = Packet.from_bytes(frame_of(item))
        kind = PacketType.FULL if packet.type is PacketType.PARTIAL else PacketType.CLEAR
        rx.send([beat_of(packet_to_it(kind, packet.slot, packet.round, packet.values).to_bytes())])
        sent.append(cycle)

    tx = StreamSink(dut, "tx", on_item=answer)
    dut.join_round.value = 1
    await pulse(dut, "join")
    partials.send(pack([number] * 8, 32) for number in range(count))
    while len(sums.items) < count or len(tx.items) < 2 * count or rx_waits(rx):
        await RisingEdge(dut.clk)
        cycle += 1
        if dut.rx__valid.value:
            came.append(cycle)
    assert sums.items == [pack([number] * 8, 32) for number in range(count)]
    for cycles in (sent, came):
        assert len(cycles) == 2 * count
        assert cycles[-1] - cycles[0] < 2 * count + 40, "there were pauses"
    assert sent[-1] - came[0] > 2 * count - 40, "both ways at once"


def rx_waits(rx: StreamSource) -> bool:
    return bool(rx._queue)


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
        rx.send(beats_to_it(PacketType.FULL, (0, 2), first_round))
        await rx.drained()
        await ClockCycles(dut.clk, 20)
        assert dut.busy.value
        assert dut.sums__valid.value
        expected += [(PacketType.PARTIAL, slot, first_round) for slot in range(3)]
        expected += [(PacketType.ACK, slot, first_round) for slot in (0, 2)]
        packets = packets_on(tx)
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
@pytest.mark.parametrize(
    ("slots", "workers", "shard"),
    [
        pytest.param(2, 1, 0, marks=pytest.mark.slow),
        (8, 4, 2),
        pytest.param(8, 32, 31, marks=pytest.mark.slow),
        pytest.param(32, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_endpoint(slots, workers, shard):
    config = dataclasses.replace(WorkerConfig.tiny(), slots=slots)
    # What is left out needs eight slots, or enough of them to cover the way to the aggregator and back.
    few = "sums|acts|resends|probes|latency"
    only = few if slots < 8 else f"{few}|urgent|gives|join|leaves|mutated" if slots < 32 else "sums|cycle"
    run_bench(Endpoint(config), __file__, only=only, slots=slots, workers=workers, shard=shard, count=3000)


@pytest.mark.slow
@pytest.mark.rtl
def test_many_frames():
    config = dataclasses.replace(WorkerConfig.tiny(), slots=8)
    run_bench(Endpoint(config), __file__, only="mutated", slots=8, workers=4, shard=2, count=times(50_000))
