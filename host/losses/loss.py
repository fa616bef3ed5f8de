"""Losses: values, the function ψ of the loss table with its piecewise linear fit, and the role of the label.

The fit is a near-minimax line for each segment. The slope in a segment is that of the line through the two Chebyshev
nodes, which for a smooth function is within a few per cent of the best slope. It is rounded to `SLOPE`. The intercept
then makes the largest errors above and below the line equal, and is rounded too. The hardware continues the first and
the last segment to ±1024: these have the slope of the asymptote, which the loss states, and are centred over the whole
tail. Narrow segments resolve the middle better, wide ones reach further: of all widths that the hardware supports, the
one with the smallest maximum error is used.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.fixed import INTERCEPT, MARGIN, RESIDUAL, SLOPE
from p4sgd.hw.spec.run import TABLE_SEGMENTS, VALUE_FRACTION, LabelMode, LossTable

DEFAULT_EPSILON = 0.125
"""ε of losses that have one, in standard deviations of the target; a power of two, so that every table is exact."""

FloatArray = npt.NDArray[np.float64]
"""Real numbers, any shape."""

Numbers = tuple[FloatArray, FloatArray | None]
"""Labels and weights of samples."""

_Function = Callable[[FloatArray], FloatArray]

# Points at which the error is computed: per segment, both ends included, and per tail, the further out the wider apart.
_POINTS, _TAIL_POINTS = 65, 2048

_REACH = RESIDUAL.to_real(RESIDUAL.maximum)
"""The largest residual. ψ is clamped to ± this value, so that no accuracy is spent on larger ones."""


class Task(Enum):
    """What a model predicts."""

    CLASSIFICATION = "classification"
    """One of two classes, with y = −1 or +1."""
    REGRESSION = "regression"
    """A number; y is the target, centred and scaled to a standard deviation of 1."""
    NON_NEGATIVE = "regression of numbers of at least 0"
    """A number of at least 0, by e^z; y is the target divided by a scale, usually its mean."""
    POSITIVE = "regression of numbers above 0"
    """A number above 0, by e^z; y is the logarithm of the target divided by its mean."""


@dataclass(frozen=True)
class Shape:
    """Jumps and tails of ψ: the arguments, `MARGIN` numbers, at which ψ or its slope jumps, which become boundaries of
    segments (at a jump, ψ and the table have the value of the right side); and the slopes of ψ towards −∞ and +∞."""

    jumps: tuple[float, ...] = ()
    left_slope: float = 0.0
    right_slope: float = 0.0


class Loss(ABC):
    """A loss ℓ(z, y) of an activation z and a label y.

    Offsets of samples become part of these two: `without` turns numbers and weights into those of an equal problem, and
    `with_offsets` is the loss of classes whose labels have offsets.

    The hardware computes only the residual g = ∂ℓ/∂z, which must have the form g = s·ψ(s·z − o) − c, where `psi` is ψ
    and ``label_mode`` says which of the sign s, the offset o and the constant c come from the label; or such a residual
    times a weight of the sample, `importance`, if the loss ``weighs``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    task: ClassVar[Task]
    label_mode: ClassVar[LabelMode]
    weighs: ClassVar[bool] = False
    power: float | None = None
    """If predictions are e^z: the power of the mean that the variance of the target grows with, 1 to 2."""
    step: float
    """The automatic learning rate is this number divided by the squared norm of a sample. Found by experiment; a loss
    with unbounded curvature or residual is stable only below 1."""
    largest_label: ClassVar[float] = math.inf
    """The largest y of `Task.NON_NEGATIVE` that residuals and their table suit."""
    shape: Shape = Shape()
    """Jumps and tails of ψ, for the fit of the table."""
    largest_error: float = 0.0
    """Bound of |table(x) − ψ(x)| for a table of `TABLE_SEGMENTS` segments and any x; 0 is an exact table."""

    def __init__(self, **parameters: float) -> None:
        self.parameters = parameters
        """Parameters of the loss by name, as its class takes them: plain numbers in the unit of y."""

    @property
    def bounded(self) -> bool:
        """Whether residuals are, so that a sample far away from all others pulls at the weights no harder than they."""
        return not (self.shape.left_slope or self.shape.right_slope)

    def farthest(self, share: float) -> float:
        """How many times as wide as usual the range of a column may be if less is lost there (`Scaling.fit_blocks`),
        for two classes of which the rarer one has this share, or for 1/2: 1 if values far outside are noise."""
        return 1.0 if self.bounded else math.inf

    def without(self, labels: FloatArray, weights: FloatArray | None, offsets: FloatArray) -> Numbers:
        """Labels in their unit, (samples,) or (samples, targets), and weights with which a loss without offsets is the
        one with them, up to a constant; of classes as they are. For units see `p4sgd.host.data.Dataset.offsets`."""
        return labels, weights

    @property
    def with_offsets(self) -> "Loss":
        """The loss for labels that have offsets, if these are not all in numbers and weights (`without`)."""
        return self

    def label(self, y: FloatArray, offsets: FloatArray | None = None) -> FloatArray:
        """What the hardware has as the label of y, of `with_offsets` with offsets of z: float64, same shape."""
        return y

    def importance(self, y: FloatArray) -> FloatArray:
        """By what the hardware multiplies s·ψ(s·z − o) − c, up to a common factor: float64, same shape."""
        return np.ones_like(y)

    @abstractmethod
    def value(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """ℓ(z, y) of each sample; float64 arrays of equal shape."""

    @abstractmethod
    def psi(self, x: FloatArray) -> FloatArray:
        """ψ(x), the real function that the loss table approximates; float64, same shape."""

    def residual(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """g = ∂ℓ/∂z of each sample in real numbers: s·ψ(s·z − o) − c. Where s comes from y = ±1, it is y."""
        mode = self.label_mode
        # Without what the label does not change: an intercept takes several residuals of every sample in every epoch.
        x = y * z if mode.sign else z
        psi = self.psi(x - y if mode.offset else x)
        signed = y * psi if mode.sign else psi
        return signed - y if mode.constant else signed

    def derivative(self, z: FloatArray, y: FloatArray) -> FloatArray:
        """`residual` without limits that only training needs, if its root balances predictions with targets."""
        return self.residual(z, y)

    def table(self, segments: int = TABLE_SEGMENTS) -> LossTable:
        return fit_table(self.psi, segments, self.shape)


class Probabilistic(Loss):
    """A loss of classes whose activations give probabilities."""

    @abstractmethod
    def probabilities(self, z: FloatArray) -> FloatArray:
        """Probability of the second class at each activation; float64, same shape."""


def boundary(value: float, segments: int = TABLE_SEGMENTS) -> float:
    """The number nearest to one of at least 0 so that a table with jumps at ± this number is possible; a `ValueError`
    beyond the range of a table.

    It has 7 bits for 256 segments, and is a multiple of 2^-16: ``value`` changes by at most 0.8 % or 2^-17."""
    inside = segments // 2 - 1
    for shift in range(MARGIN.width - (segments - 1).bit_length() + 1):
        steps = round(np.ldexp(value, MARGIN.fraction - shift))
        if steps <= inside:
            return float(np.ldexp(steps, shift - MARGIN.fraction))
    raise ValueError(f"a table of {segments} segments has no boundary at {value:g}")


@functools.cache  # a run needs its table for the trials of rates, and for the device
def fit_table(psi: _Function, segments: int, shape: Shape) -> LossTable:
    """The table of ``segments`` segments, a power of two, with the smallest maximum error over the range of `MARGIN`; a
    `ValueError` if with no width of segments all jumps are on boundaries."""
    best: LossTable | None = None
    smallest = np.inf
    for shift in range(MARGIN.width - (segments - 1).bit_length() + 1):
        edges = {int(MARGIN.from_real(jump)) for jump in shape.jumps}
        inside = (segments // 2 - 1) << shift
        if any(edge % (1 << shift) or abs(edge) > inside for edge in edges):
            continue
        table = _fit(psi, segments, shift, shape)
        error = table_error(table, psi)
        if error <= smallest:  # the widest of equally good ones
            best, smallest = table, error
    if best is None:
        raise ValueError(f"no table of {segments} segments has boundaries at {shape.jumps}")
    return best


def table_error(table: LossTable, psi: _Function) -> float:
    """Largest |table(x) − ψ(x)| over the `MARGIN` numbers, both clamped to ±128, sampled densely enough."""
    largest = 0.0
    for points in (_grid(table.segments, table.shift), *_tails(table.segments, table.shift)):
        value = np.ldexp(table(points).astype(np.float64), -VALUE_FRACTION)
        error = np.abs(np.clip(value, -_REACH, _REACH) - _clamped(psi, points))
        largest = max(largest, float(error.max()))
    return largest


def _fit(psi: _Function, segments: int, shift: int, shape: Shape) -> LossTable:
    """The table with segments of 2^shift `MARGIN` numbers."""
    grid = _grid(segments, shift)
    middle = (grid[:, 0] + grid[:, -1]) / 2
    half = (grid[:, -1] - grid[:, 0]) / 2
    nodes = np.round(middle[:, np.newaxis] + half[:, np.newaxis] * np.array([-0.5, 0.5]) * np.sqrt(2)).astype(np.int64)
    rise = np.diff(_clamped(psi, nodes), axis=1)[:, 0]
    run = MARGIN.to_real(np.diff(nodes, axis=1)[:, 0])
    slope = np.divide(rise, run, out=np.zeros(segments), where=run > 0)
    slope[0], slope[-1] = shape.left_slope, shape.right_slope
    quantised = SLOPE.from_real(slope)
    real_slope = SLOPE.to_real(quantised)
    intercept = _centre(psi, grid, real_slope)
    for segment, points in zip((0, -1), _tails(segments, shift), strict=True):
        intercept[segment] = _centre(psi, points[np.newaxis], real_slope[[segment]])[0]
    return LossTable(shift, quantised, INTERCEPT.from_real(intercept))


def _centre(psi: _Function, points: npt.NDArray[np.int64], slope: FloatArray) -> FloatArray:
    """Intercepts that make the largest errors above and below equal, one for each row of points."""
    value = psi(MARGIN.to_real(points))
    # Points where ψ saturates do not count, unless ψ saturates in the whole segment.
    matters = np.abs(value) <= _REACH
    matters |= ~matters.any(axis=1, keepdims=True)
    rest = np.clip(value, -_REACH, _REACH) - slope[:, np.newaxis] * MARGIN.to_real(points)
    low = np.where(matters, rest, np.inf).min(axis=1)
    high = np.where(matters, rest, -np.inf).max(axis=1)
    middle: FloatArray = (low + high) / 2
    return middle


def _clamped(psi: _Function, points: npt.NDArray[np.int64]) -> FloatArray:
    return np.clip(psi(MARGIN.to_real(points)), -_REACH, _REACH)


def _grid(segments: int, shift: int) -> npt.NDArray[np.int64]:
    """`MARGIN` integers in every segment: int64 (segments, points)."""
    width = 1 << shift
    first = (np.arange(segments, dtype=np.int64) - segments // 2) * width
    return first[:, np.newaxis] + np.unique(np.linspace(0, width - 1, min(width, _POINTS)).astype(np.int64))


def _tails(segments: int, shift: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Points of the left tail, from the first segment outwards, and of the right tail, from the last one."""
    inner = (segments // 2 - 1) << shift
    left, right = -MARGIN.minimum - inner - 1, MARGIN.maximum - inner
    steps = np.expm1(np.linspace(0, 1, _TAIL_POINTS) * np.log1p(right))
    offsets = np.unique(np.concatenate([[0, right], np.clip(steps, 0, right)]).astype(np.int64))
    return -inner - 1 - np.minimum(offsets, left), inner + offsets
