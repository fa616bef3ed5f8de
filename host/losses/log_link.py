"""Losses with a logarithmic link: predictions are e^z, and the exponential in residuals is limited."""

import functools
import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.losses.loss import FloatArray, Loss, Numbers, Shape, Task
from p4sgd.hw.spec.run import LabelMode

_LIMIT = 4.0
"""Exponents count as at most this number in residuals. A power of two, so that the tables bend where two lines meet."""

_LARGEST = 300.0  # of an exponent, so that sums do not overflow


def _limited_exp(x: FloatArray) -> FloatArray:
    """e^x, but at most e^`_LIMIT` = 54.6."""
    return np.exp(np.minimum(x, _LIMIT))


def _antiderivative(x: FloatArray) -> FloatArray:
    """Antiderivative of `_limited_exp`: e^x, continued by its tangent beyond `_LIMIT`."""
    return _limited_exp(x) * (1.0 + np.maximum(x - _LIMIT, 0.0))


class LogLink(Loss):
    """Half the deviance of numbers of which e^z, times the scale of the labels, is predicted."""

    power: float
    """Power of the mean that the variance of its Tweedie distribution grows with: 1 to 2."""
    bounded = False

    def without(self, labels: FloatArray, weights: FloatArray | None, offsets: FloatArray) -> Numbers:
        """See `Loss.without`: as deviances of e^f times a mean are e^((2−p)f) times those of the mean, a sample counts
        like its label for a unit of exposure, e^−f times it, with such a weight."""
        factors = np.exp((2 - self.power) * offsets)
        return (labels.T * np.exp(-offsets)).T, factors if weights is None else factors * weights

    @abstractmethod
    def deviance(self, target: FloatArray, predicted: FloatArray) -> FloatArray:
        """The deviance of each sample, in the unit of the target; float64, same shape."""


class Poisson(LogLink):
    """ℓ = e^z − y·z + y·log y − y for y ≥ 0, half the Poisson deviance: ψ(x) = e^min(x, 4) with c = y.

    Where z > 4, ℓ is the tangent from there. Lines of the table are 1/16 wide: it is off by at most 2.6e-4·e^x + 2.2e-5
    from −7.9 to 4, and by 1.8e-4 below. A label of at most 16 leaves a factor of 3 to where the tangent begins: with 32
    the coefficient of a heavy-tailed column ends too large, because its largest samples pull too weakly.
    """

    name = "poisson"
    summary = "counts and other numbers of at least 0; predicts e^z"
    task = Task.NON_NEGATIVE
    label_mode = LabelMode(constant=True)
    step = 0.5
    power = 1.0
    largest_label = 16.0
    shape = Shape(jumps=(_LIMIT,))
    largest_error = 1.3e-2

    @functools.cached_property  # its table is fitted once
    def with_offsets(self) -> Loss:
        return PoissonOfRates()

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return _antiderivative(z) - y * z + _times_log(y, y) - y

    def psi(self, x: FloatArray) -> FloatArray:
        return _limited_exp(x)

    def derivative(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return np.exp(np.minimum(z, _LARGEST)) - y

    def deviance(self, target: FloatArray, predicted: FloatArray) -> FloatArray:
        return 2 * (_times_log(target, target / predicted) - target + predicted)


def _times_log(x: FloatArray, y: FloatArray) -> FloatArray:
    """x·log y, 0 where x = 0. Not SciPy's xlogy: to import it takes longer than to train on a small data set."""
    return x * np.log(np.where(x > 0, y, 1.0))


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
    shape = Shape(jumps=(-_LIMIT,))
    largest_error = 1.3e-2

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return z - y + _antiderivative(y - z) - 1.0

    def psi(self, x: FloatArray) -> FloatArray:
        return 1.0 - _limited_exp(-x)

    def deviance(self, target: FloatArray, predicted: FloatArray) -> FloatArray:
        return 2 * (np.log(predicted / target) + target / predicted - 1)


_LOW, _HIGH = 6.0, 8.0
"""log(e^z / y), or z where y = 0, counts as −6 to 8 in residuals, if the `_LIMIT` of exponents is not nearer."""


class _TwoSided(LogLink):
    """Half the deviance of a power p from 1 to below 2, by a table with a side for y > 0 and one for y = 0.

    For y > 0 the residual is y^(2−p) · (e^((2−p)t) − e^((1−p)t)) with t = z − log y: a weight of the sample times a
    function of z − o with o = 25 + log y, which is below 0. For y = 0 it is e^((2−p)z): there o = −25, a label below 0
    makes s = −1, and s·z − o is above 0. Exponents count as at most 4, and t, or z for y = 0, as −6 to 8.
    """

    task = Task.NON_NEGATIVE
    label_mode = LabelMode(sign=True, offset=True)
    weighs = True
    step = 0.5
    _side: ClassVar[float] = 25.0
    """A label is this number and log y, or this number below 0 where y = 0; a sample leaves its side of the table where
    e^z is e^25 times too large."""
    _smallest: ClassVar[float] = math.exp(-12.0)
    """A smaller y counts as 0 in residuals."""
    _width: ClassVar[float] = 0.25
    """Of the table's lines, of which there are 128 on either side of 0."""

    def __init__(self, power: float, **parameters: float) -> None:
        super().__init__(**parameters)
        self.power = p = power
        # Where lines of the table meet.
        low = min(_LOW, np.floor(_LIMIT / (p - 1) / self._width) * self._width) if p > 1 else _LOW
        high = min(_HIGH, np.floor(_LIMIT / (2 - p) / self._width) * self._width)
        self._low, self._high = float(low), float(high)
        self.shape = Shape(
            jumps=(0.0, -self._side - self._low, -self._side + self._high, self._side - self._high, self._side + _LOW)
        )
        curvature = max((2 - p) ** 2 * np.exp((2 - p) * high), (p - 1) ** 2 * np.exp((p - 1) * low))
        self.largest_error = float(curvature * self._width**2 / 16)

    def label(self, y: FloatArray, offsets: FloatArray | None = None) -> FloatArray:
        return np.where(self._counts(y), self._side + np.log(np.maximum(y, self._smallest)), -self._side)

    def importance(self, y: FloatArray) -> FloatArray:
        return np.where(self._counts(y), y ** (2 - self.power), 1.0)

    def psi(self, x: FloatArray) -> FloatArray:
        return np.where(x < 0, self._above_zero(x + self._side), -self._at_zero(self._side - x))

    def _counts(self, y: FloatArray) -> npt.NDArray[np.bool_]:
        """Which y count as above 0."""
        return y > self._smallest

    def _above_zero(self, t: FloatArray) -> FloatArray:
        limited = np.clip(t, -self._low, self._high)
        return np.exp((2 - self.power) * limited) - np.exp((1 - self.power) * limited)

    def _at_zero(self, z: FloatArray) -> FloatArray:
        return np.exp((2 - self.power) * np.clip(z, -_LOW, self._high))


class PoissonOfRates(_TwoSided, Poisson):
    """`Poisson` of samples with offsets: rates of small exposures may be thousands of times the mean, and residuals of
    `Poisson` end at 128."""

    largest_label = math.inf
    _side, _smallest, _width = 9.75, math.exp(-9.0), 0.125

    def __init__(self) -> None:
        super().__init__(1.0)

    def residual(self, z: FloatArray, y: FloatArray) -> FloatArray:
        return _limited_exp(z) - y


class Tweedie(_TwoSided):
    """Half the deviance of a Tweedie distribution of power p, between Poisson (1) and gamma (2), for y ≥ 0. Beyond the
    limits of exponents ℓ is the tangent. A `ValueError` if p is not above 1 and below 2."""

    name = "tweedie"
    summary = "numbers of at least 0 of which many may be 0, as claims are; predicts e^z"

    def __init__(self, tweedie_power: float = 1.5) -> None:
        if not 1 < tweedie_power < 2:
            raise ValueError(f"tweedie_power must be above 1 and below 2, not {tweedie_power:g}")
        super().__init__(tweedie_power, tweedie_power=tweedie_power)

    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        p, above = self.power, self._counts(y)
        t = np.where(above, z - np.log(np.maximum(y, self._smallest)), z)
        limited = np.clip(t, np.where(above, -self._low, -_LOW), self._high)
        growth, fall = np.exp((2 - p) * limited), np.where(above, np.exp((1 - p) * limited), 0.0)
        curve = growth / (2 - p) + fall / (p - 1) - np.where(above, 1 / (2 - p) + 1 / (p - 1), 0.0)
        value: FloatArray = self.importance(y) * (curve + (growth - fall) * (t - limited))
        return value

    def residual(self, z: FloatArray, y: FloatArray) -> FloatArray:
        above = self._above_zero(z - np.log(np.maximum(y, self._smallest)))
        return self.importance(y) * np.where(self._counts(y), above, self._at_zero(z))

    def deviance(self, target: FloatArray, predicted: FloatArray) -> FloatArray:
        p = self.power
        constant = target ** (2 - p) / ((1 - p) * (2 - p))
        return 2 * (constant - target * predicted ** (1 - p) / (1 - p) + predicted ** (2 - p) / (2 - p))
