"""Many random and mutated frames into the endpoint: nothing changes but counters, each as in the model."""

import dataclasses
import random
from collections import Counter

import cocotb
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.axi import pulse
from support.bench import parameters, run_bench, start, times
from support.mutation import WHOLE, mutated
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import BROADCAST, DropReason, Packet, PacketType
from p4sgd.sim.network.endpoint import Endpoint as EndpointModel

JOB, SHARD, WORKERS, SLOTS = 9, 2, 4, 8
MAC, GROUP, LOCAL = 0x0250_0000_0001, 0x0150_0000_0000, 0x0250_0000_1000


def answer(kind, slot, number, values=(0,) * 8, *, to_all=False):
    shard, destination = (0, GROUP) if to_all else (SHARD, LOCAL)
    return Packet(kind, JOB, slot, number, shard, WORKERS, (1 << WORKERS) - 1, values, destination, MAC)


def on_bus(packet):
    return int.from_bytes(packet.to_bytes(), "little")


@cocotb.test()
async def nothing_changes(dut):
    count = parameters()["count"]
    dut.job.value, dut.shard.value, dut.workers.value = JOB, SHARD, WORKERS
    dut.local_mac.value, dut.peer_mac.value, dut.resend_cycles.value = LOCAL, MAC, (1 << 31) - 1
    dut.join.value = dut.leave.value = dut.rx__valid.value = dut.partials__valid.value = dut.probe__valid.value = 0
    dut.doublings.value = dut.resend_limit.value = 0
    await start(dut)
    twin = EndpointModel(SLOTS, job=JOB, shard=SHARD, workers=WORKERS, local_mac=LOCAL, peer_mac=MAC)
    tx, sums, partials = StreamSink(dut, "tx"), StreamSink(dut, "sums"), StreamSource(dut, "partials")
    dut.join_round.value = 1
    await pulse(dut, "join")

    async def give(packet):
        twin.receive(packet, 0)
        dut.rx__payload.value, dut.rx__valid.value = on_bus(packet) | WHOLE << 512 | 1 << 576, 1
        await RisingEdge(dut.clk)
        dut.rx__valid.value = 0

    # Slots 0 and 1 are through, 2 and 3 wait for CLEAR, 4 and 5 for FULL, the others have carried nothing.
    partials.send(pack([slot] * 8, 32) for slot in range(6))
    for slot in range(6):
        twin.submit([slot] * 8, 0)
    await tx.receive(6)
    for slot in range(4):
        await give(answer(PacketType.FULL, slot, 1, (slot,) * 8))
    for slot in range(2):
        await give(answer(PacketType.CLEAR, slot, 1))
    await tx.receive(10)
    await sums.receive(4)
    await ClockCycles(dut.clk, 10)

    kinds = list(PacketType)
    frames = [
        on_bus(answer(kind, slot, number, to_all=to_all))
        for kind in kinds
        for slot in range(SLOTS)
        for number in (0, 1, 2)
        for to_all in (False, True)
    ]
    frames.append(on_bus(dataclasses.replace(answer(PacketType.ECHO, 0, 1), destination=BROADCAST)))
    slots = [dataclasses.replace(slot) for slot in twin._slots]
    dropped = Counter()
    echoes = 0

    async def watch():
        nonlocal echoes
        while True:
            await RisingEdge(dut.clk)
            await ReadOnly()
            if dut.dropped.value:
                dropped[int(dut.drop.value)] += 1
            elif dut.echo__valid.value:
                echoes += 1

    watcher = cocotb.start_soon(watch())
    sent = heard = skipped = 0
    before = twin.drops.copy()
    dut.rx__valid.value = 1
    while sent < count:
        beats = mutated(frames, random)
        data, keep = beats[0]
        frame = data.to_bytes(64, "little")
        if len(beats) > 1:
            twin.drops[DropReason.LONG] += 1
        else:
            twin.echo = None
            twin.receive_frame(frame if keep == WHOLE else frame[: keep.bit_length()], 0)
            heard += twin.echo is not None
            if twin._slots != slots:  # it was a good one, or as good as one
                twin._slots = [dataclasses.replace(slot) for slot in slots]
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
    watcher.cancel()
    assert skipped < count / 20
    assert {DropReason(drop): number for drop, number in dropped.items()} == twin.drops - before
    assert dropped.keys() == set(DropReason)
    assert echoes == heard > 0
    assert sum(dropped.values()) + echoes == count
    assert len(tx.items) == 10
    assert len(sums.items) == 4
    assert dut.busy.value

    # It goes on where it was.
    for slot in (2, 3):
        await give(answer(PacketType.CLEAR, slot, 1))
    for slot in (5, 4):
        await give(answer(PacketType.FULL, slot, 1, (slot,) * 8))
    assert [unpack(item, 32, 8) for item in (await sums.receive(6))[4:]] == [[4] * 8, [5] * 8]
    for slot in (4, 5):
        await give(answer(PacketType.CLEAR, slot, 1))
    await ClockCycles(dut.clk, 10)
    assert not dut.busy.value


@pytest.mark.slow
@pytest.mark.rtl
def test_many_frames():
    config = dataclasses.replace(WorkerConfig.tiny(), slots=SLOTS)
    run_bench(Endpoint(config), __file__, count=times(50_000))
