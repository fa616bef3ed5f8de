"""Real learning rates and penalties as registers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES
from p4sgd.host.training.rate import Penalties, automatic_rate, choose_penalties, choose_rate, largest_rate
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings

FORMATS = [FeatureFormat(8, p, signed) for p, signed in itertools.product(range(1, 9), (False, True))]


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
