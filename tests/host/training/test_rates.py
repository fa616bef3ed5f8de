"""Real learning rates and penalties as registers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES
from p4sgd.host.training.rate import automatic_rate, choose_penalties, choose_rate, largest_rate
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
