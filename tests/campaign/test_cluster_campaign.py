"""A small part of the campaign on the RTL cluster, and that it sees what it is for."""

import itertools
import random
from collections import Counter

import pytest
from campaign import cluster
from campaign.cluster import FIGURES, TRAININGS, run
from support.bench import default_seed
from support.jobs import Job, random_job

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.errors import P4sgdError

GOOD = [{"network_error": 0}] * 2
COUNTED = [{"CYCLES": 9, "PACKETS_SENT": 5, "PACKETS_RESENT": 2, "PACKETS_DROPPED": 1}] * 2


SEED = 1
"""Of a cluster of two workers."""


def of_two_workers(seed):
    return random.Random(seed).randint(2, 3) == 2  # the first that `run` asks


@pytest.mark.rtl
@pytest.mark.slow
def test_every_training_ends_with_the_right_weights():
    """On clusters of two workers: to build the simulator of three takes as long as all of these trainings."""
    seeds = itertools.islice(filter(of_two_workers, itertools.count(default_seed())), 2)
    outcomes = [run(seed) for seed in seeds]
    failed = [f"{outcome.failure}: --only {outcome.seed}" for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join(failed)
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    assert counts["runs"] == 2 * TRAININGS
    rare = {"with pauses", "given up"}  # one time in 3,000 none of so few trainings has any, or in 30 none gives up
    assert {name for name in FIGURES if counts[name]} | rare == {*FIGURES} - {"wrong weights", "stalls"}


@pytest.mark.rtl
@pytest.mark.slow
def test_failures_are_seen(monkeypatch):
    """Of weights that are not those expected, and of a training that does not end."""

    def other_golden(job):
        trained = golden(job)
        trained.weights[1][0] += 1
        return trained

    golden = Job.golden
    monkeypatch.setattr(Job, "golden", other_golden)
    monkeypatch.setattr(cluster, "TRAININGS", 1)
    outcome = run(SEED)
    assert outcome.counts["wrong weights"] == 1
    assert outcome.failure.startswith("wrong weights of 1 workers: training 0 of")

    def stall(self, timeout_s):
        raise P4sgdError("still running")

    monkeypatch.setattr(RtlDevice, "wait", stall)
    outcome = run(SEED)
    assert outcome.counts["stalls"] == 1
    assert outcome.failure.startswith("still running: training 0 of")


@pytest.mark.parametrize(("limit", "tries"), [(3, 3), (100, 2), (0, 1)])
def test_who_gives_up_begins_anew_with_more_resends(monkeypatch, limit, tries):
    """As often as the register has room for twice as many; with any number of resends nobody may give up."""
    job = random_job(cluster.CONFIG, 2, seed=0)
    seen = []

    def run_on(device, job, *, number, resends):
        seen.append((number, resends))
        good = limit == 3 and len(seen) == tries
        return job.golden().weights, GOOD if good else [{"network_error": 1}, GOOD[1]], COUNTED

    monkeypatch.setattr(cluster, "run_on", run_on)
    counts, failure = cluster.train(None, job, itertools.count(7), resends=limit)
    assert seen == [(7 + n, limit << n) for n in range(tries)]
    if limit == 3:
        assert not failure
        assert (counts["given up"], counts["stalls"]) == (2, 0)
    else:
        assert failure == f"1 workers gave up with a limit of {limit << tries - 1} resends"
        assert (counts["given up"], counts["stalls"]) == (tries - 1, 1)
