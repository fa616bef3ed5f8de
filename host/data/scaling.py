"""Scaling of features to [0, 1] or [−1, 1], and quantisation to the integers of an image.

A scaling is chosen from statistics of the columns, which can be collected block by block and rank by rank: smallest and
largest values, exact sums, and order statistics of a sample. So every division of the samples gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Features, find_not_finite
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, share_of
from p4sgd.host.errors import UserError, listed
from p4sgd.hw.spec.fixed import IntArray

__all__ = [
    "CENTRED",
    "KINDS",
    "REACH",
    "Extremes",
    "Scaling",
    "Statistics",
    "centring_error",
    "feature_values",
    "is_sparse",
    "order_statistics",
    "quantile_rows",
    "quantize",
    "steps",
]


class Extremes:
    """Ranges of the columns of a data set.

    Parameters
    ----------
    features
        Number of columns.

    Attributes
    ----------
    low, high
        float64 (features,): smallest and largest stored value; NaN if any is NaN, ±∞ if none is stored.
    stored
        int64 (features,): number of stored values. A sparse matrix does not store zeros.
    samples
        Number of samples seen.
    """

    def __init__(self, features: int) -> None:
        self.low: npt.NDArray[np.float64] = np.full(features, np.inf)
        self.high: npt.NDArray[np.float64] = np.full(features, -np.inf)
        self.stored: npt.NDArray[np.int64] = np.zeros(features, np.int64)
        self.samples = 0

    def add(self, features: Features) -> None:
        """Take some samples into account."""
        if features.shape[0] == 0:
            return
        self.samples += features.shape[0]
        if isinstance(features, np.ndarray):
            np.minimum(self.low, features.min(axis=0), out=self.low)
            np.maximum(self.high, features.max(axis=0), out=self.high)
            self.stored += features.shape[0]
            return
        # In place, because SciPy's minimum of columns copies the matrix.
        with np.errstate(invalid="ignore"):  # NaN
            np.minimum.at(self.low, features.indices, features.data)
            np.maximum.at(self.high, features.indices, features.data)
        np.add.at(self.stored, features.indices, 1)

    def range(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Smallest and largest value of each column, including zeros that are not stored; NaN if it has one."""
        holes = self.stored < self.samples
        low, high = self.low.copy(), self.high.copy()
        low[holes] = np.minimum(low[holes], 0.0)
        high[holes] = np.maximum(high[holes], 0.0)
        return low, high


KINDS = ("auto", "standard", "robust", "minmax", "maxabs", "none")
"""Kinds of scaling; see `Scaling.fit`."""

CENTRED = ("standard", "robust")
"""Kinds that subtract a centre, so that zeros do not stay zeros."""

_SPARSE = 0.25
"""Data in a sparse format that store less than this fraction of their values count as sparse."""

_SMALLEST_SPAN = 2.0**-1012
"""A column with a span of at most this counts as constant. Coefficients of the model, which must fit float64, are at
most 256, the largest weight, times the reciprocal of a span."""

_SMALLEST_PART = 2.0**-40
"""A column whose span is at most this fraction of its largest magnitude counts as constant, because it may be rounding
noise. In predictions the products with such a column and the intercept cancel except for this fraction. At least 12 of
the 52 bits of a float64 are left, more than a feature has in training."""

_UNIT = 31
"""Fraction bits of a value in the sums of `Statistics`. The square of such a value fits int64, and 2^32 halves of
squares do."""

_BLOCK_VALUES = 1 << 18
"""Number of values that are summed at once."""

_QUANTILE_VALUES = 1 << 21
"""Number of values from which quantiles are taken. Of 512 features that is 4,096 samples, with which quartiles are
right to 2 % of a deviation."""

_TAILS = (0.25, 0.1, 0.05, 0.01)
"""Probabilities p of the pairs of quantiles, p and 1 − p, that give the width of a column."""

_NORMAL_WIDTHS = (1.3489795003921634, 2.5631031310892007, 3.2897072539029435, 4.652695748081683)
"""Distance of these quantiles in a normal distribution of deviation 1."""


@dataclass(eq=False)
class Statistics:
    """Facts about the columns of a training set from which its scaling is chosen.

    Parameters
    ----------
    low, high
        float64 (features,): smallest and largest value, finite.
    stored
        int64 (features,): number of stored values.
    samples
        Number of samples.
    sparse
        Whether the data are in a sparse format.
    sums
        int64 (3, features), exact sums of integers u = round(2^31 · (x − low) / (high − low)): Σ u, Σ ⌊u² / 2^31⌋ and
        Σ (u² mod 2^31). Zeros until `add` has seen samples.
    order
        float64 (2 + 2 · 4, features): result of `order_statistics`; ``None`` if it is not known.
    """

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    stored: npt.NDArray[np.int64]
    samples: int
    sparse: bool
    sums: IntArray
    order: npt.NDArray[np.float64] | None = None

    @classmethod
    def of_range(
        cls,
        low: npt.NDArray[np.float64],
        high: npt.NDArray[np.float64],
        stored: npt.NDArray[np.int64],
        samples: int,
        *,
        sparse: bool,
    ) -> Self:
        """Statistics of which only the ranges are known so far."""
        low = low + 0.0  # −0, which a minimum may return for 0, becomes 0
        return cls(low, high, stored, samples, sparse, np.zeros((3, low.size), np.int64))

    @property
    def is_sparse(self) -> bool:
        """Whether the data count as sparse: by format and by the fraction of stored values."""
        return self.sparse and is_sparse(int(self.stored.sum()), self.samples * self.low.size)

    def needs_sums(self, kind: str) -> bool:
        """Whether a kind of scaling needs sums and order statistics.

        Raises
        ------
        UserError
            If there is no such kind, or if these data cannot have it.
        """
        if kind not in KINDS:
            raise UserError(f"there is no scaling {kind!r}: choose one of {', '.join(KINDS)}")
        if kind in CENTRED and self.is_sparse:
            raise centring_error(kind, int(self.stored.sum()) / (self.samples * self.low.size))
        return kind in CENTRED or (kind == "auto" and not self.is_sparse)

    def add(self, features: Features) -> None:
        """Add some samples to the sums."""
        step = max(1, _BLOCK_VALUES // features.shape[1])
        unit = self._unit
        for first in range(0, features.shape[0], step):
            t = unit.apply(features[first : first + step])
            t *= 2.0**_UNIT
            u = np.rint(t, out=t).astype(np.int64)
            self.sums[0] += u.sum(axis=0)
            u *= u
            self.sums[1] += (u >> _UNIT).sum(axis=0)
            u &= (1 << _UNIT) - 1
            self.sums[2] += u.sum(axis=0)

    @property
    def magnitude(self) -> npt.NDArray[np.float64]:
        """float64 (features,): largest magnitude."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def half_span(self) -> npt.NDArray[np.float64]:
        """float64 (features,): half the distance of largest and smallest value, which itself may overflow."""
        return self.high / 2 - self.low / 2

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        """Whether a column counts as constant, (features,)."""
        return _negligible(self.half_span, self.magnitude)

    @property
    def _unit(self) -> "Scaling":
        """(x − low) / (high − low)."""
        return Scaling("minmax", self.low, _reciprocal(self.half_span, self.constant), signed=False)

    def moments(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Mean and deviation of (x − low) / (high − low), and which columns have two values, all (features,).

        Means and deviations are right to 2^-32 of the span. A column has two values if, to this resolution, all its
        values are its smallest or its largest, and its order statistics are so exactly.
        """
        assert self.order is not None
        count, total = self.samples, self.sums[0].astype(object)
        squares = self.sums[1].astype(object) * (1 << _UNIT) + self.sums[2].astype(object)
        mean = self.sums[0] / (count * 2.0**_UNIT)
        # Python's integers are exact, their conversion to float64 is rounded correctly.
        deviation = np.sqrt((count * squares - total * total).astype(np.float64)) / (count * 2.0**_UNIT)
        # u² = 2^31 · u only for u = 0 and u = 2^31, and u² is smaller for all in between.
        two_valued = np.array(squares == total * (1 << _UNIT), dtype=np.bool_) & ~self.constant
        two_valued &= ((self.order == self.low) | (self.order == self.high)).all(axis=0)
        return mean, deviation, two_valued


def is_sparse(stored: int, values: int) -> bool:
    """Whether data in a sparse format that store so many of their values count as sparse."""
    return stored < _SPARSE * values


def centring_error(kind: str, share: float) -> UserError:
    """The error of a kind that centres, for sparse data that store this share of their values."""
    return UserError(
        f"the scaling {kind} centres each feature, and only {share:.2%} of the values of these sparse data are stored, "
        f"so that zeros would no longer be zeros: choose maxabs, none or auto"
    )


def quantile_rows(samples: int, features: int) -> int:
    """Number of samples, the first ones in random order, from which quantiles are taken."""
    return max(1, min(samples, _QUANTILE_VALUES // features))


def order_statistics(sample: Features, communicator: Communicator = SINGLE_PROCESS) -> npt.NDArray[np.float64]:
    """Order statistics of the columns of a sample, which may be distributed over ranks.

    Parameters
    ----------
    sample
        (samples, features): some samples of this rank. There must be some on one of the ranks.
    communicator
        The ranks.

    Returns
    -------
    float64 (2 + 2 · 4, features): the two values in the middle, and for each p of 25, 10, 5 and 1 % the value with the
    rank ⌊p · (n − 1)⌋ from below and that from above. They are values of the data, not interpolated.
    """
    columns = np.array((sample if isinstance(sample, np.ndarray) else sample.toarray()).T, np.float64, order="C")
    # Every rank gets all values of some columns.
    own = share_of(communicator, columns.shape[0])
    edges = [begin for begin, _ in communicator.all_gather((own.start, own.stop))]
    parts = [part.reshape(-1).view(np.uint8) for part in np.split(columns, edges[1:])]
    received = [part.view(np.float64).reshape(len(own), -1 if own else 0) for part in communicator.all_to_all(parts)]
    values = np.concatenate(received, axis=1)
    last = max(0, values.shape[1] - 1)
    places = [place for p in (0.5, *_TAILS) for place in (int(p * last), last - int(p * last))]
    if own:
        values.partition(sorted(set(places)), axis=1)
    found = values[:, places] if own else np.empty((0, len(places)))
    return np.concatenate(communicator.all_gather(found)).T + 0.0  # −0 becomes 0


REACH = (0.0, 0.8, 1.22, 1.95, 2.5, 2.9, 3.3, 3.6, 3.9)
"""Deviations from the centre to the end of the range, by planes, for the kinds that centre.

With these a uniform quantiser has the least squared error for normally distributed values (J. Max, Quantizing for
minimum distortion, 1960). Ranges 1.5 to 3 times as wide were tried too: they lose more to rounding and to the smaller
values than they gain by clamping less.
"""

_WILD = 2.0
"""A column is wild if its deviation is more than this many times its width by quantiles.

The ratio is at most 1.7 in eleven real data sets and 3.2 where values have Student's distribution with 2 degrees of
freedom. Of 2,000 normally distributed samples a single one 100 deviations away makes it 2.5.
"""

_CROWDED = 1 / 64
"""A column is crowded if the middle half of its values takes less than this part of the range."""

_KEPT_LEVELS = 8
"""Levels up to the largest magnitude of a column that raw values must keep."""

_KEPT_PART = 0.95
"""Part of the stored values whose columns must keep that many levels, for `auto` to choose raw values."""

_NAMED = 5
"""Most columns that a remark names."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling of raw features: a = (x − offset) · scale, column by column.

    Parameters
    ----------
    kind
        One of `KINDS` but ``auto``.
    offset
        float64 (features,), zeros for ``maxabs`` and ``none``.
    scale
        float64 (features,); 0 for columns that become 0.
    signed
        Whether a is in [−1, 1]; if not, it is in [0, 1]. With ``standard`` and ``robust`` some values of the training
        data are outside, and quantisation clamps them.
    reason
        Why ``auto`` chose this kind; empty if the user did.
    crowded
        Columns whose values use almost none of the levels, for a remark.
    """

    kind: str
    offset: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    signed: bool
    reason: str = ""
    crowded: tuple[int, ...] = ()

    @classmethod
    def fit(
        cls,
        features: Features,
        kind: str = "auto",
        communicator: Communicator = SINGLE_PROCESS,
        *,
        planes: int = 8,
        sample: "Features | None" = None,
    ) -> Self:
        """Choose offset and scale for the columns of a training set, which may be distributed over ranks.

        - ``standard`` subtracts the mean and divides by the deviation (signed). The range ends some deviations from the
          mean, more for more planes, and values beyond are clamped. With a single plane, which holds no sign, the
          two levels are below and above the mean (unsigned).
        - ``robust`` is the same with the median for the mean, and for the deviation the widest of the ranges from the
          quantile 25 % to 75 %, 10 % to 90 %, 5 % to 95 % and 1 % to 99 %, each divided by that of a normal
          distribution. So values do not matter, however large, that are less than 1 % of all. A column whose quantiles
          coincide has mean and deviation.
        - ``minmax`` maps the smallest value of a column to 0 and the largest to 1 (unsigned). Zeros that a sparse
          matrix does not store count as values; they may become another constant, because the image holds all features
          anyway and predictions fold the constant into the intercept. A column whose values agree in 40 bits is
          constant: the rest may be rounding noise.
        - ``maxabs`` divides a column by its largest magnitude, so that 0 stays 0 (signed, unless no value is negative).
          A constant column becomes ±1, as with scikit-learn's ``MaxAbsScaler``, unless it is 0.
        - ``none`` keeps raw values, but for one power of two for all columns: the hardware reads 2^-k · x, with the
          smallest k for which the largest magnitude of all fits (signed, unless no value is negative).
        - ``auto`` is ``standard``, or ``robust`` if the deviation of a column with more than two values is over twice
          its width by quantiles. For data in a sparse format that store less than a quarter of their values it is
          ``none`` if 95 % of these are in columns that keep 8 levels, otherwise ``maxabs``.

        Constant columns become 0, except with ``maxabs`` and ``none``. Both values of a column that has only two are
        levels nearest to their places, at most the ends of the range, with all kinds that centre: neither is rounded or
        clamped, so the model sees what training saw, however rare one of them is. A column with equal quartiles, mostly
        zeros for example, has a range that ends at its quantiles 1 % and 99 % if that is wider; with a single plane it
        is divided half way between these. Data in a sparse format that store less than a quarter of their values cannot
        be centred.

        All finite float64 values are allowed; nothing overflows. A column whose span (``minmax``), magnitude
        (``maxabs``) or range (``standard``, ``robust``) is at most 2^-1012 becomes 0.

        Parameters
        ----------
        features
            The samples, in a distributed training set those of this rank.
        kind
            One of `KINDS`.
        communicator
            The ranks.
        planes
            Planes (S) that features will be stored with, 1 to 8.
        sample
            Those of the samples that quantiles are taken from; all by default. In a distributed training set, which
            samples these are must not depend on the ranks.

        Raises
        ------
        UserError
            If a value is NaN or infinite, if there is no such kind, or if sparse data cannot have it.
        """
        extremes = Extremes(features.shape[1])
        extremes.add(features)
        low, high = extremes.range()
        if features.shape[0] and not (np.isfinite(low).all() and np.isfinite(high).all()):
            place = find_not_finite(features)
            assert place is not None
            row, column = place
            raise UserError(
                f"sample {row + 1}, feature {column + 1} is {features[row, column]}: "
                f"features must be finite numbers; fill it in or leave the sample out"
            )
        low, negated = np.split(communicator.all_min(np.concatenate((low, -high))), 2)
        counts = communicator.all_sum(np.append(extremes.stored, extremes.samples))
        sparse = not isinstance(features, np.ndarray)
        statistics = Statistics.of_range(low, -negated, counts[:-1], int(counts[-1]), sparse=sparse)
        if statistics.needs_sums(kind):
            statistics.add(features)
            statistics.sums = communicator.all_sum(statistics.sums)
        if not statistics.is_sparse:
            statistics.order = order_statistics(features if sample is None else sample, communicator)
        return cls.choose(statistics, kind, planes)

    @classmethod
    def choose(cls, statistics: Statistics, kind: str, planes: int) -> Self:
        """Same as `fit`, from the statistics of the training set.

        Raises
        ------
        UserError
            If there is no such kind, or if sparse data cannot have it.
        """
        statistics.needs_sums(kind)  # checks it
        reason = ""
        if kind == "auto":
            kind, reason = _choose_kind(statistics, planes)
        offset, scale, signed = _MAPS[kind](statistics, planes)
        crowded: tuple[int, ...] = ()
        if statistics.order is not None and kind != "robust":
            middle = (statistics.order[3] / 2 - statistics.order[2] / 2) * scale * 2 / (1 + signed)
            crowded = tuple(np.flatnonzero((middle > 0) & (middle < _CROWDED)).tolist())
        return cls(kind, offset, scale, signed, reason, crowded)

    def remarks(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """What the user should know about the choice.

        Parameters
        ----------
        names
            Names of the columns, if they have any.
        """
        told = []
        if not self.scale.any():
            told.append("all features are constant: only the intercept is fitted")
        if self.kind == "robust" and self.reason:
            told.append(
                f"scaling robust: {self.reason}; predictions and their metrics, such as the train loss, do not clamp, "
                f"so the samples with such values may dominate them"
            )
        if self.crowded:
            columns = [f"{column + 1} ({names[column]})" if names else f"{column + 1}" for column in self.crowded]
            count, total = len(columns), self.scale.size
            told.append(
                f"with the scaling {self.kind} half of the values of {count} of {total} features lie within 1/64 of "
                f"the range, so that training hardly sees them differ: feature{'s' * (count > 1)} "
                f"{listed(columns, _NAMED)}: choose the scaling robust"
            )
        return tuple(told)

    def apply(self, rows: Features) -> npt.NDArray[np.float64]:
        """Scale a block of samples, (rows, features), to a dense float64 array of the same shape.

        Data other than the training set may exceed the range; quantisation clamps them.
        """
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        return _scaled(dense, self.offset, self.scale)

    def apply_stored(self, rows: Any) -> npt.NDArray[np.float64]:
        """Scale only the stored values of a `csr_array`, in the order of its ``data``: float64 (stored values,).

        All others are zeros and become `zero`.
        """
        return _scaled(rows.data, self.offset[rows.indices], self.scale[rows.indices])

    @property
    def zero(self) -> npt.NDArray[np.float64]:
        """The scaled value of a raw 0 in each column: float64 (features,)."""
        return _scaled(np.zeros_like(self.offset), self.offset, self.scale)


_Map = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], bool]
"""Offset, scale, and whether the range is signed."""


def _minmax(statistics: Statistics, planes: int) -> _Map:
    return statistics.low, _reciprocal(statistics.half_span, statistics.constant), False


def _maxabs(statistics: Statistics, planes: int) -> _Map:
    half = statistics.magnitude / 2
    scale = _reciprocal(half, _negligible(half, statistics.magnitude))
    return np.zeros_like(scale), scale, bool((statistics.low < 0).any())


def _raw(statistics: Statistics, planes: int) -> _Map:
    """The scale is such that a step of an integer is 2^k / 2^f, with f fraction bits."""
    signed = bool((statistics.low < 0).any())
    largest = float(statistics.magnitude.max())
    part, exponent = np.frexp(largest)
    fraction = planes - signed
    if part * 2.0**fraction >= 2**fraction - 0.5 and fraction:
        exponent += 1  # the largest magnitude would be rounded up to 2^f, which is one too many
    scale = np.ldexp(2.0**fraction / steps(planes, signed), -exponent) if largest > _SMALLEST_SPAN else 0.0
    features = statistics.low.size
    return np.zeros(features), np.full(features, scale), signed


def _standard(statistics: Statistics, planes: int) -> _Map:
    mean, deviation, _ = statistics.moments()
    return _centred(statistics, statistics.low / 2 + statistics.half_span * mean, deviation, planes)


def _robust(statistics: Statistics, planes: int) -> _Map:
    mean, deviation, _ = statistics.moments()
    assert statistics.order is not None
    middle = statistics.order[0] / 4 + statistics.order[1] / 4
    width = _quantile_width(statistics)
    centre = np.where(width > 0, middle, statistics.low / 2 + statistics.half_span * mean)
    return _centred(statistics, centre, np.where(width > 0, width, deviation), planes)


def _quantile_width(statistics: Statistics) -> npt.NDArray[np.float64]:
    """Width of the columns by quantiles, in units of their spans: float64 (features,), 0 if all quantiles coincide.

    It is the widest of some quantile ranges, each divided by that of a normal distribution of deviation 1. A single
    one would not do: half of the values may be 0.
    """
    assert statistics.order is not None
    width = np.zeros_like(statistics.low)
    half = np.where(statistics.constant, 1.0, statistics.half_span)
    pairs = statistics.order[2:].reshape(len(_TAILS), 2, -1)
    for (below, above), normal in zip(pairs, _NORMAL_WIDTHS, strict=True):
        apart = above / 2 - below / 2
        noise = _negligible(apart, np.maximum(np.abs(below), np.abs(above)))
        width = np.maximum(width, np.where(noise | statistics.constant, 0.0, apart / half / normal))
    return width


def _centred(
    statistics: Statistics, half_centre: npt.NDArray[np.float64], width: npt.NDArray[np.float64], planes: int
) -> _Map:
    """Map half the centre to 0 and `REACH` widths, given in units of the spans, to ±1.

    If most values of a column are the same, all others may be many widths away, and clamping would change all of them.
    Then the range has at least the quantiles 1 % and 99 %, or all values where those coincide too.
    """
    assert statistics.order is not None
    half, signed = statistics.half_span, planes > 1
    reach = REACH[planes] * width
    quarter, three_quarters, *_, least, most = statistics.order[2:]
    alike = quarter == three_quarters
    least, most = np.where(least == most, (statistics.low, statistics.high), (least, most))
    if not signed:
        half_centre = np.where(alike, least / 4 + most / 4, half_centre)
        reach = np.where(alike, 0.0, reach)
    farthest = np.maximum(most / 2 - half_centre, half_centre - least / 2) * (
        2 * _reciprocal(half, statistics.constant)
    )
    reach = np.where(alike, np.maximum(reach, farthest), reach)
    with np.errstate(over="ignore"):
        unused = statistics.constant | (reach * half <= _SMALLEST_SPAN / 2)
    scale = _reciprocal(half, unused) / np.where(unused, 1.0, reach)
    offset = half_centre
    if not signed:
        scale /= 2
        offset = half_centre - reach * half
    mean, deviation, two = statistics.moments()
    one = steps(planes, signed)
    per_span = one / (REACH[planes] * np.where(two, deviation, 1.0))
    lower, upper = (
        np.clip(np.floor((t - mean) * per_span + 0.5), -one, one) if signed else np.full_like(mean, t) for t in (0, 1)
    )
    apart = np.maximum(upper - lower, 1.0)
    scale = np.where(two, _reciprocal(half, unused) * (apart / one), scale)
    offset = np.where(two, statistics.low / 2 - lower / apart * half, offset)
    greatest = np.finfo(np.float64).max / 2
    return 2 * np.clip(offset, -greatest, greatest), scale, signed


_MAPS = {"standard": _standard, "robust": _robust, "minmax": _minmax, "maxabs": _maxabs, "none": _raw}


def _choose_kind(statistics: Statistics, planes: int) -> tuple[str, str]:
    """What ``auto`` is for these data, and why."""
    if statistics.is_sparse:
        _, scale, signed = _raw(statistics, planes)
        fine = scale * statistics.magnitude * steps(planes, signed) >= _KEPT_LEVELS
        part = float(statistics.stored[fine].sum() / max(1, statistics.stored.sum()))
        if part >= _KEPT_PART:
            return "none", "the data are sparse, with values of comparable size"
        return "maxabs", "the data are sparse, with values of different sizes"
    _, deviation, two = statistics.moments()
    width = _quantile_width(statistics)
    wild = np.flatnonzero(~two & (width > 0) & (deviation > _WILD * width))
    if wild.size:
        columns = listed([str(column + 1) for column in wild], _NAMED)
        return "robust", (
            f"{wild.size} of {width.size} features ({columns}) {'has' if wild.size == 1 else 'have'} a few values far "
            f"outside, which training clamps"
        )
    return "standard", "the data are dense"


def _negligible(half: npt.NDArray[np.float64], magnitude: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether spans, given by their halves, count as 0 beside the magnitude of the values."""
    return half <= np.maximum(_SMALLEST_SPAN, _SMALLEST_PART * magnitude) / 2


def _reciprocal(half: npt.NDArray[np.float64], unused: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """1 / span, from half the span; 0 for columns that are not used."""
    return np.where(unused, 0.0, 0.5 / np.where(unused, 1.0, half))


def _scaled(
    x: npt.NDArray[np.floating[Any]], offset: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """(x − offset) · scale, with half the difference and twice the scale so that the difference cannot overflow."""
    scaled: npt.NDArray[np.float64] = np.multiply(x, 0.5, dtype=np.float64)
    scaled -= offset * 0.5
    with np.errstate(over="ignore"):  # only far outside the range of the training data
        scaled *= scale * 2
    return scaled


def steps(stored: int, signed: bool) -> int:
    """The integer of a scaled feature of 1: 2^S − 1, or 2^(S−1) − 1 when signed, but at least 1.

    A signed feature of one plane is −1 or 0: one bit of two's complement has no +1, so positive features become 0.
    Training warns about this.
    """
    return max(1, (1 << (stored - 1)) - 1) if signed else (1 << stored) - 1


def quantize(a: npt.NDArray[np.float64], stored: int, signed: bool) -> IntArray:
    """Scaled features to S-bit integers: q = ⌊a · steps + 1/2⌋, clamped to what S bits hold.

    Parameters
    ----------
    a
        float64 of any shape, nominally in [0, 1] or [−1, 1].
    stored
        Planes (S), 1 to 8.
    signed
        Two's complement.

    Returns
    -------
    int64 of the same shape. For a in the nominal range q / steps differs from a by at most half a step, except where a
    signed single plane lacks +1.
    """
    low, high = (-(1 << (stored - 1)), (1 << (stored - 1)) - 1) if signed else (0, (1 << stored) - 1)
    scaled = a * steps(stored, signed)
    scaled += 0.5
    np.floor(scaled, out=scaled)
    np.clip(scaled, low, high, out=scaled)
    return scaled.astype(np.int64)


def feature_values(
    scale: npt.NDArray[np.float64], offset: npt.NDArray[np.float64], stored: int, signed: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Slope and constant of the values that the hardware reads, as functions of raw features, without rounding.

    The hardware reads q / 2^S (or q / 2^(S−1) when signed) ≈ slope · x + constant, with slope = scale · steps / 2^S and
    constant = −offset · slope.

    Parameters
    ----------
    scale, offset
        As in `p4sgd.host.data.Scaling`: a = (x − offset) · scale.
    stored
        Planes (S).
    signed
        Two's complement.

    Returns
    -------
    Slopes and constants: float64, of the shape of ``scale``.
    """
    slope = scale * (steps(stored, signed) / 2.0 ** (stored - int(signed)))
    return slope, -offset * slope
