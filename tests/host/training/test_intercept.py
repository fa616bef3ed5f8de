"""The intercept's one-dimensional fit against a general minimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training.metrics import fit_intercept


@pytest.mark.parametrize("shift", [0.0, 3.7, -40.0, 300.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_no_constant_is_better(name, weighted, shift):
    rng, loss = np.random.default_rng(7), LOSSES[name]
    y = rng.poisson(2.0, 400).astype(float) if loss.task is Task.NON_NEGATIVE else rng.choice([-1.0, 1.0], 400)
    z = y + rng.normal(size=400) * 2 - shift
    weights = rng.exponential(size=400) * (1 + 20 * (y > 0)) if weighted else None

    def mean(c):
        return np.average(loss.value(z + c, y), weights=weights)

    best = minimize_scalar(mean, bounds=(shift - 20, shift + 20), method="bounded", options={"xatol": 1e-9})
    assert mean(fit_intercept(loss, z, y, weights)) <= best.fun + 1e-6


def test_middle_of_equally_good():
    """Separable with hinge: every constant in between has loss 0; the middle prefers neither class."""
    z, y = np.array([-7.0, 3.0]), np.array([-1.0, 1.0])
    assert fit_intercept(LOSSES["hinge"], z, y) == pytest.approx(2.0, abs=1e-4)


def test_one_class_ends():
    found = fit_intercept(LOSSES["logistic"], np.zeros(3), np.ones(3))
    assert np.isfinite(found)
