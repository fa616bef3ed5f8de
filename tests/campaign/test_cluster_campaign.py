"""A small part of the campaign on the RTL cluster, and that it sees what it is for."""

import itertools
import random
from collections import Counter

import pytest
from campaign import cluster
from campaign.cluster import FIGURES, TRAININGS, run
from support.bench import default_seed
from support.jobs import Job

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.errors import P4sgdError

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
