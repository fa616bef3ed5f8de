"""The modified Huber loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape
from p4sgd.host.losses.loss import FloatArray, Probabilistic, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["ModifiedHuber"]


class ModifiedHuber(Probabilistic):
    """ℓ = max(0, 1 − y·z)² where y·z ≥ −1, else −4·y·z, for y = ±1: ψ(x) = −2·(1 − x), clamped to [−4, 0], with s = y.

    The table is exact. Zhang, Solving large scale linear prediction problems using stochastic gradient descent
    algorithms, 2004.
    """

    name = "modified_huber"
    summary = "smooth, and tolerates wrong labels; gives probabilities"
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)
    step = 2.0
    shape = Shape(jumps=(-1.0, 1.0))

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        margin = y * z
        return np.where(margin < -1.0, -4.0 * margin, np.maximum(0.0, 1.0 - np.maximum(margin, -1.0)) ** 2)

    def probabilities(self, z: FloatArray) -> FloatArray:
        return np.clip((1.0 + z) / 2.0, 0.0, 1.0)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.clip(-2.0 * (1.0 - x), -4.0, 0.0)
