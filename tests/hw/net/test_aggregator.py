"""The RTL aggregator against the Python one, answer for answer, over long random sequences."""

import random
from collections import deque
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from cocotb.utils import get_sim_time
from support.axi import PulseCounter, pulse
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.hw.net.aggregator import Aggregator
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.sim.network import aggregator as model

SLOTS, JOB = 8, 7
MAC, GROUP = 0x0250_0000_0001, 0x0150_0000_0000
FRAME = (1 << 512) - 1
KEEP = (1 << 64) - 1


def beat(frame: bytes, *, keep: int = KEEP, last: int = 1) -> int:
    return int.from_bytes(frame, "little") | keep << 512 | last << 576


def new_twin() -> model.Aggregator:
    ports, workers = parameters()["ports"], parameters()["workers"]
    return model.Aggregator(SLOTS, ports, job=JOB, workers=workers, mac=MAC, group_mac=GROUP)


async def begin(dut) -> None:
    """Settings and a reset; before it, nothing may look at outputs: they may be those of the test before."""
    dut.job.value, dut.workers.value, dut.mac.value, dut.group_mac.value = JOB, parameters()["workers"], MAC, GROUP
    dut.clear.value = dut.clear_round.value = dut.rx__valid.value = 0
    await start(dut)


def next_step(slot: model.SlotState, workers: int) -> tuple[PacketType, int, list[int]]:
    """What leads a slot on: a type, a round, and the shards it is missing from."""

    def missing(bitmap: int) -> list[int]:
        return [shard for shard in range(workers) if not bitmap >> shard & 1]

    if slot.aggregated and missing(slot.aggregated):
        return PacketType.PARTIAL, slot.round, missing(slot.aggregated)
    if slot.aggregated and missing(slot.acknowledged):
        return PacketType.ACK, slot.round, missing(slot.acknowledged)
    return PacketType.PARTIAL, slot.round + 1, list(range(workers))


def random_item(twin: model.Aggregator) -> int:
    """A plausible packet as a payload of ``rx``, now and then broken in one place; rounds stay near the slots'."""
    workers = twin.workers
    slot = random.randrange(SLOTS)
    kind, near, shards = next_step(twin.slots[slot], workers)
    if random.random() < 0.4:
        kind = random.choice([PacketType.PARTIAL, PacketType.ACK])
        near = twin.slots[slot].round + random.choice([0, 0, 0, 1, -1, 2, 0x8000])
        shards = range(workers)
    port = shard = random.choice(shards)
    fields = {
        "type": kind,
        "job": twin.job,
        "slot": slot,
        "round": near % 65536,
        "shard": shard,
        "workers": workers,
        "bitmap": 1 << shard,
        "values": tuple(random.randint(-(1 << 31), (1 << 31) - 1) for _ in range(8)),
        "destination": MAC,
        "source": 0x0250_0000_1000 + shard,
    }
    fault = random.random()
    if fault < 0.02:
        fields["job"] = random.randrange(256)
    elif fault < 0.04:
        fields["workers"] = random.randrange(1, 33)
    elif fault < 0.06:
        fields["slot"] = random.choice([SLOTS, 65535])
    elif fault < 0.08:
        fields["bitmap"] = random.getrandbits(32)
    elif fault < 0.10:
        fields["destination"] = random.getrandbits(48)
    elif fault < 0.12:
        fields["type"] = random.choice([PacketType.FULL, PacketType.CLEAR])
    elif fault < 0.14:
        port = random.randrange(parameters()["ports"])
    frame = bytearray(Packet(**fields).to_bytes())
    if fault > 0.97:  # anywhere, in any bit
        frame[random.randrange(6, 32)] ^= 1 << random.randrange(8)
    return beat(bytes(frame)) | port << 577


def answers(twin: model.Aggregator, item: int) -> list[tuple[bytes, int]]:
    """What the model says to a payload of ``rx``: at most one frame, and its ports."""
    answer = twin.receive_frame((item & FRAME).to_bytes(64, "little"), item >> 577)
    return [] if answer is None else [(answer.packet.to_bytes(), answer.ports)]


def answers_on(tx: StreamSink) -> list[tuple[bytes, int]]:
    """What the design said."""
    assert all(item >> 512 & KEEP == KEEP and item >> 576 & 1 for item in tx.items)
    return [((item & FRAME).to_bytes(64, "little"), item >> 577) for item in tx.items]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def answers_as_the_model(dut, stall):
    await begin(dut)
    rx, tx = StreamSource(dut, "rx", stall), StreamSink(dut, "tx", stall)
    accepted, dropped = PulseCounter(dut, "accepted"), PulseCounter(dut, "dropped")
    for clear_round in (0, 65533):
        twin = new_twin()
        if clear_round:  # the first time the slots are fresh from reset
            twin.clear(clear_round)
            dut.clear_round.value = clear_round
            await pulse(dut, "clear")
        before = accepted.count, dropped.count
        tx.items.clear()
        expected = []
        for _ in range(1500 + 100 * twin.workers):
            item = random_item(twin)
            rx.send([item])
            expected += answers(twin, item)
        await rx.drained()
        await ClockCycles(dut.clk, 200)
        assert answers_on(tx) == expected
        assert (accepted.count - before[0], dropped.count - before[1]) == (twin.accepted, twin.dropped)
        assert twin.accepted > 300
        assert all(1 <= (slot.round - clear_round) % 65536 < 1000 for slot in twin.slots)
        assert not clear_round or any(slot.round < 1000 for slot in twin.slots), "no slot has gone past 65535"


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5, 0.98])
async def clears_at_any_time(dut, stall):
    """Between packets, under packets, while it is clearing, with answers waiting: as if the model were cleared.

    A packet is decided on 3 cycles after it is taken; those on the way there are dropped. Each clear begins a new job.
    """
    await begin(dut)
    rx, tx = StreamSource(dut, "rx", 0.1), StreamSink(dut, "tx", stall)
    accepted, dropped = PulseCounter(dut, "accepted"), PulseCounter(dut, "dropped")
    twin = new_twin()
    expected = []
    under_way = deque()  # packets taken, and when
    left = SLOTS - 1  # cycles of clearing
    sent = taken = again = 0
    cycles = 4_000
    for cycle in range(cycles + 500):
        if cycle == cycles:
            tx.stall = 0.0
        if cycle < cycles and sent - taken < 3:
            rx.send([random_item(twin)])
            sent += 1
        await RisingEdge(dut.clk)
        assert bool(dut.clearing.value) == (left > 0)
        left = max(0, left - 1)
        if under_way and under_way[0][1] == cycle - 3:
            expected += answers(twin, under_way.popleft()[0])
        if dut.rx__valid.value and dut.rx__ready.value:
            assert not dut.clearing.value
            under_way.append((int(dut.rx__payload.value), cycle))
            taken += 1
        if dut.clear.value:
            again += left > 0
            twin.clear(int(dut.clear_round.value))
            twin.job = int(dut.job.value)
            twin.dropped += len(under_way)
            under_way.clear()
            left = SLOTS
        begins = cycle < cycles and random.random() < (0.1 if left else 0.005)
        dut.clear.value = begins
        dut.clear_round.value = random.randrange(65536)
        if begins:
            dut.job.value = random.randrange(256)
    assert again > 2, "no clear while it is clearing"
    assert len(expected) > 10
    assert answers_on(tx) == expected
    assert (accepted.count, dropped.count) == (twin.accepted, twin.dropped)
    assert sent == taken == twin.accepted + twin.dropped


@cocotb.test()
async def latency(dut):
    """5 cycles from a packet to its answer, and the next packet is taken then."""
    workers = parameters()["workers"]
    await begin(dut)
    dut.tx__ready.value = 1
    await ClockCycles(dut.clk, SLOTS + 1)
    taken, answered = [], []
    for shard in range(workers):
        frame = Packet(PacketType.PARTIAL, JOB, 0, 1, shard, workers, 1 << shard, (1,) * 8, MAC, shard).to_bytes()
        dut.rx__payload.value = beat(frame) | shard << 577
        dut.rx__valid.value = 1
        while len(taken) == shard:
            await RisingEdge(dut.clk)
            if dut.rx__ready.value:
                taken.append(get_sim_time("ns") // 4)
    dut.rx__valid.value = 0
    while not answered:
        await RisingEdge(dut.clk)
        if dut.tx__valid.value:
            answered.append(get_sim_time("ns") // 4)
    assert [later - earlier for earlier, later in pairwise(taken)] == [4] * (workers - 1)
    assert answered[0] - taken[-1] == 5
    assert dut.rx__ready.value


@cocotb.test()
async def drops_broken_frames(dut):
    workers = parameters()["workers"]
    await begin(dut)
    rx, tx = StreamSource(dut, "rx"), StreamSink(dut, "tx")
    dropped = PulseCounter(dut, "dropped")
    packets = [
        Packet(PacketType.PARTIAL, JOB, 0, 1, shard, workers, 1 << shard, (shard,) * 8, MAC, shard).to_bytes()
        for shard in range(workers)
    ]
    for shard, frame in enumerate(packets):
        rx.send([beat(frame, keep=KEEP >> 1) | shard << 577])  # runt
        rx.send([beat(frame, last=0) | shard << 577, beat(frame) | shard << 577])  # two beats
    await rx.drained()
    for _ in range(50):
        await RisingEdge(dut.clk)
    assert not tx.items
    assert dropped.count == 2 * workers
    rx.send(beat(frame) | shard << 577 for shard, frame in enumerate(packets))
    (answer,) = await tx.receive(1)
    full = Packet.from_bytes((answer & FRAME).to_bytes(64, "little"))
    assert full.type is PacketType.FULL
    assert full.values == (sum(range(workers)),) * 8


@pytest.mark.rtl
@pytest.mark.parametrize(("ports", "workers"), [(1, 1), (3, 3), (32, 32), (32, 19)])
def test_aggregator(ports, workers):
    # Only few rounds of many workers would end between two clears.
    only = "answers|latency|drops" if workers > 3 else None
    run_bench(Aggregator(SLOTS, ports), __file__, only=only, ports=ports, workers=workers)
