"""Losses: values, the function ψ of the loss table, and the role of the label."""

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.losses.fit import Shape, fit_table
from p4sgd.hw.spec.run import TABLE_SEGMENTS, LabelMode, LossTable

DEFAULT_EPSILON = 0.125
"""ε of losses that have one, in standard deviations of the target; a power of two, so that every table is exact."""

FloatArray = npt.NDArray[np.float64]
"""Real numbers, any shape."""


class Task(Enum):
    """What a model predicts."""

    CLASSIFICATION = "classification"
    """One of two classes, with y = −1 or +1."""
    REGRESSION = "regression"
    """A number; y is the target, centred and scaled to a standard deviation of 1."""
    NON_NEGATIVE = "regression of numbers of at least 0"
    """A number of at least 0, by e^z; y is the target divided by a scale, usually its mean."""
    POSITIVE = "regression of numbers above 0"
    """A number above 0, by e^z; y is the logarithm of the target divided by its mean."""


class Loss(ABC):
    """A loss ℓ(z, y) of an activation z and a label y.

    The hardware computes only the residual g = ∂ℓ/∂z, which must have the form g = s·ψ(s·z − o) − c, where `psi` is ψ
    and ``label_mode`` says which of the sign s, the offset o and the constant c come from the label; or such a residual
    times a weight of the sample, `importance`, if the loss ``weighs``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    task: ClassVar[Task]
    label_mode: ClassVar[LabelMode]
    weighs: ClassVar[bool] = False
    step: float
    """The automatic learning rate is this number divided by the squared norm of a sample. Found by experiment; a loss
    with unbounded curvature or residual is stable only below 1."""
    shape: Shape = Shape()
    """Jumps and tails of ψ, for the fit of the table."""
    largest_error: float = 0.0
    """Bound of |table(x) − ψ(x)| for a table of `TABLE_SEGMENTS` segments and any x; 0 is an exact table."""

    def __init__(self, **parameters: float) -> None:
        self.parameters = parameters
        """Parameters of the loss by name, as its class takes them: plain numbers in the unit of y."""

    def label(self, y: FloatArray) -> FloatArray:
        """What the hardware has as the label of y: float64, same shape."""
        return y

    def importance(self, y: FloatArray) -> FloatArray:
        """By what the hardware multiplies s·ψ(s·z − o) − c, up to a common factor: float64, same shape."""
        return np.ones_like(y)

    @abstractmethod
    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """ℓ(z, y) of each sample; float64 arrays of equal shape."""

    @abstractmethod
    def psi(self, x: FloatArray) -> FloatArray:
        """ψ(x), the real function that the loss table approximates; float64, same shape."""

    def residual(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """g = ∂ℓ/∂z of each sample in real numbers: s·ψ(s·z − o) − c. Where s comes from y = ±1, it is y."""
        mode = self.label_mode
        # Without what the label does not change: an intercept takes several residuals of every sample in every epoch.
        x = y * z if mode.sign else z
        psi = self.psi(x - y if mode.offset else x)
        signed = y * psi if mode.sign else psi
        return signed - y if mode.constant else signed

    def table(self, segments: int = TABLE_SEGMENTS) -> LossTable:
        """See `p4sgd.host.losses.fit.fit_table`."""
        return fit_table(self.psi, segments, self.shape)


class Probabilistic(Loss):
    """A loss of classes whose activations give probabilities."""

    @abstractmethod
    def probabilities(self, z: FloatArray) -> FloatArray:
        """Probability of the second class at each activation; float64, same shape."""
