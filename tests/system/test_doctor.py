"""An examination of the RTL cluster gives exactly what is wrong with it, and names the worker."""

import re

import pytest
from support.bench import default_seed

from p4sgd.host.devices.device import NetworkSettings, client_of
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.doctor import Result, examine
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import GROUP_BIT

IMPATIENT = NetworkSettings(resend_cycles=400)


@pytest.fixture(scope="module")
def cluster():
    seed = default_seed()
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


def begin_anew(device):
    """Have the aggregator begin the workers' job with worker 1 behind another port."""
    clients = [client_of(worker) for worker in device.workers]
    members = tuple(Member(client.read_pair(registers.LOCAL_MAC), 0) for client in clients)
    device.aggregator.end(0)
    device.aggregator.begin(0, Job(clients[0].read(registers.JOB)["job"], members, 1 << GROUP_BIT, 0b11), 1)


FAULTS = {
    "way down": (lambda device: device.cut(down=[1]), "link", ".*: the way down "),
    "port": (begin_anew, "settings", "it is behind port 1, .* shard 1 behind another"),
    "job": (
        lambda device: client_of(device.workers[1]).write(registers.JOB, job=99, shard=1, workers=2),
        "settings",
        "the aggregator drops what it sends: it is of another job",
    ),
}
"""Some of those of tests/host/doctor/test_examination.py, which has them all for emulated workers."""


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


@pytest.mark.rtl
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_worker_1(device, name):
    fault, check, says = FAULTS[name]
    once_joined(device, fault)
    examination = examine(device, IMPATIENT)
    (found,) = bad(examination)
    assert (found.worker, found.check, found.result) == (1, check, Result.FAILED)
    assert re.match(says, found.problem), found
    assert not examination.healthy


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
