"""Piecewise linear fit of a loss table: a near-minimax line for each segment.

The slope in a segment is that of the line through the two Chebyshev nodes, which for a smooth function is within a few
per cent of the best slope. It is rounded to `SLOPE`. The intercept then makes the largest errors above and below the
line equal, and is rounded too. The hardware continues the first and the last segment to ±1024: these have the slope of
the asymptote, which the loss states, and are centred over the whole tail. Narrow segments resolve the middle better,
wide ones reach further: of all widths that the hardware supports, the one with the smallest maximum error is used.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.fixed import INTERCEPT, MARGIN, RESIDUAL, SLOPE
from p4sgd.hw.spec.run import TABLE_SEGMENTS, VALUE_FRACTION, LossTable

_FloatArray = npt.NDArray[np.float64]
_Function = Callable[[_FloatArray], _FloatArray]

# Points at which the error is computed: per segment, both ends included, and per tail, the further out the wider apart.
_POINTS, _TAIL_POINTS = 65, 2048

_REACH = RESIDUAL.to_real(RESIDUAL.maximum)
"""The largest residual. ψ is clamped to ± this value, so that no accuracy is spent on larger ones."""


@dataclass(frozen=True)
class Shape:
    """Jumps and tails of ψ: the arguments, `MARGIN` numbers, at which ψ or its slope jumps, which become boundaries of
    segments (at a jump, ψ and the table have the value of the right side); and the slopes of ψ towards −∞ and +∞."""

    jumps: tuple[float, ...] = ()
    left_slope: float = 0.0
    right_slope: float = 0.0


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


def _centre(psi: _Function, points: npt.NDArray[np.int64], slope: _FloatArray) -> _FloatArray:
    """Intercepts that make the largest errors above and below equal, one for each row of points."""
    value = psi(MARGIN.to_real(points))
    # Points where ψ saturates do not count, unless ψ saturates in the whole segment.
    matters = np.abs(value) <= _REACH
    matters |= ~matters.any(axis=1, keepdims=True)
    rest = np.clip(value, -_REACH, _REACH) - slope[:, np.newaxis] * MARGIN.to_real(points)
    low = np.where(matters, rest, np.inf).min(axis=1)
    high = np.where(matters, rest, -np.inf).max(axis=1)
    middle: _FloatArray = (low + high) / 2
    return middle


def _clamped(psi: _Function, points: npt.NDArray[np.int64]) -> _FloatArray:
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
