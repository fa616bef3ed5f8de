"""The fit of a loss table: a near-minimax line for each segment, and the table's largest error.

Within a segment the slope is that of the line through the two Chebyshev nodes, which for a smooth function is within a
few per cent of the best one. After the slope is rounded to `SLOPE`, the line is moved up or down until its largest
errors to both sides are equal; then the intercept is rounded. The first and the last segment, whose lines the hardware
continues to ±1024, have the slope that the loss states (that of the asymptote) and are centred over the whole tail.

Narrow segments resolve the middle better, wide ones reach further: every width that the hardware supports is tried, and
the one with the smallest largest error is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.fixed import INTERCEPT, MARGIN, RESIDUAL, SLOPE
from p4sgd.hw.spec.run import VALUE_FRACTION, LossTable

__all__ = ["Shape", "fit_table", "table_error"]

_FloatArray = npt.NDArray[np.float64]
_Function = Callable[[_FloatArray], _FloatArray]

_POINTS = 65
"""Points of a segment at which its error is computed, both ends included; the error is smooth in between."""

_TAIL_POINTS = 2048
"""The same for each of the two tails; these points are the farther apart, the farther they are from zero."""

_REACH = RESIDUAL.to_real(RESIDUAL.maximum)
"""The largest residual: ψ is clamped to ± this value, so that the fit spends no accuracy beyond it."""


@dataclass(frozen=True)
class Shape:
    """Jumps and tails of ψ.

    Parameters
    ----------
    jumps
        Arguments at which ψ or its slope jumps. They must be `MARGIN` numbers; segments are chosen so that each jump
        lies on a boundary. At a jump, ψ and the table have the value of the right side.
    left_slope, right_slope
        Slope of ψ far to the left and far to the right.
    """

    jumps: tuple[float, ...] = ()
    left_slope: float = 0.0
    right_slope: float = 0.0


def fit_table(psi: _Function, segments: int, shape: Shape) -> LossTable:
    """The table of ``segments`` segments with the smallest largest error over the whole range of `MARGIN`.

    Parameters
    ----------
    psi
        ψ, float64 to float64 of the same shape.
    segments
        Segments of the table, a power of two.
    shape
        Jumps and tails of ψ.

    Raises
    ------
    ValueError
        If no width of segments has every jump on a boundary.
    """
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
    """Largest |table(x) − ψ(x)| over the `MARGIN` numbers, from points close enough for a smooth ψ.

    Both are clamped to the range of a residual, ±128.
    """
    largest = 0.0
    for points in (_grid(table.segments, table.shift), *_tails(table.segments, table.shift)):
        value = np.ldexp(table(points).astype(np.float64), -VALUE_FRACTION)
        error = np.abs(np.clip(value, -_REACH, _REACH) - _clamped(psi, points))
        largest = max(largest, float(error.max()))
    return largest


def _fit(psi: _Function, segments: int, shift: int, shape: Shape) -> LossTable:
    """The table for segments of 2^shift `MARGIN` numbers."""
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
    """Intercepts that make the largest errors to both sides equal, one for each row of points."""
    value = psi(MARGIN.to_real(points))
    # Points where ψ saturates do not pull at the line, unless all points of the segment saturate.
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
    """Points of every segment, int64 (segments, points), from its first to its last `MARGIN` integer."""
    width = 1 << shift
    first = (np.arange(segments, dtype=np.int64) - segments // 2) * width
    return first[:, np.newaxis] + np.unique(np.linspace(0, width - 1, min(width, _POINTS)).astype(np.int64))


def _tails(segments: int, shift: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Points of the left tail (from the first segment on) and of the right tail (from the last segment on)."""
    inner = (segments // 2 - 1) << shift
    left, right = -MARGIN.minimum - inner - 1, MARGIN.maximum - inner
    steps = np.expm1(np.linspace(0, 1, _TAIL_POINTS) * np.log1p(right))
    offsets = np.unique(np.concatenate([[0, right], np.clip(steps, 0, right)]).astype(np.int64))
    return -inner - 1 - np.minimum(offsets, left), inner + offsets
