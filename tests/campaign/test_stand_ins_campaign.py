"""A small part of the campaign on stand-ins, and that it sees mistakes of an aggregator."""

import pytest
from campaign.stand_ins import run
from support.bench import default_seed


def test_every_training_ends_with_the_right_weights():
    seed = default_seed() << 10
    failed = [f"{done.failure}: --only {done.seed}" for done in map(run, range(seed, seed + 30)) if done.failure]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(("variant", "figure"), [("AddsBoth", "wrong weights"), ("ForgetsTheOwner", "stalls")])
def test_mistakes_are_caught(variant, figure):
    assert any(run(seed, variant).counts[figure] for seed in range(20))
