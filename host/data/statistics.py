"""Statistics of the columns of a training set, from which its scaling is chosen.

They are collected block by block: smallest and largest values, exact sums, and order statistics of a
sample. So every division of the samples gives the same bits.
"""

import copy
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.matrix import Features, find_not_finite, to_dense
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.fixed import IntArray

FloatArray: TypeAlias = npt.NDArray[np.float64]

HeatArray: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Numbers of samples by column; millions of columns, so of 32 bits where these hold them."""

_SPARSE = 0.05
"""Data of which less than this fraction of the values are not 0 count as sparse, in whatever format they are."""

SMALLEST_SPAN = 2.0**-1012
"""A column with a span of at most this counts as constant: coefficients, which must fit float64, are at most 256, the
largest weight, times its reciprocal."""

_SMALLEST_PART = 2.0**-40
"""A column whose span is at most this fraction of its largest magnitude counts as constant, because it may be rounding
noise: at least 12 of the 52 bits of a float64 are left, more than a feature has in training."""

_UNIT = 31
"""Fraction bits of a value in the sums of `Statistics`. The square of such a value fits int64, and 2^32 halves of
squares do."""

_BLOCK_VALUES, _BLOCK_COLUMNS = 1 << 18, 1 << 16
"""Numbers of values that are summed at once, and of columns that are scaled."""

COMPILED_VALUES = 1 << 19
"""Number of values, in dense data or in all that this process has had, from which `p4sgd.host.data.kernels` is used:
loading it takes 10 ms, and saves as much."""

_seen = 0  # in all

_QUANTILE_VALUES, QUANTILE_SAMPLES = 1 << 21, 1 << 12
"""Most values, and samples, from which quantiles are taken. With 4,096 samples quartiles are right to 2 % of a
deviation."""

_TAILS = (0.25, 0.1, 0.05, 0.01)
"""Probabilities p of the pairs of quantiles, p and 1 − p, that give the width of a column."""

_NORMAL_WIDTHS = (1.3489795003921634, 2.5631031310892007, 3.2897072539029435, 4.652695748081683)
"""Distance of these quantiles in a normal distribution of deviation 1."""


_QUARTERS = np.array([0.5946035575013605, 0.7071067811865476, 0.8408964152537145])
"""2^-3/4, 2^-2/4 and 2^-1/4: quarters of an octave."""


def heat_type(samples: int) -> np.dtype[Any]:
    """The type of a `HeatArray` of so many samples."""
    return np.dtype(np.int32 if samples <= np.iinfo(np.int32).max else np.int64)


class Statistics:
    """Facts about the columns of a training set from which its scaling is chosen, collected in two passes.

    The first one, `add`, takes the ranges of ``samples`` samples; the second one, `add_sums`, is for kinds that centre.
    ``low`` and ``high``, float64 (features,), are the smallest and largest stored values; NaN if any is NaN, ±∞ if none
    is stored. ``nonzero``, int (features,), counts values that are not 0, ``samples`` and ``stored`` what was seen.

    ``sums``, int64 (3, features), are exact sums of integers u = round(2^31 · (x − low) / (high − low)): Σ u,
    Σ ⌊u² / 2^31⌋ and Σ (u² mod 2^31); ``None`` before `add_sums`. ``order`` is the result of `order_statistics`, if
    known.
    """

    def __init__(self, features: int, samples: int) -> None:
        self.low: FloatArray = np.full(features, np.inf)
        self.high: FloatArray = np.full(features, -np.inf)
        self.nonzero: HeatArray = np.zeros(features, heat_type(samples))
        self.samples = 0
        self.stored = 0
        self.sums: IntArray | None = None
        self.order: FloatArray | None = None

    def add(self, features: Features) -> None:
        if features.shape[0] == 0:
            return
        self.samples += features.shape[0]
        self.stored += features.size
        if isinstance(features, np.ndarray) and not compiles(features.size, new=True):
            np.minimum(self.low, features.min(axis=0), out=self.low)
            np.maximum(self.high, features.max(axis=0), out=self.high)
            for rows in map(to_dense, _row_blocks(features)):
                self.nonzero += np.count_nonzero(rows, axis=0)
            return
        from p4sgd.host.data.kernels import add_extremes

        for part in _row_blocks(features) if isinstance(features, np.ndarray) else (features,):
            add_extremes(part, self.low, self.high, self.nonzero)

    def range(self) -> tuple[FloatArray, FloatArray]:
        """``low`` and ``high``, no copies, including zeros that are not stored; NaN if a column has one. More samples
        may follow."""
        holes = self.nonzero < self.samples
        np.minimum(self.low, 0.0, out=self.low, where=holes)
        np.maximum(self.high, 0.0, out=self.high, where=holes)
        return self.low, self.high

    @property
    def centrable(self) -> bool:
        """Unless the data are in a sparse format that stores only a small part of their values."""
        return not is_sparse(self.stored, self.samples * self.low.size)

    @property
    def sparse(self) -> bool:
        return is_sparse(int(self.nonzero.sum()), self.samples * self.low.size)

    def of(self, columns: IntArray) -> "Statistics":
        """The ranges of some columns, of dense samples."""
        some = Statistics(columns.size, self.samples)
        some.low, some.high, some.nonzero = self.low[columns], self.high[columns], self.nonzero[columns]
        some.samples, some.stored = self.samples, self.samples * columns.size
        return some

    def without(self, columns: IntArray) -> "Statistics":
        """The ranges with zeros alone in some columns."""
        others = copy.copy(self)
        others.low, others.high, others.nonzero = self.low.copy(), self.high.copy(), self.nonzero.copy()
        others.low[columns] = others.high[columns] = others.nonzero[columns] = 0
        return others

    def add_sums(self, features: Features) -> None:
        """Add samples to ``sums``, once their ranges are known."""
        if self.sums is None:
            self.sums = np.zeros((3, self.low.size), np.int64)
        scale = reciprocal(self.half_span, self.constant)
        compiled = isinstance(features, np.ndarray) and compiles(features.size)
        for block in _row_blocks(features):
            rows = to_dense(block)
            if compiled:
                from p4sgd.host.data.kernels import add_sums

                add_sums(rows, self.low, scale, _UNIT, self.sums)
                continue
            t = scaled(rows, self.low, scale)
            t *= 2.0**_UNIT
            u = np.rint(t, out=t).astype(np.int64)
            self.sums[0] += u.sum(axis=0)
            u *= u
            self.sums[1] += (u >> _UNIT).sum(axis=0)
            u &= (1 << _UNIT) - 1
            self.sums[2] += u.sum(axis=0)

    def magnitude(self, columns: slice = slice(None)) -> FloatArray:
        """Largest magnitude: float64 (columns,)."""
        negative = -self.low[columns]
        return np.maximum(negative, self.high[columns], out=negative)

    @property
    def half_span(self) -> FloatArray:
        """Half the distance of largest and smallest value, which itself may overflow: float64 (features,)."""
        return self.high / 2 - self.low / 2

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        return negligible(self.half_span, self.magnitude())

    @cached_property
    def moments(self) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
        """Mean and deviation of (x − low) / (high − low), and which columns have two values, all (features,); once sums
        and order statistics are there.

        They are right to 2^-32 of the span; to this resolution two values are all, and exactly the order statistics.
        """
        assert self.order is not None
        assert self.sums is not None
        count, total = self.samples, self.sums[0].astype(object)
        squares = self.sums[1].astype(object) * (1 << _UNIT) + self.sums[2].astype(object)
        mean = self.sums[0] / (count * 2.0**_UNIT)
        # Python's integers are exact, their conversion to float64 is rounded correctly.
        deviation = np.sqrt((count * squares - total * total).astype(np.float64)) / (count * 2.0**_UNIT)
        # u² = 2^31 · u only for u = 0 and u = 2^31, and u² is smaller for all in between.
        two_valued = np.array(squares == total * (1 << _UNIT), dtype=np.bool_) & ~self.constant
        two_valued &= ((self.order == self.low) | (self.order == self.high)).all(axis=0)
        return mean, deviation, two_valued

    def quantile_width(self) -> FloatArray:
        """Width of the columns in units of their spans, float64 (features,): the widest of some quantile ranges, each
        divided by that of a normal distribution of deviation 1; 0 if all coincide."""
        assert self.order is not None
        width = np.zeros_like(self.low)
        half = np.where(self.constant, 1.0, self.half_span)
        pairs = self.order[2:].reshape(len(_TAILS), 2, -1)
        for (below, above), normal in zip(pairs, _NORMAL_WIDTHS, strict=True):
            apart = above / 2 - below / 2
            noise = negligible(apart, np.maximum(np.abs(below), np.abs(above)))
            width = np.maximum(width, np.where(noise | self.constant, 0.0, apart / half / normal))
        return width


class Tails:
    """How far values lie beyond a range about a centre: what it would cost to clamp there.

    ``centre`` and ``reach``, the range on either side of it, are float64 (features,) in units of the spans, the centre
    from the smallest value on. Only columns that go farther and have more than two values, ``columns``, int (far,), are
    looked at. ``counts`` of values and ``sums`` of their distances, as integers round(2^31 · distance / span), are
    exact: int64 (places, far), by quarters of an octave of the distance, from the end of the range on.
    """

    def __init__(self, statistics: Statistics, centre: FloatArray, reach: FloatArray) -> None:
        farthest, (*_, two_valued) = np.maximum(centre, 1 - centre), statistics.moments
        self.columns: IntArray = np.flatnonzero((farthest > reach) & ~statistics.constant & ~two_valued)
        self._reach, self._farthest = reach[self.columns], farthest[self.columns]
        self._half_span = statistics.half_span[self.columns]
        self._half_centre = statistics.low[self.columns] / 2 + self._half_span * centre[self.columns]
        octaves = int(np.frexp((self._farthest / self._reach).max(initial=1.0))[1]) + 1
        self.counts, self.sums = np.zeros((2, 4 * octaves, self.columns.size), np.int64)

    def add(self, features: Features) -> None:
        """Add samples, float (samples, features)."""
        if not self.columns.size:
            return
        half_reach = self._half_span * self._reach
        low, high = self._half_centre - half_reach, self._half_centre + half_reach
        for block in _row_blocks(features):
            halves = to_dense(block)[:, self.columns] * np.float64(0.5)  # whose differences cannot overflow
            beyond = np.nonzero((halves < low) | (halves > high))
            column = beyond[1]
            distance = np.abs(halves[beyond] - self._half_centre[column]) / self._half_span[column]
            part, octave = np.frexp(np.maximum(distance / self._reach[column], 1.0))
            place = 4 * (octave - 1) + np.searchsorted(_QUARTERS, part, side="right"), column
            np.add.at(self.counts, place, 1)
            np.add.at(self.sums, place, np.rint(distance * 2.0**_UNIT).astype(np.int64))

    def cheapest_reach(self, samples: int, steps: int) -> FloatArray:
        """The reach that loses least, of ``steps`` integers on either side, but at least that of these tails: float64
        (far,), in units of the spans.

        To round costs a mean squared error of (reach / steps)² / 12, to clamp one of E[(d − reach)₊²], d being the
        distance from the centre. The sum is least where reach / (12 · steps²) = E[(d − reach)₊], a convex function that
        is known exactly at the edges of the quarters and interpolated between them.
        """
        place = np.arange(len(self.counts) + 1)
        edges = self._reach * np.ldexp(np.append(0.5, _QUARTERS)[place % 4], place // 4 + 1)[:, np.newaxis]
        counts, sums = (
            np.pad(np.cumsum(each[::-1], axis=0)[::-1], ((0, 1), (0, 0))) for each in (self.counts, self.sums)
        )
        beyond = np.maximum(sums * 2.0**-_UNIT - counts * edges, 0.0) / samples
        excess = edges / (12.0 * steps**2) - beyond  # rises with the reach
        last = np.argmax(excess >= 0, axis=0)
        first, every = np.maximum(last - 1, 0), np.arange(self.columns.size)
        below, above = np.minimum(excess[first, every], 0.0), excess[last, every]
        part = np.where(last > 0, -below / np.where(last > 0, above - below, 1.0), 0.0)
        reach = edges[first, every] + part * (edges[last, every] - edges[first, every])
        cheapest: FloatArray = np.minimum(reach, self._farthest)
        return cheapest


def find_extremes(blocks: Iterable[Features], features: int, samples: int) -> Statistics:
    """Ranges of ``samples`` samples in blocks; `UserError` if a value is not finite."""
    statistics = Statistics(features, samples)
    for block in blocks:
        before = statistics.samples
        statistics.add(block)
        if statistics.samples and not all(np.isfinite(each).all() for each in statistics.range()):
            place = find_not_finite(block)
            assert place is not None
            row, column = place
            raise UserError(
                f"sample {before + row + 1}, feature {column + 1} is {block[row, column]}: "
                f"features must be finite numbers; fill it in or leave the sample out"
            )
    return statistics


def _row_blocks(features: Features) -> Iterator[Features]:
    step = max(1, _BLOCK_VALUES // features.shape[1])
    for first in range(0, features.shape[0], step):
        yield features[first : first + step]


def column_blocks(size: int) -> Iterator[slice]:
    """Columns in blocks, where there may be millions: temporary arrays of all would take more memory than the data."""
    for first in range(0, size, _BLOCK_COLUMNS):
        yield slice(first, first + _BLOCK_COLUMNS)


def is_sparse(nonzero: int, values: int) -> bool:
    """Whether data with so many values that are not 0, of so many in all, count as sparse."""
    return nonzero < _SPARSE * values


def compiles(values: int, *, new: bool = False) -> bool:
    """Whether to take the loops of `p4sgd.host.data.kernels` for so many dense values, which count if they are ``new``:
    if they pay off, or would have done so by now, as in a process with many small fits. What they compute is the same.
    """
    global _seen
    _seen += values * new
    return max(values, _seen) >= COMPILED_VALUES


def quantile_rows(samples: int, features: int) -> int:
    """Number of samples, the first ones in random order, from which quantiles are taken."""
    return max(1, min(samples, QUANTILE_SAMPLES, _QUANTILE_VALUES // features))


def order_statistics(sample: Features) -> FloatArray:
    """Order statistics of the columns of a sample, (samples, features).

    Returns float64 (2 + 2 · 4, features): the two values in the middle, and for each p of 25, 10, 5 and 1 % the value
    with the rank ⌊p · (n − 1)⌋ from below and that from above. They are values of the data, not interpolated.
    """
    values = np.array(to_dense(sample).T, np.float64, order="C")
    last = max(0, values.shape[1] - 1)
    places = [place for p in (0.5, *_TAILS) for place in (int(p * last), last - int(p * last))]
    values.sort(axis=1)  # with vectors a fraction of the time of partition
    found: FloatArray = values[:, places].T + 0.0  # −0 becomes 0
    return found


def negligible(half: FloatArray, magnitude: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether spans, given by their halves, count as 0 beside the magnitude of the values."""
    return half <= np.maximum(SMALLEST_SPAN, _SMALLEST_PART * magnitude) / 2


def reciprocal(half: FloatArray, unused: npt.NDArray[np.bool_]) -> FloatArray:
    """1 / span, from half the span; 0 for columns that are not used."""
    return np.where(unused, 0.0, 0.5 / np.where(unused, 1.0, half))


def scaled(x: npt.NDArray[np.floating[Any]], offset: FloatArray, scale: FloatArray) -> FloatArray:
    """(x − offset) · scale, with half the difference and twice the scale so that the difference cannot overflow."""
    result: FloatArray = np.multiply(x, 0.5, dtype=np.float64)
    result -= offset * 0.5
    with np.errstate(over="ignore"):  # only far outside the range of the training data
        result *= scale * 2
    return result
