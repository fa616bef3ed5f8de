"""The RTL endpoint packet by packet; tests/system/test_rtl_identical.py has its sums over links with faults."""

import dataclasses
import itertools
import random
from collections import Counter

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import parameters, run_bench, start, times
from support.frames import beat, frame_in
from support.signals import Cycles, cycles_until, drive, pulse
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.net.reception import ECHO
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import BROADCAST, FIELDS, FRAME_BYTES, DropReason, Packet, PacketType
from p4sgd.sim.network.endpoint import Endpoint as EndpointModel

JOB = 9
MAC, GROUP, LOCAL = 0x0250_0000_0001, 0x0150_0000_0000, 0x0250_0000_1000
PARTIAL, FULL, ACK, CLEAR = PacketType.PARTIAL, PacketType.FULL, PacketType.ACK, PacketType.CLEAR

BITS = 8 * FRAME_BYTES
WHOLE = (1 << FRAME_BYTES) - 1


def field_mask(field):
    """Bits of a field on the bus, where byte i of the frame is bits 8i to 8i + 7."""
    number = ((1 << field.bits) - 1) << (BITS - field.offset_bits - field.bits)
    return int.from_bytes(number.to_bytes(FRAME_BYTES, "big"), "little")


_MASKS = [field_mask(field) for field in FIELDS]


def mutated(frames):
    """Beats of a frame made of one of these: ``(data, keep)`` each."""
    kind = random.random()
    if kind < 0.1:
        return [(random.getrandbits(BITS), WHOLE)]
    frame = random.choice(frames)
    if kind < 0.4:  # bits
        for _ in range(random.choice((1, 1, 2, 8))):
            frame ^= 1 << random.randrange(BITS)
    elif kind < 0.9:  # fields
        for mask in random.sample(_MASKS, random.choice((1, 1, 2))):
            frame = frame & ~mask | random.choice((0, mask, mask & random.getrandbits(BITS), mask & (frame + mask)))
    elif kind < 0.95:  # cut
        return [(frame, WHOLE >> random.randrange(1, FRAME_BYTES))]
    else:  # more
        return [(frame, WHOLE)] * random.randint(2, 3)
    return [(frame, WHOLE)]


def read_frame(beats):
    """The bytes of a frame of one beat."""
    ((data, keep),) = beats
    frame = data.to_bytes(FRAME_BYTES, "little")
    return frame if keep == WHOLE else frame[: keep.bit_length()]


async def give(dut, beats):
    """The beats of a frame in ``rx``, which is always ready."""
    for left, (data, keep) in zip(reversed(range(len(beats))), beats, strict=True):
        drive(dut, rx__payload=beat(data, keep=keep, last=left == 0), rx__valid=1)
        await RisingEdge(dut.clk)
    drive(dut, rx__valid=0)


async def begin(dut, resend=1_000_000, doublings=0, limit=0):
    """Settings and a reset; before it, nothing may look at outputs: they may be those of the test before."""
    drive(dut, job=JOB, shard=parameters()["shard"], workers=parameters()["workers"], local_mac=LOCAL, peer_mac=MAC)
    drive(dut, resend_cycles=resend, doublings=doublings, resend_limit=limit)
    drive(dut, join=0, leave=0, rx__valid=0, partials__valid=0, probe__valid=0, sums__ready=0)
    await start(dut)


async def join(dut, first_round=1):
    drive(dut, join_round=first_round)
    await pulse(dut, "join")


async def begin_joined(dut, resend=1_000_000, **settings):
    """Settings, a reset and a job that begins in round 1; its streams ``tx``, ``rx`` and ``partials``."""
    await begin(dut, resend, **settings)
    await join(dut)
    return StreamSink(dut, "tx"), StreamSource(dut, "rx"), StreamSource(dut, "partials")


def random_values():
    return tuple(random.randint(-(1 << 31), (1 << 31) - 1) for _ in range(8))


def packet_to_it(kind, slot, round=1, values=None):
    """What the aggregator sends to the endpoint alone; the values are the number of the slot."""
    shard, workers = parameters()["shard"], parameters()["workers"]
    values = (slot,) * 8 if values is None else values
    return Packet(kind, JOB, slot, round, shard, workers, (1 << workers) - 1, values, destination=LOCAL, source=MAC)


def beats_to_it(kind, slots, round=1):
    return [beat(packet_to_it(kind, slot, round).to_bytes()) for slot in slots]


def packets_on(tx, begin=0):
    """What has been sent, from that number on."""
    return [Packet.from_bytes(frame_in(item)) for item in tx.items[begin:]]


def kinds_on(tx, begin=0):
    return [(packet.type, packet.slot, packet.round) for packet in packets_on(tx, begin)]


@cocotb.test()
async def mutated_frames_change_nothing(dut):
    """But counters, each as in the model; slots are in every state, and go on where they were."""
    workers, shard, slots, count = (parameters()[name] for name in ("workers", "shard", "slots", "count"))
    tx, rx, partials = await begin_joined(dut, (1 << 31) - 1)
    sums = StreamSink(dut, "sums")
    twin = EndpointModel(slots, job=JOB, shard=shard, workers=workers, local_mac=LOCAL, peer_mac=MAC)

    async def take(kind, *slots):
        for payload in beats_to_it(kind, slots):
            twin.receive_frame(frame_in(payload), 0)
            rx.send([payload])
        await rx.drained()
        await ClockCycles(dut.clk, 10)

    # Slots 0 and 1 are through, 2 and 3 wait for CLEAR, 4 and 5 for FULL, the others have carried nothing.
    partials.send(pack([slot] * 8, 32) for slot in range(6))
    for slot in range(6):
        twin.submit([slot] * 8, 0)
    await tx.receive(6)
    await take(FULL, *range(4))
    await take(CLEAR, *range(2))
    assert (len(tx.items), len(sums.items)) == (10, 4)

    right = [packet_to_it(kind, slot, round_) for kind in PacketType for slot in range(slots) for round_ in range(3)]
    right += [dataclasses.replace(packet, shard=0, destination=GROUP) for packet in right]
    right.append(dataclasses.replace(packet_to_it(PacketType.ECHO, 0), destination=BROADCAST))
    frames = [int.from_bytes(packet.to_bytes(), "little") for packet in right]
    states = [dataclasses.replace(slot) for slot in twin._slots]
    drops, echoes = Counter(), Cycles(dut, "echo__valid")

    async def count_drops():
        while True:
            await RisingEdge(dut.clk)
            if dut.dropped.value:
                drops[DropReason(int(dut.drop.value))] += 1

    cocotb.start_soon(count_drops())
    sent = heard = skipped = 0
    before = twin.drops.copy()
    while sent < count:
        beats = mutated(frames)
        if len(beats) > 1:
            twin.drops[DropReason.LONG] += 1
        else:
            twin.echo = None
            twin.receive_frame(read_frame(beats), 0)
            heard += twin.echo is not None
            if twin._slots != states:  # it was a good one, or as good as one
                twin._slots = [dataclasses.replace(slot) for slot in states]
                twin.sums.clear()
                twin._delivered = 4
                skipped += 1
                continue
        await give(dut, beats)
        sent += 1
    await ClockCycles(dut.clk, 10)
    assert skipped < count / 20
    assert drops == twin.drops - before
    assert drops.keys() == set(DropReason)
    assert len(echoes) == heard > 0
    assert drops.total() + heard == count
    assert (len(tx.items), len(sums.items), dut.busy.value) == (10, 4, 1)
    for kind, rest in ((CLEAR, (2, 3)), (FULL, (5, 4)), (CLEAR, (4, 5))):
        await take(kind, *rest)
    assert [unpack(item, 32, 8) for item in sums.items[4:]] == [[4] * 8, [5] * 8]
    assert not dut.busy.value


@cocotb.test()
async def urgent_packets_first(dut):
    """Partials before acknowledgements before resends; a blocked transmitter does not stop the receiver."""
    tx, rx, partials = await begin_joined(dut, 50)
    sums, sent, resent = StreamSink(dut, "sums"), Cycles(dut, "sent"), Cycles(dut, "resent")
    partials.send([0, 0, 0])
    await tx.receive(3)
    tx.stall = 1.0
    rx.send(beats_to_it(FULL, (2, 0, 1)))
    assert [unpack(item, 32, 8) for item in await sums.receive(3)] == [[slot] * 8 for slot in range(3)]
    await ClockCycles(dut.clk, 200)  # all are due again
    partials.send([0])
    await ClockCycles(dut.clk, 20)
    tx.stall = 0.0
    await tx.receive(10)
    # The first was offered before the partial came.
    assert kinds_on(tx, 3)[:4] == [(ACK, 2, 1), (PARTIAL, 3, 1), (ACK, 0, 1), (ACK, 1, 1)]
    await ClockCycles(dut.clk, 100)
    tx.stall = 1.0
    await ClockCycles(dut.clk, 3)
    assert len(sent) - len(tx.items) in (0, 1)  # one may be on offer
    assert len(sent) - len(resent) == 4 + 3
    assert set(kinds_on(tx, 7)) == {(ACK, 0, 1), (ACK, 1, 1), (ACK, 2, 1), (PARTIAL, 3, 1)}


@cocotb.test()
@cocotb.parametrize(doublings=[0, 3])
async def resends_when_due(dut, doublings):
    """Not before it is time, and at most a scan later: 5 cycles a slot in use, 1 an idle one. Then anew for the ACK."""
    resend = 100
    tx, rx, partials = await begin_joined(dut, resend, doublings=doublings)
    left = Cycles(dut, "tx__valid", "tx__ready")
    values = random_values()
    partials.send([pack(values, 32)])
    for kind in (PARTIAL, ACK):
        begun = len(left)
        await cycles_until(dut, lambda begun=begun: len(left) == begun + 8)
        gaps = [later - earlier for earlier, later in itertools.pairwise(left[begun:])]
        for number, gap in enumerate(gaps):
            wait = resend << min(number, doublings)
            assert wait <= gap <= wait + parameters()["slots"] + 6, gaps
        assert len(set(packets_on(tx, begun))) == 1
        assert kinds_on(tx, begun)[0] == (kind, 0, 1)
        assert packets_on(tx, begun)[0].values == (values if kind is PARTIAL else (0,) * 8)
        rx.send(beats_to_it(FULL, [0]))


@cocotb.test()
async def gives_up(dut):
    """After so many resends; it is told which slot and why, nothing more is sent, and a join makes all well."""
    limit, resend, first_round = 3, 60, 1
    tx, rx, partials = await begin_joined(dut, resend, limit=limit)
    drive(dut, sums__ready=1)
    for phase in (PARTIAL, ACK):
        sent_before = len(tx.items)
        partials.send([0] * 3)
        await tx.receive(sent_before + 3)
        rx.send(beats_to_it(FULL, [0, 1, 2] if phase is ACK else [0, 2], first_round))
        await rx.drained()
        await ClockCycles(dut.clk, 20)
        rx.send(beats_to_it(CLEAR, [0, 2], first_round))
        await cycles_until(dut, lambda: dut.given_up.value, (limit + 2) * (resend + 40))
        assert (int(dut.given_up_slot.value), int(dut.given_up_round.value)) == (1, first_round)
        assert bool(dut.given_up_partial.value) == (phase is PARTIAL)
        await ClockCycles(dut.clk, 5)
        assert kinds_on(tx, sent_before).count((phase, 1, first_round)) == 1 + limit
        assert not dut.busy.value
        count = len(tx.items)
        partials.send([0])
        rx.send(beats_to_it(FULL, [1], first_round))
        await ClockCycles(dut.clk, 5 * resend)
        assert (len(tx.items), dut.given_up.value) == (count, 1)
        await join(dut, first_round := 77)
        await ClockCycles(dut.clk, 3)
        assert not dut.given_up.value
        await tx.receive(count + 1)
        assert kinds_on(tx, count) == [(PARTIAL, 0, first_round)], "the partial that waited"
        await join(dut, first_round)
        await ClockCycles(dut.clk, 5)


@cocotb.test()
async def gives_up_behind_a_blocked_way_out(dut):
    """A packet that is not taken for as long as another is waited for counts as sent again."""
    limit, resend = 3, 60
    tx, _, partials = await begin_joined(dut, resend, limit=limit)
    tx.stall = 1.0
    partials.send([0, 0])
    cycles = await cycles_until(dut, lambda: dut.given_up.value, (limit + 1) * (resend + 40))
    assert cycles >= (limit + 1) * resend
    assert (int(dut.given_up_slot.value), dut.given_up_partial.value) == (0, 1)
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
    tx, rx, partials = await begin_joined(dut, resend, limit=limit, doublings=doublings)
    drive(dut, sums__ready=1)
    partials.send([0])
    await tx.receive(1)
    rx.send(beats_to_it(FULL, [0]))
    await tx.receive(2)
    tx.stall = 1.0
    await ClockCycles(dut.clk, resend + 20)  # its ACK is offered again
    assert dut.tx__valid.value
    rx.send(beats_to_it(CLEAR, [0]))
    await ClockCycles(dut.clk, 10)
    assert not dut.busy.value
    if anew:
        await join(dut, first_round)
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
    for kind in (FULL, CLEAR):
        rx.send(beats_to_it(kind, [slot], round_))
        await ClockCycles(dut.clk, 10)
    assert not dut.busy.value
    partials.send([0])
    assert total <= await cycles_until(dut, lambda: dut.given_up.value, 2 * total) <= total + 20
    assert (int(dut.given_up_slot.value), int(dut.given_up_round.value)) == (slot + 1, round_)
    assert (dut.given_up_partial.value, dut.joined.value) == (1, 0)


@cocotb.test()
async def probes(dut):
    """A probe says who the worker is, and its echo is handed on whatever job, version or sender it is of."""
    shard, workers, slots = (parameters()[name] for name in ("shard", "workers", "slots"))
    tx, rx, _ = await begin_joined(dut)
    probe, echo = StreamSource(dut, "probe"), StreamSink(dut, "echo", flow=True)
    dropped = Cycles(dut, "dropped")
    twin = EndpointModel(slots, job=JOB, shard=shard, workers=workers, local_mac=LOCAL, peer_mac=MAC)
    expected = []
    for number in range(20):
        slot, broadcast = random.getrandbits(16), random.getrandbits(1)
        probe.send([slot | number << 16 | broadcast << 24])
        await tx.receive(number + 1)
        assert packets_on(tx, number) == [twin.probe(slot, number, BROADCAST if broadcast else None)]
        values = random_values()
        bits = {"job": 8, "shard": 8, "workers": 8, "bitmap": 32, "source": 48, "version": 4}
        answer = packet_to_it(PacketType.ECHO, random.getrandbits(16), random.getrandbits(16), values)
        answer = dataclasses.replace(answer, **{name: random.getrandbits(width) for name, width in bits.items()})
        rx.send([beat(answer.to_bytes())])
        await echo.receive(number + 1)
        fields = {"version": answer.version, "source": answer.source, "round": answer.round}
        fields |= {"aggregated": answer.bitmap, "values": values}
        expected.append(ECHO.const(fields).as_value().value)
    assert echo.items == expected
    assert not dropped
    assert not dut.busy.value


@cocotb.test()
async def a_packet_a_cycle_each_way(dut):
    """PARTIAL and ACK leave, FULL and CLEAR come, back to back, for ten thousand AllReduces."""
    count = 10_000
    await begin(dut)
    rx, sums, partials = StreamSource(dut, "rx"), StreamSink(dut, "sums"), StreamSource(dut, "partials")

    def answer(item):
        packet = Packet.from_bytes(frame_in(item))
        kind = FULL if packet.type is PARTIAL else CLEAR
        rx.send([beat(packet_to_it(kind, packet.slot, packet.round, packet.values).to_bytes())])

    tx = StreamSink(dut, "tx", on_item=answer)
    await join(dut)
    sent, came = Cycles(dut, "tx__valid", "tx__ready"), Cycles(dut, "rx__valid")
    partials.send(pack([number] * 8, 32) for number in range(count))
    await tx.receive(2 * count)
    await rx.drained()
    await ClockCycles(dut.clk, 5)
    assert sums.items == [pack([number] * 8, 32) for number in range(count)]
    for cycles in (sent, came):
        assert len(cycles) == 2 * count
        assert cycles[-1] - cycles[0] < 2 * count + 40, "there were pauses"
    assert sent[-1] - came[0] > 2 * count - 40, "both ways at once"


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
    few = "resends|probes"
    only = few if slots < 8 else f"{few}|urgent|gives|mutated" if slots < 32 else "cycle"
    run_bench(
        Endpoint(config), __file__, only=only, scrambled=True, slots=slots, workers=workers, shard=shard, count=3000
    )


@pytest.mark.slow
@pytest.mark.rtl
def test_many_frames():
    config = dataclasses.replace(WorkerConfig.tiny(), slots=8)
    run_bench(Endpoint(config), __file__, only="mutated", slots=8, workers=4, shard=2, count=times(20_000))
