"""Probabilities of several classes that are trained one against the rest: a softmax of their activations.

The probability of class k is that of softmax(t_k · z_k + b_k), with factors and addends that are fitted after training,
as in temperature and vector scaling (Guo et al., On calibration of modern neural networks, 2017). It takes the place of
σ(z_k) / Σ σ(z_j), which knows nothing of how classes differ from each other.

**Samples.** Activations of training samples are too good, so they are fitted to those of held-out samples, if there are
enough. Otherwise each activation is put back by what its sample has added to it: at the minimum of a smooth loss, to
first order, that is c · (y − σ(z)) (Cook and Weisberg, Residuals and influence in regression, 1982), with a mean c of
each class that follows from the numbers of samples and features, the curvature of the loss, and the penalty. Where
there are few samples for a feature that is no guide, and nothing is fitted.

The softmax is taken only if these samples tell it from the shares by more than a standard error, so that it is not
worse; first with one factor for all, then with those of each class, unless fewer predictions are right with these.
In the end the addends are fitted once more, to activations as they are: then the probabilities of each class add up to
its samples, but for about one, which keeps addends small where classes are separable.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.losses.loss import FloatArray

_FITTED_VALUES, _FITTED_SAMPLES = 1 << 19, 10
"""Most activations that factors are fitted to, of the first samples, which are in random order; but so many samples a
class."""

_HELD_OUT = 20
"""Held-out samples for each class that are enough to fit to them."""

_SAMPLES = 5
"""Least training samples for each feature."""

_ERRORS = 1.5
"""Standard errors by which the softmax has to be better."""

_HELD = 10.0
"""Samples that speak for equal factors, beside one for addends of 0."""

_LEAST = 1 / 32
"""Classes that no factor above this tells from each other have the same shares anyway."""

_STEPS = 1 << 16
"""Steps of factors and addends in a unit, so that roundings of sums do not show."""


@dataclass(frozen=True)
class Softmax:
    """Probabilities of classes are softmax(``factors`` · z + ``addends``), one of each for each class."""

    factors: tuple[float, ...]
    addends: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = np.array([self.factors, self.addends])  # of one shape, or a ValueError
        if not (np.isfinite(numbers).all() and (numbers[0] > 0).all()):
            raise ValueError(f"the softmax has the factors {self.factors} and the addends {self.addends}")

    def logits(self, z: FloatArray) -> FloatArray:
        """Whose softmax the probabilities are: float64 (samples, classes), as the activations."""
        result: FloatArray = np.array(self.factors) * z + np.array(self.addends)
        return result

    def probabilities(self, z: FloatArray) -> FloatArray:
        result: FloatArray = np.exp(_log_softmax(self.logits(z)))
        return result


def fit_softmax(
    train: tuple[FloatArray, npt.NDArray[np.intp], FloatArray | None],
    held_out: tuple[FloatArray, npt.NDArray[np.intp], FloatArray | None] | None,
    features: int,
    l2: float,
) -> Softmax | None:
    """The softmax for a model of the loss ``logistic``; ``None`` if none is better than the shares of σ(z).

    Of training and of held-out samples there are activations, float64 (samples, classes), in the order of the samples,
    the numbers of their classes, and their weights, if any. ``features`` are those whose weights are not 0, ``l2`` is
    the strength of the penalty.
    """
    samples, count = train[0].shape
    if held_out is not None and len(held_out[0]) >= _HELD_OUT * count:
        whole = _counted(*held_out)
        honest, classes, weights = _first(*whole)
    elif samples >= _SAMPLES * (features + 1):
        whole = _counted(*train)
        z, classes, weights = _first(*whole)
        honest = _without_own(z, classes, (features + 1) / samples, l2)
    else:
        return None
    rows = np.arange(len(honest))
    shares = np.log(_sigmoid(honest))
    shares -= np.log(np.exp(shares).sum(axis=1, keepdims=True))
    right, best, likelihood = honest.argmax(axis=1) == classes, None, shares[rows, classes]
    for by_class in (False, True):
        candidate = _fit(honest, classes, weights, free=(True, by_class, by_class))
        logits = candidate.logits(honest)
        likelier = _log_softmax(logits)[rows, classes]
        as_right = weights @ (logits.argmax(axis=1) == classes) >= weights @ right
        if as_right and max(candidate.factors) >= _LEAST and _is_more(likelier - likelihood, weights):
            best, likelihood = candidate, likelier
    if best is None:
        return None
    more = _fit(best.logits(whole[0]), *whole[1:], free=(False, False, True)).addends
    return Softmax(best.factors, tuple((np.array(best.addends) + more).tolist()))


_Samples: TypeAlias = tuple[FloatArray, npt.NDArray[np.intp], FloatArray]


def _counted(z: FloatArray, classes: npt.NDArray[np.intp], weights: FloatArray | None) -> _Samples:
    """Samples that count, with weights that sum to 1."""
    counted = np.isfinite(z).all(axis=1) & (True if weights is None else weights > 0)
    own = np.ones(np.count_nonzero(counted)) if weights is None else weights[counted]
    return z[counted], classes[counted], own / own.sum()


def _first(z: FloatArray, classes: npt.NDArray[np.intp], weights: FloatArray) -> _Samples:
    """The first samples, with weights that sum to 1."""
    first = slice(max(_FITTED_SAMPLES * z.shape[1], _FITTED_VALUES // z.shape[1]))
    return z[first], classes[first], weights[first] / weights[first].sum()


def _without_own(z: FloatArray, classes: npt.NDArray[np.intp], share: float, l2: float) -> FloatArray:
    """Activations, each without what its sample has added; ``share`` is that of features to samples."""
    p = _sigmoid(z)
    own = share / ((p * (1 - p)).mean(axis=0) + l2 + 1e-12)
    p[np.arange(len(z)), classes] -= 1
    result: FloatArray = z + own * p
    return result


def _fit(
    z: FloatArray, classes: npt.NDArray[np.intp], weights: FloatArray, *, free: tuple[bool, bool, bool]
) -> Softmax:
    """The softmax with the least log loss. What of a common factor, factors of classes beside it, and addends is not
    ``free`` is 1 or 0."""
    from scipy.optimize import minimize  # takes a while to import

    rows, count = np.arange(len(z)), z.shape[1]
    weak = float(np.sum(weights**2))  # of a sample

    def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        spread, addends = parameters[1 : count + 1], parameters[count + 1 :]
        factors = parameters[0] * np.exp(spread)
        rest = factors * z + addends
        rest -= rest.max(axis=1, keepdims=True)
        own = rest[rows, classes]
        np.exp(rest, out=rest)
        sums = rest.sum(axis=1)
        held = _HELD * float(spread @ spread) + float(addends @ addends)
        value = weak / 2 * held + float(weights @ (np.log(sums) - own))
        rest /= sums[:, np.newaxis]
        rest[rows, classes] -= 1
        rest *= weights[:, np.newaxis]
        slopes = np.sum(rest * z, axis=0) * factors
        spreads, shifts = slopes + _HELD * weak * spread, rest.sum(axis=0) + weak * addends
        parts = np.array([slopes.sum() / parameters[0]]), spreads, shifts
        return value, np.concatenate([part * is_free for part, is_free in zip(parts, free, strict=True)])

    bounds = [(1 / 64, 64.0), *[(-3.0, 3.0)] * count, *[(None, None)] * count]
    found = minimize(loss, np.array([1.0, *[0.0] * (2 * count)]), jac=True, method="L-BFGS-B", bounds=bounds).x
    factors = np.maximum(1.0, np.round(found[0] * np.exp(found[1 : count + 1]) * _STEPS)) / _STEPS
    return Softmax(tuple(factors.tolist()), tuple((np.round(found[count + 1 :] * _STEPS) / _STEPS).tolist()))


def _is_more(gains: FloatArray, weights: FloatArray) -> bool:
    """Whether the mean gain is more than could be by chance."""
    gain = float(weights @ gains)
    return gain > _ERRORS * float(np.sqrt(np.sum((weights * (gains - gain)) ** 2)))


def _log_softmax(logits: FloatArray) -> FloatArray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _sigmoid(z: FloatArray) -> FloatArray:
    result: FloatArray = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
    return result
