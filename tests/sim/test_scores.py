"""What the search for the rate needs of models: sums of penalties, and intercepts by the loss table."""

from fractions import Fraction

import numpy as np
import pytest
from support.bench import default_seed
from support.targets import targets

from p4sgd.host.losses import LOSSES
from p4sgd.host.training.epoch_metrics import penalty
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.sim import golden
from p4sgd.sim.model import Targets, sizes_of


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_balanced_residuals_add_up_to_zero_or_just_more(name, weighted):
    """From wherever the search begins."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng, loss = np.random.default_rng(seed), LOSSES[name]
    y = LABEL.from_real(loss.label(targets(loss.task, rng.normal(size=200))))
    sums = rng.integers(-(1 << 18), 1 << 18, y.size)
    own = rng.integers(0, 1 << 16, y.size).astype(float) if weighted else None
    goals = Targets(y, np.empty(0, np.int64), loss.table())

    def total(raised):
        g = golden.residual(sums + raised, y, goals.table, loss.label_mode, golden.Flags())
        return (g if own is None else own * g).sum()

    for place in (0, int(rng.integers(-(1 << 20), 1 << 20))):
        found = goals.balance(loss.label_mode, sums, own, place)
        assert total(found) == 0 or total(found - 1) < 0 < total(found)


def test_penalties_are_sums_that_do_not_depend_on_the_order():
    rng = np.random.default_rng(1)
    weights = rng.integers(-(1 << 31), 1 << 31, 40_000).astype(np.int32)
    weights[:2] = -(1 << 31), (1 << 31) - 1
    squares = sum(Fraction(weight, 1 << 23) ** 2 for weight in weights.tolist())
    magnitudes = sum(Fraction(abs(weight), 1 << 23) for weight in weights.tolist())
    mixed = np.append(rng.permutation(weights), 12345)
    for sizes in (sizes_of(weights), sizes_of(mixed.astype(np.float64), np.array([40_000]))):
        assert penalty(sizes, 2.0, 0.0) == float(squares)
        assert penalty(sizes, 0.0, 1.0) == float(magnitudes)
        assert penalty(sizes, 0.0, 0.0) == 0
