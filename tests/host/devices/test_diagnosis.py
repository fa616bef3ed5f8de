"""Why workers gave up, diagnosed on a model of their network."""

import re
from dataclasses import replace

import pytest
from support.networked_device import NetworkedDevice

from p4sgd.host.devices.device import NetworkSettings, WorkerName, client_of
from p4sgd.host.devices.diagnosis import diagnose_worker, explain_network_error
from p4sgd.host.devices.session import Session
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import Packet, PacketType

SLOT, ROUND, JOB = 2, (1 << 16) - 1, 7
"""The round is the last before the wrap."""

PLACE = f"(slot {SLOT}, round {ROUND})"


def join(device, round_=ROUND):
    first_round = round_ % (1 << 16)
    device.begin = lambda job: device.network.model.begin(0, job, first_round)
    Session(device, NetworkSettings(job=JOB, first_round=first_round))
    return device


@pytest.fixture
def device():
    return join(NetworkedDevice(WorkerConfig.tiny(), 3))


@pytest.fixture
def pair():
    return join(NetworkedDevice(WorkerConfig.tiny(), 2))


def send(device, type_, *workers, slot=SLOT, round_=ROUND):
    """Have the aggregator receive and accept packets of workers."""
    count = len(device.workers)
    for worker in workers:
        local = client_of(device.workers[worker]).read_pair(registers.LOCAL_MAC)
        accepted = device.network.model.accepted
        packet = Packet(type_, JOB, slot, round_ % (1 << 16), worker, count, 1 << worker, source=local)
        device.network.model.receive(packet, worker)
        assert device.network.model.accepted == accepted + 1


def send_partial(device, *workers, **where):
    send(device, PacketType.PARTIAL, *workers, **where)


def send_ack(device, *workers, **where):
    send(device, PacketType.ACK, *workers, **where)


def give_up(device, *workers, slot=SLOT, round_=ROUND, partial=True):
    """Make workers give up waiting for FULL, or else for CLEAR. As in hardware, they send a probe."""
    for worker in workers:
        device.workers[worker].words[registers.GIVEN_UP.offset] = registers.GIVEN_UP.encode(
            slot=slot, partial=int(partial), given_up=1, round=round_ % (1 << 16)
        )
        device.probe(worker, {"slot": slot, "number": 0, "broadcast": 0})


def diagnose(device):
    return [diagnose_worker(client_of(worker), 0.0) for worker in device.workers]


def explain(device):
    said, _ = explain_network_error(diagnose(device))
    return said


def assert_explained(device, diagnosis, remedy):
    """The explanation begins with the diagnosis, and the rest matches the remedy."""
    said = explain(device)
    assert said.startswith(diagnosis)
    assert re.search(remedy, said.removeprefix(diagnosis)), said


def lose(count, *workers):
    """A link that loses the first frames of workers."""
    left = dict.fromkeys(workers, count)

    def carry(worker, frame):
        left[worker] = left.get(worker, 0) - 1
        return frame if left[worker] < 0 else None

    return carry


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("lost", [0, 1, 20])
@pytest.mark.parametrize("silent", [False, True])
def test_losses_do_not_hide_who_is_missing(device, way, lost, silent):
    send_partial(device, 0, 1)
    setattr(device, way, lose(lost, 0, 1))
    if silent:
        up = device.up
        device.up = lambda worker, frame: None if worker == 2 else up(worker, frame)
    give_up(device, *range(2 + silent))
    assert explain(device) == f"worker 2 no longer answers: worker 0, 1 waited for it in vain {PLACE}"


def test_names_of_the_cluster_file(device):
    names = [WorkerName(number, f"unix:{number}") for number in (1, 4, 5)]
    send_partial(device, 0, 1)
    give_up(device, 0, 1)
    reports = diagnose(device)
    said, lost = explain_network_error(reports, names)
    assert said == f"worker 5 at unix:5 no longer answers: worker 1, 4 waited for it in vain {PLACE}"
    assert lost == {2}, "a shard"


def test_an_aggregator_that_does_not_answer(device):
    device.down = lambda worker, echo: None
    give_up(device, 0, 1, 2)
    said = explain(device)
    assert said.startswith("the aggregator does not answer worker 0, 1, 2, not even a probe: ")
    assert said.endswith(f" {PLACE}")
    assert explain_network_error(diagnose(device))[1] == set()


@pytest.mark.parametrize("cut", [{2}, {0, 1}])
def test_a_link_that_is_cut_in_the_last_round(device, cut):
    """The others have all that they need from the worker, and end their runs."""
    send_partial(device, 0, 1, 2)
    send_ack(device, *{0, 1, 2} - cut)
    device.down = lambda worker, echo: None if worker in cut else echo
    give_up(device, *cut)
    who = "worker 2" if cut == {2} else "worker 0, 1"
    assert explain(device) == (
        f"{who} no longer reaches the aggregator, not even with a probe, while the other workers ran to the end: check "
        f"that link {PLACE}"
    )
    assert explain_network_error(diagnose(device))[1] == cut


def test_losses_do_not_hide_drops(device):
    device.network.model.end(0)
    device.up = lose(3, 1)
    give_up(device, 1)
    assert explain(device).startswith("the aggregator drops what worker 1 sends: it is of another job")


def test_an_aggregator_of_another_version_drops_all_but_probes():
    device = join(NetworkedDevice(WorkerConfig.tiny(), 2, version=2))
    give_up(device, 0, 1)
    says = "the aggregator speaks version 2 of the packet format and drops what worker 0 sends, which is of version 1: "
    assert_explained(device, says, "both .*same version of p4sgd$")


@pytest.mark.parametrize(
    ("ahead", "partial"), [(-9, True), (-2, True), (1, True), (2, True), (-9, False), (-1, False), (2, False)]
)
def test_another_round(pair, ahead, partial):
    """Further ahead of the worker, or behind it, than possible."""
    there = ROUND + ahead
    join(pair, there)
    send_partial(pair, 0, 1, round_=there)
    pair.up = lose(3, 1)
    give_up(pair, 1, partial=partial)
    says = f"the aggregator is in round {there % (1 << 16)}, not in that of worker 1 {PLACE}: "
    assert_explained(pair, says, "job$")


@pytest.mark.parametrize(("others", "waited"), [((0,), ()), ((0, 2), (3,))])
def test_a_worker_that_was_late(others, waited):
    """The others gave up before its PARTIAL came, and are not there to acknowledge the sums; of many, one may be
    answered when the sums are complete."""
    device = join(NetworkedDevice(WorkerConfig.tiny(), 2 + len(others[1:] + waited)))
    send_partial(device, *others, *waited)
    give_up(device, *others)
    send_partial(device, 1)
    give_up(device, *waited)
    send_ack(device, 1)
    give_up(device, 1, partial=False)
    names = ", ".join(map(str, others))
    says = f"worker 1 was late: worker {names} had given up when its PARTIAL came {PLACE}; "
    assert_explained(device, says, "delayed it, or .*wait longer$")


def test_a_missing_worker_takes_precedence_over_a_late_one(device):
    send_partial(device, 0)
    give_up(device, 0)
    send_partial(device, 1)
    give_up(device, 1)
    assert explain(device) == f"worker 2 no longer answers: worker 0, 1 waited for it in vain {PLACE}"


@pytest.mark.parametrize("partial", [True, False])
def test_workers_that_waited_for_each_other(pair, partial):
    """In different slots, so it is unknown who was late."""
    send_partial(pair, 0)
    give_up(pair, 0)
    if partial:
        send_partial(pair, 1, slot=3)
    else:
        send_partial(pair, 0, 1, slot=3)
        send_ack(pair, 1, slot=3)
    give_up(pair, 1, slot=3, partial=partial)
    says = f"workers waited for each other in vain: worker 0 for 1 {PLACE}, worker 1 for 0 (slot 3, round {ROUND}); "
    assert_explained(pair, says, "delayed one of them, or .*wait longer$")


LOST_UP = (
    "came to the aggregator, though a probe did: frames are lost on the way up; check that link, or allow more resends"
)


def previous_round(pair):
    """The slot is in it, and it is complete."""
    join(pair, ROUND - 1)
    send_partial(pair, 0, 1, round_=ROUND - 1)
    send_ack(pair, 0, 1, round_=ROUND - 1)


@pytest.mark.parametrize(
    ("happens", "what", "who"),
    [
        (lambda pair: (send_partial(pair, 1), give_up(pair, 0, 1)), "PARTIAL", "0"),
        (lambda pair: (send_partial(pair, 1), give_up(pair, 0), give_up(pair, 1, slot=3)), "PARTIAL", "0"),
        (lambda pair: give_up(pair, 0, 1), "PARTIAL", "0, 1"),
        (lambda pair: (previous_round(pair), give_up(pair, 0, 1)), "PARTIAL", "0, 1"),
        (lambda pair: give_up(pair, 0), "PARTIAL", "0"),
        (
            lambda pair: (send_partial(pair, 0, 1), send_ack(pair, 1), give_up(pair, 0, 1, partial=False)),
            "ACK",
            "0",
        ),
    ],
    ids=["PARTIAL", "of one slot and round", "a fresh slot", "a complete round", "other workers missing", "ACK"],
)
def test_packets_that_never_came(pair, happens, what, who):
    happens(pair)
    assert explain(pair) == f"no {what} of worker {who} {PLACE} {LOST_UP}"


def test_a_long_partial_that_never_came(pair):
    """Probes are short."""
    send_partial(pair, 1)
    give_up(pair, 0, 1)
    reports = [
        replace(each, version=2, highest_version=2, echo=replace(each.echo, version=2)) for each in diagnose(pair)
    ]
    said, _ = explain_network_error(reports)
    assert said.startswith(f"no PARTIAL of worker 0 {PLACE} {LOST_UP}, or, if the network does not carry")
    assert said.endswith("train with --merge 1")


def late_sums(pair):
    """The last PARTIAL came after the other worker had given up, and before its second probe."""
    send_partial(pair, 0)
    pair.up = lose(1, 0)
    give_up(pair, 0)
    send_partial(pair, 1)
    send_ack(pair, 1)
    give_up(pair, 1, partial=False)


def late_acknowledgements(pair, *, gone_on=False):
    """The other worker has everything, and may have begun the next round."""
    send_partial(pair, 0, 1)
    send_ack(pair, 0, 1)
    if gone_on:
        send_partial(pair, 1, round_=ROUND + 1)
    give_up(pair, 0, partial=False)
    if gone_on:
        give_up(pair, 1, round_=ROUND + 1)


@pytest.mark.parametrize(
    ("happens", "awaited", "last"),
    [
        (late_sums, "FULL", "PARTIAL"),
        (late_acknowledgements, "CLEAR", "ACK"),
        (lambda pair: late_acknowledgements(pair, gone_on=True), "CLEAR", "ACK"),
    ],
    ids=["sums", "acknowledgements", "and the other has gone on"],
)
def test_what_is_complete_too_late(pair, happens, awaited, last):
    happens(pair)
    says = (
        f"worker 0 gave up waiting for {awaited} {PLACE}, which the aggregator could send by now: the last {last} came "
        "late, or frames are lost on the worker's way down; "
    )
    assert_explained(pair, says, "wait longer, or check that link$")


def test_workers_that_have_forgotten_why(pair):
    """Another program has made them join again meanwhile."""
    assert_explained(pair, "a worker gave up waiting for the network, ", "no worker .* what it was waiting for$")
