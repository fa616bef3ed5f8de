"""Huber's loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape, boundary
from p4sgd.host.losses.loss import DEFAULT_EPSILON, FloatArray, Loss, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["Huber"]


class Huber(Loss):
    """ℓ = ½·(z − y)² where |z − y| ≤ ε, else ε·|z − y| − ½·ε²: ψ(x) = x, clamped to [−ε, ε], with o = y.

    ε, above 0, is in the unit of y, and rounded by `boundary`: so the table is exact. A `ValueError` if it rounds to 0
    or is out of the range of the table."""

    name = "huber"
    summary = "linear regression that tolerates outliers"
    task = Task.REGRESSION
    label_mode = LabelMode(offset=True)

    def __init__(self, epsilon: float = DEFAULT_EPSILON) -> None:
        self._epsilon = boundary(epsilon)
        if self._epsilon <= 0:
            raise ValueError(f"epsilon must be more than 0, not {epsilon:g}")
        self.step = 0.5 / min(1.0, self._epsilon)  # residuals that are smaller want larger steps
        self.shape = Shape(jumps=(-self._epsilon, self._epsilon))

    @property
    def parameters(self) -> dict[str, float]:
        return {"epsilon": self._epsilon}

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        distance = np.abs(z - y)
        near = np.minimum(distance, self._epsilon)
        return near * (distance - 0.5 * near)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.clip(x, -self._epsilon, self._epsilon)
