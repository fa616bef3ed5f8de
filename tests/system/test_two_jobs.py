"""Two jobs on one aggregator: whatever the second does, the first ends with the same weights, in the same time."""

import random

import pytest
from support.bench import default_seed
from support.jobs import collect, configure, random_job, start

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import DropReason

pytestmark = [pytest.mark.rtl, pytest.mark.slow]

TINY = WorkerConfig.tiny()
FIRST, SECOND = (0, 1), (2, 3)
"""Workers of the two jobs."""

ALONE_NUMBER, FIRST_NUMBER, SECOND_NUMBER = 7, 8, 9
FIRST_PLACE = 1
"""The second job joins before the first."""

SLOWER = 1.02
"""Most that the second job may cost the first."""

FLOOD = {"resend_cycles": 1}
"""A packet without an answer is sent again whenever its slot's turn comes."""

LIES = {
    "number": ({"workers": 3}, False, DropReason.WORKERS),
    "workers": ({"shard": 2}, False, DropReason.SHARD),
    "shard": ({}, False, DropReason.SOURCE),
    "address": ({}, True, DropReason.SOURCE),
}
"""What is not true of the first job, whether the MAC address is, and why packets are dropped; the port is wrong."""


class TwoJobs:
    """Four workers around an aggregator, two in each job."""

    def __init__(self, seed):
        self.device = RtlDevice(TINY, 4, seed=seed)
        self.first, self.second = (
            random_job(TINY, 2, seed=seed + n, precision=4, chunks=4, micro_batches=4, mini_batches=mini_batches)
            for n, mini_batches in enumerate((100, 150))  # the second goes on when the first has ended
        )
        self.clients = []  # registers of the second's workers
        self.pick = random.Random(seed)

    def workers(self, indices):
        return [self.device.workers[index] for index in indices]

    def configure_second(self, **options):
        self.clients = configure(self.workers(SECOND), self.second, number=SECOND_NUMBER, **options)

    def run_first(self, number, before, meanwhile, cycles):
        """Run the first job; its cycles, and what the aggregator has counted from its join on."""
        clients = configure(self.workers(FIRST), self.first, number=number)
        counted = self.device.aggregator.counters()
        before(clients)
        start(clients, self.first)
        self.wait(clients, meanwhile, cycles)
        counted = {name: count - counted[name] for name, count in self.device.aggregator.counters().items()}
        return max(each["CYCLES"] for each in self.check(FIRST, clients, self.first)), counted

    def wait(self, clients, meanwhile=lambda: None, cycles=1000):
        """Let time pass until workers are idle; ``meanwhile`` is called every so many cycles."""
        for _ in range(1_000_000 // cycles):
            if all(client.read(registers.CTRL)["idle"] for client in clients):
                return
            meanwhile()
            self.device._simulator.request("run", cycles=cycles)
        pytest.fail("a job is still running")

    def check(self, indices, clients, job):
        """Weights and flags of a job that has ended; returns its counters."""
        weights, status, counters = collect(self.workers(indices), clients, job)
        assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]
        assert not any(flags["network_error"] or flags["aborted"] for flags in status)
        return counters

    def check_undisturbed(self, before, meanwhile=lambda: None, cycles=1000):
        """Run the first job alone, and then beside the second; returns what the aggregator has counted then.

        ``before`` is called with the registers of its workers, between join and start.
        """
        alone, counted_alone = self.run_first(ALONE_NUMBER, lambda _: None, lambda: None, cycles)
        beside, counted = self.run_first(FIRST_NUMBER, before, meanwhile, cycles)
        frames = counted["FRAMES"] - counted_alone["FRAMES"]
        print(f"{alone} cycles alone, {beside} beside the second job and {frames} of its frames")
        all_reduces = self.first.settings.mini_batches * self.first.settings.micro_batches
        once_each = 2 * len(FIRST) * all_reduces  # PARTIAL and ACK
        assert [each[f"JOB{FIRST_PLACE}_ACCEPTED"] for each in (counted_alone, counted)] == [once_each, once_each]
        assert frames > 100, "the second job sends next to nothing"
        assert beside <= SLOWER * alone
        return counted


@pytest.fixture
def jobs():
    made = TwoJobs(default_seed())
    yield made
    made.device.close()


CHANCES = {
    "healthy": {},
    "network": {"link_loss": 0.1, "link_duplication": 0.1, "link_reordering": 0.1},
    "pauses": {"worker_pause": 1 / 1000},
}


@pytest.mark.parametrize("name", CHANCES)
def test_a_job_that_is_healthy_or_has_a_bad_network_or_slow_workers(jobs, name):
    def disturb_and_start(_):
        jobs.device.inject_faults(spared=FIRST, **CHANCES[name])
        start(jobs.clients, jobs.second)

    jobs.configure_second(**({} if name == "healthy" else {"resend_cycles": 100}))
    jobs.check_undisturbed(disturb_and_start)
    assert not any(client.read(registers.CTRL)["idle"] for client in jobs.clients), "it ended before the first"
    jobs.wait(jobs.clients)
    jobs.check(SECOND, jobs.clients, jobs.second)


def test_a_job_with_a_worker_that_never_starts(jobs):
    jobs.configure_second(**FLOOD)
    counted = jobs.check_undisturbed(lambda _: start(jobs.clients[:1], jobs.second))
    assert counted["DROPPED_DUPLICATE"] > counted["PARTIALS"], "the other worker sends its PARTIAL over and over"


@pytest.mark.parametrize("lie", LIES)
def test_a_job_that_claims_to_be_the_first(jobs, lie):
    """Its workers flood the aggregator with what could be the next PARTIAL of the first job, with values of their own.

    Again and again they are told what round the first job is in.
    """
    wrong, has_address, reason = LIES[lie]

    def claim(clients):
        for shard, (client, victim) in enumerate(zip(jobs.clients, clients, strict=True)):
            client.write(registers.JOB, **{"job": FIRST_NUMBER, "shard": shard, "workers": 2} | wrong)
            if has_address:
                client.write_pair(registers.LOCAL_MAC, victim.read_pair(registers.LOCAL_MAC))
        start(jobs.clients, jobs.second)

    def catch_up():
        now = jobs.device.aggregator.read_slots(FIRST_PLACE, range(1))[0].round
        for index, client in zip(SECOND, jobs.clients, strict=True):
            client.write(registers.ABORT, abort=1)
            jobs.wait([client], cycles=10)
            join = registers.JOIN.encode(round=now + jobs.pick.randrange(3))
            jobs.device.cluster_write(index, registers.JOIN.offset, join)  # of which the aggregator is not told
        start(jobs.clients, jobs.second)

    jobs.configure_second(**FLOOD)
    counted = jobs.check_undisturbed(claim, catch_up, cycles=200)
    dropped = counted[f"DROPPED_{reason.name}"]
    assert dropped > counted["PARTIALS"]
    assert counted["FRAMES"] == counted[f"JOB{FIRST_PLACE}_ACCEPTED"] + dropped
