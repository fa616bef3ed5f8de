"""The table of every loss against the real ψ, and every loss against its own derivative."""

import functools
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn._loss.loss import (
    AbsoluteError,
    BaseLoss,
    HalfGammaLoss,
    HalfPoissonLoss,
    HalfSquaredError,
    HalfTweedieLoss,
    HuberLoss,
    PinballLoss,
)
from sklearn.linear_model import SGDClassifier, _sgd_fast

from p4sgd.host.losses import LOSSES, Task, get_loss
from p4sgd.host.losses.loss import Shape, boundary, fit_table, table_error
from p4sgd.hw.spec.fixed import ACTIVATION, INTERCEPT, LABEL, MARGIN, RESIDUAL, SLOPE
from p4sgd.hw.spec.run import TABLE_SEGMENTS, VALUE_FRACTION
from p4sgd.sim import golden

SEGMENTS = (16, 64, 256, 1024)

LARGEST_ERROR = {"logistic": {16: 6e-3, 64: 4.1e-4, 1024: 2e-5}}
LARGEST_ERROR |= {name: {16: 2.3, 64: 0.21, 1024: 1.1e-3} for name in ("poisson", "gamma")}
LARGEST_ERROR |= {"tweedie": {1024: 3.4e-3}}
"""Largest error by loss and segments, besides the stated one of 256 segments; others have an exact table."""


LABELS = {
    Task.CLASSIFICATION: (-1.0, 1.0),
    Task.REGRESSION: (-2.5, -1.0, 0.0, 1.0, 4.0),
    Task.NON_NEGATIVE: (0.0, 0.01, 1.0, 7.5, 32.0),
    Task.POSITIVE: (-5.0, -1.0, 0.0, 2.5),
}
"""Some labels y of each task."""


CHOSEN = dict(LOSSES)
"""Losses by name, and some with other parameters than the default ones by what tells them apart."""
CHOSEN |= {f"huber {each}": get_loss("huber", {"epsilon": each}) for each in (3e-5, 1.35, 900.0)}
CHOSEN |= {f"insensitive to {each}": get_loss("epsilon_insensitive", {"epsilon": each}) for each in (0.0, 0.01, 77.7)}
CHOSEN |= {f"tweedie {each}": get_loss("tweedie", {"tweedie_power": each}) for each in (1.1, 1.9)}
CHOSEN |= {f"quantile {each}": get_loss("quantile", {"quantile": each}) for each in (1e-3, 0.9, 9.5 / 65536)}


@functools.cache
def table_of(name, segments):
    """The table of a loss; a fit takes some tenths of a second."""
    return CHOSEN[name].table(segments)


def largest_difference(name, segments, points):
    """Between table and ψ at some points, both in the range of a residual; by parts that the processor caches."""
    reach, largest = RESIDUAL.to_real(RESIDUAL.maximum), 0.0
    for some in np.array_split(points, -(-points.size >> 14)):
        value = np.ldexp(table_of(name, segments)(some).astype(np.float64), -VALUE_FRACTION)
        psi = CHOSEN[name].psi(MARGIN.to_real(some))
        largest = max(largest, float(np.abs(np.clip(value, -reach, reach) - np.clip(psi, -reach, reach)).max()))
    return largest


@pytest.mark.parametrize(
    ("name", "segments"),
    [
        *itertools.product([name for name in LOSSES if name != "tweedie"], SEGMENTS),
        *(("tweedie", segments) for segments in SEGMENTS if segments >= TABLE_SEGMENTS),
        *((name, TABLE_SEGMENTS) for name in CHOSEN if name not in LOSSES),
    ],
)
def test_largest_error(name, segments):
    """On every number around zero and on a fine sieve of the rest."""
    table, stated = table_of(name, segments), CHOSEN[name].largest_error
    assert table.segments == segments
    near, sieve = np.arange(-32 << 16, 32 << 16), np.arange(MARGIN.minimum, MARGIN.maximum, 4999)
    error = largest_difference(name, segments, np.concatenate([near, sieve, [MARGIN.minimum, MARGIN.maximum]]))
    if segments == TABLE_SEGMENTS:
        assert 0.9 * stated <= error <= stated + 1e-15
    else:
        assert error <= LARGEST_ERROR.get(name, {}).get(segments, 0.0)
    assert table_error(table, CHOSEN[name].psi) == pytest.approx(error, rel=0.01, abs=1e-9), "what the fit believes"


@pytest.mark.parametrize(
    "name", ["logistic", *(pytest.param(name, marks=pytest.mark.slow) for name in LOSSES if name != "logistic")]
)
def test_largest_error_on_every_margin(name):
    edges = np.linspace(MARGIN.minimum, MARGIN.maximum + 1, 65).astype(np.int64)
    error = max(largest_difference(name, 256, np.arange(low, high)) for low, high in itertools.pairwise(edges))
    assert 0.9 * LOSSES[name].largest_error <= error <= LOSSES[name].largest_error, "what the loss states"


def test_the_fit_is_near_minimax():
    """The best line on a segment of width h is max|ψ''|·h²/16 off; rounding of slope and intercept comes on top. Jumps
    and kinks cost nothing on a boundary; off every boundary there is no table."""
    for segments in (64, 256, 1024):
        table = table_of("logistic", segments)
        width = 2.0 ** (table.shift - MARGIN.fraction)
        best = 1 / (6 * np.sqrt(3)) * width**2 / 16  # with the largest |σ''|
        rounding = SLOPE.ulp / 2 * width / 2 + INTERCEPT.ulp / 2
        assert table_error(table, LOSSES["logistic"].psi) < 1.1 * best + rounding
    table = fit_table(lambda x: np.abs(x - 0.5), 16, Shape(jumps=(0.5,), left_slope=-1.0, right_slope=1.0))
    assert table_error(table, lambda x: np.abs(x - 0.5)) == 0
    with pytest.raises(ValueError, match="boundaries"):
        fit_table(np.sign, 16, Shape(jumps=(1000.0,)))


FINITE = st.floats(-20, 20)


@pytest.mark.parametrize("name", CHOSEN)
@given(z=FINITE, data=st.data())
def test_residual_is_the_derivative_and_that_of_the_hardware(name, z, data):
    """By differences away from jumps, and by golden.residual on the loss's own table, label mode and label integers."""
    loss = CHOSEN[name]
    z, y = np.array([z]), np.array([data.draw(st.sampled_from(LABELS[loss.task]))])
    step, label, importance = 1e-5, loss.label(y), loss.importance(y)
    argument = (z * np.sign(label) if loss.label_mode.sign else z) - label * loss.label_mode.offset
    if not np.any(np.abs(argument - np.array([*loss.shape.jumps, np.inf])) < 1e-3):
        slope = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
        assert loss.residual(z, y) == pytest.approx(slope, rel=1e-6, abs=1e-5)
    z_int, y_int, flags = ACTIVATION.from_real(z), LABEL.from_real(label), golden.Flags()
    got = RESIDUAL.to_real(golden.residual(z_int, y_int, table_of(name, 256), loss.label_mode, flags))
    expected = loss.residual(ACTIVATION.to_real(z_int), y)
    assert importance * got == pytest.approx(expected, abs=importance[0] * (loss.largest_error + RESIDUAL.ulp))
    assert not flags.residual_saturated


def test_values_far_out_are_finite():
    z = np.array([-1e4, 1e4])
    for loss in CHOSEN.values():
        for y in LABELS[loss.task]:
            with np.errstate(over="raise", invalid="raise"):
                assert np.isfinite(loss.value(z, np.full(2, y))).all()
                assert np.isfinite(loss.residual(z, np.full(2, y))).all()


def test_probabilities_are_scikit_learns():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(50, 3)), rng.random(50) < 0.5
    for ours, theirs in (("logistic", "log_loss"), ("modified_huber", "modified_huber")):
        model = SGDClassifier(loss=theirs, random_state=0).fit(x, y)
        found = LOSSES[ours].probabilities(model.decision_function(x))
        assert found == pytest.approx(model.predict_proba(x)[:, 1])


THEIRS = {
    "hinge": _sgd_fast.Hinge(1.0),
    "squared_hinge": _sgd_fast.SquaredHinge(1.0),
    "modified_huber": _sgd_fast.ModifiedHuber(),
    "squared": HalfSquaredError(),
    "huber": HuberLoss(delta=0.125),
    "huber 1.35": HuberLoss(delta=CHOSEN["huber 1.35"].parameters["epsilon"]),
    "epsilon_insensitive": _sgd_fast.EpsilonInsensitive(0.125),
    "insensitive to 0.0": AbsoluteError(),
    "quantile": PinballLoss(quantile=0.5),
    "quantile 0.9": PinballLoss(quantile=0.9),
}
"""Losses of scikit-learn by our names; the logistic one has its own test."""


@pytest.mark.parametrize("name", THEIRS)
def test_scikit_learn_has_the_same(name):
    """Value and derivative, away from jumps of the derivative, where each may have another side."""
    loss, theirs = CHOSEN[name], THEIRS[name]
    for y in LABELS[loss.task]:
        for z in np.arange(-6, 6, 0.0417):
            if isinstance(theirs, BaseLoss):
                value, slope = theirs.loss_gradient(np.array([y]), np.array([z]))
            else:
                value, slope = theirs.py_loss(z, y), theirs.py_dloss(z, y)
            ours = np.array([z]), np.array([y])
            assert (loss.value(*ours), loss.residual(*ours)) == (pytest.approx(value), pytest.approx(slope)), (z, y)


def test_the_readme_has_every_loss_and_its_error():
    text = (Path(__file__).parents[3] / "host/losses/README.md").read_text()
    table = text.partition("## Penalties")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\S+) \|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == list(LOSSES)
    for name, error in rows:
        worst = max(loss.largest_error for loss in CHOSEN.values() if loss.name == name)
        assert worst <= float(error) <= 1.01 * worst, name


@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_the_error_of_an_exponential_is_in_proportion(name):
    x = np.arange(-(12 << 16), 12 << 16, 7)
    exact = LOSSES[name].psi(MARGIN.to_real(x))
    error = np.abs(np.ldexp(table_of(name, 256)(x).astype(np.float64), -VALUE_FRACTION) - exact)
    exponential = exact if name == "poisson" else 1 - exact
    middle = exponential > np.exp(-7.9)
    assert np.max(error - 2.6e-4 * exponential, where=middle, initial=0) <= 2.2e-5
    assert np.max(error, where=~middle, initial=0) <= 1.8e-4


@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie", "tweedie 1.1", "tweedie 1.9"])
def test_a_log_link_loses_half_the_deviance(name):
    """Of scaled targets, while the exponential is not limited; and the derivative is scikit-learn's."""
    loss, power = CHOSEN[name], CHOSEN[name].parameters.get("tweedie_power")
    theirs = {"poisson": HalfPoissonLoss(), "gamma": HalfGammaLoss()}.get(name) or HalfTweedieLoss(power=power)
    for y in LABELS[loss.task]:
        z = np.arange(y - 3.9 if name == "gamma" else -9, 3.9, 0.0417)
        if power:
            exponent = z - np.log(y) if y > 0 else z
            z = z[(exponent > -4) & (exponent < 4)]
        target = np.full_like(z, np.exp(y) if name == "gamma" else y)
        known = np.full_like(z, y)
        assert 2 * loss.value(z, known) == pytest.approx(loss.deviance(target, np.exp(z)), abs=1e-12)
        assert loss.residual(z, known) == pytest.approx(theirs.gradient(target, z))


@pytest.mark.parametrize("segments", SEGMENTS)
@given(value=st.floats(0, 500))
def test_a_boundary_is_near_and_a_table_has_it(segments, value):
    found = boundary(value, segments)
    assert abs(found - value) <= max(value / (segments / 4 - 0.5), 2.0**-16) / 2
    steps = found * 2**MARGIN.fraction
    assert steps == int(steps)
    assert any(steps % 2**shift == 0 and steps <= (segments // 2 - 1) * 2**shift for shift in range(27))
    assert boundary(found, segments) == found


def test_parameters_out_of_range():
    for name, parameters in (
        ("huber", {"epsilon": 0.0}),
        ("huber", {"epsilon": 2000.0}),
        ("epsilon_insensitive", {"epsilon": -1.0}),
        ("quantile", {"quantile": 1.0}),
        ("squared", {"epsilon": 1.0}),
    ):
        with pytest.raises(ValueError, match=r"epsilon|quantile|boundary"):
            get_loss(name, parameters)
