"""The ε-insensitive loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape, boundary
from p4sgd.host.losses.loss import DEFAULT_EPSILON, FloatArray, Loss, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["EpsilonInsensitive"]


class EpsilonInsensitive(Loss):
    """ℓ = max(0, |z − y| − ε): ψ(x) = −1 for x < −ε, 1 for x ≥ ε, else 0, with o = y.

    ε, at least 0, is in the unit of y, and rounded by `boundary`: so the table is exact. A `ValueError` if it is
    negative or out of the range of the table."""

    name = "epsilon_insensitive"
    summary = "support vector regression; absolute error beyond a threshold"
    task = Task.REGRESSION
    label_mode = LabelMode(offset=True)
    step = 1.0

    def __init__(self, epsilon: float = DEFAULT_EPSILON) -> None:
        self._epsilon = boundary(epsilon)
        if self._epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, not {epsilon:g}")
        self.shape = Shape(jumps=(-self._epsilon, self._epsilon))

    @property
    def parameters(self) -> dict[str, float]:
        return {"epsilon": self._epsilon}

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(0.0, np.abs(z - y) - self._epsilon)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.where(x >= self._epsilon, 1.0, np.where(x < -self._epsilon, -1.0, 0.0))
