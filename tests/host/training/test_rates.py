"""Real learning rates and penalties as registers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES
from p4sgd.host.training.options import SCHEDULES, LearningRateSchedule
from p4sgd.host.training.rate import automatic_rate, choose_penalties, choose_rate, largest_rate, smallest_rate
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings

FORMATS = [FeatureFormat(8, p, signed) for p, signed in itertools.product(range(1, 9), (False, True))]


def settings(rate, form, batch=16):
    """Raises if the numbers do not fit the registers."""
    return RunSettings(form, 1, batch // 8, 1, LabelMode(), rate.mantissa, rate.exponent)


@given(
    lr=st.floats(1e-5, 15),
    batch=st.integers(1, 512).map(lambda k: 8 * k),
    form=st.sampled_from(FORMATS),
)
def test_nearest_rate(lr, batch, form):
    rate = choose_rate(lr, batch, form)
    chosen = settings(rate, form, batch)
    assert rate.actual == batch * rate.mantissa * 2.0**-rate.exponent
    assert rate.wanted == lr
    # no other register contents come nearer
    for shift in range(32):
        exponent = rate.exponent + shift - chosen.gradient_shift
        mantissa = min(max(round(lr / batch * 2.0**exponent), 1), 255)
        assert abs(batch * mantissa * 2.0**-exponent - lr) >= abs(rate.actual - lr) * (1 - 1e-9)
    if rate.mantissa >= 128:
        assert rate.error <= 1 / 256


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_powers_of_two_are_exact(form):
    for power in range(-20, 7):
        assert choose_rate(2.0**power, 64, form).error == 0


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_limits(form):
    with pytest.raises(UserError, match=r"hardware.*range|range.*hardware"):
        choose_rate(1e-12, 64, form)
    assert choose_rate(largest_rate(64, form), 64, form).error == 0
    with pytest.raises(UserError, match=r"hardware.*range|range.*hardware"):
        choose_rate(largest_rate(64, form) * 1.01, 64, form)


def test_coarse_near_the_smallest():
    form = FeatureFormat(8, 8, False)
    exponent = 31 - 16 - form.fraction + 23  # where the shift of Round 3 is 31
    lr = 8 * 1.4 * 2.0**-exponent
    rate = choose_rate(lr, 8, form)
    assert (rate.mantissa, rate.exponent) == (1, exponent)
    assert rate.coarse
    assert not choose_rate(0.1, 8, form).coarse


def test_penalties():
    none = choose_penalties(0.1, 0.0, 0.0)
    assert (none.shrink, none.threshold, none.remarks) == (0, 0, ())
    some = choose_penalties(0.5, 2.0**-6, 2.0**-10)
    assert some.shrink == 1 << (24 - 7)
    assert some.threshold == 1 << (23 - 11)
    assert some.remarks == ()


@pytest.mark.parametrize(
    ("lr", "l2", "l1", "message"),
    [(1.0, 2.0**-6, 0, "must be below 2\\^-6"), (2.0, 1.0, 0, "lower the learning rate or l2"), (1, 0, 300, "l1")],
)
def test_penalties_too_strong(lr, l2, l1, message):
    with pytest.raises(UserError, match=message):
        choose_penalties(lr, l2, l1)
    choose_penalties(0.999, 2.0**-6, 0)


@pytest.mark.parametrize(
    ("l2", "l1", "remark"),
    [(1e-9, 0, "l2 has no effect"), (5e-7, 0, "l2 leaves weights below 0.12"), (0, 1e-8, "l1 has no effect")],
)
def test_penalties_too_weak(l2, l1, remark):
    (told,) = choose_penalties(1.0, l2, l1).remarks
    assert told.startswith(remark)


def test_automatic_rate_scales_with_the_data():
    for loss in LOSSES.values():
        assert automatic_rate(loss, 4.0) == automatic_rate(loss, 1.0) / 4
        assert automatic_rate(loss, 0.0) > 0


def test_schedules():
    constant = LearningRateSchedule("constant", 0.5, 0.5)
    inverse = LearningRateSchedule("invscaling", 0.5, 0.5)
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=2)
    for schedule in (constant, inverse, adaptive):
        assert not schedule.adapt(0, 0)
        assert not schedule.adapt(1, 0)
    assert not constant.adapt(2, 0)
    assert [constant.rate(e) for e in (1, 4, 100)] == [0.5, 0.5, 0.5]
    assert [inverse.rate(e) for e in (1, 4, 100)] == [0.5, 0.25, 0.05]
    assert adaptive.rate(9) == 0.5
    assert adaptive.adapt(2, 2)
    assert adaptive.rate(10) == 0.5 / 5
    assert not adaptive.adapt(3, 0)
    assert adaptive.adapt(4, 1), "it was better, but slow: it is taken back"
    assert adaptive.rate(12) == 0.5
    assert not adaptive.adapt(6, 1), "slow, but there is nothing better"
    assert adaptive.adapt(8, 2)
    assert adaptive.rate(14) == 0.5 / 5
    assert adaptive.adapt(10, 2), "it was no better: the rate falls further"
    assert adaptive.rate(16) == 0.5 / 25
    changes = [adaptive.adapt(idle, 99) for idle in range(12, 40, 2)]
    assert changes == [True] * 2 + [False] * 12, "to 5^-4 at least"


def test_with_a_lower_rate_less_counts_as_progress():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5)
    assert [adaptive.is_progress(loss, 1.0, 0.1) for loss in (0.89, 0.91)] == [True, False]
    assert adaptive.adapt(1, 1)
    assert [adaptive.is_progress(loss, 1.0, 0.1) for loss in (0.91, 0.97, 0.99)] == [True, True, False]
    ends = LearningRateSchedule("adaptive", 0.5, 0.5, patience=1, divisor=5.0)
    assert [ends.is_progress(loss, 1.0, 0.1) for loss in (0.89, 0.91)] == [True, False]


def test_adaptive_begins_again_after_divergence():
    """Its range and tolerance are relative to the rate that does not diverge."""
    adaptive = LearningRateSchedule("adaptive", 1000.0, 0.5)
    adaptive.lower(1.0)
    assert (adaptive.first, adaptive.divisor) == (1.0, 1.0)
    assert not adaptive.adapt(2, 0), "there is nothing to take back"
    assert [adaptive.adapt(idle, idle) for idle in range(1, 6)] == [True] * 4 + [False]
    assert adaptive.rate(1) == 1.0 / 625


def test_adaptive_never_exceeds_the_first_rate():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, smallest=0.5)
    assert not any(adaptive.adapt(idle, 0) for idle in range(9))
    assert adaptive.rate(1) == 0.5


def test_an_adaptive_rate_is_as_patient_as_training():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=7)
    assert [idle for idle in range(1, 15) if adaptive.adapt(idle, idle)] == [7, 14]
    unset = LearningRateSchedule("adaptive", 0.5, 0.5)
    assert [idle for idle in range(4) if unset.adapt(idle, idle)] == [1, 2, 3]


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_lowered_when_training_diverges(name):
    schedule = LearningRateSchedule(name, 100.0, 0.5)
    for most, expected in ((20.0, 10.0), (0.25, 0.25), (0.25, 0.025)):
        assert not schedule.lowest
        schedule.lower(most)
        assert schedule.rate(1) == pytest.approx(expected)


def test_schedules_stop_at_the_smallest_rate():
    form = FeatureFormat(8, 8, False)
    smallest = smallest_rate(16, form)
    assert not choose_rate(smallest, 16, form).coarse
    for power in (9.0, 700.0):  # the latter is beyond floating point
        assert LearningRateSchedule("invscaling", 0.5, power, smallest).rate(1000) == smallest
    constant = LearningRateSchedule("constant", 0.5, 0.5, smallest)
    for _ in range(20):
        constant.lower(0.5)
    assert constant.lowest
    assert constant.rate(101) == smallest
    assert LearningRateSchedule("constant", smallest / 2, 0.5, smallest).rate(9) == smallest / 2
