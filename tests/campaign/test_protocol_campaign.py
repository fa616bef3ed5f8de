"""A small part of the campaign on the protocol in Python, and of the same on one that is known to be wrong."""

import itertools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from campaign.protocol import FIGURES, run
from support.bench import default_seed

FAILURES = ("wrong sums", "stalls")


def test_every_run_ends_with_every_sum_right():
    seed = default_seed() << 10
    outcomes = [run(number) for number in range(seed, seed + 200)]
    failed = [f"{outcome.failure}: --only {outcome.seed}" for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join(failed)
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    assert {name for name in FIGURES if counts[name]} == {*FIGURES} - {*FAILURES}, "each fault, and no failure"


def test_a_protocol_without_rounds_is_caught():
    outcomes = [run(seed, "Forgetful") for seed in range(40)]
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    assert counts["wrong sums"] > 10
    assert counts["stalls"] > 10
    assert sum(bool(outcome.failure) for outcome in outcomes) > 20


@pytest.mark.parametrize("variant", ["AnyKey", "AnyKeyAtWorkers", "FirstMicroBatchOnly", "KeepsTheLength"])
def test_mistakes_in_version_2_are_caught(variant):
    """The same seeds that the protocol survives; runs of version 1 do not have these mistakes."""
    outcomes = (run(seed, variant) for seed in range(100))
    failed = list(itertools.islice((outcome for outcome in outcomes if outcome.failure), 2))
    assert failed
    assert all(outcome.counts["version 2"] for outcome in failed)
    assert not any(run(outcome.seed).failure for outcome in failed)


@pytest.mark.parametrize("variant", ["KeepsItsOwnSums", "AsksOnce", "ClearsBeforeItsParent"])
def test_mistakes_between_two_levels_are_caught(variant):
    outcomes = (run(seed, variant) for seed in range(60))
    failed = list(itertools.islice((outcome for outcome in outcomes if outcome.failure), 2))
    assert failed
    assert all(outcome.counts["two levels"] for outcome in failed)


def script(*options):
    command = [sys.executable, Path(__file__).with_name("protocol.py"), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_script_fails_where_a_run_does_and_says_which():
    assert script("--runs", 10).returncode == 0
    failed = script("--runs", 6, "--variant", "Forgetful")
    assert failed.returncode == 1, failed.stderr
    told, seed = re.search(r"(.*)\n  again: python .* --only (\d+)", failed.stdout).groups()
    again = script("--only", seed, "--variant", "Forgetful")
    assert told in again.stdout
