"""The Poisson loss."""

import numpy as np

from p4sgd.host.losses.fit import Shape
from p4sgd.host.losses.log_link import LIMIT, LogLink, antiderivative, limited_exp
from p4sgd.host.losses.loss import FloatArray, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["Poisson"]


class Poisson(LogLink):
    """ℓ = e^z − y·z + y·log y − y for y ≥ 0, half the Poisson deviance: ψ(x) = e^min(x, 4) with c = y.

    Where z > 4, ℓ is the tangent from there. Lines of the table are 1/16 wide: it is off by at most 2.6e-4·e^x + 2.2e-5
    from −7.9 to 4, and by 1.8e-4 below.
    """

    name = "poisson"
    summary = "counts and other numbers of at least 0; predicts e^z"
    task = Task.NON_NEGATIVE
    label_mode = LabelMode(constant=True)
    step = 0.5
    power = 1.0
    shape = Shape(jumps=(LIMIT,))
    largest_error = 1.3e-2

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return antiderivative(z) - y * z + _times_log(y, y) - y

    def psi(self, x: FloatArray) -> FloatArray:
        return limited_exp(x)

    def deviance(self, target: FloatArray, predicted: FloatArray) -> FloatArray:
        return 2 * (_times_log(target, target / predicted) - target + predicted)


def _times_log(x: FloatArray, y: FloatArray) -> FloatArray:
    """x·log y, 0 where x = 0. Not SciPy's xlogy: to import it takes longer than to train on a small data set."""
    return x * np.log(np.where(x > 0, y, 1.0))
