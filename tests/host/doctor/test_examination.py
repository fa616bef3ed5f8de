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
from p4sgd.host.devices.merging import find_merge_limit
from p4sgd.host.doctor import Result, examine
from p4sgd.host.doctor.examination import _describe_packets
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
    """The findings that have not passed."""
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


def test_an_aggregator_of_version_1_keeps_programs_from_merging():
    """As a P4 switch or a board between worker processes that could."""
    (finding,) = _describe_packets(find_merge_limit([46, 46], 0, ["worker 0", "worker 1"]))
    assert finding.result is Result.PASSED
    assert finding.evidence == {
        "version": 1,
        "micro_batches": 1,
        "why": "the aggregator speaks version 1 only, like boards and P4 switches",
    }


def test_workers_are_those_of_the_cluster_file_and_one_is_late(device):
    device.names = [WorkerName(0, "unix:a"), WorkerName(2, "unix:c")]
    device.absent = [WorkerName(1, "unix:b")]
    examination = examine(device)
    assert_only(examination, (1, "worker", "late", "it is not there yet"))
    assert examination.healthy
    assert {finding.worker for finding in examination.findings if finding.check == "link"} == {0, 2}
    assert [evidence(examination, worker, "worker")["control"] for worker in range(3)] == ["unix:a", "unix:b", "unix:c"]
    once_joined(device, (registers.JOB, registers.JOB.encode(job=1, shard=0, workers=2)))
    says = "it is shard 0, and so is worker 0 at unix:a"
    found = [problem for problem in problems(examine(device)) if problem[1] != "worker"]
    assert found[0] == (2, "settings", "failed", says)


def test_the_self_test_has_weights_other_than_zero(device):
    """Weights of zero would be the same after wrong sums."""
    examine(device)
    client = device.workers[1]
    stored = client.read_memory(0, 4096, 32).view("<i4")
    assert np.count_nonzero(stored) == 8


def test_the_settings_are_those_of_training(device):
    seen = []
    device.begin = lambda job: (seen.append(job), device.network.model.begin(0, job))
    examination = examine(device, NetworkSettings(job=7, aggregator_mac=0x0250_0000_0001))
    assert_only(examination)
    assert [job.number for job in seen] == [7]
    assert evidence(examination, 0, "settings")["job"] == 7
    assert evidence(examine(device), 0, "settings")["job"] == 8, "each examination is another job"


@pytest.mark.parametrize(
    ("register", "word", "says"),
    [
        (registers.MAGIC_WORD, 0xFFFFFFFF, "is no P4SGD worker: .* 0xffffffff"),
        (registers.ABI, 2, "has version 2 .*register map"),
        (registers.CONFIG_HASH, 1, "has another configuration .*0x00000001"),
        (registers.CTRL, 0, "is busy "),
    ],
    ids=["magic", "version", "configuration", "busy"],
)
def test_a_worker_with_another_identity(device, register, word, says):
    device.workers[1].words[register.offset] = word
    examination = examine(device)
    assert_only(examination, (1, "worker", "failed", says))
    assert not examination.complete


def test_an_aggregator_of_another_version():
    examination = examine(NetworkedDevice(TINY, 2, version=2))
    says = r"the aggregator .*version 2 .*, the worker version 1\b"
    assert_only(examination, (0, "settings", "failed", says), (1, "settings", "failed", says))


def test_an_aggregator_of_fewer_slots():
    examination = examine(NetworkedDevice(TINY, 2, slots=TINY.slots // 2))
    says = r"the worker has 4 slots, the aggregator .*\b2\b"
    assert_only(examination, (0, "settings", "failed", says), (1, "settings", "failed", says))


def test_a_job_of_fewer_workers(device):
    device.begin = lambda job: device.network.model.begin(0, dataclasses.replace(job, members=job.members[:1]))
    assert_only(
        examine(device),
        (0, "settings", "failed", "the job has 2 workers, but 1 at the aggregator"),
        (1, "settings", "failed", "the job has 2 workers, but 1 at the aggregator"),
        (1, "settings", "failed", "the aggregator's job of 1 workers has no shard 1"),
    )


def test_a_job_that_was_never_begun(device):
    device.begin = lambda job: None
    examination = examine(device, NetworkSettings(job=9))
    says = "the aggregator serves no job 9"
    assert_only(examination, (0, "settings", "failed", says), (1, "settings", "failed", says))


def once_joined(device, *writes):
    """Write registers of worker 1 when the job has begun."""
    begin = device.begin

    def begin_and_write(job):
        begin(job)
        for register, value in writes:
            device.workers[1].write_register(register.offset, value)

    device.begin = begin_and_write


def test_two_workers_of_the_same_shard(device):
    once_joined(device, (registers.JOB, registers.JOB.encode(job=1, shard=0, workers=2)))
    examination = examine(device)
    assert_only(examination, (1, "settings", "failed", "it is shard 0, and so is worker 0"))
    assert not examination.complete
    assert evidence(examination, 1, "settings") == {"shard": 0, "address": "02:50:34:53:47:01"}


def test_two_workers_of_the_same_address(device):
    once_joined(device, (registers.LOCAL_MAC[0], 0x34534700))
    says = "its address is 02:50:34:53:47:00, and so is that of worker 0"
    assert_only(examine(device), (1, "settings", "failed", says))


def test_a_worker_with_shard_and_address_of_another(device):
    once_joined(
        device,
        (registers.JOB, registers.JOB.encode(job=1, shard=0, workers=2)),
        (registers.LOCAL_MAC[0], 0x34534700),
    )
    assert_only(
        examine(device),
        (1, "settings", "failed", "it is shard 0, and so is worker 0"),
        (1, "settings", "failed", "its address is 02:50:34:53:47:00, and so is that of worker 0"),
    )


def test_a_worker_with_the_address_of_a_group(device):
    once_joined(device, (registers.LOCAL_MAC[1], 0x0350))
    says = "its address 03:50:34:53:47:01 is that of a group"
    assert_only(examine(device), (1, "settings", "failed", says))


def test_a_healthy_cluster_without_a_controller(device):
    device.aggregator = None
    examination = examine(device)
    assert_only(examination)
    assert examination.complete
    assert evidence(examination, 0, "allreduce") == {"packets": 96, "sent_again": 0}


def test_a_healthy_cluster_with_an_aggregator_that_counts_no_frames(device):
    device.aggregator.counters = lambda: {"DROPPED_JOB": 0}
    examination = examine(device)
    assert_only(examination)
    assert examination.complete
    assert evidence(examination, 0, "allreduce") == {"packets": 96, "sent_again": 0}


def test_no_answers_without_a_controller(device):
    device.up = lambda worker, frame: None
    device.aggregator = None
    examination = examine(device)
    says = "no aggregator answers its probes"
    assert_only(examination, (0, "link", "failed", says), (1, "link", "failed", says))
    assert evidence(examination, 1, "link") == {"probes": 2 * PROBES, "echoes": 0}


def test_what_the_aggregator_drops(device):
    device.up = lambda worker, frame: frame if worker == 0 else frame[:26] + b"\1" + frame[27:]
    examination = examine(device)
    assert_only(examination, (1, "link", "failed", f"the aggregator drops .*{re.escape(DropReason.RESERVED.help)}"))
    assert evidence(examination, 1, "link")["aggregator_dropped_reserved"] == 2 * PROBES


def every(n):
    """A link that loses each n-th frame of worker 1."""
    count = itertools.count(1)
    return lambda worker, frame: None if worker == 1 and next(count) % n == 0 else frame


def test_the_share_that_is_lost_on_either_way(device):
    device.up, device.down = every(4), every(8)
    examination = examine(device)
    says = "34% .* lost: 8 of 32 .*way up, 3 of 24 .*way down"
    assert_only(examination, (1, "link", "warning", says))
    assert examination.complete


@pytest.fixture
def busy(device):
    """The device with another job at the aggregator, which receives some twenty frames with every probe."""
    own = device.probe
    model = device.network.model

    def probe(index, question):
        device.network.counts["FRAMES"] += 20
        model.drops[DropReason.DUPLICATE] += 19
        model.drops[DropReason.ETHERTYPE] += question["number"] % 8 == 0
        own(index, question)

    device.probe = probe
    return device


def test_a_dead_way_up_beside_another_job(busy):
    busy.up = lambda worker, frame: frame if worker == 0 else None
    examination = examine(busy)
    assert_only(examination, (1, "link", "failed", "nothing .*aggregator: the way up "))
    assert evidence(examination, 1, "link")["aggregator_frames"] == 20 * 2 * PROBES


def test_a_dead_way_down_beside_another_job(busy):
    busy.down = lambda worker, echo: echo if worker == 0 else None
    assert_only(examine(busy), (1, "link", "failed", "the aggregator answers, .*: the way down "))


def test_losses_beside_another_job(busy):
    busy.up = every(4)
    says = "25% .* lost: 8 of 32 .*way up, 0 of 24 .*way down"
    assert_only(examine(busy), (1, "link", "warning", says))


def test_what_the_aggregator_drops_beside_another_job(busy):
    busy.up = lambda worker, frame: frame if worker == 0 else frame[:26] + b"\1" + frame[27:]
    says = f"the aggregator drops .*{re.escape(DropReason.RESERVED.help)}"
    assert_only(examine(busy), (1, "link", "failed", says))


def test_a_link_that_loses_nearly_all(device):
    count = itertools.count(1)
    device.down = lambda worker, echo: echo if worker == 0 or next(count) % 16 == 0 else None
    assert_only(examine(device), (1, "link", "failed", "94% .* lost: 0 of 32 "))


def test_packets_that_are_sent_again(device):
    device.resent = [0, 1]  # one of two packets in each run: the other was answered by multicast
    assert_only(examine(device), (1, "allreduce", "warning", ".* 48 of 144 packets again"))


def test_a_worker_that_receives_no_multicast(device):
    device.resent = [1, 2]
    examination = examine(device)
    assert_only(examination, (1, "allreduce", "failed", ".*no multicast"))
    assert evidence(examination, 0, "allreduce")["sent_again"] == 48


def test_workers_that_do_not_wait_for_answers(device):
    examination = examine(device, NetworkSettings(resend_cycles=40))
    says = r"it sends packets again after 0.16 µs, .*\b0.2 µs"
    assert_only(examination, (0, "settings", "warning", says), (1, "settings", "warning", says))
    assert {each.remedy for each in examination.findings if each.result is Result.WARNING} == {
        "let it wait 1 µs or more: resend_us of the cluster file"
    }
    assert examination.complete
    assert evidence(examination, 1, "allreduce")["sent_again"] == 0, "they were made to wait"


def test_early_resends_do_not_hide_a_worker_outside_the_group(device):
    device.resent = [1, 2]
    examination = examine(device, NetworkSettings(resend_cycles=40))
    assert [problem[:3] for problem in problems(examination)] == [
        (0, "settings", "warning"),
        (1, "settings", "warning"),
        (1, "allreduce", "failed"),
    ]


def test_wrong_weights(device):
    def flip(data):
        data[5] ^= 1
        return data

    device.workers[1].spoil = flip
    assert_only(examine(device), (1, "weights", "failed", "1 of its 8 weights "))


def test_a_run_that_fails(device):
    def fail(timeout_s):
        raise P4sgdError("it rains")

    device.wait = fail
    examination = examine(device)
    assert_only(examination, (None, "allreduce", "failed", "it rains"))


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


def test_resend_cycles_are_written_before_a_join_only(device):
    written = []

    def note(write):
        def write_register(offset, word):
            written.append(offset)
            write(offset, word)

        return write_register

    for worker in device.workers:
        worker.write_register = note(worker.write_register)
    examine(device, NetworkSettings(resend_cycles=40))
    settings = [offset for offset in written if offset in (registers.RESEND_CYCLES.offset, registers.JOIN.offset)]
    assert settings == [registers.RESEND_CYCLES.offset, registers.JOIN.offset] * 4, "two workers join twice"
