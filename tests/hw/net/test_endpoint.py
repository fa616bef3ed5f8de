"""The RTL endpoint and the Python aggregator, over links that lose, repeat and reorder."""

import random
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.axi import PulseCounter, pulse
from support.bench import run_bench, start
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.sim.network.aggregator import Aggregator
from p4sgd.sim.network.endpoint import Endpoint as EndpointModel

CONFIG = WorkerConfig.tiny()
MAC, GROUP, LOCAL = 0x0250_0000_0001, 0x0150_0000_0000, 0x0250_0000_1000
KEEP = (1 << 64) - 1


def frame_of(item: int) -> bytes:
    assert item >> 512 == KEEP | 1 << 64, "every frame is one beat of 64 bytes"
    return (item & ((1 << 512) - 1)).to_bytes(64, "little")


def beat_of(frame: bytes) -> int:
    return int.from_bytes(frame, "little") | KEEP << 512 | 1 << 576


def configure(dut, workers: int, resend: int) -> None:
    dut.job.value, dut.shard.value, dut.workers.value = 9, 0, workers
    dut.local_mac.value, dut.peer_mac.value, dut.resend_cycles.value = LOCAL, MAC, resend
    dut.join.value = 0


class Lab:
    """The other workers as models, the aggregator, and links with faults in both directions."""

    def __init__(self, dut, workers: int, fault: float, first_round: int, sink_stall: float) -> None:
        self.dut = dut
        self.fault = fault
        self.aggregator = Aggregator(CONFIG.slots, workers, job=9, workers=workers, mac=MAC, group_mac=GROUP)
        for slot in self.aggregator.slots:
            slot.round = (first_round - 1) % 65536
        self.others = [
            EndpointModel(
                CONFIG.slots,
                job=9,
                shard=shard,
                workers=workers,
                local_mac=LOCAL + shard,
                peer_mac=MAC,
                first_round=first_round,
                resend_after=400,
            )
            for shard in range(1, workers)
        ]
        self.todo = [[] for _ in self.others]
        self.rx = StreamSource(dut, "rx")
        self.tx = StreamSink(dut, "tx", sink_stall, on_item=lambda item: self._send_up(frame_of(item), 0))
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
        for shard in range(len(self.others) + 1):
            if answer.ports >> shard & 1:
                self._after(lambda shard=shard: self._at_worker(answer.packet.to_bytes(), shard))

    def _at_worker(self, frame: bytes, shard: int) -> None:
        if shard == 0:
            self.rx.send([beat_of(frame)])
            return
        reply = self.others[shard - 1].receive_frame(frame, self.now)
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
            for endpoint, todo in zip(self.others, self.todo, strict=True):
                for packet in endpoint.resend(self.now):
                    self._send_up(packet.to_bytes(), endpoint.shard)
                if todo and endpoint.can_submit and random.random() < 0.2:
                    self._send_up(endpoint.submit(todo.pop(0), self.now).to_bytes(), endpoint.shard)


@cocotb.test()
@cocotb.parametrize(fault=[0.0, 0.15], first_round=[1, 65530])
async def sums_in_order(dut, fault, first_round):
    workers, count = 3, 60
    configure(dut, workers, random.choice([0, 20, 300]) if fault else 300)
    lab = Lab(dut, workers, fault, first_round, fault)
    partials = StreamSource(dut, "partials", fault)
    sums = StreamSink(dut, "sums", fault)
    await start(dut)
    dut.join_round.value = first_round
    await pulse(dut, "join")
    values = [[[random.randint(-1000, 1000) for _ in range(8)] for _ in range(count)] for _ in range(workers)]
    for todo, own in zip(lab.todo, values[1:], strict=True):
        todo += own
    partials.send(pack(item, 32) for item in values[0])
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
    configure(dut, 1, 1_000_000)
    tx = StreamSink(dut, "tx")
    rx = StreamSource(dut, "rx")
    sums = StreamSink(dut, "sums")
    partials = StreamSource(dut, "partials")
    received, dropped = PulseCounter(dut, "received"), PulseCounter(dut, "dropped")
    await start(dut)
    dut.join_round.value = 1
    await pulse(dut, "join")
    partials.send([pack(range(8), 32)])
    (item,) = await tx.receive(1)
    assert Packet.from_bytes(frame_of(item)) == Packet(
        PacketType.PARTIAL, 9, 0, 1, 0, 1, 1, tuple(range(8)), destination=MAC, source=LOCAL
    )
    good = Packet(PacketType.FULL, 9, 0, 1, 0, 1, 1, tuple(range(8)), destination=LOCAL, source=MAC).to_bytes()
    for bit in range(32 * 8):  # every bit of the header
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        if bit == 0:
            continue  # the group bit: to all, and so to it
        rx.send([beat_of(bytes(bad))])
    rx.send([beat_of(good) & ~(1 << 576), beat_of(good)])  # a frame of two beats
    rx.send([beat_of(good) & ~(1 << 575)])  # a runt
    await rx.drained()
    for _ in range(10):
        await RisingEdge(dut.clk)
    assert not sums.items
    assert received.count == dropped.count == 255 + 2
    rx.send([beat_of(good)])
    assert list(await sums.receive(1)) == [pack(range(8), 32)]
    for _ in range(10):
        await RisingEdge(dut.clk)
    assert dropped.count == 257
    assert Packet.from_bytes(frame_of(tx.items[1])).type is PacketType.ACK
    rx.send([beat_of(good)])  # again: stale now
    await rx.drained()
    for _ in range(10):
        await RisingEdge(dut.clk)
    assert dropped.count == 258
    assert len(sums.items) == 1


@cocotb.test()
async def urgent_packets_first(dut):
    """Partials before acknowledgements before resends; a blocked transmitter does not stop the receiver."""
    configure(dut, 1, 50)
    tx = StreamSink(dut, "tx")
    rx = StreamSource(dut, "rx")
    sums = StreamSink(dut, "sums")
    partials = StreamSource(dut, "partials")
    sent, resent = PulseCounter(dut, "sent"), PulseCounter(dut, "resent")
    await start(dut)
    dut.join_round.value = 1
    await pulse(dut, "join")
    partials.send([0, 0, 0])
    await tx.receive(3)
    tx.stall = 1.0
    rx.send(
        beat_of(Packet(PacketType.FULL, 9, slot, 1, 0, 1, 1, (slot,) * 8, destination=LOCAL, source=MAC).to_bytes())
        for slot in (2, 0, 1)
    )
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
    """Not before ``resend_cycles`` have gone, and at most a scan later: 4 cycles a slot in use."""
    resend = 100
    configure(dut, 1, resend)
    times = []
    cycle = 0
    tx = StreamSink(dut, "tx", on_item=lambda item: times.append(cycle))
    partials = StreamSource(dut, "partials")
    await start(dut)
    dut.join_round.value = 1
    await pulse(dut, "join")
    partials.send([0])
    for _ in range(20 * resend):
        await RisingEdge(dut.clk)
        cycle += 1
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) > 15
    assert all(resend <= gap <= resend + 4 * CONFIG.slots + 2 for gap in gaps), gaps
    assert len(set(tx.items)) == 1


@cocotb.test()
async def join_forgets(dut):
    """After a join in the middle of things the next partial is slot 0 of the round joined at."""
    configure(dut, 1, 1_000_000)
    tx = StreamSink(dut, "tx")
    rx = StreamSource(dut, "rx")
    partials = StreamSource(dut, "partials")
    dut.sums__ready.value = 0
    await start(dut)
    expected = []
    for first_round in (1, 40_000):
        dut.join_round.value = first_round
        await pulse(dut, "join")
        await ClockCycles(dut.clk, 2)
        assert not dut.busy.value
        assert not dut.sums__valid.value
        partials.send([0] * 3)
        await partials.drained()
        rx.send(
            beat_of(Packet(PacketType.FULL, 9, slot, first_round, 0, 1, 1, destination=LOCAL, source=MAC).to_bytes())
            for slot in (0, 2)
        )
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
    configure(dut, 1, 1_000_000)
    dut.tx__ready.value = dut.sums__ready.value = 1
    dut.rx__valid.value = dut.partials__valid.value = 0
    await start(dut)
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
    full = Packet(PacketType.FULL, 9, 0, 1, 0, 1, 1, (5,) * 8, destination=LOCAL, source=MAC)
    dut.rx__payload.value = beat_of(full.to_bytes())
    dut.rx__valid.value = 1
    assert await cycles_until(dut.sums__valid) == 3


@pytest.mark.rtl
def test_endpoint():
    run_bench(Endpoint(CONFIG), __file__)
