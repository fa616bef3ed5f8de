"""What a loss is: a value for people, ψ for the loss table, and what the label means to the hardware."""

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.losses.fit import Shape, fit_table
from p4sgd.hw.spec.run import LabelMode
from p4sgd.hw.spec.table import LossTable

__all__ = ["FloatArray", "Loss", "Task"]

FloatArray = npt.NDArray[np.float64]
"""Real numbers, any shape."""


class Task(Enum):
    """What a model predicts."""

    CLASSIFICATION = "classification"
    """One of two classes; to the loss the label is y = −1 or +1."""
    REGRESSION = "regression"
    """A number; to the loss the label is the target, centred and scaled to unit deviation."""


class Loss(ABC):
    """A loss ℓ(z, y) of an activation z and a label y.

    The hardware knows a loss only by its residual g = ∂ℓ/∂z, which must have the form g = s·ψ(s·z − o) − c: ``psi`` is
    ψ and ``label_mode`` says which of s, o and c come from the label. A new loss is one subclass in one file, entered
    into `p4sgd.host.losses.LOSSES`.
    """

    name: ClassVar[str]
    """What the user calls it."""
    summary: ClassVar[str]
    """One line for lists of losses."""
    task: ClassVar[Task]
    """What a model trained with it predicts."""
    label_mode: ClassVar[LabelMode]
    """Which of s, o and c come from the label."""
    step: ClassVar[float]
    """Automatic learning rate · ‖features of a sample‖²: how far a residual of 1 in a sample moves that sample's own
    activation. Found by experiment; a loss of unbounded curvature or residual needs one below 1 to be stable."""
    shape: ClassVar[Shape] = Shape()
    """What the fit of the table has to know about ψ."""

    @abstractmethod
    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """ℓ(z, y) of each sample; float64 arrays of equal shape, no rounding."""

    @abstractmethod
    def psi(self, x: FloatArray) -> FloatArray:
        """ψ(x), the real function that the loss table approximates; float64, same shape."""

    def residual(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """g = ∂ℓ/∂z of each sample in real numbers: s·ψ(s·z − o) − c."""
        mode = self.label_mode
        sign = np.where(y < 0, -1.0, 1.0) if mode.sign else np.ones_like(y)
        return sign * self.psi(sign * z - (y if mode.offset else 0.0)) - (y if mode.constant else 0.0)

    def table(self, segments: int) -> LossTable:
        """The loss table of a worker with that many segments (see `p4sgd.host.losses.fit.fit_table`)."""
        return fit_table(self.psi, segments, self.shape)
