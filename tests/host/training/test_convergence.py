"""What the losses of epochs tell: divergence, and how many epochs were missing."""

import math

import pytest

from p4sgd.host.training.convergence import Convergence, estimate_more_epochs
from p4sgd.host.training.events import EpochRecord


def course(*epochs, **more):
    """A run whose constant model has a loss of 1, from learning rates and losses."""
    history = [
        EpochRecord(epoch, rate, {"train_loss": loss}, 1.0, 1.0, (), ()) for epoch, (rate, loss) in enumerate(epochs, 1)
    ]
    return Convergence(history, 1.0, **more)


def test_divergence_is_told_when_it_is_over():
    assert course((8, 0.9), (8, 0.8)).divergence_remark() is None
    assert course((8, 9.0)).divergence_remark() is None
    said = course((8, math.nan), (4, 2.1), (2, 0.9), (2, 0.8)).divergence_remark()
    assert "rate 8 is too large: training diverged in epochs 1 to 2 and went on from earlier weights with 2" in said


@pytest.mark.parametrize("before", [[], [(9, 7.0), (8, 0.9), (8, 0.8)]])
def test_a_run_that_ends_diverged_says_what_to_try(before):
    run = course(*before, (8, 9.0))
    assert run.last_remark(0.5).endswith(f"rate 8 is too large: training diverged in epoch {len(before) + 1}: try 0.5")
    assert course(*before, (8, 9.0), (1, 0.9)).last_remark(1.0) is None


def test_divergence_is_told_of_a_rate_that_the_user_did_not_give():
    said = course((8, 9.0), (2, 0.9), automatic=True).divergence_remark()
    assert said.startswith("the automatic learning rate 8 is too large")
    assert said.endswith("went on from earlier weights with 2")
    assert course((8, 9.0), automatic=True).last_remark(0.5).endswith("diverged in epoch 1: try --lr 0.5")


def test_the_lowest_rate_may_be_too_large():
    assert course((8, 9.0), (8, 0.9)).divergence_remark().endswith("and there is no lower one")
    assert course((8, 9.0)).last_remark(8.0).endswith("and there is no lower one")


@pytest.mark.parametrize(("loss", "separates"), [(0.05, True), (0.5, False)])
def test_a_small_loss_may_mean_separable_classes(loss, separates):
    assert course((2, 0.9), (2, loss)).separates is separates


@pytest.mark.parametrize(("accuracy", "separates"), [(1.0, True), (0.99, False)])
def test_no_error_may_mean_separable_classes(accuracy, separates):
    record = EpochRecord(1, 2.0, {"train_loss": 0.5, "train_accuracy": accuracy}, 1.0, 1.0, (), ())
    assert Convergence([record], 1.0).separates is separates


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
