"""A small part of the campaign on damaged messages, and that it sees what it is for."""

import pytest
from campaign import messages
from conformance.mutants import MUTANTS
from support.bench import default_seed


def failures(seeds):
    return [f"{done.failure}: --only {done.seed}" for done in map(messages.run, seeds) if done.failure]


def test_whatever_comes_is_taken_refused_or_dropped():
    seed = default_seed() << 10
    failed = failures(range(seed, seed + 60))
    assert not failed, "\n".join(failed)


def accept(connection, most):
    raise KeyError("do")


@pytest.mark.parametrize(
    ("what", "mistake"),
    [
        ("Aggregator", next(kind for kind in MUTANTS if kind.__name__ == "AnyCheck")),
        ("receive", accept),
        ("RefusedError", UnicodeError),
    ],
    ids=["frames", "streams", "requests"],
)
def test_mistakes_are_caught(monkeypatch, what, mistake):
    monkeypatch.setattr(messages, what, mistake)
    assert failures(range(10))
