"""The intercept for full-precision features.

Weights are fitted to features of a few bits. Rounded, and even more so floored (a run at fewer planes than are stored),
features are on average another than the real ones, and through the weights that adds up to a shift of all activations:
on breast cancer at one bit, predictions on full-precision features are right for 51 % of the samples as they are and
for 95 % after the shift is taken out. So the model's intercept is fitted on the training samples: one number, a convex
problem. A model trained without a bias gets no number fitted to the labels; the trainer takes the mean shift out.

If the full-precision samples are not at hand, as with data that were prepared before, the mean shift is taken out by
the means of the features, which are known, and the number is fitted to the activations of the quantised samples.
"""

import functools
from collections.abc import Callable

from p4sgd.host.losses import Loss
from p4sgd.host.losses.loss import FloatArray

__all__ = ["fit_intercept"]

_TOLERANCE = 2.0**-16
"""Width at which the search ends: the resolution of an activation."""

_FARTHEST = 1024.0
"""Largest shift, the reach of the loss table."""


def fit_intercept(loss: Loss, z: FloatArray, y: FloatArray) -> float:
    """The constant c with the smallest mean loss of z + c; the middle of them if there are many (hinge).

    The mean residual is the derivative and never falls with c, because the losses are convex.

    Parameters
    ----------
    z
        Activations without the constant, float64 (samples,).
    y
        What the loss takes as labels, float64 (samples,).
    """

    @functools.cache  # the two searches begin at the same places
    def slope(c: float) -> float:
        return float(loss.residual(z + c, y).mean())

    return (_first(lambda c: slope(c) >= 0) + _first(lambda c: slope(c) > 0)) / 2


def _first(holds: Callable[[float], bool]) -> float:
    """Where a condition that holds for all large numbers begins to hold, within ±`_FARTHEST`.

    Brackets the place from [-1, 1] outwards and then bisects.
    """
    low, high = -1.0, 1.0
    while not holds(high) and high < _FARTHEST:
        low, high = high, 2 * high
    while holds(low) and low > -_FARTHEST:
        low, high = 2 * low, low
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return (low + high) / 2
