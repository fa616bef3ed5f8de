"""Scaling of features to [0, 1] or [−1, 1], chosen from statistics of the columns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from p4sgd.host.data.matrix import Features, each_block, pick_columns, to_dense
from p4sgd.host.data.quantization import quantize, steps
from p4sgd.host.data.statistics import (
    SMALLEST_SPAN,
    FloatArray,
    HeatArray,
    Statistics,
    Tails,
    column_blocks,
    find_extremes,
    heat_type,
    negligible,
    order_statistics,
    reciprocal,
    scaled,
)
from p4sgd.host.errors import UserError, listed
from p4sgd.hw.spec.fixed import IntArray

KINDS = ("auto", "standard", "robust", "minmax", "maxabs", "none")
"""Kinds of scaling; see README.md."""

CENTRED = ("standard", "robust")
"""Kinds that subtract a centre, so that zeros do not stay zeros."""

REACH = (0.0, 0.8, 1.22, 1.95, 2.5, 3.2, 4.0, 4.5, 5.0)
"""Deviations from the centre to the end of the range, by planes that are stored, for the kinds that centre.

Up to 4 planes those with which a uniform quantiser has the least squared error for normally distributed values (J. Max,
Quantizing for minimum distortion, 1960). With more planes levels are plenty, and what costs is to clamp; but where
fewer planes are read than stored, their levels grow with the range, and the bias limits the rate of smaller features.
With 8 planes the training loss of digits ends 3.2 % above its optimum with Max's 3.9 deviations, 2.6 % with 5 and 1.6 %
with 8, but with 8 diabetes takes 17 epochs to 1 % instead of 5. 5 to 7 planes lie between.
"""

_REACH_ALIKE = (0.0, 0.0, 0.0, 0.0, 8.0, 8.0, 8.0, 12.0, 12.0)
"""Up to how many deviations the range of a column with equal quartiles goes to reach its extremes, by stored planes.

Such a column is mostly one value, and what tells samples apart are the others, which are far away. The training loss of
digits ends 0.7 % above its optimum with 8 planes instead of 2.4 %. Fewer planes have no levels to spare.
"""

_LOST = 2.0
"""A range by quantiles loses values that matter if the one that loses least is so many times as wide."""

_CROWDED = 1 / 64
"""A column is crowded if the middle half of its values takes less than this part of the range."""

_KEPT_LEVELS, _KEPT_PART = 8, 0.95
"""`auto` chooses raw values if this part of those that are not 0 are in columns that keep so many levels up to their
largest magnitude."""

_OFTEN, _MANY = 0.05, 1 << 16
"""Columns of sparse data are often not 0 if more than this part of their values are: with many texts these are
numbers. If these are so many columns, only those with few zeros are."""

_MOSTLY, _LEAST_DEVIATION = 0.98, 0.05
"""A column of few zeros is no word if at most 2 % are, or its deviation is less than this part of its largest
magnitude, which `maxabs` makes the range. Frequent words of documentation and sources, as counts or tf-idf, are in at
most 96.5 % of the documents, unless these are long, and have deviations from 0.07 on."""

_NAMED = 5
"""Most columns that a remark names."""


def deviation(stored: int, signed: bool) -> float:
    """A feature one deviation above the centre, scaled by a kind that centres; 0 is the centre if signed, else 1/2."""
    return (1 if signed else 0.5) / REACH[stored]


def bias_integer(stored: int, signed: bool) -> int:
    """The integer of the bias, a feature that is the same in all samples: the end of the range.

    If signed it is negative, so that it is −1 in however few planes it is read.
    """
    return -steps(stored, True) if signed else steps(stored, False)


def centring_error(kind: str, share: float) -> UserError:
    """The error of a kind that centres, for data in a sparse format of which this share of the values is not 0."""
    return UserError(
        f"the scaling {kind} centres each feature, and only {share:.2%} of the values of these sparse data are not 0, "
        f"so that zeros would no longer be zeros: choose maxabs, none or auto"
    )


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling of raw features: a = (x − offset) · scale, column by column.

    ``kind`` is one of `KINDS` but ``auto``, and ``reason`` tells why ``auto`` chose it. ``offset`` and ``scale`` are
    float64 (features,); the scale is 0 for columns that become 0. Where there is one number for all columns, which may
    be millions, they are views of that number (`numpy.broadcast_to`). If ``signed``, a is in [−1, 1], else in [0, 1];
    kinds that centre leave some values outside, to be clamped, and so does ``auto`` in some columns of sparse data.
    ``crowded`` are columns whose values use almost none of the levels, ``clamped`` those of which ``robust`` clamps
    what the loss depends on, for remarks. ``heat``, int (features,), counts the training samples that have each
    feature, if the data are sparse and their zeros stay zeros, except in `filled`. ``common`` is the scale of all
    columns that are no numbers among texts with ``none``, else 0.
    """

    kind: str
    offset: FloatArray
    scale: FloatArray
    signed: bool
    reason: str = ""
    crowded: tuple[int, ...] = ()
    clamped: tuple[int, ...] = ()
    heat: HeatArray | None = None
    common: float = 0.0

    @classmethod
    def fit(cls, features: Features, kind: str = "auto", *, planes: int = 8, farthest: float = 1.0) -> Self:
        """`fit_blocks` of samples, float (samples, features); `UserError` if a value is not finite."""
        given = _ranges(features), lambda: (features,), partial(pick_columns, features)
        return cls.fit_blocks(*given, kind, planes=planes, farthest=farthest)

    @classmethod
    def fit_blocks(
        cls,
        statistics: Statistics,
        blocks: Callable[[], Iterable[Features]],
        sample: Callable[[IntArray | None], Features],
        kind: str,
        *,
        planes: int,
        farthest: float = 1.0,
        centred: bool = False,
    ) -> Self:
        """Choose offset and scale for the columns of a training set, stored with 1 to 8 ``planes``; see README.md.

        ``statistics`` have the ranges of the samples, and ``blocks`` reads these, for kinds that centre. ``sample``
        reads those that quantiles are taken from, some columns or all, which must not depend on blocks. With
        ``centred`` ``auto`` has to centre the features, if they may be. Values far outside may matter to what is
        fitted: ranges of ``standard`` are so wide that they lose least, but at most ``farthest`` times as wide as
        usual, from 1 to infinity. Raises `UserError` if there is no such kind, or if sparse data cannot have it.
        """
        if kind not in KINDS:
            raise UserError(f"there is no scaling {kind!r}: choose one of {', '.join(KINDS)}")
        statistics.range()  # with zeros that are not stored
        statistics.low += 0.0  # −0 becomes 0
        sparse = statistics.sparse and not (centred and statistics.centrable)
        features = statistics.low.size
        nonzero, values = int(statistics.nonzero.sum()), statistics.samples * features
        if kind in CENTRED and not statistics.centrable:
            raise centring_error(kind, nonzero / values)
        if kind in CENTRED or (kind == "auto" and not sparse):
            each_block(statistics.add_sums, blocks())
        if kind in CENTRED or not sparse:
            statistics.order = order_statistics(sample(None))
        reason, others = "", statistics
        numbers: IntArray = np.empty(0, np.intp)
        if kind == "auto" and sparse and planes > 1:
            numbers, *own = cls._fit_numbers(statistics, blocks, sample, planes, farthest)
            others = statistics.without(numbers) if numbers.size else others
        clamped: tuple[int, ...] = ()
        crowded: tuple[int, ...] = ()
        if kind == "auto":
            kind, reason = _choose_sparse(others, planes, numbers) if sparse else ("standard", "the data are dense")
        if kind in CENTRED:
            half_centre, width = _centre_and_width(statistics, kind)
            reach = REACH[planes] * width
            if farthest > 1 and planes > 1:
                cheapest = _cheapest_reach(statistics, blocks, planes, farthest)
                if kind == "standard":
                    reach = np.maximum(reach, cheapest)
                else:
                    clamped = tuple(np.flatnonzero(cheapest > _LOST * reach).tolist())
            offset, scale, signed = _centred(statistics, half_centre, width, reach, planes)
        else:
            offset, scale, signed = _MAPS[kind](others, planes, bool(numbers.size))
        common = float(scale[0]) if kind == "none" else 0.0
        if numbers.size:
            offset, scale = offset.copy(), scale.copy()
            offset[numbers], scale[numbers] = own
        heat = None
        if statistics.sparse and kind in ("maxabs", "none"):
            heat = statistics.nonzero.astype(heat_type(statistics.samples), copy=False)
            heat[numbers[offset[numbers] != 0]] = statistics.samples
        order = statistics.order
        judged: np.ndarray | None = None  # all
        if order is None and heat is not None:  # of columns with few zeros
            judged = np.flatnonzero(statistics.nonzero > statistics.samples / 2)
            order = order_statistics(sample(judged)) if judged.size else None
        if order is not None and kind != "robust":
            middle = (order[3] / 2 - order[2] / 2) * (scale if judged is None else scale[judged]) * 2 / (1 + signed)
            wider = farthest if kind == "standard" or numbers.size else 1.0
            close = np.flatnonzero((middle > 0) & (middle < _CROWDED / wider))
            crowded = tuple((close if judged is None else judged[close]).tolist())
        return cls(kind, offset, scale, signed, reason, crowded, clamped, heat, common)

    @classmethod
    def _fit_numbers(
        cls,
        statistics: Statistics,
        blocks: Callable[[], Iterable[Features]],
        sample: Callable[[IntArray | None], Features],
        planes: int,
        farthest: float,
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """Columns of sparse data that are scaled as ``standard`` scales them, and their offset, 0 where zeros are many
        and stay zeros, and scale: those that are often not 0 and have more than two values or no 0, if one of few zeros
        is no word."""
        columns = np.flatnonzero(statistics.nonzero > int(_OFTEN * statistics.samples))  # of maybe millions
        if columns.size > _MANY:
            columns = columns[statistics.nonzero[columns] > statistics.samples / 2]
        columns = columns[~statistics.of(columns).constant]
        own = statistics.of(columns)
        few_zeros = own.nonzero > own.samples / 2
        if few_zeros.any():
            picked = lambda: map(partial(pick_columns, columns=columns), blocks()), lambda _: sample(columns)
            fitted = cls.fit_blocks(own, *picked, "standard", planes=planes, farthest=farthest)
            numbers = ~own.moments[2] | (own.nonzero == own.samples)
            largest, lost = own.magnitude(), own.nonzero > _MOSTLY * own.samples
            if _choose_sparse(statistics, planes, columns[:0])[0] == "maxabs":
                lost |= own.moments[1] * own.half_span < _LEAST_DEVIATION / 2 * largest
            if (numbers & few_zeros & lost).any():
                offset, scale = fitted.offset, fitted.scale
                # The range about 0 goes as far as that about the mean, or to the largest magnitude.
                wide = np.maximum(scale / (1 + np.abs(offset) * scale), reciprocal(largest / 2, largest == 0))
                scale = np.where(few_zeros, scale, np.minimum(scale, wide))
                return columns[numbers], np.where(few_zeros, offset, 0.0)[numbers], scale[numbers]
        return columns[:0], np.empty(0), np.empty(0)

    @cached_property
    def filled(self) -> IntArray:
        """Columns with few zeros of sparse data, which become other numbers than 0; all others stay 0."""
        alike = self.heat is None or self.offset.strides == (0,)  # a copy of millions of zeros would take memory
        return np.empty(0, np.intp) if alike else np.flatnonzero(self.offset)

    def moves_zeros(self, planes: int) -> bool:
        """Whether zeros become other integers in more columns than `filled`."""
        return self.heat is None and bool(quantize(self.zero, planes, self.signed).any())

    def for_samples(self, features: Features) -> Self:
        """The same scaling for other samples, with their heat; `UserError` if a value is NaN or infinite."""
        statistics = _ranges(features)
        statistics.nonzero[self.filled] = statistics.samples
        return self if self.heat is None else replace(self, heat=statistics.nonzero)

    def without_heat(self) -> Self:
        """The same for other samples: it still tells that zeros of sparse data stay zeros, but no counts."""
        return self if self.heat is None else replace(self, heat=np.broadcast_to(np.int32(0), self.scale.shape))

    def remarks(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Remarks for the user about the choice; ``names`` are those of the columns, if they have any."""
        remarks = []
        if not self.scale.any():
            remarks.append("all features are constant: only the intercept is fitted")
        elif self.heat is None and (constant := tuple(np.flatnonzero(self.scale == 0).tolist())):
            remarks.append(f"{self._named(constant, names)} are constant in the training samples, and have no effect")
        if self.clamped:
            remarks.append(
                f"with the scaling robust training clamps values far outside that this loss depends on, of "
                f"{self._named(self.clamped, names)}; predictions do not: choose the scaling auto if they are no errors"
            )
        if self.crowded:
            other = "robust if the values far outside are errors" if self.kind == "standard" else "auto"
            remedy = f"choose the scaling {other}, or try their logarithm"
            if self.heat is not None:
                remedy = "" if self.reason else "choose the scaling auto, or "  # which it was if it has a reason
                remedy += "try their logarithm"
            remarks.append(
                f"with the scaling {self.kind} half of the values of {self._named(self.crowded, names)} lie within "
                f"1/64 of the range, so that training hardly sees them differ: {remedy}"
            )
        return tuple(remarks)

    def _named(self, columns: Sequence[int], names: Sequence[str]) -> str:
        which = [f"{column + 1} ({names[column]})" if names else f"{column + 1}" for column in columns]
        return f"{len(which)} of {self.scale.size} features ({listed(which, _NAMED)})"

    def apply(self, rows: Features) -> FloatArray:
        """Scale a block of samples, (rows, features), to a dense float64 array of the same shape."""
        return scaled(to_dense(rows), self.offset, self.scale)

    def apply_stored(self, rows: Any) -> FloatArray:
        """Scale the stored values of a `csr_array`, in the order of its ``data``; all others become `zero`."""
        return scaled(rows.data, self.offset[rows.indices], self.scale[rows.indices])

    @property
    def zero(self) -> FloatArray:
        """The scaled value of a raw 0 in each column: float64 (features,), a view of one number if they are all 0."""
        if not self.offset.any():
            return np.broadcast_to(0.0, self.offset.shape)
        return scaled(np.zeros_like(self.offset), self.offset, self.scale)


def _ranges(features: Features) -> Statistics:
    return find_extremes((features,), features.shape[1], features.shape[0])


# -- what each kind makes of the statistics, and the choice of one -----------------------------------------------------

_Map = tuple[FloatArray, FloatArray, bool]
"""Offset, scale, and whether the range is signed."""


def _minmax(statistics: Statistics, planes: int, signed: bool) -> _Map:
    return statistics.low, reciprocal(statistics.half_span, statistics.constant), False


def _maxabs(statistics: Statistics, planes: int, signed: bool) -> _Map:
    scale = np.empty_like(statistics.low)
    for block in column_blocks(scale.size):
        magnitude = statistics.magnitude(block)
        half = magnitude / 2
        scale[block] = reciprocal(half, negligible(half, magnitude))
    return np.broadcast_to(0.0, scale.shape), scale, signed or bool((statistics.low < 0).any())


def _raw(statistics: Statistics, planes: int, signed: bool) -> _Map:
    """The scale is such that a step of an integer is 2^k / 2^f, with f fraction bits."""
    signed = signed or bool((statistics.low < 0).any())
    largest = float(max(-statistics.low.min(), statistics.high.max()))
    part, exponent = np.frexp(largest)
    fraction = planes - signed
    if part * 2.0**fraction >= 2**fraction - 0.5 and fraction:
        exponent += 1  # the largest magnitude would be rounded up to 2^f, which is one too many
    scale = np.ldexp(2.0**fraction / steps(planes, signed), -exponent) if largest > SMALLEST_SPAN else 0.0
    shape = statistics.low.shape
    return np.broadcast_to(0.0, shape), np.broadcast_to(np.float64(scale), shape), signed


def _centre_and_width(statistics: Statistics, kind: str) -> tuple[FloatArray, FloatArray]:
    """Half the centres, and the widths in units of the spans: means and deviations, or with ``robust`` medians and what
    quantiles tell, unless these coincide."""
    assert statistics.order is not None
    mean, deviation, _ = statistics.moments
    half_mean = statistics.low / 2 + statistics.half_span * mean
    if kind == "standard":
        return half_mean, deviation
    width, half_median = statistics.quantile_width(), statistics.order[0] / 4 + statistics.order[1] / 4
    return np.where(width > 0, half_median, half_mean), np.where(width > 0, width, deviation)


def _cheapest_reach(
    statistics: Statistics, blocks: Callable[[], Iterable[Features]], planes: int, farthest: float
) -> FloatArray:
    """How far ranges about the means lose least, where that is farther than `REACH` deviations, but at most
    ``farthest`` times as far as these, else 0: float64 (features,), in units of the spans."""
    mean, deviation, _ = statistics.moments
    usual, reach = REACH[planes] * deviation, np.zeros_like(mean)
    tails = Tails(statistics, mean, usual)
    each_block(tails.add, blocks())
    cheapest = tails.cheapest_reach(statistics.samples, steps(planes, True))
    reach[tails.columns] = np.minimum(cheapest, farthest * usual[tails.columns])
    return reach


def _centred(
    statistics: Statistics, half_centre: FloatArray, width: FloatArray, reach: FloatArray, planes: int
) -> _Map:
    """Map the centre to 0 and the reach on either side, in units of the spans as the width is, to ±1.

    If most values of a column are the same, all others may be many widths away, and clamping would change all of them.
    Then the range has at least the quantiles 1 % and 99 %, or all values where those coincide too or `_REACH_ALIKE`
    allows it.
    """
    assert statistics.order is not None
    half, signed = statistics.half_span, planes > 1
    quarter, three_quarters, *_, least, most = statistics.order[2:]
    alike = quarter == three_quarters
    least, most = np.where(least == most, (statistics.low, statistics.high), (least, most))
    if not signed:
        half_centre = np.where(alike, least / 4 + most / 4, half_centre)
        reach = np.where(alike, 0.0, reach)

    def distance(low: FloatArray, high: FloatArray) -> FloatArray:
        farther = np.maximum(high / 2 - half_centre, half_centre - low / 2)
        return farther * (2 * reciprocal(half, statistics.constant))

    wider = np.minimum(distance(statistics.low, statistics.high), _REACH_ALIKE[planes] * width)
    reach = np.where(alike, np.maximum(reach, np.maximum(distance(least, most), wider)), reach)
    with np.errstate(over="ignore"):
        unused = statistics.constant | (reach * half <= SMALLEST_SPAN / 2)
    scale = reciprocal(half, unused) / np.where(unused, 1.0, reach)
    offset = half_centre
    if not signed:
        scale /= 2
        offset = half_centre - reach * half
    two_valued, lower, upper = _levels_of_two(statistics, planes)
    apart = np.maximum(upper - lower, 1.0)
    scale = np.where(two_valued, reciprocal(half, unused) * (apart / steps(planes, signed)), scale)
    offset = np.where(two_valued, statistics.low / 2 - lower / apart * half, offset)
    greatest = np.finfo(np.float64).max / 2
    return 2 * np.clip(offset, -greatest, greatest), scale, signed


def _levels_of_two(statistics: Statistics, planes: int) -> tuple[Any, FloatArray, FloatArray]:
    """Which columns have two values, bool (features,), and the integers that these become, which are never clamped:
    float64 (features,) each."""
    mean, deviation, two_valued = statistics.moments
    if planes == 1:
        return two_valued, np.zeros_like(mean), np.ones_like(mean)
    one = steps(planes, True)
    per_span = one / (REACH[planes] * np.where(two_valued, deviation, 1.0))
    lower, upper = (np.clip(np.floor((end - mean) * per_span + 0.5), -one, one) for end in (0, 1))
    return two_valued, lower, upper


_MAPS = {"minmax": _minmax, "maxabs": _maxabs, "none": _raw}


def _choose_sparse(statistics: Statistics, planes: int, numbers: IntArray) -> tuple[str, str]:
    _, scale, signed = _raw(statistics, planes, bool(numbers.size))
    some = "1 feature is" if numbers.size == 1 else f"{numbers.size} features are"
    but = f"; {some} scaled as in dense data" if numbers.size else ""
    kept = 0
    for block in column_blocks(scale.size):
        enough = statistics.magnitude(block) * scale[block] * steps(planes, signed) >= _KEPT_LEVELS
        kept += int(statistics.nonzero[block].sum(where=enough))
    if kept / max(1, int(statistics.nonzero.sum())) >= _KEPT_PART:
        return "none", f"the data are sparse, with values of comparable size{but}"
    return "maxabs", f"the data are sparse, with values of different sizes{but}"
