"""Many random and mutated frames into the aggregator: nothing changes but counters, each as in the model."""

import copy
import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support import aggregator_model as model
from support.aggregator import MAC, Host, beat
from support.bench import parameters, run_bench, start, times
from support.mutation import WHOLE, mutated
from support.streams import StreamSink

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import DropReason, Packet, PacketType

CONFIG = AggregatorConfig(slots=8, jobs=2, ports=2)
WORKERS = 3


def job(place):
    members = tuple(Member(0x0250_0000_1000 + 64 * place + shard, shard % 2) for shard in range(WORKERS))
    return Job(7 + place, members, 0x0150_0000_0000 + place, 0b11)


def packet(kind, place, slot, number, shard):
    who = job(place)
    return Packet(kind, who.number, slot, number, shard, WORKERS, 1 << shard, (shard,) * 8, MAC, who.members[shard].mac)


@cocotb.test()
async def nothing_changes(dut):
    count = parameters()["count"]
    dut.rx__valid.value = 0
    host, tx = Host(dut, CONFIG), StreamSink(dut, "tx")
    await start(dut)
    await host.set_mac()
    twin = model.Aggregator(CONFIG.slots, jobs=CONFIG.jobs, mac=MAC)
    for place in range(CONFIG.jobs):
        await host.begin(place, job(place), 1)
        twin.begin(place, job(place), 1)

    async def give(kind, place, slot, shard):
        sent = packet(kind, place, slot, 1, shard)
        port = job(place).members[shard].port
        twin.receive(sent, port)
        dut.rx__payload.value, dut.rx__valid.value = beat(sent.to_bytes(), port), 1
        await RisingEdge(dut.clk)
        dut.rx__valid.value = 0

    # Slot 0 is fresh, 1 has one partial, 2 two, 3 is complete, 4 is acknowledged by one, 5 by all.
    for place in range(CONFIG.jobs):
        for slot in range(1, 6):
            for shard in range(min(slot, WORKERS)):
                await give(PacketType.PARTIAL, place, slot, shard)
        for slot in (4, 5):
            for shard in range(1 if slot == 4 else WORKERS):
                await give(PacketType.ACK, place, slot, shard)
    await ClockCycles(dut.clk, 20)
    answered = len(tx.items)

    frames = [
        int.from_bytes(packet(kind, place, slot, number, shard).to_bytes(), "little")
        for kind in PacketType
        if kind is not PacketType.PROBE  # probes are answered
        for place in range(CONFIG.jobs)
        for slot in range(CONFIG.slots)
        for number in (0, 1, 2, 0x8001)
        for shard in range(WORKERS)
    ]
    slots = copy.deepcopy(twin.slots)
    good = copy.deepcopy((twin.accepted, twin.job_accepted, twin.counts))
    sent = skipped = 0
    dut.rx__valid.value = 1
    while sent < count:
        beats = mutated(frames, random)
        port = random.randrange(CONFIG.ports)
        data, keep = beats[0]
        if len(beats) > 1:
            twin.drops[DropReason.LONG] += 1
        else:
            frame = data.to_bytes(64, "little")
            twin.receive_frame(frame if keep == WHOLE else frame[: keep.bit_length()], port)
            if twin.accepted != good[0]:  # it was a good one, or as good as one
                twin.slots = copy.deepcopy(slots)
                twin.accepted, twin.job_accepted, twin.counts = copy.deepcopy(good)
                skipped += 1
                continue
        for index, (data, keep) in enumerate(beats):
            last = int(index == len(beats) - 1)
            dut.rx__payload.value = beat(data.to_bytes(64, "little"), port, keep=keep, last=last)
            await RisingEdge(dut.clk)
        sent += 1
    dut.rx__valid.value = 0
    await ClockCycles(dut.clk, 20)
    assert skipped < count / 3
    assert len(tx.items) == answered
    for place in range(CONFIG.jobs):
        for slot in range(CONFIG.slots):
            state = slots[place][slot]
            assert await host.look(place, slot) == (state.round, state.aggregated, state.acknowledged)
    assert await host.counters() == twin.counters() | {"OVERRUNS": 0}
    assert all(twin.drops[drop] > count / 10_000 for drop in DropReason), twin.drops

    # The sums are what they were: the next partials complete them.
    for place in range(CONFIG.jobs):
        await give(PacketType.PARTIAL, place, 2, 2)
    (first, second) = (await tx.receive(answered + 2))[answered:]
    for item in (first, second):
        full = Packet.from_bytes((item & ((1 << 512) - 1)).to_bytes(64, "little"))
        assert (full.type, full.values) == (PacketType.FULL, (0 + 1 + 2,) * 8)


@pytest.mark.slow
@pytest.mark.rtl
def test_many_frames():
    run_bench(Aggregator(CONFIG), __file__, count=times(50_000))
