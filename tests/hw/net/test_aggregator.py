"""The RTL aggregator against the Python one, answer for answer, over long random sequences."""

import random
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from cocotb.utils import get_sim_time
from support.axi import PulseCounter
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.hw.net.aggregator import Aggregator
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.sim.network import aggregator as model

SLOTS = 8
MAC, GROUP = 0x0250_0000_0001, 0x0150_0000_0000
KEEP = (1 << 64) - 1


def beat(frame: bytes, *, keep: int = KEEP, last: int = 1) -> int:
    return int.from_bytes(frame, "little") | keep << 512 | last << 576


def random_packet(workers: int, rounds: list[int]) -> tuple[bytes, int]:
    """A plausible packet, now and then broken in one place; rounds stay near those of the slots."""
    slot = random.randrange(SLOTS)
    shard = random.randrange(workers)
    near = rounds[slot] + random.choice([0, 0, 0, 0, 1, 1, -1, 2, 0x8000])
    fields = {
        "type": random.choice([PacketType.PARTIAL, PacketType.PARTIAL, PacketType.ACK]),
        "job": 7,
        "slot": slot,
        "round": near % 65536,
        "shard": shard,
        "workers": workers,
        "bitmap": 1 << shard,
        "values": tuple(random.randint(-(1 << 31), (1 << 31) - 1) for _ in range(8)),
        "destination": MAC,
        "source": 0x0250_0000_1000 + shard,
    }
    port = shard
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
        port = random.randrange(workers)
    frame = bytearray(Packet(**fields).to_bytes())
    if fault > 0.97:  # anywhere, in any bit
        frame[random.randrange(6, 32)] ^= 1 << random.randrange(8)
    return bytes(frame), port


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def answers_as_the_model(dut, stall):
    workers = parameters()["workers"]
    rx = StreamSource(dut, "rx", stall)
    tx = StreamSink(dut, "tx", stall)
    accepted, dropped = PulseCounter(dut, "accepted"), PulseCounter(dut, "dropped")
    dut.job.value, dut.workers.value, dut.mac.value, dut.group_mac.value = 7, workers, MAC, GROUP
    dut.clear.value = dut.clear_round.value = 0
    await start(dut)
    for clear_round in (0, 65533):
        twin = model.Aggregator(SLOTS, workers, job=7, workers=workers, mac=MAC, group_mac=GROUP)
        if clear_round:  # the first time the slots are fresh from reset
            twin.clear(clear_round)
            dut.clear_round.value = clear_round
            dut.clear.value = 1
        await RisingEdge(dut.clk)
        dut.clear.value = 0
        before = accepted.count, dropped.count
        tx.items.clear()
        expected: list[tuple[bytes, int]] = []

        def send(frame: bytes, port: int, twin=twin, expected=expected) -> None:
            rx.send([beat(frame) | port << 577])
            answer = twin.receive_frame(frame, port)
            if answer is not None:
                expected.append((answer.packet.to_bytes(), answer.ports))

        for _ in range(1500):
            send(*random_packet(workers, [slot.round for slot in twin.slots]))
        await rx.drained()
        for _ in range(200):
            await RisingEdge(dut.clk)
        got = [
            ((item & ((1 << 512) - 1)).to_bytes(64, "little"), item >> 577 & ((1 << workers) - 1)) for item in tx.items
        ]
        assert all(item >> 512 & KEEP == KEEP and item >> 576 & 1 for item in tx.items)
        assert got == expected
        assert (accepted.count - before[0], dropped.count - before[1]) == (twin.accepted, twin.dropped)
        assert twin.accepted > 300
        assert all(1 <= (slot.round - clear_round) % 65536 < 1000 for slot in twin.slots)
        assert not clear_round or any(slot.round < 1000 for slot in twin.slots), "no slot has gone past 65535"


@cocotb.test()
async def latency(dut):
    """5 cycles from a packet to its answer, and the next packet is taken then."""
    workers = parameters()["workers"]
    dut.job.value, dut.workers.value, dut.mac.value, dut.group_mac.value = 7, workers, MAC, GROUP
    dut.clear.value = dut.clear_round.value = 0
    dut.rx__valid.value, dut.tx__ready.value = 0, 1
    await start(dut)
    await ClockCycles(dut.clk, SLOTS + 1)
    taken, answered = [], []
    for shard in range(workers):
        frame = Packet(PacketType.PARTIAL, 7, 0, 1, shard, workers, 1 << shard, (1,) * 8, MAC, shard).to_bytes()
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
    rx = StreamSource(dut, "rx")
    tx = StreamSink(dut, "tx")
    dropped = PulseCounter(dut, "dropped")
    dut.job.value, dut.workers.value, dut.mac.value, dut.group_mac.value = 7, workers, MAC, GROUP
    dut.clear.value = dut.clear_round.value = 0
    await start(dut)
    packets = [
        Packet(PacketType.PARTIAL, 7, 0, 1, shard, workers, 1 << shard, (shard,) * 8, MAC, shard).to_bytes()
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
    full = Packet.from_bytes((answer & ((1 << 512) - 1)).to_bytes(64, "little"))
    assert full.type is PacketType.FULL
    assert full.values == (sum(range(workers)),) * 8


@pytest.mark.rtl
@pytest.mark.parametrize("workers", [1, 3])
def test_aggregator(workers):
    run_bench(Aggregator(SLOTS, workers), __file__, workers=workers)
