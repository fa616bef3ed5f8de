"""A small part of the campaign on the RTL cluster, and that it sees what it is for."""

from collections import Counter

import pytest
from campaign import cluster
from campaign.cluster import FIGURES, TRAININGS, run
from support.bench import default_seed
from support.jobs import Job, random_job

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.errors import P4sgdError


@pytest.mark.rtl
@pytest.mark.slow
def test_every_training_ends_with_the_right_weights():
    seed = default_seed()
    outcomes = [run(seed), run(seed + 1)]
    failed = [f"{outcome.failure}: --only {outcome.seed}" for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join(failed)
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    assert counts["runs"] == 2 * TRAININGS
    rare = {"with pauses"}  # one time in 3,000 none of so few trainings has any
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
    outcome = run(0)
    assert outcome.counts["wrong weights"] == 1
    assert outcome.failure.startswith("wrong weights of 1 workers: training 0 of")

    def stall(self, timeout_s):
        raise P4sgdError("still running")

    monkeypatch.setattr(RtlDevice, "wait", stall)
    outcome = run(0)
    assert outcome.counts["stalls"] == 1
    assert outcome.failure.startswith("still running: training 0 of")


def test_a_packet_that_is_sent_again_counts_once(monkeypatch):
    """PACKETS_RESENT is of PACKETS_SENT."""
    job = random_job(cluster.CONFIG, 2, seed=0)
    counted = [{"CYCLES": 9, "PACKETS_SENT": 5, "PACKETS_RESENT": 2, "PACKETS_DROPPED": 1}] * 2
    monkeypatch.setattr(cluster, "run_on", lambda *_, **__: (job.golden().weights, None, counted))
    counts, failure = cluster.train(None, job)
    assert not failure
    assert (counts["packets"], counts["resent"], counts["dropped by workers"]) == (10, 4, 2)
