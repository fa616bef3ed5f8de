"""The gamma loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape
from p4sgd.host.losses.log_link import LIMIT, LogLink, antiderivative, limited_exp
from p4sgd.host.losses.loss import FloatArray, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["Gamma"]


class Gamma(LogLink):
    """ℓ = z − y + e^(y − z) − 1, half the gamma deviance of e^z and e^y: ψ(x) = 1 − e^min(−x, 4) with o = y.

    y is the logarithm of the target. Where z < y − 4, ℓ is the tangent from there. Lines of the table are 1/16 wide: it
    is off by at most 2.6e-4·e^(−x) + 2.2e-5 from −4 to 7.9, and by 1.8e-4 above.
    """

    name = "gamma"
    summary = "numbers above 0 with errors in proportion to them; predicts e^z"
    task = Task.POSITIVE
    label_mode = LabelMode(offset=True)
    step = 0.5
    power = 2.0
    shape = Shape(jumps=(-LIMIT,))
    largest_error = 1.3e-2

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return z - y + antiderivative(y - z) - 1.0

    def psi(self, x: FloatArray) -> FloatArray:
        return 1.0 - limited_exp(-x)

    def deviance(self, target: FloatArray, predicted: FloatArray) -> FloatArray:
        return 2 * (np.log(predicted / target) + target / predicted - 1)
