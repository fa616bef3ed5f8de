"""Mini-batches of workers, dense or sparse: `Model`, and the loss between its passes.

A mini-batch is ``forward(samples)``, whose sums are added up over all models of the job, then
``backward(samples, sums)``. Both may take it in parts, and with staleness the next forward pass comes first.
`Model.train` does the same where a model has all columns of the job: many mini-batches in a call of compiled loops.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.fixed import (
    FACTOR,
    IMPORTANCE,
    LABEL,
    MARGIN,
    RESIDUAL,
    SLOPE,
    EngineWeights,
    IntArray,
    WeightArray,
)
from p4sgd.hw.spec.run import VALUE_FRACTION, FeatureFormat, LabelMode, LossTable, RunSettings
from p4sgd.sim import parallel
from p4sgd.sim.compiled import compiled
from p4sgd.sim.intrinsics import load_unaliased, store_unaliased
from p4sgd.sim.parallel import barrier

# Constants for the compiler, from the formats.
_MARGIN_LOW, _MARGIN_HIGH = MARGIN.minimum, MARGIN.maximum
_RESIDUAL_LOW, _RESIDUAL_HIGH = RESIDUAL.minimum, RESIDUAL.maximum
_SLOPE_FRACTION = SLOPE.fraction
_LABEL_SHIFT = VALUE_FRACTION - LABEL.fraction
_RESIDUAL_SHIFT = VALUE_FRACTION - RESIDUAL.fraction
_RESIDUAL_HALF = (1 << _RESIDUAL_SHIFT) >> 1
_FACTOR_SHIFT, _DELTA_SHIFT = IMPORTANCE.fraction - FACTOR.fraction, FACTOR.fraction
_FACTOR_HALF, _DELTA_HALF = (1 << _FACTOR_SHIFT) >> 1, (1 << _DELTA_SHIFT) >> 1


class Features(ABC):
    """Features of some workers, all dense or all sparse."""

    samples: int  # padding included
    form: FeatureFormat
    count: int  # columns
    origin: object = None  # the sources; see `p4sgd.sim.features.shared_features`

    def part(self, samples: int, times: int = 1) -> "Features":
        """The first samples only, whole micro-batches, kept; or all, if they are kept anyway. Of dense features these
        samples may be repeated so many ``times``."""
        return self

    def activations(self, weights: Sequence[EngineWeights]) -> IntArray:
        """Exact dot products of all samples with the weights of each worker, summed: int64 (samples,)."""
        return self.dots(self.flatten(weights), slice(0, self.samples))

    def entries(self, samples: slice) -> int:
        """Number of values of some whole micro-batches: all, or if they are sparse those that are not 0."""
        return int(self.count * (samples.stop - samples.start))

    @abstractmethod
    def flatten(self, weights: Sequence[EngineWeights]) -> npt.NDArray[Any]:
        """Weights of the columns, (columns,), from those of each worker."""

    @abstractmethod
    def dots(self, weights: npt.NDArray[Any], samples: slice) -> IntArray:
        """Exact dot products of whole micro-batches with weights of columns, summed over workers: int64 (samples,)."""


@dataclass(frozen=True)
class Targets:
    """Labels and loss of a run."""

    labels: IntArray  # int64 (samples,)
    importances: IntArray  # weights of the samples, int64, as many, or none if the run is not ``weighted``
    table: LossTable

    def balance(self, mode: LabelMode, sums: IntArray, weights: npt.NDArray[np.float64] | None, place: int) -> int:
        """By how much all sums of the samples, int64 (samples,), are to be raised for the residuals, each times the
        weight of its sample if they have any, to add up to 0, or no longer to less: there the loss is smallest. Looked
        for from ``place`` on, within ±1024, and nearly there if sums of weights are rounded, or residuals saturated: a
        place from which to search, not a result. ``importances`` do not matter."""
        own, roles = np.ones(sums.size) if weights is None else weights, (mode.sign, mode.offset, mode.constant)
        scratch = np.empty((2, sums.size), np.int64)
        found: int = _balance(sums, self.labels, own, self.importances[:0], self.lines, roles, place, *scratch)
        return found

    @property
    def lines(self) -> tuple[Any, ...]:
        """The loss table for the loops."""
        return self.table.shift, self.table.slope, self.table.intercept


class Batches(NamedTuple):
    """Mini-batches for the loops: labels and importances as in `Targets`, limits and flags as in `Model`."""

    labels: IntArray
    importances: IntArray
    table: tuple[Any, ...]  # shift, slopes and intercepts of the loss table
    mode: tuple[bool, bool, bool]  # how labels enter: `LabelMode`
    mantissa: int  # mantissa of the learning rate
    limits: IntArray
    clamped: npt.NDArray[np.bool_]
    saturated: npt.NDArray[np.bool_]


class Team(NamedTuple):
    """Threads that do mini-batches together, each with some of the units: they exchange sums, as workers do."""

    thread: int
    arrivals: IntArray  # see `p4sgd.sim.parallel.barrier`
    totals: IntArray  # int64 (2, threads, workers, B), shared by all: sums of a mini-batch, and of the next one
    sums: IntArray  # int64 (B,), of this thread
    deltas: npt.NDArray[Any]  # int64 or float64 (B,), of this thread


class Model(ABC):
    """Weights of workers during a run, which begins with its first mini-batch.

    ``limits``, int64 (workers,), are the largest magnitudes of each worker's partial activation; (1,) if all are one
    worker. Attributes are flags: ``clamped`` and ``saturated``, (workers,), tell whether a partial of a worker was
    clamped and whether a weight was saturated, ``residual_saturated`` whether a residual or its argument was.
    """

    _delta_type: Any = np.int64

    def __init__(self, settings: RunSettings, targets: Targets, limits: IntArray) -> None:
        self._settings, self._limits, self._targets = settings, limits, targets
        self.clamped, self.saturated = np.zeros(limits.size, np.bool_), np.zeros(limits.size, np.bool_)
        self.residual_saturated = False
        self._under_way = 0
        """Mini-batches that have begun with a forward pass and not ended."""

    def forward(self, samples: slice) -> IntArray:
        """Sums of the workers' partial activations of whole micro-batches of a mini-batch: int64 (samples,).

        With staleness this may be the mini-batch after the one whose backward passes come next.
        """
        count = samples.stop - samples.start
        totals, sums = np.empty((1, self._limits.size, count), np.int64), np.empty(count, np.int64)
        self.skip(samples)
        self._forward(samples, totals[0])
        _add_partials(totals, self._limits, self.clamped, sums)
        return sums

    def skip(self, samples: slice) -> None:
        """Take the place of `forward` where nobody needs its sums."""
        self._under_way += samples.start % self._settings.batch == 0
        self._begin(samples)

    def backward(self, samples: slice, sums: IntArray) -> None:
        """Loss, gradients and Round 3 from the job's sums, int64 (samples,); at the end of a mini-batch penalties.

        Takes the same samples as `forward`, in the same order, after all forward passes of a mini-batch.
        """
        self._backward(samples, self._deltas(samples, sums))
        if samples.stop % self._settings.batch == 0:
            self._regularize()
            self._under_way -= 1

    def train(self, samples: slice) -> None:
        """Do whole mini-batches of workers that are all of the job's. Between calls of the loops Ctrl-C acts."""
        batch, first = self._settings.batch, samples.start
        while first < samples.stop:
            end = min(samples.stop, first + batch * self._mini_batches_at_once())
            self._train(slice(first, end))
            first = end

    @abstractmethod
    def dots(self, samples: slice) -> IntArray:
        """Exact dot products with the present weights, summed over the workers: int64 (samples,)."""

    @abstractmethod
    def values(self, *, last: bool = False) -> list[WeightArray]:
        """The present weights of each worker, int32 (engines, chunks · lanes); ``last`` if the run ends with them."""

    @abstractmethod
    def sizes(self) -> IntArray:
        """`sizes_of` of the present weights, without those that have no penalties; of weights that began with 0."""

    @abstractmethod
    def _begin(self, samples: slice) -> None:
        """What comes before both passes."""

    @abstractmethod
    def _forward(self, samples: slice, totals: IntArray) -> None:
        """Each worker's sums, (workers, samples)."""

    @abstractmethod
    def _backward(self, samples: slice, deltas: IntArray) -> None:
        """Gradients and Round 3."""

    @abstractmethod
    def _regularize(self) -> None:
        """Penalties at the end of a mini-batch."""

    @abstractmethod
    def _mini_batches_at_once(self) -> int:
        """For the next call of the loops."""

    @abstractmethod
    def _most_threads(self, samples: slice) -> int:
        """Number of threads for which the mini-batches of some samples are enough."""

    @abstractmethod
    def _share(self, samples: slice, batches: Batches, threads: int) -> Callable[[Team], bool]:
        """The part of each of so many threads in mini-batches; it returns whether a residual was saturated."""

    def _train(self, samples: slice) -> None:
        """Do mini-batches in one call of the loops."""
        batch = self._settings.batch
        threads = max(1, min(parallel.THREADS, self._most_threads(samples)))
        arrivals = parallel.barrier_of(threads)
        totals = np.empty((2, threads, self._limits.size, batch), np.int64)
        share = self._share(samples, self._batches(samples), threads)

        def part(thread: int) -> None:
            team = Team(thread, arrivals, totals, np.empty(batch, np.int64), np.empty(batch, self._delta_type))
            if share(team):
                self.residual_saturated = True

        parallel.in_threads(part, threads, arrivals)

    def _batches(self, samples: slice) -> Batches:
        targets, mode = self._targets, self._settings.label_mode
        return Batches(
            targets.labels[samples],
            targets.importances[samples],
            targets.lines,
            (mode.sign, mode.offset, mode.constant),
            self._settings.rate_mantissa,
            self._limits,
            self.clamped,
            self.saturated,
        )

    def _deltas(self, samples: slice, sums: IntArray) -> IntArray:
        """δ of some samples, int64 (samples,)."""
        batches, result = self._batches(samples), np.empty(sums.size, np.int64)
        if _deltas_of(sums, batches.labels, batches.importances, batches.table, batches.mode, batches.mantissa, result):
            self.residual_saturated = True
        return result


HALF = 32
"""Bits of a square that are added up by themselves, so that sums fit 64 bits."""


def sizes_of(weights: npt.NDArray[Any], exempt: npt.NDArray[np.intp] | slice = slice(0)) -> IntArray:
    """Sums of the magnitudes, and of the high and the low halves of the squares, of `WEIGHT` integers, without some of
    them: int64 (3,), exact and so in any order."""
    sums = np.zeros(3, np.int64)
    _add_sizes(weights, 1, sums)
    _add_sizes(weights[exempt], -1, sums)
    return sums


@compiled("the emulator's loops", nogil=True)
def _add_sizes(weights: Any, sign: int, sums: Any) -> None:
    for place in range(weights.size):
        magnitude = abs(np.int64(weights[place]))
        square = magnitude * magnitude
        sums[0] += sign * magnitude
        sums[1] += sign * (square >> HALF)
        sums[2] += sign * (square & ((1 << HALF) - 1))


@compiled("the emulator's loops", nogil=True, forceinline=True)
def next_deltas(team: Any, batches: Any, number: int) -> bool:
    """Sums and δ of mini-batch ``number``, when all threads have their part of its sums in `Team.totals`.

    Returns whether a residual or its argument was saturated.
    """
    if team.totals.shape[1] > 1:
        barrier(team.arrivals, team.thread, number + 1)
    _add_partials(team.totals[number % 2], batches.limits, batches.clamped, team.sums)
    rows = slice(number * team.sums.size, (number + 1) * team.sums.size)
    labels, importances = batches.labels[rows], batches.importances[rows]
    saturated: bool = _deltas_of(
        team.sums, labels, importances, batches.table, batches.mode, batches.mantissa, team.deltas
    )
    return saturated


@compiled("the emulator's loops", nogil=True, forceinline=True)
def _add_partials(totals: Any, limits: Any, clamped: Any, sums: Any) -> None:
    """Clamp the workers' partial activations, and add them up: `golden.partial` and `golden.all_reduce`.

    ``totals`` are int64 (threads, workers, samples), of which the sum over the threads is a worker's partial.
    """
    for row in range(sums.size):
        sums[row] = 0
        for worker in range(limits.size):
            total, limit = np.int64(0), limits[worker]
            for thread in range(totals.shape[0]):
                total += totals[thread, worker, row]
            if total > limit or total < -limit:
                clamped[worker] = True
                total = limit if total > limit else -limit
            sums[row] += total


@compiled("the emulator's loops", nogil=True, forceinline=True)
def _deltas_of(sums: Any, labels: Any, importances: Any, table: Any, mode: Any, mantissa: int, deltas: Any) -> bool:
    """Round 2, as `golden.residual` and `golden.delta`; returns whether a margin or a residual was saturated.

    ``deltas``, int64 or float64 (samples,), must share no memory with the other arrays.
    """
    shift, slope, intercept = table
    sign, offset, constant = mode
    saturated = False
    for row in range(np.uint64(sums.size)):  # an index that may be negative would keep the compiler from using vectors
        y = load_unaliased(labels, row)
        factor = -1 if sign and y < 0 else 1
        x = factor * load_unaliased(sums, row) - (y if offset else 0)
        margin = min(max(x, _MARGIN_LOW), _MARGIN_HIGH)
        segment = np.uint64(min(max((margin >> shift) + slope.size // 2, 0), slope.size - 1))
        value = factor * (
            load_unaliased(slope, segment) * margin + (load_unaliased(intercept, segment) << _SLOPE_FRACTION)
        )
        value -= (y if constant else 0) << _LABEL_SHIFT
        rounded = (value + _RESIDUAL_HALF) >> _RESIDUAL_SHIFT
        residual = min(max(rounded, _RESIDUAL_LOW), _RESIDUAL_HIGH)
        saturated |= margin != x or residual != rounded
        if importances.size:
            factor = (load_unaliased(importances, row) * mantissa + _FACTOR_HALF) >> _FACTOR_SHIFT
            store_unaliased(deltas, row, (residual * factor + _DELTA_HALF) >> _DELTA_SHIFT)
        else:
            store_unaliased(deltas, row, residual * mantissa)
    return saturated


_FARTHEST, _NEAR = MARGIN.maximum, 1 << 8
"""The farthest that sums are raised, and by how much they are in a first step."""


@compiled("the emulator's loops", nogil=True, fastmath={"reassoc"})
def _balance(
    sums: Any, labels: Any, weights: Any, none: Any, table: Any, mode: Any, place: int, raised: Any, residuals: Any
) -> int:
    """See `Targets.balance`: by secants, every fourth time by halves because of jumps. Scratch space: ``raised`` and
    ``residuals``, int64 (samples,); ``none`` are importances.

    The order of the sum is the compiler's, which is quicker and may differ by processor: use what is found only as the
    beginning of an exact search."""
    low, high, step, trial, last, before = -_FARTHEST, _FARTHEST, _NEAR, 0, 0, 0.0
    while True:
        for row in range(sums.size):
            raised[row] = sums[row] + place
        _deltas_of(raised, labels, none, table, mode, 1, residuals)
        total = 0.0
        for row in range(sums.size):
            total += weights[row] * residuals[row]
        low, high = (low, place) if total >= 0 else (place, high)
        if total == 0 or high - low <= 1:
            return place if total == 0 else high
        bounded = low > -_FARTHEST and high < _FARTHEST
        wanted = (low + high) // 2 if bounded else place - step if total >= 0 else place + step
        if trial % 4 and total != before and (total > before) == (place > last):
            root = place - math.floor(total * (place - last) / (total - before))
            wanted = root if bounded else min(max(root, place - step), place + step)
        step, trial, last, before = step if bounded else 4 * step, trial + 1, place, total
        place = min(max(wanted, low + 1), high - 1)
