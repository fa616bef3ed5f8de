"""The RTL aggregator against the Python one, answer for answer and counter for counter, over long random sequences."""

import copy
import dataclasses
import random
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from cocotb.utils import get_sim_time
from support import aggregator_model as model
from support.aggregator import MAC, Host, beat
from support.bench import parameters, run_bench, start, times
from support.mutation import mutated
from support.streams import StreamSink, StreamSource

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import BROADCAST, DropReason, Packet, PacketType

FRAME = (1 << 512) - 1
KEEP = (1 << 64) - 1


def config_of_bench() -> AggregatorConfig:
    return AggregatorConfig(**{name: parameters()[name] for name in ("slots", "jobs", "ports")})


def random_job(config: AggregatorConfig, place: int) -> Job:
    """Members have addresses of their own, but may share ports."""
    workers = min(parameters()["workers"], 32)
    members = tuple(
        Member(0x0250_0000_1000 + 64 * place + shard, random.randrange(config.ports)) for shard in range(workers)
    )
    ports = 0
    for known in members:
        ports |= 1 << known.port
    return Job(3 * place + 7, members, 0x0150_0000_0000 + place, ports)


class Twin:
    """The model, its jobs, and packets that fit them."""

    def __init__(self, config: AggregatorConfig) -> None:
        self.config = config
        self.model = model.Aggregator(config.slots, jobs=config.jobs, mac=MAC)
        self.jobs = [random_job(config, place) for place in range(config.jobs)]
        # Most packets are of these slots: the first, the last, and two between.
        self.hot = [0, config.slots - 1, *random.sample(range(config.slots), 2)]
        self.expected: list[tuple[bytes, int]] = []

    def take(self, payload: int) -> None:
        """What the model says to a payload of ``rx``."""
        frame = (payload & FRAME).to_bytes(64, "little")
        if payload >> 512 & KEEP != KEEP:
            frame = frame[:-1]
        answer = self.model.receive_frame(frame, payload >> 577)
        if answer is not None:
            self.expected.append((answer.packet.to_bytes(), answer.ports))

    def next_step(self, place: int, slot: int) -> tuple[PacketType, int, list[int]]:
        """What leads a slot on: a type, a round, and the shards it is missing from."""
        state, job = self.model.slots[place][slot], self.jobs[place]

        def missing(bitmap: int) -> list[int]:
            return [shard for shard in range(len(job.members)) if not bitmap >> shard & 1]

        if state.aggregated and missing(state.aggregated):
            return PacketType.PARTIAL, state.round, missing(state.aggregated)
        if state.aggregated and missing(state.acknowledged):
            return PacketType.ACK, state.round, missing(state.acknowledged)
        return PacketType.PARTIAL, state.round + 1, list(range(len(job.members)))

    def random_payload(self, places: range | None = None) -> int:
        """A plausible packet, now and then broken in one place; rounds stay near the slots'."""
        place = random.choice(places or range(self.config.jobs))
        job = self.jobs[place]
        slot = random.choice(self.hot) if random.random() < 0.9 else random.randrange(self.config.slots)
        kind, near, shards = self.next_step(place, slot)
        if random.random() < 0.3:
            kind = random.choice([PacketType.PARTIAL, PacketType.ACK])
            near = self.model.slots[place][slot].round + random.choice([0, 0, 0, 1, -1, 2, 0x7FFF, 0x8000])
            shards = range(len(job.members))
        shard = random.choice(shards)
        if random.random() < 0.05:
            kind = PacketType.PROBE
        port = job.members[shard].port
        fields = {
            "type": kind,
            "job": job.number,
            "slot": slot,
            "round": near % 65536,
            "shard": shard,
            "workers": len(job.members),
            "bitmap": 1 << shard,
            "values": tuple(random.randint(-(1 << 31), (1 << 31) - 1) for _ in range(8)),
            "destination": random.choice([MAC, BROADCAST]) if kind is PacketType.PROBE else MAC,
            "source": job.members[shard].mac,
        }
        keep, fault = KEEP, random.random()
        wrong = {
            "job": random.randrange(256),
            "workers": random.randrange(1, 40),
            "shard": random.randrange(256),
            "slot": random.choice([self.config.slots % 65536, 65535, random.randrange(65536)]),
            "bitmap": random.choice([random.getrandbits(32), 1 << random.randrange(32)]),
            "destination": random.choice([BROADCAST, random.getrandbits(48)]),
            "source": random.choice([random.getrandbits(48), job.members[-1].mac, fields["source"] ^ 1]),
            "type": random.choice(list(PacketType)),
            "version": random.randrange(16),
        }
        if fault < 0.18:
            for name in random.sample(sorted(wrong), random.choice([1, 1, 1, 2])):
                fields[name] = wrong[name]
        elif fault < 0.20:
            port = random.randrange(self.config.ports)
        elif fault < 0.21:
            keep = KEEP >> 1
        frame = bytearray(Packet(**fields).to_bytes())
        if fault > 0.97:  # anywhere, in any bit
            frame[random.randrange(6, 32)] ^= 1 << random.randrange(8)
        return beat(bytes(frame), port, keep=keep)

    def counters(self) -> dict[str, int]:
        """All counters, if no answer is lost."""
        return self.model.counters() | {"OVERRUNS": 0}


def answers_on(tx: StreamSink) -> list[tuple[bytes, int]]:
    """What the design said."""
    assert all(item >> 512 & KEEP == KEEP and item >> 576 & 1 for item in tx.items)
    return [((item & FRAME).to_bytes(64, "little"), item >> 577) for item in tx.items]


def assert_same(got: list[tuple[bytes, int]], expected: list[tuple[bytes, int]]) -> None:
    """Compare answers; the first that differs is shown as a packet."""
    for index, (mine, its) in enumerate(zip(got, expected, strict=False)):
        assert mine == its, (index, Packet.from_bytes(mine[0]), mine[1], Packet.from_bytes(its[0]), its[1])
    assert len(got) == len(expected)


async def begin(dut, stall: float = 0.0) -> tuple[Host, Twin, StreamSource, StreamSink]:
    config = config_of_bench()
    dut.rx__valid.value = 0
    dut.tx__ready.value = 0
    rx, host = StreamSource(dut, "rx", stall), Host(dut, config)
    await start(dut)
    tx = StreamSink(dut, "tx")  # not before: until the reset there may be an answer of the bench before
    await host.set_mac()
    return host, Twin(config), rx, tx


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def answers_as_the_model(dut, stall):
    """Jobs come and go; packets come back to back, most of them for the same few slots."""
    host, twin, rx, tx = await begin(dut, stall)
    for era in range(4):
        for place, job in enumerate(twin.jobs):
            if era == 0 or random.random() < 0.5:
                first_round = random.choice([1, 65530, 32767])
                await host.begin(place, job, first_round)
                twin.model.begin(place, job, first_round)
            elif random.random() < 0.3:
                await host.write((registers.END, {"place": place}))
                twin.model.end(place)
        payloads = []
        for _ in range(parameters()["packets"]):
            payloads.append(twin.random_payload())
            twin.take(payloads[-1])
        rx.send(payloads)
        await rx.drained()
        await ClockCycles(dut.clk, 100)
        assert_same(answers_on(tx), twin.expected)
        for place in range(twin.config.jobs):
            for slot in twin.hot:
                state = twin.model.slots[place][slot]
                assert await host.look(place, slot) == (state.round, state.aggregated, state.acknowledged)
    counted = await host.counters()
    assert counted == twin.counters()
    assert counted["FRAMES"] == 4 * parameters()["packets"]
    kinds = [Packet.from_bytes(frame) for frame, _ in twin.expected]
    for kind, all_name, one_name in (
        (PacketType.FULL, "FULLS_TO_ALL", "FULLS_TO_ONE"),
        (PacketType.CLEAR, "CLEARS_TO_ALL", "CLEARS_TO_ONE"),
    ):
        groups = [packet.destination >> 40 & 1 for packet in kinds if packet.type is kind]
        assert (counted[all_name], counted[one_name]) == (sum(groups), len(groups) - sum(groups))
        assert sum(groups) > 5
    assert counted["ECHOES"] == sum(packet.type is PacketType.ECHO for packet in kinds) > 5
    assert counted["PARTIALS"] + counted["ACKS"] > 100
    rare = {DropReason.LONG} | ({DropReason.DUPLICATE} if parameters()["workers"] == 1 else set())
    assert all(twin.model.drops[drop] for drop in set(DropReason) - rare), twin.model.drops


@cocotb.test()
async def a_packet_a_cycle(dut):
    """Both ways at once, for thousands of packets, also when all are for one slot; 10 cycles from one to the other."""
    host, twin, rx, tx = await begin(dut)
    job = twin.jobs[0]
    await host.begin(0, job, 1)
    twin.model.begin(0, job, 1)
    slots = twin.config.slots

    def packet(kind, slot, number, shard):
        who = job.members[shard]
        size = len(job.members)
        return beat(
            Packet(kind, job.number, slot, number, shard, size, 1 << shard, (shard,) * 8, MAC, who.mac).to_bytes(),
            who.port,
        )

    everyone = range(len(job.members))
    # Repeated partials of complete slots: an answer for every packet.
    payloads = [packet(PacketType.PARTIAL, slot, 1, shard) for slot in (0, slots - 1) for shard in everyone]
    repeats = [
        packet(PacketType.PARTIAL, random.choice([0, 0, slots - 1]), 1, random.choice(everyone)) for _ in range(10_000)
    ]
    payloads += repeats
    for payload in payloads:
        twin.take(payload)
    sent, came = [], []

    async def watch():
        while True:
            await RisingEdge(dut.clk)
            now = get_sim_time("ns") // 4
            if dut.rx__valid.value:
                sent.append(now)
            if dut.tx__valid.value:
                came.append(now)

    cocotb.start_soon(watch())
    rx.send(payloads)
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    assert_same(answers_on(tx), twin.expected)
    assert {later - earlier for earlier, later in pairwise(sent)} == {1}
    assert [later - earlier for earlier, later in pairwise(came[-len(repeats) :])] == [1] * (len(repeats) - 1)
    assert came[-1] - sent[-1] == Aggregator.LATENCY == 10


@cocotb.test()
async def a_job_that_begins_disturbs_no_other(dut):
    """Slots of one job are made fresh, again and again, while packets of another come back to back."""
    host, twin, rx, tx = await begin(dut, 0.2)
    if twin.config.jobs < 2:
        return
    for place in (0, 1):
        await host.begin(place, twin.jobs[place], 1)
        twin.model.begin(place, twin.jobs[place], 1)
    number = twin.jobs[1].number
    payloads = []
    while len(payloads) < 4000:
        payload = twin.random_payload(range(1))
        if payload >> 8 * 15 & 255 != number:  # job 1 gets no packets, not even wrong ones
            twin.take(payload)
            payloads.append(payload)
    rx.send(payloads)
    begun = 0
    while len(tx.items) < len(twin.expected) // 2:
        await host.write((registers.BEGIN, {"place": 1, "round": random.randrange(65536)}))
        while (await host.read(registers.JOBS))["clearing"]:
            pass
        begun += 1
    assert begun > 3
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    assert_same(answers_on(tx), twin.expected)


@cocotb.test()
async def workers_of_a_job_are_shown(dut):
    """While packets of the job come back to back, each of which its worker is looked up for."""
    host, twin, rx, _ = await begin(dut, 0.2)
    for place, job in enumerate(twin.jobs):
        await host.begin(place, job, 1)
        twin.model.begin(place, job, 1)
    rx.send(twin.random_payload(range(1)) for _ in range(2000))
    everyone = [(place, shard) for place, job in enumerate(twin.jobs) for shard in range(len(job.members))]
    for place, shard in random.sample(everyone, len(everyone)):
        assert await host.look_member(place, shard) == twin.jobs[place].members[shard]


@cocotb.test()
async def a_job_that_ends_under_its_own_packets(dut):
    """Its place is given to job after job, in any cycle, while packets of the last, of this and of the next come.

    Each begins in the same rounds, so what were left of one in a slot would be taken for a part of the next.
    """
    host, twin, rx, tx = await begin(dut, 0.5)
    members = twin.jobs[0].members[:3]  # of few workers, so that many sums are complete
    job = dataclasses.replace(twin.jobs[0], members=members)
    shards, slots = range(len(members)), range(min(4, twin.config.slots))
    numbers = random.sample(range(256), 24)
    era = 0

    def values(number: int, slot: int, round_: int, shard: int) -> tuple[int, ...]:
        own = random.Random(f"{number} {slot} {round_} {shard}")
        return tuple(own.randrange(1 << 24) for _ in range(8))

    async def send() -> None:
        while True:
            number = random.choice([*numbers[max(0, era - 1) : era + 2], numbers[era]])
            slot, round_, shard = random.choice(slots), random.choice([1, 1, 1, 2]), random.choice(shards)
            kind = PacketType.PARTIAL if random.random() < 0.9 else PacketType.ACK
            sent = values(number, slot, round_, shard) if kind is PacketType.PARTIAL else (0,) * 8
            who = members[shard]
            packet = Packet(kind, number, slot, round_, shard, len(shards), 1 << shard, sent, MAC, who.mac)
            rx.send([beat(packet.to_bytes(), who.port)])
            await rx.drained()

    await host.begin(0, dataclasses.replace(job, number=numbers[0]), 1)
    cocotb.start_soon(send())
    settings = registers.job_registers(0)[0]
    while era < len(numbers) - 1:
        await ClockCycles(dut.clk, random.randint(0, 400))
        await host.write((registers.END, {"place": 0}))
        await ClockCycles(dut.clk, random.randint(0, 20))
        era += 1
        await host.write((settings, {"number": numbers[era], "workers": len(shards)}))
        await host.write((registers.BEGIN, {"place": 0, "round": 1}))
        if random.random() < 0.8:  # else it ends while its slots are made fresh
            while (await host.read(registers.JOBS))["clearing"]:
                pass

    def fulls() -> list[Packet]:
        packets = [Packet.from_bytes(frame) for frame, _ in answers_on(tx)]
        return [packet for packet in packets if packet.type is PacketType.FULL]

    # Few sums are complete before a packet of round 2 ends their round; of the last job one will be in the end.
    for _ in range(40):
        await ClockCycles(dut.clk, 500)
        if any(packet.job == numbers[-1] for packet in fulls()):
            break
    for packet in fulls():
        parts = [values(packet.job, packet.slot, packet.round, shard) for shard in shards]
        assert packet.values == tuple(map(sum, zip(*parts, strict=True))), packet
    answered = {packet.job for packet in fulls()}
    assert len(answered) > 3
    assert numbers[-1] in answered


@cocotb.test()
async def a_blocked_way_out_loses_answers_and_nothing_else(dut):
    host, twin, rx, tx = await begin(dut)
    await host.begin(0, twin.jobs[0], 1)
    twin.model.begin(0, twin.jobs[0], 1)
    tx.stall = 1.0
    await ClockCycles(dut.clk, 2)
    payloads = []
    while len(twin.expected) < 200:
        payloads.append(twin.random_payload(range(1)))
        twin.take(payloads[-1])
    rx.send(payloads)
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    tx.stall = 0.3
    await ClockCycles(dut.clk, 500)
    lost = (await host.counters())["OVERRUNS"]
    got = answers_on(tx)
    assert len(got) + lost == len(twin.expected)
    assert 60 <= len(got) <= 70
    assert_same(got, twin.expected[: len(got)])
    for slot in twin.hot:
        state = twin.model.slots[0][slot]
        assert await host.look(0, slot) == (state.round, state.aggregated, state.acknowledged)


@cocotb.test()
async def mutated_frames_change_nothing(dut):
    """But counters, each as in the model; the sums are what they were."""
    host, twin, _, tx = await begin(dut)
    known, config, count = twin.model, twin.config, parameters()["packets"]
    for place, job in enumerate(twin.jobs):
        await host.begin(place, job, 1)
        known.begin(place, job, 1)

    def packet(kind, place, slot, number, shard):
        job = twin.jobs[place]
        workers, mac = len(job.members), job.members[shard].mac
        return Packet(kind, job.number, slot, number, shard, workers, 1 << shard, (shard,) * 8, MAC, mac)

    async def give(kind, place, slot, shard):
        port = twin.jobs[place].members[shard].port
        twin.take(payload := beat(packet(kind, place, slot, 1, shard).to_bytes(), port))
        dut.rx__payload.value, dut.rx__valid.value = payload, 1
        await RisingEdge(dut.clk)
        dut.rx__valid.value = 0

    # Slot 0 is fresh, 1 has one partial, 2 two, 3 is complete, 4 is acknowledged by one, 5 by all of three workers.
    places = range(config.jobs)
    for place in places:
        for slot in range(1, 6):
            for shard in range(min(slot, 3)):
                await give(PacketType.PARTIAL, place, slot, shard)
        for slot, shard in ((4, 0), (5, 0), (5, 1), (5, 2)):
            await give(PacketType.ACK, place, slot, shard)
    await ClockCycles(dut.clk, 20)
    answered = len(tx.items)

    frames = [
        int.from_bytes(packet(kind, place, slot, number, shard).to_bytes(), "little")
        for kind in PacketType
        if kind is not PacketType.PROBE  # probes are answered
        for place in places
        for slot in range(config.slots)
        for number in (0, 1, 2, 0x8001)
        for shard in range(3)
    ]
    slots = copy.deepcopy(known.slots)
    good = copy.deepcopy((known.accepted, known.job_accepted, known.counts))
    sent = skipped = 0
    dut.rx__valid.value = 1
    while sent < count:
        beats, port = mutated(frames, random), random.randrange(config.ports)
        data, keep = beats[0]
        if len(beats) > 1:
            known.drops[DropReason.LONG] += 1
        else:
            frame = data.to_bytes(64, "little")
            known.receive_frame(frame if keep == KEEP else frame[: keep.bit_length()], port)
            if known.accepted != good[0]:  # it was a good one, or as good as one
                known.slots = copy.deepcopy(slots)
                known.accepted, known.job_accepted, known.counts = copy.deepcopy(good)
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
    for place in places:
        for slot in range(config.slots):
            state = slots[place][slot]
            assert await host.look(place, slot) == (state.round, state.aggregated, state.acknowledged)
    assert await host.counters() == twin.counters()
    # Of fewer frames some reasons may find none.
    assert count < 10_000 or all(known.drops[drop] > count / 10_000 for drop in DropReason), known.drops

    for place in places:
        await give(PacketType.PARTIAL, place, 2, 2)
    await tx.receive(answered + len(places))
    for frame, _ in answers_on(tx)[answered:]:
        full = Packet.from_bytes(frame)
        assert (full.type, full.values) == (PacketType.FULL, (0 + 1 + 2,) * 8)


@pytest.mark.slow
@pytest.mark.rtl
def test_many_frames():
    sizes = {"slots": 8, "jobs": 2, "ports": 2}
    run_bench(
        Aggregator(AggregatorConfig(**sizes)), __file__, only="mutated", **sizes, workers=3, packets=times(50_000)
    )


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("slots", "jobs", "ports", "workers", "packets"),
    [
        pytest.param(8, 1, 1, 1, 1500, marks=pytest.mark.slow),
        (16, 2, 3, 3, 1500),
        pytest.param(64, 4, 32, 32, 6000, marks=pytest.mark.slow),
        pytest.param(4, 8, 2, 5, 3000, marks=pytest.mark.slow),
        pytest.param(4096, 4, 2, 8, 1500, marks=pytest.mark.slow),  # the size of a switch
    ],
)
def test_aggregator(slots, jobs, ports, workers, packets):
    config = AggregatorConfig(slots=slots, jobs=jobs, ports=ports)
    # To begin a job of so many slots again and again, or to look at them all, would take too long.
    only = "answers|packet_a_cycle" if slots > 1000 else "answers|packet_a_cycle|job|shown|way_out"
    only += "|mutated" * (workers == 3)
    sizes = {"slots": slots, "jobs": jobs, "ports": ports, "workers": workers, "packets": packets}
    run_bench(Aggregator(config), __file__, only=only, **sizes)
