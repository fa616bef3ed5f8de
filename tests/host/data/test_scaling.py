"""Scaling and quantisation: exact where they can be, within half a step everywhere."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p4sgd.host.data import Scaling
from p4sgd.host.data.scaling import feature_values, quantize, steps
from p4sgd.host.errors import UserError

FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 2.3e-308]),
)
MATRIX = st.tuples(st.integers(1, 6), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=FINITE)
)
TINY = 2.0**-1012


def exact_scaled(column, kind):
    """a by definition, in exact arithmetic of long fractions."""
    from fractions import Fraction

    values = [Fraction(float(x)) for x in column]
    low = min(values) if kind == "minmax" else Fraction(0)
    magnitude = max(map(abs, values))
    span = max(values) - low if kind == "minmax" else magnitude
    limit = max(Fraction(TINY), magnitude / 2**40)
    return [(value - low) / span if span > limit else Fraction(0) for value in values], span, limit


@settings(max_examples=200)
@given(matrix=MATRIX, kind=st.sampled_from(["minmax", "maxabs"]), stored=st.integers(1, 8), sparse=st.booleans())
def test_quantised_within_half_a_step(matrix, kind, stored, sparse):
    features = scipy.sparse.csr_array(matrix) if sparse else matrix
    scaling = Scaling.fit(features, kind)
    a = scaling.apply(features)
    assert a.shape == matrix.shape
    assert np.isfinite(a).all()
    assert a.max() <= 1 + 1e-14
    assert a.min() >= (-1 - 1e-14 if scaling.signed else 0)
    assert scaling.signed == (kind == "maxabs" and bool((matrix < 0).any()))
    q = quantize(a, stored, scaling.signed)
    bits = (-(1 << stored - 1), (1 << stored - 1) - 1) if scaling.signed else (0, (1 << stored) - 1)
    assert bits[0] <= q.min() <= q.max() <= bits[1]
    one = steps(stored, scaling.signed)
    for j in range(matrix.shape[1]):
        exact, span, limit = exact_scaled(matrix[:, j], kind)
        if 0.99 * limit < span < 1.01 * limit:
            continue  # at the border below which a column counts as constant
        for value, integer in zip(exact, q[:, j].tolist(), strict=True):
            wanted = min(value * one, bits[1])  # one signed plane has no +1
            assert abs(integer - wanted) <= 0.5 + 1e-9
    if kind == "maxabs":
        assert not a[matrix == 0].any(), "zero must stay exactly zero"
        assert not q[matrix == 0].any()


def test_all_negative_columns_are_exact():
    column = np.array([[-255.0], [-128.0], [-3.0], [0.0]])[:3] - 1
    scaling = Scaling.fit(column, "minmax")
    assert scaling.apply(column)[:, 0].tolist() == [0, 127 / 252, 1]
    signed = Scaling.fit(column, "maxabs")
    assert signed.signed
    assert quantize(signed.apply(column), 8, True)[:, 0].tolist() == [-127, -64, -2]


@pytest.mark.parametrize("value", [0.0, 3.5, -3.5, 1e308, -5e-324])
@pytest.mark.parametrize("sparse", [False, True])
def test_constant_columns(value, sparse):
    matrix = np.full((3, 1), value)
    features = scipy.sparse.csr_array(matrix) if sparse else matrix
    scaling = Scaling.fit(features, "minmax")
    assert not scaling.apply(features).any()
    assert scaling.scale.tolist() == [0]
    one = 0 if abs(value) < TINY else np.sign(value)
    assert Scaling.fit(features, "maxabs").apply(features)[:, 0].tolist() == pytest.approx([one] * 3, rel=1e-14)


@pytest.mark.parametrize("value", [1.0, 1 / 3, -3.5, 1e15, 1e308, 1e-290])
def test_rounding_noise_makes_no_feature(value):
    column = value * (1 + np.finfo(float).eps * np.array([[-3.0], [0], [5]]))
    assert np.unique(column).size > 1
    assert Scaling.fit(column, "minmax").scale.tolist() == [0]
    spread = value * (1 + 2.0**-39 * np.array([[-1.0], [0], [1]]))
    assert Scaling.fit(spread, "minmax").apply(spread) == pytest.approx(
        np.array([[0], [0.5], [1]])[:: int(np.sign(value))], abs=1e-3
    )


@pytest.mark.parametrize("kind", ["minmax", "maxabs"])
@pytest.mark.parametrize("span", [3e-308, 2.0**-1012, 1e-304])
def test_no_coefficient_overflows(kind, span):
    scale = Scaling.fit(np.array([[0.0], [span]]), kind).scale
    assert np.isfinite(256 * scale).all()
    assert scale.any() == (span > TINY)


def test_zeros_that_are_not_stored_count():
    matrix = scipy.sparse.csr_array(np.array([[5.0, -2, 4], [0, -1, 8], [10, 0, 6]]))
    scaling = Scaling.fit(matrix, "minmax")
    assert scaling.offset.tolist() == [0, -2, 4]
    assert scaling.apply(matrix).tolist() == [[0.5, 0, 0], [0, 0.5, 1], [1, 1, 0.5]]
    assert scaling.zero.tolist() == [0, 1, -1]


def test_extremes_of_the_format():
    top = np.finfo(np.float64).max
    matrix = np.array([[top, 1e-300, 1e12], [-top, -1e-300, 1e12 + 2], [0, 0, 1e12 + 1]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        a = Scaling.fit(matrix, "minmax").apply(matrix)
    assert np.allclose(a, [[1, 1, 0], [0, 0, 1], [0.5, 0.5, 0.5]], rtol=0, atol=1e-15)


def test_auto():
    dense = np.array([[1.0, -2.0]])
    assert Scaling.fit(dense).kind == "minmax"
    assert Scaling.fit(scipy.sparse.csr_array(dense)).kind == "maxabs"


def test_other_data_go_beyond_the_range_and_are_clamped():
    scaling = Scaling.fit(np.array([[0.0, -1.0], [1.0, 1.0]]), "maxabs")
    a = scaling.apply(np.array([[1e300, -7.0]]))
    assert a.tolist() == [[1e300, -7.0]]
    assert quantize(a, 4, True).tolist() == [[7, -8]]
    tiny = Scaling.fit(np.array([[1e-300]]), "maxabs").apply(np.array([[1e300]]))
    assert quantize(tiny, 4, False).tolist() == [[15]]


def test_float32():
    matrix = np.array([[0.1, 3e38], [0.7, -3e38]], dtype=np.float32)
    a = Scaling.fit(matrix, "minmax").apply(matrix)
    assert a.dtype == np.float64
    assert np.allclose(a, [[0, 1], [1, 0]], rtol=0, atol=1e-15)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(sparse, value):
    matrix = np.ones((3, 4))
    matrix[1, 2] = value
    with pytest.raises(UserError, match=f"sample 2, feature 3 is {value}"):
        Scaling.fit(scipy.sparse.csr_array(matrix) if sparse else matrix)


def test_unknown_kind():
    with pytest.raises(UserError, match="no scaling 'best'; there are auto, minmax, maxabs"):
        Scaling.fit(np.ones((1, 1)), "best")


@given(x=st.floats(-50, 50), stored=st.integers(2, 8), kind=st.sampled_from(["minmax", "maxabs"]))
def test_feature_values_are_what_the_hardware_reads(x, stored, kind):
    scaling = Scaling.fit(np.array([[-50.0], [50.0]]), kind)
    slope, constant = feature_values(scaling.scale, scaling.offset, stored, scaling.signed)
    q = quantize(scaling.apply(np.array([[x]])), stored, scaling.signed)[0, 0]
    unit = 2.0 ** (stored - int(scaling.signed))
    assert abs(slope[0] * x + constant[0] - q / unit) <= 0.5 / unit + 1e-12


def test_steps():
    assert [steps(stored, False) for stored in (1, 2, 4, 8)] == [1, 3, 15, 255]
    assert [steps(stored, True) for stored in (1, 2, 4, 8)] == [1, 1, 7, 127]


def test_rounding_is_half_up():
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]) / 7
    assert quantize(halves, 4, True).tolist() == [-2, -1, 0, 1, 2, 3]


def test_of_zeros_neither_sign_is_the_smallest():
    """So a scaling does not depend on the order of the samples."""
    for column in ([0.0, -0.0, 1.0], [-0.0, 0.0, 1.0]):
        assert not np.signbit(Scaling.fit(np.array(column).reshape(-1, 1), "minmax").offset)
