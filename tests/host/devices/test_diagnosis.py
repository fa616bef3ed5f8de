"""Probes and their answers, and why workers gave up, on a model of their network."""

from dataclasses import replace

import pytest
from support.networked_device import NetworkedDevice

from p4sgd.host.aggregators.seats import seats_of
from p4sgd.host.devices import diagnosis
from p4sgd.host.devices.device import NetworkSettings, WorkerName, client_of
from p4sgd.host.devices.diagnosis import Echo, GiveUpReport, diagnose_worker, explain_network_error, probe
from p4sgd.host.devices.session import Session
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.hw.spec.register_map import RegisterClient

SLOT, ROUND, JOB = 2, (1 << 16) - 1, 7
"""The round is the last before the wrap."""

PLACE = f"(slot {SLOT}, round {ROUND})"


class Cluster(NetworkedDevice):
    """Workers that have joined a job, and what happens to them."""

    def __init__(self, workers, **options):
        super().__init__(WorkerConfig.tiny(), workers, **options)
        self.join()

    def join(self, *, later=0):
        first = (ROUND + later) % (1 << 16)
        self.begin = lambda job: self.network.model.begin(0, job, first)
        Session(self, NetworkSettings(job=JOB, first_round=first))

    def send(self, type_, *workers, slot=SLOT, later=0):
        """Have the aggregator receive and accept packets of workers."""
        count, model = len(self.workers), self.network.model
        for worker in workers:
            local = client_of(self.workers[worker]).read_pair(registers.LOCAL_MAC)
            accepted, round_ = model.accepted, (ROUND + later) % (1 << 16)
            model.receive(Packet(type_, JOB, slot, round_, worker, count, 1 << worker, source=local), worker)
            assert model.accepted == accepted + 1

    def partial(self, *workers, **where):
        self.send(PacketType.PARTIAL, *workers, **where)

    def ack(self, *workers, **where):
        self.send(PacketType.ACK, *workers, **where)

    def give_up(self, *workers, slot=SLOT, later=0, partial=1):
        """Make workers give up waiting for FULL, or else for CLEAR. As in hardware, they send a probe."""
        for worker in workers:
            self.workers[worker].words[registers.GIVEN_UP.offset] = registers.GIVEN_UP.encode(
                slot=slot, partial=partial, given_up=1, round=(ROUND + later) % (1 << 16)
            )
            self.probe(worker, {"slot": slot, "number": 0, "broadcast": 0})

    def lose(self, count, *workers):
        self.up = losing(count, *workers)

    def cut(self, *workers):
        """Let nothing come down to workers."""
        self.down = lambda worker, echo: None if worker in workers else echo

    def end(self):
        self.network.model.end(0)

    def play(self, text):
        """Steps by the names of the methods: ``partial 0 1 slot=3; give_up 0``."""
        for step in text.split("; "):
            name, *words = step.split()
            numbers = [int(word) for word in words if "=" not in word]
            options = {key: int(value) for key, _, value in (word.partition("=") for word in words if "=" in word)}
            getattr(self, name)(*numbers, **options)

    def reports(self):
        return [diagnose_worker(client_of(worker), 0.0) for worker in self.workers]


def losing(count, *workers):
    """A link that loses the first frames of workers."""
    left = dict.fromkeys(workers, count)

    def carry(worker, frame):
        left[worker] = left.get(worker, 0) - 1
        return frame if left[worker] < 0 else None

    return carry


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("lost", [0, 1, 20])
@pytest.mark.parametrize("silent", [False, True])
def test_losses_do_not_hide_who_is_missing(way, lost, silent):
    device = Cluster(3)
    device.partial(0, 1)
    setattr(device, way, losing(lost, 0, 1))
    if silent:
        up = device.up
        device.up = lambda worker, frame: None if worker == 2 else up(worker, frame)
    device.give_up(*range(2 + silent))
    for numbers, names in (((0, 1, 2), None), ((1, 4, 5), [WorkerName(number) for number in (1, 4, 5)])):
        said, gone = explain_network_error(device.reports(), names)
        one, two, three = numbers
        assert said == f"worker {three} no longer answers: worker {one}, {two} waited for it in vain {PLACE}"
        assert gone == {2}


LATE = f"worker 1 was late: worker {{}} had given up when its PARTIAL came {PLACE}"
LOST_UP = "came to the aggregator, though a probe did: frames are lost on the way up; check that link, or allow more"
NO_PARTIAL = f"no PARTIAL of worker {{}} {PLACE} {LOST_UP}"
UNREACHED = "worker {} no longer reaches the aggregator, not even with a probe, while the other workers ran to the end"
BY_NOW = f"worker 0 gave up waiting for {{}} {PLACE}, which the aggregator could send by now: the last {{}} came late"
CROSSED = f"workers waited for each other in vain: worker 0 for 1 {PLACE}, worker 1 for 0 (slot 3, round {ROUND})"
GONE = f"worker 2 no longer answers: worker 0, 1 waited for it in vain {PLACE}"
CASES = [  # workers, what happens, what is said, and which shards no longer answer
    (2, "partial 0; give_up 0; partial 1 slot=3; give_up 1 slot=3", CROSSED, ()),  # it is unknown who was late
    (2, "partial 0; give_up 0; partial 0 1 slot=3; ack 1 slot=3; give_up 1 slot=3 partial=0", CROSSED, ()),
    (2, "partial 1; give_up 0 1", NO_PARTIAL.format("0"), ()),
    (2, "partial 1; give_up 0; give_up 1 slot=3", NO_PARTIAL.format("0"), ()),
    (2, "give_up 0 1", NO_PARTIAL.format("0, 1"), ()),
    # A slot of the round before.
    (2, "join later=-1; partial 0 1 later=-1; ack 0 1 later=-1; give_up 0 1", NO_PARTIAL.format("0, 1"), ()),
    (2, "give_up 0", NO_PARTIAL.format("0"), ()),
    (2, "partial 0 1; ack 1; give_up 0 1 partial=0", f"no ACK of worker 0 {PLACE} {LOST_UP}", ()),
    # Others gave up before a PARTIAL came, and are not there to acknowledge the sums; of many, one may be answered when
    # the sums are complete.
    (2, "partial 0; give_up 0; partial 1; ack 1; give_up 1 partial=0", LATE.format("0"), ()),
    (4, "partial 0 2 3; give_up 0 2; partial 1; give_up 3; ack 1; give_up 1 partial=0", LATE.format("0, 2"), ()),
    # The last PARTIAL came after the other worker had given up, and before its second probe.
    (2, "partial 0; lose 1 0; give_up 0; partial 1; ack 1; give_up 1 partial=0", BY_NOW.format("FULL", "PARTIAL"), ()),
    (2, "partial 0 1; ack 0 1; give_up 0 partial=0", BY_NOW.format("CLEAR", "ACK"), ()),
    # Links that are cut in the last round: the others have all that they need from these workers, and end their runs.
    (3, "partial 0 1 2; ack 0 1; cut 2; give_up 2", UNREACHED.format("2"), (2,)),
    (3, "partial 0 1 2; ack 2; cut 0 1; give_up 0 1", UNREACHED.format("0, 1"), (0, 1)),
    (
        3,
        "partial 0 1 2; cut 0 1 2; give_up 0 1 2",
        "the aggregator does not answer worker 0, 1, 2, not even a probe",
        (),
    ),
    # An aggregator that drops all but probes, and a round further ahead of the worker, or behind it, than possible.
    (3, "end; lose 3 1; give_up 1", "the aggregator drops what worker 1 sends: it is of another job", ()),
    *(
        (
            2,
            f"join later={ahead}; partial 0 1 later={ahead}; lose 3 1; give_up 1 partial={partial}",
            f"the aggregator is in round {(ROUND + ahead) % (1 << 16)}, not in that of worker 1 {PLACE}: ",
            (),
        )
        for ahead, partial in ((-9, 1), (-2, 1), (1, 1), (2, 1), (-9, 0), (-1, 0), (2, 0))
    ),
    (3, "partial 0; give_up 0; partial 1; give_up 1", GONE, (2,)),  # a missing worker before a late one
    (2, "partial 0", "a worker gave up waiting for the network, but no worker says any more what", ()),
]


@pytest.mark.parametrize(("workers", "happens", "says", "lost"), CASES)
def test_why_workers_gave_up(workers, happens, says, lost):
    device = Cluster(workers)
    device.play(happens)
    said, gone = explain_network_error(device.reports())
    assert said.startswith(says)
    assert gone == set(lost)


def report_of(state, partial=True):
    """Of a worker of a rack of two, given the bitmap of its slot, in which bit 2 is the parent's; None: no echo."""
    echo = Echo((), 0, 1, 2, 4, 0, ROUND, state if partial else 7, 0 if partial else state, 50)
    return GiveUpReport(SLOT, ROUND, partial, 2, None if state is None else echo, 1, 1)


NO_SUMS = f"waited for the sums of the other racks in vain {PLACE}"


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize(
    ("states", "says", "lost"),
    [
        ((3, 3, 1, ""), f"worker 3 no longer answers: worker 0, 1, 2 waited for it in vain {PLACE}", {3}),
        (("", 2, 3, 3), f"worker 0 no longer answers: worker 1, 2, 3 waited for it in vain {PLACE}", {0}),
        ((3, 3, 2, 2), "no {sent} of worker 2 ", set()),
        ((3, 3, None, None), f"worker 2, 3 no longer answers: worker 0, 1 waited for it in vain {PLACE}", {2, 3}),
        ((3, 3, None, 2), f"worker 2 no longer answers: worker 0, 1, 3 waited for it in vain {PLACE}", {2}),
        ((3, 3, 3, 3), f"worker 0, 1, 2, 3 {NO_SUMS}: a link between aggregators is down", set()),
        ((7, 7, 7, 7), "worker 0 gave up waiting for {answer} ", set()),
    ],
)
def test_why_workers_of_racks_gave_up(states, says, lost, partial):
    """Their aggregators tell of their racks alone."""
    reports = [None if state == "" else report_of(state, partial) for state in states]
    said, gone = explain_network_error(reports, None, seats_of([0, 0, 1, 1]))
    sent, answer = ("PARTIAL", "FULL") if partial else ("ACK", "CLEAR")
    assert said.startswith(says.format(sent=sent, answer=answer)), said
    assert gone == lost


def test_why_a_worker_beside_racks_gave_up():
    """The top aggregator lacks a rack, whose own lacks a worker."""
    said, gone = explain_network_error([report_of(1), None, report_of(2)], None, seats_of([0, 0, None]))
    assert said == f"worker 1 no longer answers: worker 0, 2 waited for it in vain {PLACE}"
    assert gone == {1}


def test_versions_of_the_packet():
    """An aggregator of another one drops all; frames of version 2 may be longer than those a network carries."""
    device = Cluster(2, version=2)
    device.give_up(0, 1)
    said, _ = explain_network_error(device.reports())
    assert said.startswith("the aggregator speaks version 2 of the packet format and drops what worker 0 sends, which")
    device = Cluster(2)
    device.play("partial 1; give_up 0 1")
    reports = [
        replace(each, version=2, highest_version=2, echo=replace(each.echo, version=2)) for each in device.reports()
    ]
    said, _ = explain_network_error(reports)
    assert said.startswith(NO_PARTIAL.format("0"))
    assert said.endswith("train with --merge 1")


@pytest.mark.parametrize(
    ("late_s", "read_s", "echo_s", "comes"),
    [
        (0.0, 1e-6, 0.005, True),
        (0.004, 1e-6, 0.005, True),
        (0.006, 1e-6, 0.005, False),
        (0.5, 1.0, 0.005, True),  # a suspended program polls once more
        (249e-6, 1e-6, 0.0, True),  # in a simulation, polls are counted: 250
        (251e-6, 1e-6, 0.0, False),
    ],
)
def test_a_probe_waits_for_its_answer(monkeypatch, late_s, read_s, echo_s, comes):
    """On a clock that only reads of registers advance."""
    worker, now = Cluster(1).workers[0], [0]
    monkeypatch.setattr(diagnosis.time, "monotonic", lambda: now[0] * read_s)

    def read(offset):
        is_there = now[0] * read_s >= late_s or offset != registers.ECHO.offset
        now[0] += 1
        return worker.read_register(offset) if is_there else 0

    client = RegisterClient(read, worker.write_register)
    assert (probe(client, slot=0, number=1, echo_s=echo_s) is not None) == comes
    if late_s == 0:  # an answer to another probe is ignored
        blocked = RegisterClient(worker.read_register, lambda offset, word: None)
        assert probe(blocked, slot=0, number=8, echo_s=0.0) is None
        assert probe(blocked, slot=0, number=1, echo_s=0.0) is not None
