"""Losses for numbers, of which z is the prediction and y the offset."""

import numpy as np

from p4sgd.host.losses.loss import DEFAULT_EPSILON, FloatArray, Loss, Numbers, Shape, Task, boundary
from p4sgd.hw.spec.fixed import INTERCEPT
from p4sgd.hw.spec.run import LabelMode


class _OfNumbers(Loss):
    task = Task.REGRESSION
    label_mode = LabelMode(offset=True)

    def without(self, labels: FloatArray, weights: FloatArray | None, offsets: FloatArray) -> Numbers:
        return (labels.T - offsets).T, weights


class Squared(_OfNumbers):
    """ℓ = ½·(z − y)², so g = z − y: ψ(x) = x. The table is exact."""

    name = "squared"
    summary = "linear regression"
    step = 0.5
    shape = Shape(left_slope=1.0, right_slope=1.0)

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return 0.5 * (z - y) ** 2

    def psi(self, x: FloatArray) -> FloatArray:
        return x


class _WithEpsilon(_OfNumbers):
    """A loss with a threshold ε in the unit of y, rounded by `boundary`: so the table is exact. A `ValueError` if it is
    out of the range of the table."""

    def __init__(self, epsilon: float = DEFAULT_EPSILON) -> None:
        self._epsilon = boundary(epsilon)
        self.shape = Shape(jumps=(-self._epsilon, self._epsilon))
        super().__init__(epsilon=self._epsilon)


class Huber(_WithEpsilon):
    """ℓ = ½·(z − y)² where |z − y| ≤ ε, else ε·|z − y| − ½·ε²: ψ(x) = x, clamped to [−ε, ε]. ε is above 0."""

    name = "huber"
    summary = "linear regression that tolerates outliers"

    def __init__(self, epsilon: float = DEFAULT_EPSILON) -> None:
        super().__init__(epsilon)
        if self._epsilon <= 0:
            raise ValueError(f"epsilon must be more than 0, not {epsilon:g}")
        self.step = 0.5 / min(1.0, self._epsilon)  # residuals that are smaller want larger steps

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        distance = np.abs(z - y)
        near = np.minimum(distance, self._epsilon)
        return near * (distance - 0.5 * near)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.clip(x, -self._epsilon, self._epsilon)


class EpsilonInsensitive(_WithEpsilon):
    """ℓ = max(0, |z − y| − ε): ψ(x) = −1 for x < −ε, 1 for x ≥ ε, else 0. ε is at least 0."""

    name = "epsilon_insensitive"
    summary = "support vector regression; absolute error beyond a threshold"
    step = 1.0

    def __init__(self, epsilon: float = DEFAULT_EPSILON) -> None:
        super().__init__(epsilon)
        if self._epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, not {epsilon:g}")

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(0.0, np.abs(z - y) - self._epsilon)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.where(x >= self._epsilon, 1.0, np.where(x < -self._epsilon, -1.0, 0.0))


class Quantile(_OfNumbers):
    """ℓ = q·(y − z) where z < y, else (1 − q)·(z − y): ψ(x) = −q for x < 0, else 1 − q.

    q is above 0 and below 1, else there is a `ValueError`. The table has it rounded to a multiple of 2^-16."""

    name = "quantile"
    summary = "a quantile of the target, by default the median"
    step = 2.0
    shape = Shape(jumps=(0.0,))

    def __init__(self, quantile: float = 0.5) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be above 0 and below 1, not {quantile:g}")
        super().__init__(quantile=quantile)
        self._quantile = quantile
        self.largest_error = float(np.abs(INTERCEPT.to_real(INTERCEPT.from_real(quantile)) - quantile))

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(self._quantile * (y - z), (1.0 - self._quantile) * (z - y))

    def psi(self, x: FloatArray) -> FloatArray:
        return np.where(x < 0, -self._quantile, 1.0 - self._quantile)
