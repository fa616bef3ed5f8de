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
    assert int(round_half_up(np.array(value), shift)) == floor(Fraction(value, 1 << shift) + Fraction(1, 2))


@given(formats, st.floats(-1e9, 1e9), st.data())
def test_from_real_is_the_nearest_integer_or_the_limit(form, real, data):
    wanted = floor(Fraction(real) * Fraction(2) ** form.fraction + Fraction(1, 2))
    got, clamped = int(form.from_real(real)), max(form.minimum, min(form.maximum, wanted))
    # float64 carries 53 bits: beyond, the half itself is rounded.
    assert got == clamped or abs(got - clamped) <= abs(clamped) * 2**-52
    value = data.draw(st.integers(form.minimum, form.maximum))
    assert int(form.from_real(form.to_real(value))) == value, "every integer survives the way there and back"
    assert not form.overflows(np.array(value))


@given(formats)
def test_saturation_begins_beyond_the_limits(form):
    outside = np.array([form.minimum - 1, form.maximum + 1])
    assert form.overflows(outside[:1])
    assert form.overflows(outside[1:])
    assert form.saturate(outside).tolist() == [form.minimum, form.maximum]


def test_what_has_no_representation():
    with pytest.raises(ValueError, match="NaN"):
        WEIGHT.from_real([0.0, float("nan")])
    assert WEIGHT.from_real([float("inf"), float("-inf")]).tolist() == [WEIGHT.maximum, WEIGHT.minimum]
    for shift in (-1, 63):
        with pytest.raises(ValueError, match="0 to 62"):
            round_half_up(np.array(1), shift)
