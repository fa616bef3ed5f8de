"""The loss log cosh(z − y), which is about ½·(z − y)² near its target and |z − y| far away."""

import numpy as np

from p4sgd.host.losses import Loss, Task
from p4sgd.host.losses.loss import FloatArray
from p4sgd.hw.spec.run import LabelMode


class LogCosh(Loss):
    """ℓ = log cosh(z − y), so the residual is ψ(z − y) with ψ(x) = tanh(x)."""

    name = "log_cosh"
    summary = "linear regression that tolerates outliers"
    task = Task.REGRESSION  # y is the target in standard deviations
    label_mode = LabelMode(offset=True)  # the hardware computes ψ(z − y)
    step = 0.5  # the automatic learning rate is this divided by the squared norm of a sample
    largest_error = 2e-4  # of the table

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """ℓ of each sample."""
        distance = np.abs(z - y)
        return distance + np.log1p(np.exp(-2 * distance)) - np.log(2)

    def psi(self, x: FloatArray) -> FloatArray:
        """Its derivative; the loss table has a line for each of 256 segments of it."""
        return np.tanh(x)


LOSSES = {"log_cosh": LogCosh}
