"""The squared hinge loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape
from p4sgd.host.losses.loss import FloatArray, Loss, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["SquaredHinge"]


class SquaredHinge(Loss):
    """ℓ = max(0, 1 − y·z)² for y = ±1: ψ(x) = −2·max(0, 1 − x) with s = y. The table is exact."""

    name = "squared_hinge"
    summary = "support vector machine with a smooth loss"
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)
    step = 2.0
    shape = Shape(jumps=(1.0,), left_slope=2.0)

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(0.0, 1.0 - y * z) ** 2

    def psi(self, x: FloatArray) -> FloatArray:
        return -2.0 * np.maximum(0.0, 1.0 - x)
