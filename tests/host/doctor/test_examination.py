"""The examination of a cluster, on a model of its network."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from support.networked_device import NetworkedDevice

from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, NetworkOptions
from p4sgd.host.devices.cluster import network_settings
from p4sgd.host.devices.device import NetworkSettings, WorkerName, client_of
from p4sgd.host.doctor import Result, examine
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import DropReason

TINY = WorkerConfig.tiny()
PROBES = 32


@pytest.fixture
def device():
    return NetworkedDevice(TINY, 2)


def problems(examination):
    return [
        (finding.worker, finding.check, finding.result.value, finding.problem)
        for finding in examination.findings
        if finding.result is not Result.PASSED
    ]


def evidence(examination, worker, check):
    (found,) = [f for f in examination.findings if (f.worker, f.check) == (worker, check)]
    return found.evidence


def assert_only(examination, *expected):
    """Expect these findings and no others that have not passed. The last item of each matches the problem's begin."""
    found = problems(examination)
    assert [problem[:3] for problem in found] == [problem[:3] for problem in expected], found
    for (*_, text), (*_, begin) in zip(found, expected, strict=True):
        assert re.match(begin, text), found
    assert examination.healthy == all(result != "failed" for _, _, result, _ in found)


def test_a_healthy_cluster(device):
    examination = examine(device)
    assert_only(examination)
    assert examination.complete
    (packets,) = (finding for finding in examination.findings if finding.worker is None)
    assert packets.check == "packets"
    assert packets.evidence["version"] == packets.evidence["micro_batches"] == 1
    lacking = "the aggregator, worker 0, worker 1"
    assert packets.evidence["why"] == f"{lacking} speak version 1 only, like boards and P4 switches"
    assert sorted(
        (finding.check, finding.worker) for finding in examination.findings if finding is not packets
    ) == sorted(itertools.product(["worker", "link", "settings", "allreduce", "weights"], range(2)))
    assert evidence(examination, 1, "link") == {"probes": PROBES, "echoes": PROBES, "cycles": 50, "ns": 200, "port": 1}
    assert evidence(examination, 1, "settings")["address"] == "02:50:34:53:47:01"
    assert evidence(examination, 1, "weights") == {"weights": 8, "wrong": 0}


def test_workers_are_those_of_the_cluster_file_and_one_is_late(device):
    device.names = [WorkerName(0, "unix:a"), WorkerName(2, "unix:c")]
    device.absent = [WorkerName(1, "unix:b")]
    examination = examine(device)
    assert_only(examination, (1, "worker", "late", "it is not there yet"))
    assert examination.healthy
    assert {finding.worker for finding in examination.findings if finding.check == "link"} == {0, 2}
    assert [evidence(examination, worker, "worker")["control"] for worker in range(3)] == ["unix:a", "unix:b", "unix:c"]


def test_the_job_is_that_of_training_with_weights_other_than_zero(device):
    """Weights of zero would be the same after wrong sums."""
    seen = []
    device.begin = lambda job: (seen.append(job), device.network.model.begin(0, job))
    examination = examine(device, NetworkSettings(job=7, aggregator_mac=0x0250_0000_0001))
    assert_only(examination)
    assert [job.number for job in seen] == [7]
    assert evidence(examination, 0, "settings")["job"] == 7
    assert np.count_nonzero(device.workers[1].read_memory(0, 4096, 32).view("<i4")) == 8
    assert evidence(examine(device), 0, "settings")["job"] == 8, "each examination is another job"


def patched(**attributes):
    return lambda device: vars(device).update(attributes)


def spoilt(data):
    data[5] ^= 1
    return data


def rain(timeout_s):
    raise P4sgdError("it rains")


def of_one(device):
    device.begin = lambda job: device.network.model.begin(0, dataclasses.replace(job, members=job.members[:1]))


def changing(device):
    """The aggregator drops one packet in each run for its check."""
    runs, wait, counters = [], device.wait, device.network.counters
    device.wait = lambda timeout_s=None: (runs.append(1), wait(timeout_s))
    device.network.counters = lambda: counters() | {"DROPPED_CHECK": len(runs)}


def both(check, result, problem):
    return [(worker, check, result, problem) for worker in range(2)]


def busy(device):
    device.workers[1].words[registers.CTRL.offset] = 0


def spoiling(device):
    device.workers[1].spoil = spoilt


DROPS = "the aggregator drops what it sends: it is of "
NUMBER, SHARD = f"{DROPS}a job with another number of workers", f"{DROPS}a shard that is another or not in"

CASES = {
    "busy": (busy, [(1, "worker", "failed", "is busy ")]),
    "fewer workers": (of_one, [*both("settings", "failed", NUMBER), (1, "settings", "failed", SHARD)]),
    "no job": (patched(begin=lambda job: None), both("settings", "failed", f"{DROPS}another job")),
    # One of two packets in each run: the other was answered by multicast.
    "resends": (patched(resent=[0, 1]), [(1, "allreduce", "warning", ".* 48 of 144 packets again")]),
    "no multicast": (patched(resent=[1, 2]), [(1, "allreduce", "failed", ".*no multicast")]),
    "changed": (changing, [(None, "allreduce", "warning", "48 packets to the aggregator were changed on the way")]),
    "weights": (spoiling, [(1, "weights", "failed", "1 of its 8 weights ")]),
    "rain": (patched(wait=rain), [(None, "allreduce", "failed", "it rains")]),
}
"""What is wrong, and what is found."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_found(device, case):
    setup, expected = CASES[case]
    setup(device)
    examination = examine(device)
    assert_only(examination, *expected)
    assert examination.complete == (expected[0][1] in ("allreduce", "weights"))
    if case == "no multicast":
        assert evidence(examination, 0, "allreduce")["sent_again"] == 48


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"version": 2}, r"the aggregator .*version 2 .*, the worker version 1\b"),
        ({"slots": TINY.slots // 2}, r"the worker has 4 slots, the aggregator .*\b2\b"),
    ],
)
def test_an_aggregator_that_does_not_fit(other, says):
    assert_only(examine(NetworkedDevice(TINY, 2, **other)), *both("settings", "failed", says))


def every(n):
    count = itertools.count(1)
    return lambda worker, frame: None if worker == 1 and next(count) % n == 0 else frame


def all_but(n):
    count = itertools.count(1)
    return lambda worker, frame: frame if worker == 0 or (n and next(count) % n == 0) else None


def reserved(worker, frame):
    return frame if worker == 0 else frame[:26] + b"\1" + frame[27:]


LINKS = {
    "dropped": ({"up": lambda: reserved}, "failed", f"the aggregator drops .*{re.escape(DropReason.RESERVED.help)}"),
    "lossy": (
        {"up": lambda: every(4), "down": lambda: every(8)},
        "warning",
        "34% .* lost: 8 of 32 .*up, 3 of 24 .*down",
    ),
    "lossy up": ({"up": lambda: every(4)}, "warning", "25% .* lost: 8 of 32 .*way up, 0 of 24 .*way down"),
    "nearly dead": ({"down": lambda: all_but(16)}, "failed", "94% .* lost: 0 of 32 "),
    "dead up": ({"up": lambda: all_but(0)}, "failed", "nothing .*aggregator: the way up "),
    "dead down": ({"down": lambda: all_but(0)}, "failed", "the aggregator answers, .*: the way down "),
}
"""Links of worker 1, and what is found."""


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another job"])
@pytest.mark.parametrize("link", LINKS)
def test_a_bad_link(device, link, beside):
    """Of another job the aggregator receives some twenty frames with every probe."""
    ways, result, says = LINKS[link]
    vars(device).update({way: make() for way, make in ways.items()})
    own, model = device.probe, device.network.model

    def probe(index, question):
        device.network.counts["FRAMES"] += 20
        model.drops[DropReason.DUPLICATE] += 19
        model.drops[DropReason.ETHERTYPE] += question["number"] % 8 == 0
        own(index, question)

    if beside:
        device.probe = probe
    examination = examine(device)
    assert_only(examination, (1, "link", result, says))
    assert examination.complete == (result == "warning")
    if link == "dropped":
        assert evidence(examination, 1, "link")["aggregator_dropped_reserved"] == PROBES
    if link == "dead up":
        assert evidence(examination, 1, "link")["aggregator_frames"] == 20 * PROBES * beside


def test_workers_that_do_not_wait_for_answers(device):
    examination = examine(device, NetworkSettings(resend_cycles=40))
    assert_only(examination, *both("settings", "warning", r"it sends packets again after 0.16 µs, .*\b0.2 µs"))
    assert {each.remedy for each in examination.findings if each.result is Result.WARNING} == {
        "let it wait 1 µs or more: resend_us of the cluster file"
    }
    assert examination.complete
    assert evidence(examination, 1, "allreduce")["sent_again"] == 0, "they were made to wait"
    device.resent = [1, 2]
    found = [problem[:3] for problem in problems(examine(device, NetworkSettings(resend_cycles=40)))]
    assert found == [(0, "settings", "warning"), (1, "settings", "warning"), (1, "allreduce", "failed")]


@pytest.mark.parametrize(
    "options",
    [NetworkOptions(doublings=9), NetworkOptions(200, doublings=15), NetworkOptions(8_000_000, doublings=0)],
    ids=["doublings", "most doublings", "longest wait"],
)
def test_network_options_of_a_cluster_file(device, options):
    device.network_settings = network_settings(Cluster(AggregatorAddress("socket", "unix:a"), (), options))
    assert_only(examine(device))
    resend_cycles = client_of(device.workers[0]).read(registers.RESEND_CYCLES)["value"]
    assert resend_cycles >= 5_000_000, "20 ms: longer than it takes to start the workers"
