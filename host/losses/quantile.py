"""The quantile loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape
from p4sgd.host.losses.loss import FloatArray, Loss, Task
from p4sgd.hw.spec.fixed import INTERCEPT
from p4sgd.hw.spec.run import LabelMode

__all__ = ["Quantile"]


class Quantile(Loss):
    """ℓ = q·(y − z) where z < y, else (1 − q)·(z − y): ψ(x) = −q for x < 0, else 1 − q, with o = y.

    q is above 0 and below 1, else there is a `ValueError`. The table has it rounded to a multiple of 2^-16."""

    name = "quantile"
    summary = "a quantile of the target, by default the median"
    task = Task.REGRESSION
    label_mode = LabelMode(offset=True)
    step = 2.0
    shape = Shape(jumps=(0.0,))

    def __init__(self, quantile: float = 0.5) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be above 0 and below 1, not {quantile:g}")
        self._quantile = quantile
        self.largest_error = float(np.abs(INTERCEPT.to_real(INTERCEPT.from_real(quantile)) - quantile))

    @property
    def parameters(self) -> dict[str, float]:
        return {"quantile": self._quantile}

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.maximum(self._quantile * (y - z), (1.0 - self._quantile) * (z - y))

    def psi(self, x: FloatArray) -> FloatArray:
        return np.where(x < 0, -self._quantile, 1.0 - self._quantile)
