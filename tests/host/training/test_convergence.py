"""What the losses of epochs tell: divergence, and how many epochs were missing."""

import itertools
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.training.events import EpochRecord
from p4sgd.host.training.schedule import Convergence, estimate_more_epochs


def course(*epochs, **more):
    """A run whose constant model has a loss of 1, from learning rates and losses."""
    history = [
        EpochRecord(epoch, rate, {"train_loss": loss}, 1.0, 1.0, (), ()) for epoch, (rate, loss) in enumerate(epochs, 1)
    ]
    return Convergence(history, 1.0, **more)


WENT_ON, ANEW = "went on from earlier weights with", "try --lr"


@pytest.mark.parametrize(
    ("epochs", "next_rate", "remark"),
    [
        ([(8, 0.9), (8, 0.8)], None, None),
        ([(8, 9.0)], None, None),  # it is told when it is over
        ([(8, math.nan), (4, 2.1), (2, 0.9), (2, 0.8)], None, f"rate 8 .*diverged in epochs 1 to 2 and {WENT_ON} 2"),
        ([(8, 9.0), (8, 0.9)], None, "epoch 1, and there is no lower one$"),
        ([(8, 9.0)], 0.5, f"rate 8 is too large: training diverged in epoch 1: {ANEW} 0.5$"),
        ([(9, 7.0), (8, 0.9), (8, 0.8), (8, 9.0)], 0.5, f"rate 8 is .* in epoch 4: {ANEW} 0.5$"),
        ([(8, 9.0), (1, 0.9)], 1.0, None),
        ([(8, 9.0)], 8.0, "and there is no lower one$"),
    ],
)
@pytest.mark.parametrize("automatic", [False, True])
def test_divergence(epochs, next_rate, remark, automatic):
    said = course(*epochs, automatic=automatic).divergence_remark(next_rate)
    if remark is None:
        assert said is None
    else:
        assert re.search(remark, said)
        assert said.startswith("the automatic learning rate " if automatic else "the learning rate ")
        assert WENT_ON not in said or said.endswith(": try that") != automatic  # a rate that nobody gave needs no other


@pytest.mark.parametrize(
    ("loss", "accuracy", "separates"), [(0.05, 0.9, True), (0.5, 0.99, False), (0.5, 1.0, True), (0.5, None, False)]
)
def test_a_small_loss_or_no_error_may_mean_separable_classes(loss, accuracy, separates):
    metrics = {"train_loss": loss} | ({} if accuracy is None else {"train_accuracy": accuracy})
    assert Convergence([EpochRecord(1, 2.0, metrics, 1.0, 1.0, (), ())], 1.0).separates is separates


def test_epochs_are_missing_since_the_rate_changed():
    falls = [1.6, 1.4, 1.2, 1.0, 0.8]
    run = course(*[(4, loss) for loss in (5.0, 1.9, 1.8)], *[(2, loss) for loss in falls])
    assert run.more_epochs("train_loss", adaptive=True) == 5
    since = [1.9, 1.8, *falls]
    assert run.more_epochs("train_loss", adaptive=False) == estimate_more_epochs(since), "since it diverged"
    constant = course(*[(2 / epoch, loss) for epoch, loss in enumerate(falls, 1)])
    assert constant.more_epochs("train_loss", adaptive=False) == 5
    assert constant.more_epochs("train_loss", adaptive=True) is None, "one epoch with the last rate"
    assert course(*[(2, loss / 1000) for loss in falls]).more_epochs("train_loss", adaptive=False) is None, "negligible"


@settings(max_examples=50)
@given(limit=st.floats(0.01, 10), start=st.floats(0.1, 10), ratio=st.floats(0.5, 0.99), epochs=st.integers(5, 60))
def test_the_estimate_is_exact_for_a_loss_that_falls_geometrically(limit, start, ratio, epochs):
    losses = [limit + start * ratio**epoch for epoch in range(epochs)]
    more = estimate_more_epochs(losses)
    close = 0.01 * max(limit, 0.01 * losses[-1])
    needed = next(n for n in itertools.count() if start * ratio ** (epochs - 1 + n) <= close)
    if more is None:  # the loss would fall by less than 1 % in as many epochs again
        assert needed <= 1 or losses[-1] - limit - start * ratio ** (2 * epochs) <= 0.01 * losses[-1]
    else:
        assert abs(more - min(needed, 10 * epochs)) <= 1


@pytest.mark.parametrize(
    ("losses", "negligible", "expected"),
    [
        ([5.0, 4.0, 3.0, 2.0, 1.0], 0.0, 5),  # it does not slow down
        ([5.0, 4.0, 3.0, 2.0, 2.5], 0.0, None),  # it rises
        ([5.0, 4.0, 3.0, 2.0], 0.0, None),  # too few
        ([1.0] * 9, 0.0, None),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 1.0, None),
    ],
)
def test_estimates_of_other_losses(losses, negligible, expected):
    assert estimate_more_epochs(losses, negligible) == expected
