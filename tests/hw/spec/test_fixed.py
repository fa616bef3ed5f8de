"""Fixed-point formats: rounding and saturation against fractions."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.hw.spec.fixed import WEIGHT, Fixed, round_half_up

formats = st.builds(Fixed, st.integers(1, 53), st.integers(-8, 60), st.booleans())


@given(st.integers(-(1 << 60), 1 << 60), st.integers(0, 62))
def test_round_half_up(value, shift):
    got = int(round_half_up(np.array(value), shift))
    assert got == floor(Fraction(value, 1 << shift) + Fraction(1, 2))


@pytest.mark.parametrize("shift", [-1, 63])
def test_round_half_up_refuses_other_shifts(shift):
    with pytest.raises(ValueError, match="0 to 62"):
        round_half_up(np.array(1), shift)


@given(formats, st.floats(-1e9, 1e9))
def test_from_real_is_the_nearest_integer_or_the_limit(form, real):
    wanted = floor(Fraction(real) * Fraction(2) ** form.fraction + Fraction(1, 2))
    got = int(form.from_real(real))
    clamped = max(form.minimum, min(form.maximum, wanted))
    # float64 carries 53 bits: beyond, the half itself is rounded.
    assert got == clamped or abs(got - clamped) <= abs(clamped) * 2**-52


@given(formats, st.data())
def test_every_integer_survives_the_way_there_and_back(form, data):
    value = data.draw(st.integers(form.minimum, form.maximum))
    assert int(form.from_real(form.to_real(value))) == value
    assert not form.overflows(np.array(value))


@given(formats)
def test_saturation_begins_beyond_the_limits(form):
    outside = np.array([form.minimum - 1, form.maximum + 1])
    assert form.overflows(outside[:1])
    assert form.overflows(outside[1:])
    assert form.saturate(outside).tolist() == [form.minimum, form.maximum]


def test_nan_has_no_representation():
    with pytest.raises(ValueError, match="NaN"):
        WEIGHT.from_real([0.0, float("nan")])
    assert WEIGHT.from_real([float("inf"), float("-inf")]).tolist() == [WEIGHT.maximum, WEIGHT.minimum]
