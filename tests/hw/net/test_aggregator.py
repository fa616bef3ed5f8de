"""The RTL aggregator against the Python one, answer for answer, over long random sequences."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
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
    dut.clear.value = 0
    await start(dut)
    for start_round in (0, 65533):
        twin = model.Aggregator(SLOTS, workers, job=7, workers=workers, mac=MAC, group_mac=GROUP)
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

        if start_round:  # walk every slot to the end of the rounds: from 0, only the next round is taken
            for slot in range(SLOTS):
                twin.slots[slot].round = 0
            for round in range(1, 5):
                for slot in range(SLOTS):
                    for shard in range(workers):
                        packet = Packet(
                            PacketType.PARTIAL, 7, slot, round, shard, workers, 1 << shard, (round,) * 8, MAC, shard
                        )
                        send(packet.to_bytes(), shard)
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


@cocotb.test()
async def drops_broken_frames(dut):
    workers = parameters()["workers"]
    rx = StreamSource(dut, "rx")
    tx = StreamSink(dut, "tx")
    dropped = PulseCounter(dut, "dropped")
    dut.job.value, dut.workers.value, dut.mac.value, dut.group_mac.value = 7, workers, MAC, GROUP
    dut.clear.value = 0
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
