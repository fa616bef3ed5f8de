"""Losses for classes: y is −1 or 1."""

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from p4sgd.host.losses.loss import FloatArray, Loss, Probabilistic, Shape, Task
from p4sgd.hw.spec.run import LabelMode

_LARGEST_EXPONENT = 709.0
"""The exponential of a larger number would overflow."""

_RARE = 0.25
"""A class of a smaller share may lie in the tails of skewed columns, where usual ranges clamp. Twice this number is as
good with shares of 0.5 to 20 %, but wide ranges cost levels and epochs: with 37 %, on breast_cancer, log loss rises."""


class _OfClasses(Loss):
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)

    @cached_property  # its table is fitted once
    def with_offsets(self) -> Loss:
        return WithOffsets(self)


class Logistic(_OfClasses, Probabilistic):
    """ℓ = log(1 + e^(−y·z)), so g = −y·σ(−y·z): ψ(x) = −σ(−x)."""

    name = "logistic"
    summary = "logistic regression; gives probabilities"
    step = 16.0
    largest_error = 1.2e-4

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        margin = y * z
        return np.maximum(-margin, 0.0) + np.log1p(np.exp(-np.abs(margin)))  # half the time of logaddexp

    def farthest(self, share: float) -> float:
        # The rarer class may be 1/√share deviations from the mean of all, as a mean square; usual ranges suit 2.
        return math.sqrt(_RARE / share) if 0 < share < _RARE else 1.0  # a part of a stream may lack a class

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


_SIDE = 24.0
"""From 0 to where the margin 0 is on either half of a table: lines that are a quarter wide then reach 8 beyond it."""

FARTHEST = 16.0
"""Largest magnitude of an offset of classes."""


class WithOffsets(_OfClasses):
    """A loss of classes of z + f, with an offset f of each sample.

    The residual s·ψ(m) of the margin m = s·(z + f) needs two numbers of the sample, and a label is one: s·(24 − f),
    whose sign is s, is also taken for o, and s·z − o = m − 24·s. So the table has ψ twice: below 0 for s = 1, and above
    8 for s = −1, where samples with a margin below −16 have no residual. In between it is 0: that is where samples with
    s = 1 get to if their margin is above 24.
    """

    label_mode = LabelMode(sign=True, offset=True)

    def __init__(self, loss: Loss) -> None:
        super().__init__(**loss.parameters)
        self._loss = loss
        self.name, self.step = loss.name, loss.step  # type: ignore[misc]  # of this one loss
        jumps = (jump + side for side in (-_SIDE, _SIDE) for jump in loss.shape.jumps)
        self.shape = replace(loss.shape, jumps=(0.0, _SIDE - FARTHEST, *jumps))

    def label(self, y: FloatArray, offsets: FloatArray | None = None) -> FloatArray:
        return y * _SIDE if offsets is None else y * (_SIDE - offsets)

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return self._loss.value(z, y)

    def residual(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return self._loss.residual(z, y)

    def psi(self, x: FloatArray) -> FloatArray:
        psi = self._loss.psi(np.where(x < 0, x + _SIDE, x - _SIDE))
        return np.where((x < 0) | (x >= _SIDE - FARTHEST), psi, 0.0)
