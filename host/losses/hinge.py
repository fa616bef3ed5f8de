"""The hinge loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape
from p4sgd.host.losses.loss import FloatArray, Loss, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["Hinge"]


class Hinge(Loss):
    """ℓ = max(0, 1 − y·z) for y = ±1, so g = −y where y·z < 1: ψ(x) = −1 for x < 1, else 0. The table is exact."""

    name = "hinge"
    summary = "linear support vector machine"
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)
    step = 4.0
    shape = Shape(jumps=(1.0,))

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(0.0, 1.0 - y * z)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.where(x < 1.0, -1.0, 0.0)
