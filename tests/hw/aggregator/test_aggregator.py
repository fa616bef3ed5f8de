"""The RTL aggregator against the Python one, answer for answer and counter for counter, over long random sequences."""

import dataclasses
import random
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support import aggregator_model as model
from support.aggregator import MAC, Host, packet_of
from support.bench import parameters, run_bench, start
from support.frames import KEEP, beat, frame_in
from support.signals import Cycles, drive
from support.streams import StreamSink, StreamSource

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import BROADCAST, DropReason, Packet, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

PARTIAL, FULL, ACK, CLEAR = PacketType.PARTIAL, PacketType.FULL, PacketType.ACK, PacketType.CLEAR


def random_job(config, place):
    """Members have addresses of their own, but may share ports.

    The second job has one, whose partials are the sums. Every other job has a parent, if there is room.
    """
    workers = 1 if place == 1 else parameters()["workers"]
    macs = (0x0250_0000_1000 + 64 * place + shard for shard in range(workers))
    members = tuple(Member(mac, random.randrange(config.ports)) for mac in macs)
    ports = sum(1 << port for port in {member.port for member in members})
    parent = None
    if place % 2 == 0 and len(members) < MAX_WORKERS:
        above = random.choice([1, 2, MAX_WORKERS])
        parent = Parent(0x0250_0000_2000 + place, random.randrange(config.ports), random.randrange(above), above)
    return Job(3 * place + 7, members, 0x0150_0000_0000 + place, ports, parent=parent)


class Twin:
    """The model, its jobs, and packets that fit them; ``expected`` are its answers so far."""

    def __init__(self, config):
        self.config = config
        self.model = model.Aggregator(config.slots, jobs=config.jobs, mac=MAC)
        self.jobs = [random_job(config, place) for place in range(config.jobs)]
        # Most packets are of these slots: the first, the last, and two between.
        self.hot = [0, config.slots - 1, *random.sample(range(config.slots), 2)]
        self.expected = []

    def take(self, payload):
        """What the model says to a payload of ``rx``, whose last byte may be missing; returns the payload."""
        frame = (payload & (1 << 512) - 1).to_bytes(64, "little")
        answer = self.model.receive_frame(frame if payload >> 512 & KEEP == KEEP else frame[:-1], payload >> 577)
        if answer is not None:
            self.expected.append((answer.packet.to_bytes(), answer.ports))
        return payload

    def next_step(self, place, slot):
        """What leads a slot on: a type, a round, and the shards it is missing from; of the parent the last."""
        state, job = self.model.slots[place][slot], self.jobs[place]
        everyone = range(len(job.members))
        for kind, answer, bitmap in ((PARTIAL, FULL, state.aggregated), (ACK, CLEAR, state.acknowledged)):
            missing = [shard for shard in everyone if not bitmap >> shard & 1]
            if state.aggregated and bitmap != job.whole:
                return kind if missing else answer, state.round, missing or everyone
        return PARTIAL, state.round + 1, everyone

    def random_payload(self, places=None):
        """A plausible packet, now and then broken in one place; rounds stay near the slots'."""
        place = random.choice(places or range(self.config.jobs))
        job = self.jobs[place]
        slot = random.choice(self.hot) if random.random() < 0.9 else random.randrange(self.config.slots)
        kind, near, shards = self.next_step(place, slot)
        if random.random() < 0.3:
            kinds = [PARTIAL, ACK, FULL, CLEAR] if job.parent else [PARTIAL, ACK]
            kind, shards = random.choice(kinds), range(len(job.members))
            near = self.model.slots[place][slot].round + random.choice([0, 0, 0, 1, -1, 2, 0x7FFF, 0x8000])
        shard = random.choice(shards)
        port = job.members[shard].port
        values = tuple(random.randint(-(1 << 31), (1 << 31) - 1) for _ in range(8))
        packet = packet_of(job, kind, shard, slot, near % 65536, values)
        if kind in (FULL, CLEAR):
            packet = self.of_parent(packet, job.parent)
            port = job.parent.port
        if random.random() < 0.05:
            to = random.choice([MAC, BROADCAST])
            packet = dataclasses.replace(packet, type=PacketType.PROBE, destination=to)
        keep, fault = KEEP, random.random()
        wrong = {
            "job": random.randrange(256),
            "workers": random.randrange(1, 40),
            "shard": random.randrange(256),
            "slot": random.choice([self.config.slots % 65536, 65535, random.randrange(65536)]),
            "bitmap": random.choice([random.getrandbits(32), 1 << random.randrange(32)]),
            "destination": random.choice([BROADCAST, random.getrandbits(48)]),
            "source": random.choice([random.getrandbits(48), job.members[-1].mac, packet.source ^ 1]),
            "type": random.choice(list(PacketType)),
            "version": random.randrange(16),
        }
        if fault < 0.18:
            names = random.sample(sorted(wrong), random.choice([1, 1, 1, 2]))
            packet = dataclasses.replace(packet, **{name: wrong[name] for name in names})
        elif fault < 0.20:
            port = random.randrange(self.config.ports)
        elif fault < 0.21:
            keep = KEEP >> 1
        frame = bytearray(packet.to_bytes())
        if fault > 0.97:  # anywhere, in any bit
            frame[random.randrange(6, 32)] ^= 1 << random.randrange(8)
        return beat(bytes(frame), port, keep=keep)

    def of_parent(self, packet, parent):
        """Its answer, to all of its shards or to this one."""
        above = {"source": parent.mac, "workers": parent.workers, "bitmap": parent.everyone, "shard": parent.shard}
        to_all = {"destination": 0x0350_0000_0000, "shard": 0} if random.random() < 0.5 else {}
        return dataclasses.replace(packet, **above | to_all)

    def random_payloads(self, count, places=None):
        """So many, one after the other as the model has taken those before."""
        return [self.take(self.random_payload(places)) for _ in range(count)]


def answers_on(tx):
    """What the design said: frames and ports."""
    return [(frame_in(item), item >> 577) for item in tx.items]


def assert_same(got, expected):
    """Compare answers; the first that differs is shown as a packet."""
    for index, (mine, its) in enumerate(zip(got, expected, strict=False)):
        assert mine == its, (index, Packet.from_bytes(mine[0]), mine[1], Packet.from_bytes(its[0]), its[1])
    assert len(got) == len(expected)


async def begin(dut, stall=0.0, jobs=None):
    """The jobs in the first places begin, of design and model, all if there is no number."""
    config = AggregatorConfig(**{name: parameters()[name] for name in ("slots", "jobs", "ports")})
    drive(dut, rx__valid=0, tx__ready=0)
    rx, host, twin = StreamSource(dut, "rx", stall), Host(dut, config), Twin(config)
    await start(dut)
    tx = StreamSink(dut, "tx")  # not before: until the reset there may be an answer of the bench before
    await host.set_mac()
    for place, job in enumerate(twin.jobs[:jobs]):
        await host.begin(place, job, 1)
        twin.model.begin(place, job, 1)
    return host, twin, rx, tx


async def assert_slots(host, states):
    """Slots are as they are told, by place and slot."""
    for (place, slot), state in states.items():
        assert await host.look(place, slot) == (state.round, state.aggregated, state.acknowledged)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def answers_as_the_model(dut, stall):
    """Jobs come and go; packets come back to back, most of them for the same few slots.

    That a job may end under its own packets is proved (tests/formal/test_aggregator_proved.py).
    """
    host, twin, rx, tx = await begin(dut, stall, jobs=0)
    for era in range(4):
        for place, job in enumerate(twin.jobs):
            if era == 0 or random.random() < 0.5:
                first_round = random.choice([1, 65530, 32767])
                await host.begin(place, job, first_round)
                twin.model.begin(place, job, first_round)
            elif random.random() < 0.3:
                await host.write(registers.END, place=place)
                twin.model.end(place)
        rx.send(twin.random_payloads(parameters()["packets"]))
        await rx.drained()
        await ClockCycles(dut.clk, 100)
        assert_same(answers_on(tx), twin.expected)
        slots = twin.model.slots
        await assert_slots(
            host, {(place, slot): slots[place][slot] for place in range(len(slots)) for slot in twin.hot}
        )
    counted = await host.counters()
    assert counted == twin.model.counters() | {"OVERRUNS": 0}
    assert counted["FRAMES"] == 4 * parameters()["packets"]
    kinds = [Packet.from_bytes(frame) for frame, _ in twin.expected]
    for kind in (FULL, CLEAR):
        groups = [packet.destination >> 40 & 1 for packet in kinds if packet.type is kind]
        to_all, to_one = (counted[f"{kind.name}S_TO_{whom}"] for whom in ("ALL", "ONE"))
        assert (to_all, to_one) == (sum(groups), len(groups) - sum(groups))
        assert to_all > 5
    assert counted["ECHOES"] == sum(packet.type is PacketType.ECHO for packet in kinds) > 5
    assert counted["PARTIALS"] + counted["ACKS"] > 100
    rare = {DropReason.LONG} | ({DropReason.DUPLICATE} if parameters()["workers"] == 1 else set())
    assert all(twin.model.drops[drop] for drop in set(DropReason) - rare), twin.model.drops


@cocotb.test()
async def a_packet_a_cycle(dut):
    """Both ways at once, for thousands of packets, also when all are for one slot; 10 cycles from one to the other."""
    _, twin, rx, tx = await begin(dut, jobs=1)
    job, slots = twin.jobs[0], (0, twin.config.slots - 1)
    everyone = range(len(job.members))
    # Repeated partials of complete slots: an answer for every packet.
    packets = [packet_of(job, PARTIAL, shard, slot, 1, [shard] * 8) for slot in slots for shard in everyone]
    for slot, shard in zip(random.choices(slots, [2, 1], k=10_000), random.choices(everyone, k=10_000), strict=True):
        packets.append(packet_of(job, PARTIAL, shard, slot, 1, [shard] * 8))
    sent, came = Cycles(dut, "rx__valid"), Cycles(dut, "tx__valid")
    rx.send([twin.take(beat(packet.to_bytes(), job.members[packet.shard].port)) for packet in packets])
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    assert_same(answers_on(tx), twin.expected)
    for cycles in (sent, came[-10_000:]):
        assert {later - earlier for earlier, later in pairwise(cycles)} == {1}
    assert came[-1] - sent[-1] == Aggregator.LATENCY == 10


@cocotb.test()
async def a_job_that_begins_disturbs_no_other(dut):
    """Its slots are made fresh, again and again, while packets of another come back to back; workers are shown."""
    host, twin, rx, tx = await begin(dut, 0.2)
    number, payloads = twin.jobs[-1].number, []
    while len(payloads) < 4000:
        payload = twin.random_payload(range(1))
        if twin.config.jobs == 1 or payload >> 8 * 15 & 255 != number:  # the other gets no packets, not even wrong ones
            payloads.append(twin.take(payload))
    rx.send(payloads)
    everyone = [(place, shard) for place, job in enumerate(twin.jobs) for shard in range(len(job.members))]
    for place, shard in random.sample(everyone, len(everyone)):
        assert await host.look_member(place, shard) == twin.jobs[place].members[shard]
    while twin.config.jobs > 1 and len(tx.items) < len(twin.expected) // 2:
        await host.write(registers.BEGIN, place=twin.config.jobs - 1, round=random.randrange(65536))
        while (await host.read(registers.JOBS))["clearing"]:
            pass
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    assert_same(answers_on(tx), twin.expected)


@cocotb.test()
async def a_blocked_way_out_loses_answers_and_nothing_else(dut):
    host, twin, rx, tx = await begin(dut, jobs=1)
    tx.stall = 1.0
    await ClockCycles(dut.clk, 2)
    while len(twin.expected) < 200:
        rx.send(twin.random_payloads(1, range(1)))
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    tx.stall = 0.3
    await ClockCycles(dut.clk, 500)
    got = answers_on(tx)
    assert len(got) + (await host.counters())["OVERRUNS"] == len(twin.expected)
    assert 60 <= len(got) <= 70
    assert_same(got, twin.expected[: len(got)])
    await assert_slots(host, {(0, slot): twin.model.slots[0][slot] for slot in twin.hot})


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("slots", "jobs", "ports", "workers", "packets"),
    [
        pytest.param(8, 1, 1, 1, 1500, marks=pytest.mark.slow),
        (16, 2, 3, 3, 1500),
        pytest.param(64, 4, 32, 32, 3000, marks=pytest.mark.slow),
        pytest.param(4096, 4, 2, 8, 1500, marks=pytest.mark.slow),  # the size of a switch
    ],
)
def test_aggregator(slots, jobs, ports, workers, packets):
    config = AggregatorConfig(slots=slots, jobs=jobs, ports=ports)
    # To begin a job of so many slots again and again, or to look at them all, would take too long.
    only = "answers|packet_a_cycle" if slots > 1000 else "answers|packet_a_cycle|job|way_out"
    sizes = {"slots": slots, "jobs": jobs, "ports": ports, "workers": workers, "packets": packets}
    run_bench(Aggregator(config), __file__, only=only, scrambled=True, **sizes)
