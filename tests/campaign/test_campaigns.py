"""A small part of the campaigns on damage and stand-ins, and that they see what they are for."""

import pytest
from campaign import damage, messages, stand_ins
from conformance.mutants import MUTANTS
from support.bench import default_seed


def failures(campaign, seeds):
    return [f"{done.failure}: --only {done.seed}" for done in map(campaign.run, seeds) if done.failure]


@pytest.mark.parametrize(("campaign", "count"), [(damage, 300), (messages, 60), (stand_ins, 30)])
def test_nothing_fails(campaign, count):
    seed = default_seed() << 10
    failed = failures(campaign, range(seed, seed + count))
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("reader", [lambda path: None, lambda path: path.missing], ids=["takes all", "fails"])
def test_readers_with_a_mistake_are_caught(monkeypatch, reader):
    for name in ("model", "prepared/labels.npy"):
        monkeypatch.setitem(damage.READERS, name, reader)
    assert len(failures(damage, range(100))) > 3


def accept(connection, most):
    raise KeyError("do")


@pytest.mark.parametrize(
    ("what", "mistake"),
    [
        ("Aggregator", MUTANTS["AnyCheck"]),
        ("receive", accept),
        ("RefusedError", UnicodeError),
    ],
    ids=["frames", "streams", "requests"],
)
def test_mistakes_about_messages_are_caught(monkeypatch, what, mistake):
    monkeypatch.setattr(messages, what, mistake)
    assert failures(messages, range(10))


@pytest.mark.parametrize(("variant", "figure"), [("AddsBoth", "wrong weights"), ("ForgetsTheOwner", "stalls")])
def test_mistakes_about_stand_ins_are_caught(variant, figure):
    assert any(stand_ins.run(seed, variant).counts[figure] for seed in range(20))
