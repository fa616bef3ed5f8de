"""Columns of many distributions, targets that depend on one of them, and how the defaults do beside scikit-learn."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import (
    GammaRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    TweedieRegressor,
)
from sklearn.metrics import log_loss, mean_squared_error, mean_tweedie_deviance
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from p4sgd import GLMClassifier, GLMRegressor

FloatArray = npt.NDArray[np.float64]

DISTRIBUTIONS: Mapping[str, Any] = {
    "normal": lambda r, n: r.normal(size=n),
    "uniform": lambda r, n: r.random(n),
    "exponential": lambda r, n: r.exponential(size=n),
    "squared exponential": lambda r, n: r.exponential(size=n) ** 2,
    "gamma 0.3": lambda r, n: r.gamma(0.3, size=n),
    "lognormal 0.5": lambda r, n: r.lognormal(0, 0.5, n),
    "lognormal 1": lambda r, n: r.lognormal(0, 1, n),
    "lognormal 1.5": lambda r, n: r.lognormal(0, 1.5, n),
    "lognormal 2": lambda r, n: r.lognormal(0, 2, n),
    "lognormal 2.5": lambda r, n: r.lognormal(0, 2.5, n),
    "minus lognormal 1.5": lambda r, n: -r.lognormal(0, 1.5, n),
    "lognormal 1.5, 80 % zeros": lambda r, n: np.where(r.random(n) < 0.8, 0, r.lognormal(0, 1.5, n)),
    "Pareto 3": lambda r, n: r.pareto(3, n),
    "Pareto 2": lambda r, n: r.pareto(2, n),
    "Pareto 1.5": lambda r, n: r.pareto(1.5, n),
    "Student 5": lambda r, n: r.standard_t(5, n),
    "Student 3": lambda r, n: r.standard_t(3, n),
    "Student 2": lambda r, n: r.standard_t(2, n),
    "Weibull 0.5": lambda r, n: r.weibull(0.5, n),
    "log-uniform": lambda r, n: np.exp(r.uniform(0, 9, n)),
    "cubed normal": lambda r, n: r.normal(size=n) ** 3,
    "beta 0.1": lambda r, n: r.beta(0.1, 0.1, n),
    "two modes": lambda r, n: r.normal(np.where(r.random(n) < 0.5, -5, 5), 1),
    "Poisson 0.2": lambda r, n: r.poisson(0.2, n).astype(float),
    "Zipf 2": lambda r, n: np.minimum(r.zipf(2, n), 1e5).astype(float),
    "binary 1 %": lambda r, n: (r.random(n) < 0.01).astype(float),
    "normal, 0.1 % times 50": lambda r, n: r.normal(size=n) * np.where(r.random(n) < 0.001, 50, 1),
    "normal, 2 % times 20": lambda r, n: r.normal(size=n) * np.where(r.random(n) < 0.02, 20, 1),
}
"""float64 (n,), from a generator and n."""

POWERS = {"poisson": 1.0, "tweedie": 1.5, "gamma": 2.0}
LOSSES = ("squared", "logistic", *POWERS)

_PEERS: Mapping[str, Any] = {
    "squared": LinearRegression,
    "logistic": LogisticRegression,
    "poisson": partial(PoissonRegressor, alpha=0, max_iter=3000, tol=1e-8),
    "gamma": partial(GammaRegressor, alpha=0, max_iter=3000, tol=1e-8),
    "tweedie": partial(TweedieRegressor, power=1.5, link="log", alpha=0, max_iter=3000, tol=1e-8),
}


@dataclass(frozen=True)
class Compared:
    """A case: the test metric of each (mean squared error, log loss or deviance), and the sum of predictions on the
    training samples relative to that of targets."""

    name: str
    loss: str
    theirs: float
    ours: float
    their_balance: float
    our_balance: float
    remarks: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Of the metrics: 1.01 is 1 % worse."""
        return self.ours / self.theirs


def make_target(loss: str, effect: FloatArray, rng: np.random.Generator, share: float = 0.5) -> FloatArray:
    """Targets whose mean depends on an effect, which is scaled to a deviation of 1; such a share is of the class 1."""
    z = (effect - effect.mean()) / effect.std()
    if loss == "squared":
        return z + rng.normal(size=z.size)
    if loss == "logistic":
        noisy = z + rng.logistic(size=z.size)
        return (noisy > np.quantile(noisy, 1 - share)).astype(float)
    mean = np.exp(np.minimum(z / 2, 4))
    if loss == "poisson":
        return rng.poisson(mean).astype(float)
    if loss == "gamma":
        return rng.gamma(2, mean / 2) + 1e-9
    return rng.gamma(2.0 * rng.poisson(mean))


def compare(
    name: str,
    loss: str,
    *,
    logarithm: bool,
    samples: int = 6000,
    seed: int = 5,
    share: float = 0.5,
    **options: Any,
) -> Compared:
    """One column of a distribution beside one that is normal; the target depends on the former or on its logarithm."""
    rng = np.random.default_rng([seed, *name.encode(), *loss.encode(), logarithm])
    x, other = DISTRIBUTIONS[name](rng, 2 * samples), rng.normal(size=2 * samples)
    effect = np.sign(x) * np.log1p(np.abs(x)) if logarithm else x
    y = make_target(loss, effect / effect.std() + other, rng, share)
    features, train = np.column_stack([x, other]), slice(samples)
    estimator = (GLMClassifier if loss == "logistic" else GLMRegressor)(loss=loss, **options)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in (make_pipeline(StandardScaler(), _PEERS[loss]()), estimator):
            model.fit(features[train], y[train])
            predicted = model.predict_proba(features)[:, 1] if loss == "logistic" else model.predict(features)
            found.append((_metric(loss, y[samples:], predicted[samples:]), predicted[train].sum() / y[train].sum()))
    (theirs, balance), (ours, own) = found
    title = f"{name}, {'logarithm' if logarithm else 'linear'}"
    return Compared(title, loss, theirs, ours, balance, own, estimator.remarks_)


def compare_all(losses: tuple[str, ...] = LOSSES, **options: Any) -> Iterator[Compared]:
    """All cases of these losses."""
    for name in DISTRIBUTIONS:
        for logarithm in (False, True):
            for loss in losses:
                yield compare(name, loss, logarithm=logarithm, **options)


def _metric(loss: str, y: FloatArray, predicted: FloatArray) -> float:
    if loss == "squared":
        return float(mean_squared_error(y, predicted))
    if loss == "logistic":
        return float(log_loss(y, predicted))
    return float(mean_tweedie_deviance(y, np.clip(predicted, 1e-300, 1e150), power=POWERS[loss]))
