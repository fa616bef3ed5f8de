"""Losses for classes: y is −1 or 1."""

import numpy as np

from p4sgd.host.losses.loss import FloatArray, Loss, Probabilistic, Shape, Task
from p4sgd.hw.spec.run import LabelMode

_LARGEST_EXPONENT = 709.0
"""The exponential of a larger number would overflow."""


class _OfClasses(Loss):
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)


class Logistic(_OfClasses, Probabilistic):
    """ℓ = log(1 + e^(−y·z)), so g = −y·σ(−y·z): ψ(x) = −σ(−x)."""

    name = "logistic"
    summary = "logistic regression; gives probabilities"
    step = 16.0
    largest_error = 1.2e-4

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        margin = y * z
        return np.maximum(-margin, 0.0) + np.log1p(np.exp(-np.abs(margin)))  # half the time of logaddexp

    def probabilities(self, z: FloatArray) -> FloatArray:
        return -self.psi(-z)

    def psi(self, x: FloatArray) -> FloatArray:
        # Not SciPy's expit: to import it takes longer than to train on a small data set.
        return -1.0 / (1.0 + np.exp(np.minimum(x, _LARGEST_EXPONENT)))


class Hinge(_OfClasses):
    """ℓ = max(0, 1 − y·z), so g = −y where y·z < 1: ψ(x) = −1 for x < 1, else 0. The table is exact."""

    name = "hinge"
    summary = "linear support vector machine"
    step = 4.0
    shape = Shape(jumps=(1.0,))

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(0.0, 1.0 - y * z)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.where(x < 1.0, -1.0, 0.0)


class SquaredHinge(_OfClasses):
    """ℓ = max(0, 1 − y·z)²: ψ(x) = −2·max(0, 1 − x). The table is exact."""

    name = "squared_hinge"
    summary = "support vector machine with a smooth loss"
    step = 2.0
    shape = Shape(jumps=(1.0,), left_slope=2.0)

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(0.0, 1.0 - y * z) ** 2

    def psi(self, x: FloatArray) -> FloatArray:
        return -2.0 * np.maximum(0.0, 1.0 - x)


class ModifiedHuber(_OfClasses, Probabilistic):
    """ℓ = max(0, 1 − y·z)² where y·z ≥ −1, else −4·y·z: ψ(x) = −2·(1 − x), clamped to [−4, 0]. The table is exact.

    Zhang, Solving large scale linear prediction problems using stochastic gradient descent algorithms, 2004.
    """

    name = "modified_huber"
    summary = "smooth, and tolerates wrong labels; gives probabilities"
    step = 2.0
    shape = Shape(jumps=(-1.0, 1.0))

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        margin = y * z
        return np.where(margin < -1.0, -4.0 * margin, np.maximum(0.0, 1.0 - np.maximum(margin, -1.0)) ** 2)

    def probabilities(self, z: FloatArray) -> FloatArray:
        return np.clip((1.0 + z) / 2.0, 0.0, 1.0)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.clip(-2.0 * (1.0 - x), -4.0, 0.0)
