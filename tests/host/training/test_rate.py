"""Learning rates: as registers, over the epochs, and what the losses of epochs say about them."""

import itertools
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES
from p4sgd.host.training.events import EpochRecord
from p4sgd.host.training.options import declarations
from p4sgd.host.training.rate import (
    Convergence,
    LearningRateSchedule,
    Penalties,
    automatic_rate,
    choose_penalties,
    choose_rate,
    estimate_more_epochs,
    largest_rate,
    smallest_rate,
)
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings

FORMATS = [FeatureFormat(8, p, signed) for p, signed in itertools.product(range(1, 9), (False, True))]

# -- registers ---------------------------------------------------------------------------------------------------------


@given(lr=st.floats(1e-5, 15), batch=st.integers(1, 512).map(lambda k: 8 * k), form=st.sampled_from(FORMATS))
def test_nearest_rate(lr, batch, form):
    rate = choose_rate(lr, batch, form)
    chosen = RunSettings(form, 1, batch // 8, 1, LabelMode(), rate.mantissa, rate.exponent)
    assert rate.actual == batch * rate.mantissa * 2.0**-rate.exponent
    # no other register contents come nearer
    for shift in range(32):
        exponent = rate.exponent + shift - chosen.gradient_shift
        mantissa = min(max(round(lr / batch * 2.0**exponent), 1), 255)
        assert abs(batch * mantissa * 2.0**-exponent - lr) >= abs(rate.actual - lr) * (1 - 1e-9)
    if rate.mantissa >= 128:
        assert rate.actual == pytest.approx(lr, rel=1 / 256)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_the_ends_of_the_range(form):
    for exact in (*(2.0**power for power in range(-20, 7)), largest_rate(64, form)):
        assert choose_rate(exact, 64, form).actual == exact
    exponent = 31 - 16 - form.fraction + 23  # where the shift of Round 3 is 31
    coarse = choose_rate(8 * 1.4 * 2.0**-exponent, 8, form)
    assert (coarse.mantissa, coarse.exponent) == (1, exponent)
    for outside in (1e-12, largest_rate(64, form) * 1.01):
        with pytest.raises(UserError, match="out of the hardware's range"):
            choose_rate(outside, 64, form)


@pytest.mark.parametrize(
    ("lr", "l2", "l1", "expected"),
    [
        (0.1, 0.0, 0.0, Penalties(0, 0)),
        (0.5, 2.0**-6, 2.0**-10, Penalties(1 << (24 - 7), 1 << (23 - 11))),
        (0.999, 2.0**-6, 0, Penalties(261882, 0)),
        (1.0, 1e-9, 0, "l2 has no effect"),
        (1.0, 5e-7, 0, "l2 leaves weights below 0.12"),
        (1.0, 0, 1e-8, "l1 has no effect"),
        (1.0, 2.0**-6, 0, UserError("must be below 2\\^-6 .* lower the learning rate or l2")),
        (1.0, 0, 300, UserError("lower the learning rate or l1")),
    ],
)
def test_penalties(lr, l2, l1, expected):
    if isinstance(expected, UserError):
        with pytest.raises(UserError, match=str(expected)):
            choose_penalties(lr, l2, l1)
    elif isinstance(expected, str):
        (remark,) = choose_penalties(lr, l2, l1).remarks
        assert remark.startswith(expected)
    else:
        assert choose_penalties(lr, l2, l1) == expected


def test_automatic_rate_scales_with_the_data():
    for loss in LOSSES.values():
        assert automatic_rate(loss, 4.0) == automatic_rate(loss, 1.0) / 4
        assert automatic_rate(loss, 0.0) > 0


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_constant_and_invscaling():
    for name, rates in (("constant", [0.5, 0.5, 0.5]), ("invscaling", [0.5, 0.25, 0.05])):
        schedule = LearningRateSchedule(name, 0.5, 0.5)
        assert [schedule.rate(epoch) for epoch in (1, 4, 100)] == rates
        assert not schedule.adapt(1, 1)


def test_adaptive():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=2)
    # (epochs without progress, since the best one, whether the rate changes, the rate)
    for idle, since_best, changes, rate in (
        (0, 0, False, 0.5),
        (1, 0, False, 0.5),
        (2, 2, True, 0.5 / 5),
        (3, 0, False, 0.5 / 5),
        (4, 1, True, 0.5),  # it was better, but slow: it is taken back
        (6, 1, False, 0.5),  # slow, but there is nothing better
        (8, 2, True, 0.5 / 5),
        (10, 2, True, 0.5 / 25),  # it was no better: the rate falls further
    ):
        assert (adaptive.adapt(idle, since_best), adaptive.rate(9)) == (changes, rate)
    assert [adaptive.adapt(idle, 99) for idle in range(12, 40, 2)] == [True] * 2 + [False] * 12, "to 5^-4 at least"
    seven = LearningRateSchedule("adaptive", 0.5, 0.5, patience=7)
    assert [idle for idle in range(1, 15) if seven.adapt(idle, idle)] == [7, 14]
    for patience, divisor, progress in (
        (None, 1.0, [True, False, False, False]),
        (None, 5.0, [True, True, True, False]),  # with a lower rate less is progress
        (1, 5.0, [True, False, False, False]),  # unless training is to end
    ):
        adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=patience, divisor=divisor)
        assert [adaptive.is_progress([loss], 1.0, 0.1) for loss in (0.89, 0.91, 0.97, 0.99)] == progress
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5)
    for losses, patience, progress in (
        ([1.1, 1.0, 0.95], None, False),  # falls are halved, so that 0.05 are left, less than half of the tolerance
        ([1.09, 1.0, 0.95], None, True),
        ([1.09, 1.0, 0.95], 1, False),
        ([1.0, 0.95], None, False),
        ([1.06, 1.0, 0.95], None, False),  # they hardly shrink
        ([1.18, 1.09, 1.03], None, False),  # there was a better one
    ):
        adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=patience)
        assert adaptive.is_progress(losses, 1.0, 0.11) == progress, losses


@pytest.mark.parametrize("name", declarations()["schedule"].choices)
def test_rates_are_lowered_when_training_diverges(name):
    schedule = LearningRateSchedule(name, 100.0, 0.5)
    for most, expected in ((20.0, 10.0), (0.25, 0.25), (0.25, 0.025)):
        assert not schedule.lowest
        schedule.lower(most)
        assert (schedule.first, schedule.divisor) == (pytest.approx(expected), 1.0)
    if name == "adaptive":  # its range is relative to the rate that does not diverge
        assert not schedule.adapt(2, 0), "there is nothing to take back"
        assert [schedule.adapt(idle, idle) for idle in range(1, 6)] == [True] * 4 + [False]
        assert schedule.rate(1) == pytest.approx(0.025 / 625)


def test_schedules_stop_at_the_smallest_rate():
    form = FeatureFormat(8, 8, False)
    smallest = smallest_rate(16, form)
    assert choose_rate(smallest, 16, form).actual == pytest.approx(smallest, rel=0.01)
    for power in (9.0, 700.0):  # the latter is beyond floating point
        assert LearningRateSchedule("invscaling", 0.5, power, smallest).rate(1000) == smallest
    constant = LearningRateSchedule("constant", 0.5, 0.5, smallest)
    for _ in range(20):
        constant.lower(0.5)
    assert (constant.lowest, constant.rate(101)) == (True, smallest)
    assert LearningRateSchedule("constant", smallest / 2, 0.5, smallest).rate(9) == smallest / 2
    adaptive = LearningRateSchedule("adaptive", smallest, 0.5, smallest)
    assert not any(adaptive.adapt(idle, 0) for idle in range(9))


# -- what the losses of epochs say -------------------------------------------------------------------------------------


def course(*epochs, accuracy=None, **more):
    """Epochs of some rates and losses, where a constant model has the loss 1."""
    accuracy = {} if accuracy is None else {"train_accuracy": accuracy}
    history = [
        EpochRecord(epoch, rate, {"train_loss": loss, **accuracy}, 1.0, 1.0, (), ())
        for epoch, (rate, loss) in enumerate(epochs, 1)
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


def test_a_small_loss_or_no_error_may_mean_separable_classes():
    for loss, accuracy, separates in ((0.05, 0.9, True), (0.5, 0.99, False), (0.5, 1.0, True), (0.5, None, False)):
        assert course((2.0, loss), accuracy=accuracy).separates is separates


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
    for losses, negligible in (
        ([5.0, 4.0, 3.0, 2.0, 2.5], 0.0),  # it rises
        ([5.0, 4.0, 3.0, 2.0], 0.0),  # too few
        ([1.0] * 9, 0.0),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 1.0),
    ):
        assert estimate_more_epochs(losses, negligible) is None
    assert estimate_more_epochs([5.0, 4.0, 3.0, 2.0, 1.0], 0.0) == 5, "it does not slow down"


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
