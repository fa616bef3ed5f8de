"""An examination of the RTL cluster gives exactly what is wrong with it, and names the worker."""

import re

import pytest
from support.bench import default_seed
from support.packet_cluster import Readless

from p4sgd.host.devices.device import NetworkSettings, client_of
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.doctor import Result, examine
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import GROUP_BIT

NOBODY = 0x0250_0000_0BAD
IMPATIENT = NetworkSettings(resend_cycles=400)


@pytest.fixture(scope="module")
def cluster():
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    device = RtlDevice(WorkerConfig.tiny(), 2, seed=seed)
    yield device
    device.close()


@pytest.fixture
def device(cluster):
    """The cluster, from now on with nothing wrong."""
    yield cluster
    cluster.__dict__.pop("cluster_write", None)
    cluster.cut()
    cluster.inject_faults()


def once_joined(device, fault):
    """Let a fault happen when both workers have joined: what was wrong before would be right for the aggregator."""
    write = device.cluster_write

    def write_and_fail(worker, offset, word):
        if (worker, offset) == (1, registers.JOIN.offset):  # the aggregator knows of it already
            fault(device)
        write(worker, offset, word)

    device.cluster_write = write_and_fail


def begin_anew(device, *, ports=0b11, port=1, number=None):
    """Have the aggregator begin the workers' job with other settings; ``port`` is that of worker 1."""
    clients = [client_of(worker) for worker in device.workers]
    number = clients[0].read(registers.JOB)["job"] if number is None else number
    members = [Member(client.read_pair(registers.LOCAL_MAC), at) for client, at in zip(clients, (0, port), strict=True)]
    device.aggregator.end(0)
    device.aggregator.begin(0, Job(number, tuple(members), 1 << GROUP_BIT, ports), 1)


def tell_worker_1(register, **fields):
    return lambda device: client_of(device.workers[1]).write(register, **fields)


def give_worker_1(pair):
    return lambda device: client_of(device.workers[1]).write_pair(pair, NOBODY)


FAULTS = {
    "way up": (
        lambda device: device.cut(up=[1]),
        [("link", ".*: the way up ")],
    ),
    "way down": (
        lambda device: device.cut(down=[1]),
        [("link", ".*: the way down ")],
    ),
    "aggregator's address": (
        give_worker_1(registers.PEER_MAC),
        [("link", "no aggregator .* 02:50:00:00:0b:ad in PEER_MAC; .* has 00:00:")],
    ),
    "own address": (
        give_worker_1(registers.LOCAL_MAC),
        [("settings", "its address is 02:50:00:00:0b:ad, .* shard 1 at 02:50:34:53:47:01")],
    ),
    "port": (
        lambda device: begin_anew(device, port=0),
        [("settings", "it is behind port 1, .* shard 1 behind another")],
    ),
    "job": (
        lambda device: tell_worker_1(registers.JOB, job=99, shard=1, workers=2)(device),
        [("settings", "the aggregator serves no job 99")],
    ),
    "workers": (
        lambda device: tell_worker_1(
            registers.JOB, job=client_of(device.workers[0]).read(registers.JOB)["job"], shard=1, workers=3
        )(device),
        [("settings", "the job has 3 workers, but 2 ")],
    ),
    "shard": (
        lambda device: tell_worker_1(
            registers.JOB, job=client_of(device.workers[0]).read(registers.JOB)["job"], shard=2, workers=2
        )(device),
        [("settings", ".* 2 workers has no shard 2")],
    ),
    "group": (
        lambda device: begin_anew(device, ports=0b01),
        [("allreduce", ".*no multicast ")],
    ),
}


def bad(examination):
    return [finding for finding in examination.findings if finding.result is not Result.PASSED]


@pytest.mark.rtl
def test_a_healthy_cluster(device):
    examination = examine(device)
    assert bad(examination) == []
    assert examination.complete
    for finding in examination.findings:
        if finding.check == "link":
            assert finding.evidence["probes"] == finding.evidence["echoes"] == 32
            assert finding.evidence["port"] == finding.worker
            assert 40 < finding.evidence["cycles"] < 100, "two cables of 20 cycles and what is between them"
        if finding.check == "allreduce":
            assert finding.evidence["packets"] == 96, "a PARTIAL and an ACK in each of 48 runs"
            assert {count for name, count in finding.evidence.items() if name != "packets"} == {0}


USUAL = {"way down", "port", "job"}
"""Of which the others are variations."""


@pytest.mark.rtl
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in USUAL)) for name in FAULTS]
)
def test_a_fault_of_worker_1(device, name):
    fault, expected = FAULTS[name]
    once_joined(device, fault)
    examination = examine(device, IMPATIENT)
    found = bad(examination)
    assert [(finding.worker, finding.check, finding.result) for finding in found] == [
        (1, check, Result.FAILED) for check, _ in expected
    ], found
    for finding, (_, says) in zip(found, expected, strict=True):
        assert re.match(says, finding.problem), finding
    assert not examination.healthy


@pytest.mark.rtl
def test_a_job_that_the_aggregator_knows_by_another_number(device):
    once_joined(device, lambda device: begin_anew(device, number=(1 << 8) - 1))
    found = bad(examine(device))
    assert [(finding.worker, finding.check) for finding in found] == [(0, "settings"), (1, "settings")]
    assert all(finding.problem.startswith("the aggregator serves no job ") for finding in found)


@pytest.mark.rtl
@pytest.mark.slow
def test_a_lossy_network_is_healthy_all_the_same(device):
    device.inject_faults(link_loss=0.3)
    examination = examine(device, IMPATIENT)
    found = bad(examination)
    assert examination.healthy, found
    assert examination.complete
    assert {(finding.worker, finding.check, finding.result) for finding in found} == {
        (worker, check, Result.WARNING) for worker in range(2) for check in ("link", "allreduce")
    }
    for finding in found:
        if finding.check == "link":
            share, *counts = map(int, re.findall(r"\d+", finding.problem))
            up, sent, down, arrived = counts
            assert share == round(100 * (up + down) / sent)
            assert (sent, arrived) == (32, 32 - up)
            assert finding.evidence["echoes"] == 32 - up - down
    up, down = (sum(int(re.findall(r"\d+", f.problem)[k]) for f in found if f.check == "link") for k in (1, 3))
    assert 3 < up < 36, "of 64 at 30 %, within 5 deviations"
    assert 0 < down < 33


@pytest.mark.rtl
@pytest.mark.parametrize("ports", [0b11, pytest.param(0b01, marks=pytest.mark.slow)])
def test_workers_that_do_not_wait_for_answers(device, ports):
    """The way takes 54 cycles; a worker that is not in the group is found all the same."""
    once_joined(device, lambda device: begin_anew(device, ports=ports))
    examination = examine(device, NetworkSettings(resend_cycles=40))
    found = [(finding.worker, finding.check, finding.result) for finding in bad(examination)]
    in_haste = [(worker, "settings", Result.WARNING) for worker in range(2)]
    assert found == in_haste + [(1, "allreduce", Result.FAILED)] * (ports != 0b11), bad(examination)
    assert examination.complete


@pytest.mark.rtl
def test_losses_do_not_hide_a_worker_that_is_not_in_the_group(device):
    device.inject_faults(link_loss=0.1)
    once_joined(device, lambda device: begin_anew(device, ports=0b01))
    examination = examine(device, IMPATIENT)
    failed = [(f.worker, f.check) for f in examination.findings if f.result is Result.FAILED]
    assert failed == [(1, "allreduce")]


@pytest.mark.rtl
@pytest.mark.slow
def test_a_network_that_loses_nearly_all(device):
    device.inject_faults(up_loss=0.998)
    examination = examine(device)
    assert not examination.healthy
    assert [(finding.worker, finding.check) for finding in bad(examination)] == [(0, "link"), (1, "link")]


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("up", "the way up is dead"),
        ("down", "the way down is dead"),
    ],
)
def test_another_worker_is_asked_which_way_is_dead(device, way, says):
    device.cut(**{way: [1]})
    (found,) = bad(examine(Readless(device), IMPATIENT))
    assert (found.worker, found.check, found.result) == (1, "link", Result.FAILED)
    assert says in found.problem
    assert found.evidence["partials_of"] == ("0b1" if way == "up" else "0b11")
