"""The squared loss."""

from p4sgd.host.losses.fit import Shape
from p4sgd.host.losses.loss import FloatArray, Loss, Task
from p4sgd.hw.spec.run import LabelMode

__all__ = ["Squared"]


class Squared(Loss):
    """ℓ = ½·(z − y)², so g = z − y: ψ(x) = x with o = y. The table is exact."""

    name = "squared"
    summary = "linear regression"
    task = Task.REGRESSION
    label_mode = LabelMode(offset=True)
    step = 0.5
    shape = Shape(left_slope=1.0, right_slope=1.0)

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return 0.5 * (z - y) ** 2

    def psi(self, x: FloatArray) -> FloatArray:
        return x
