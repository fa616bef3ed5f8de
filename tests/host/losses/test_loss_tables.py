"""The table of every loss against the real ψ, and every loss against its own derivative."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, get_loss
from p4sgd.host.losses.fit import Shape, fit_table, table_error
from p4sgd.hw.spec.fixed import ACTIVATION, INTERCEPT, LABEL, MARGIN, RESIDUAL, SLOPE
from p4sgd.hw.spec.run import VALUE_FRACTION, LabelMode
from p4sgd.sim import golden

SEGMENTS = (16, 64, 256, 1024)

LARGEST_ERROR = {"logistic": {16: 6e-3, 64: 4.1e-4, 256: 1.2e-4, 1024: 2e-5}}
"""Known largest error by loss and segments; a loss that is not here has an exact table."""


@functools.cache
def table_of(name, segments):
    """The table of a loss; a fit takes some tenths of a second."""
    return LOSSES[name].table(segments)


def whole_range(blocks=64):
    """Every `MARGIN` number, block by block."""
    edges = np.linspace(MARGIN.minimum, MARGIN.maximum + 1, blocks + 1).astype(np.int64)
    for low, high in itertools.pairwise(edges):
        yield np.arange(low, high)


def residual_range_error(table, loss, points):
    value = np.ldexp(table(points).astype(np.float64), -VALUE_FRACTION)
    reach = RESIDUAL.to_real(RESIDUAL.maximum)
    psi = loss.psi(MARGIN.to_real(points))
    return float(np.abs(np.clip(value, -reach, reach) - np.clip(psi, -reach, reach)).max())


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("name", LOSSES)
def test_largest_error(name, segments):
    """On every number around zero and on a fine sieve of the rest."""
    loss = LOSSES[name]
    table = table_of(loss.name, segments)
    assert table.segments == segments
    points = np.concatenate(
        [
            np.arange(-(1 << 20), 1 << 20),
            np.arange(MARGIN.minimum, MARGIN.maximum, 4999),
            [MARGIN.minimum, MARGIN.maximum],
        ]
    )
    error = residual_range_error(table, loss, points)
    assert error <= LARGEST_ERROR.get(name, {}).get(segments, 0.0)
    assert table_error(table, loss.psi) == pytest.approx(error, rel=0.01, abs=1e-9), "what the fit believes"


@pytest.mark.parametrize("name", LOSSES)
def test_largest_error_on_every_margin(name):
    loss = LOSSES[name]
    table = table_of(name, 256)
    error = max(residual_range_error(table, loss, points) for points in whole_range())
    assert error <= LARGEST_ERROR.get(name, {}).get(256, 0.0)


def test_hinge_jumps_exactly_at_one():
    table = table_of("hinge", 256)
    one = 1 << MARGIN.fraction
    assert table(np.array([one - 1, one])).tolist() == [-1 << VALUE_FRACTION, 0]


def test_tails_are_flat_or_straight():
    far = np.array([MARGIN.minimum, MARGIN.maximum])
    real = {name: np.ldexp(table_of(name, 256)(far).astype(float), -VALUE_FRACTION) for name in LOSSES}
    assert real["logistic"] == pytest.approx([-1, 0], abs=2e-5)
    assert real["hinge"].tolist() == [-1, 0]
    assert real["squared"] == pytest.approx([-1024, 1024], abs=1e-4)


def test_a_jump_off_every_boundary_is_refused():
    with pytest.raises(ValueError, match="boundaries"):
        fit_table(np.sign, 16, Shape(jumps=(1000.0,)))


def test_a_kink_on_a_boundary_costs_nothing():
    table = fit_table(lambda x: np.abs(x - 0.5), 16, Shape(jumps=(0.5,), left_slope=-1.0, right_slope=1.0))
    assert table_error(table, lambda x: np.abs(x - 0.5)) == 0


@pytest.mark.parametrize("segments", [64, 256, 1024])
def test_the_fit_is_near_minimax(segments):
    """The best line on a segment of width h is max|ψ''|·h²/16 off; rounding of slope and intercept comes on top."""
    loss = LOSSES["logistic"]
    table = table_of(loss.name, segments)
    width = 2.0 ** (table.shift - MARGIN.fraction)
    curvature = 1 / (6 * np.sqrt(3))  # largest |σ''|
    best = curvature * width**2 / 16
    rounding = SLOPE.ulp / 2 * width / 2 + INTERCEPT.ulp / 2
    assert table_error(table, loss.psi) < 1.1 * best + rounding


FINITE = st.floats(-20, 20)


@pytest.mark.parametrize("name", LOSSES)
@given(z=FINITE, y=st.sampled_from([-1.0, 1.0]))
def test_residual_is_the_derivative(name, z, y):
    loss = LOSSES[name]
    if name == "hinge" and abs(y * z - 1) < 1e-3:
        return
    step = 1e-5
    z, y = np.array([z]), np.array([y])
    slope = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
    assert loss.residual(z, y) == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@given(z=FINITE, y=st.sampled_from([-1.0, 1.0]))
def test_hardware_residual_is_the_real_one(name, z, y):
    """golden.residual on the loss's own table, label mode and label integers."""
    loss = LOSSES[name]
    z_int, y_int = ACTIVATION.from_real([z]), LABEL.from_real([y])
    flags = golden.Flags()
    got = RESIDUAL.to_real(golden.residual(z_int, y_int, table_of(name, 256), loss.label_mode, flags))
    expected = loss.residual(ACTIVATION.to_real(z_int), np.array([y]))
    assert got == pytest.approx(expected, abs=1.2e-4 + RESIDUAL.ulp)
    assert not flags.residual_saturated


def test_values_far_out_are_finite():
    z = np.array([-1e4, 1e4])
    for loss in LOSSES.values():
        for y in (-1.0, 1.0):
            with np.errstate(over="raise", invalid="raise"):
                assert np.isfinite(loss.value(z, np.full(2, y))).all()
                assert np.isfinite(loss.residual(z, np.full(2, y))).all()


def test_logistic_residual_is_scipys():
    x = np.concatenate([np.linspace(-800, 800, 10_001), np.linspace(-20, 20, 10_001)])
    assert get_loss("logistic").psi(x) == pytest.approx(-expit(-x), rel=1e-15, abs=1e-300)


def test_label_modes():
    modes = {name: loss.label_mode for name, loss in LOSSES.items()}
    assert modes == {"logistic": LabelMode(sign=True), "hinge": LabelMode(sign=True), "squared": LabelMode(offset=True)}


def test_unknown_loss_lists_the_known():
    with pytest.raises(UserError, match=r"no loss 'cubic'.* logistic, hinge, squared"):
        get_loss("cubic")
