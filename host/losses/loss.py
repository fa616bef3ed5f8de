"""Losses: values, the function ψ of the loss table, and the role of the label."""

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.losses.fit import Shape, fit_table
from p4sgd.hw.spec.run import TABLE_SEGMENTS, LabelMode, LossTable

__all__ = ["FloatArray", "Hinge", "Logistic", "Loss", "Squared", "Task"]


FloatArray = npt.NDArray[np.float64]
"""Real numbers, any shape."""


_LARGEST_EXPONENT = 709.0
"""The exponential of a larger number would overflow."""


class Task(Enum):
    """What a model predicts."""

    CLASSIFICATION = "classification"
    """One of two classes, with y = −1 or +1."""
    REGRESSION = "regression"
    """A number; y is the target, centred and scaled to a standard deviation of 1."""


class Loss(ABC):
    """A loss ℓ(z, y) of an activation z and a label y.

    The hardware computes only the residual g = ∂ℓ/∂z, which must have the form g = s·ψ(s·z − o) − c, where `psi` is ψ
    and ``label_mode`` says which of the sign s, the offset o and the constant c come from the label.
    """

    name: ClassVar[str]
    """Name by which users choose it."""
    summary: ClassVar[str]
    """Short description for lists of losses."""
    task: ClassVar[Task]
    """What a model trained with this loss predicts."""
    label_mode: ClassVar[LabelMode]
    """Which of s, o and c come from the label."""
    step: ClassVar[float]
    """The automatic learning rate is this number divided by the squared norm of a sample: with a residual of 1, a step
    changes the activation of that sample by this number. Found by experiment; a loss with unbounded curvature or
    residual is stable only below 1."""
    shape: ClassVar[Shape] = Shape()
    """Jumps and tails of ψ, for the fit of the table."""

    @abstractmethod
    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """ℓ(z, y) of each sample; float64 arrays of equal shape."""

    @abstractmethod
    def psi(self, x: FloatArray) -> FloatArray:
        """ψ(x), the real function that the loss table approximates; float64, same shape."""

    def residual(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """g = ∂ℓ/∂z of each sample in real numbers: s·ψ(s·z − o) − c."""
        mode = self.label_mode
        sign = np.where(y < 0, -1.0, 1.0) if mode.sign else np.ones_like(y)
        return sign * self.psi(sign * z - (y if mode.offset else 0.0)) - (y if mode.constant else 0.0)

    def table(self, segments: int = TABLE_SEGMENTS) -> LossTable:
        """Loss table with ``segments`` segments; see `p4sgd.host.losses.fit.fit_table`."""
        return fit_table(self.psi, segments, self.shape)


class Squared(Loss):
    """ℓ = ½·(z − y)², so g = z − y: ψ(x) = x with o = y. The table is exact."""

    name = "squared"
    summary = "linear regression"
    task = Task.REGRESSION
    label_mode = LabelMode(offset=True)
    step = 0.5
    shape = Shape(left_slope=1.0, right_slope=1.0)

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """½·(z − y)²."""
        return 0.5 * (z - y) ** 2

    def psi(self, x: FloatArray) -> FloatArray:
        """ψ(x) = x."""
        return x


class Logistic(Loss):
    """ℓ = log(1 + e^(−y·z)) for y = ±1, so g = −y·σ(−y·z): ψ(x) = −σ(−x) with s = y."""

    name = "logistic"
    summary = "logistic regression; gives probabilities"
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)
    step = 16.0

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """log(1 + e^(−y·z)), without overflow for any z."""
        return np.logaddexp(0.0, -y * z)

    def psi(self, x: FloatArray) -> FloatArray:
        """ψ(x) = −1 / (1 + e^x)."""
        # Not SciPy's expit: to import it takes longer than to train on a small data set.
        return -1.0 / (1.0 + np.exp(np.minimum(x, _LARGEST_EXPONENT)))


class Hinge(Loss):
    """ℓ = max(0, 1 − y·z) for y = ±1, so g = −y where y·z < 1: ψ(x) = −1 for x < 1, else 0. The table is exact."""

    name = "hinge"
    summary = "linear support vector machine"
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)
    step = 4.0
    shape = Shape(jumps=(1.0,))

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """max(0, 1 − y·z)."""
        return np.maximum(0.0, 1.0 - y * z)

    def psi(self, x: FloatArray) -> FloatArray:
        """ψ(x) = −1 for x < 1, else 0."""
        return np.where(x < 1.0, -1.0, 0.0)
