"""The logistic loss."""

import numpy as np

from p4sgd.host.losses.loss import FloatArray, Probabilistic, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["Logistic"]


_LARGEST_EXPONENT = 709.0
"""The exponential of a larger number would overflow."""


class Logistic(Probabilistic):
    """ℓ = log(1 + e^(−y·z)) for y = ±1, so g = −y·σ(−y·z): ψ(x) = −σ(−x) with s = y."""

    name = "logistic"
    summary = "logistic regression; gives probabilities"
    task = Task.CLASSIFICATION
    label_mode = LabelMode(sign=True)
    step = 16.0
    largest_error = 1.2e-4

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        margin = y * z
        return np.maximum(-margin, 0.0) + np.log1p(np.exp(-np.abs(margin)))  # half the time of logaddexp

    def probabilities(self, z: FloatArray) -> FloatArray:
        return -self.psi(-z)

    def psi(self, x: FloatArray) -> FloatArray:
        # Not SciPy's expit: to import it takes longer than to train on a small data set.
        return -1.0 / (1.0 + np.exp(np.minimum(x, _LARGEST_EXPONENT)))
