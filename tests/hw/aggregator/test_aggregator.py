"""The RTL aggregator against the Python one, answer for answer and counter for counter, over long random sequences."""

import random
from itertools import count, islice, pairwise

import cocotb
import pytest
from cocotb.task import bridge
from cocotb.triggers import ClockCycles
from conformance.random_sequences import random_cases
from conformance.rtl_subject import RtlSubject
from conformance.runner import run
from support.aggregator import MAC, Host, packet_of
from support.aggregator_model import Aggregator as Model
from support.bench import parameters, run_bench, start
from support.frames import beat, frame_in
from support.signals import Cycles, drive
from support.streams import StreamSink, StreamSource
from support.switch import job_of

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import PacketType

PARTIAL, ACK = PacketType.PARTIAL, PacketType.ACK


def config_of():
    return AggregatorConfig(**{name: parameters()[name] for name in ("slots", "jobs", "ports")})


class Twin:
    """The model, which serves the same jobs; ``expected`` are its answers so far. The second job has one worker."""

    def __init__(self, config):
        self.model = Model(config.slots, jobs=config.jobs, mac=MAC)
        self.expected = []
        self.slots = 0, config.slots - 1
        sizes = [1 if place == 1 else parameters()["workers"] for place in range(config.jobs)]
        self.jobs = [
            job_of(workers, 3 * place + 7, random.choices(range(config.ports), k=workers))
            for place, workers in enumerate(sizes)
        ]

    def take(self, packet):
        """What the model says to a packet of the first job; returns the payload of ``rx``."""
        port = self.jobs[0].members[packet.shard].port
        if answer := self.model.receive(packet, port):
            self.expected.append((answer.packet.to_bytes(), answer.ports))
        return beat(packet.to_bytes(), port)

    def packet(self, kind, shard, slot, number):
        """Of the first job, with random values."""
        return packet_of(
            self.jobs[0], kind, shard, slot, number, [random.randrange(-(1 << 31), 1 << 31) for _ in range(8)]
        )

    def rounds(self):
        """Rounds of slots without end: of each PARTIALs of all workers, and then ACKs, each twice, in any order."""
        every = [(shard, slot) for shard in range(len(self.jobs[0].members)) for slot in self.slots] * 2
        for number in count(1):
            for kind in (PARTIAL, ACK):
                for shard, slot in random.sample(every, len(every)):
                    yield self.take(self.packet(kind, shard, slot, number))


def answers_on(tx):
    """What the design said: frames and ports."""
    return [(frame_in(item), item >> 577) for item in tx.items]


async def begin(dut, stall=0.0):
    """The jobs begin, of design and model."""
    config = config_of()
    drive(dut, rx__valid=0, tx__ready=0)
    rx, host, twin = StreamSource(dut, "rx", stall), Host(dut, config), Twin(config)
    await start(dut)
    tx = StreamSink(dut, "tx")  # not before: until the reset there may be an answer of the bench before
    await host.set_mac()
    for place, job in enumerate(twin.jobs):
        await host.begin(place, job, 1)
        twin.model.begin(place, job, 1)
    return host, twin, rx, tx


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def answers_as_the_model(dut, stall):
    """Jobs come and go; packets come back to back, most of them for the same few slots.

    That a job may end under its own packets is proved (tests/formal/test_aggregator_proved.py).
    """
    subject = RtlSubject(dut, config_of(), stall)
    await subject.start()
    cases = random_cases(subject.abilities.geometry, random.getrandbits(32), parameters()["packets"])
    await bridge(run)(subject, list(cases), close=True)


@cocotb.test()
async def a_packet_a_cycle(dut):
    """Both ways at once, for thousands of packets, also when all are for one slot; 10 cycles from one to the other."""
    _, twin, rx, tx = await begin(dut)
    everyone = range(len(twin.jobs[0].members))
    # Repeated partials of complete slots: an answer for every packet.
    asked = [(shard, slot) for slot in twin.slots for shard in everyone]
    asked += zip(random.choices(everyone, k=10_000), random.choices(twin.slots, [2, 1], k=10_000), strict=True)
    sent, came = Cycles(dut, "rx__valid"), Cycles(dut, "tx__valid")
    rx.send([twin.take(twin.packet(PARTIAL, shard, slot, 1)) for shard, slot in asked])
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    assert answers_on(tx) == twin.expected
    for cycles in (sent, came[-10_000:]):
        assert {later - earlier for earlier, later in pairwise(cycles)} == {1}
    assert came[-1] - sent[-1] == Aggregator.LATENCY == 10


@cocotb.test()
async def a_job_that_begins_disturbs_no_other(dut):
    """Its slots are made fresh, again and again, while packets of another come back to back; workers are shown."""
    host, twin, rx, tx = await begin(dut, 0.2)
    rx.send(list(islice(twin.rounds(), 4000)))
    everyone = [(place, shard) for place, job in enumerate(twin.jobs) for shard in range(len(job.members))]
    for place, shard in random.sample(everyone, len(everyone)):
        assert await host.look_member(place, shard) == twin.jobs[place].members[shard]
    while len(twin.jobs) > 1 and len(tx.items) < len(twin.expected) // 2:
        await host.write(registers.BEGIN, place=len(twin.jobs) - 1, round=random.randrange(65536))
        while (await host.read(registers.JOBS))["clearing"]:
            pass
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    assert answers_on(tx) == twin.expected


@cocotb.test()
async def a_blocked_way_out_loses_answers_and_nothing_else(dut):
    host, twin, rx, tx = await begin(dut)
    tx.stall = 1.0
    await ClockCycles(dut.clk, 2)
    rounds = twin.rounds()
    while len(twin.expected) < 200:
        rx.send([next(rounds)])
    await rx.drained()
    await ClockCycles(dut.clk, 20)
    tx.stall = 0.3
    await ClockCycles(dut.clk, 500)
    got = answers_on(tx)
    assert len(got) + (await host.counters())["OVERRUNS"] == len(twin.expected)
    assert 60 <= len(got) <= 70
    assert got == twin.expected[: len(got)]
    for slot in twin.slots:
        state = twin.model.slots[0][slot]
        assert await host.look(0, slot) == (state.round, state.aggregated, state.acknowledged)


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
