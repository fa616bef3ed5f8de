"""Forward and backward passes on decoded features, penalties, and the loop that trains, compiled.

``features`` is uint8 (samples, n), C-contiguous: those of all workers of a process side by side, signed ones q as
q + 2^(P-1) (`offset`). Unit i of the process is the columns ``units[i]`` to ``units[i + 1]``, at most 64, and worker i
has the units ``workers[i]`` to ``workers[i + 1]``; both are int64. Weights are float64 (n,), integers.

Sums use float64, because all are integers below 2^53 in magnitude and so exact in any order: of a gradient, 8 products
of a 32-bit δ and an 8-bit feature, 2^43; of a unit's dot product, 64 products of a 32-bit weight and such a feature,
2^46; the largest intermediate of an update is weight · shrink, 2^49.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import WEIGHT, ByteArray, IntArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.compiled import compiled
from p4sgd.sim.intrinsics import prefetch
from p4sgd.sim.model import next_deltas

FloatArray = npt.NDArray[np.float64]

# Constants for the compiler, from the formats.
_WEIGHT_LOW, _WEIGHT_HIGH = float(WEIGHT.minimum), float(WEIGHT.maximum)

_SUMS = {"reassoc", "contract", "nsz"}

_AHEAD = 8
"""How many rows ahead to prefetch. The processor itself looks no farther than the end of a row, and a thread reads only
a part of each."""

_NONE = np.empty(0, np.int64)

_compiled = functools.partial(compiled, "the emulator's loops")


class DenseRun(NamedTuple):
    """Layout and numbers of a run for the loops."""

    units: IntArray
    workers: IntArray
    offset: int
    shift: int  # right shift of Round 1
    scale: float  # 2^-shift of Round 3
    shrink: float  # fraction that L2 takes of a weight
    threshold: float  # integer that L1 takes of a weight
    exempt: IntArray  # columns without penalties
    stale: bool


class DenseWeights(NamedTuple):
    """Weights during a run; each thread changes its own columns."""

    weights: FloatArray
    read: FloatArray
    """Those that forward passes read: the same array, or with staleness the weights before the last update."""
    others: FloatArray  # weights that no sample has a feature for, which penalties change


def offset(form: FeatureFormat) -> int:
    """What is added to signed features: 2^(P-1), by inverting their sign bit."""
    return 1 << (form.precision - 1) if form.signed else 0


def totals(
    features: ByteArray,
    first: int,
    layout: tuple[IntArray, IntArray],
    form: FeatureFormat,
    shift: int,
    weights: FloatArray,
    sums: IntArray,
) -> None:
    """Forward pass from sample ``first`` on, Round 1 with ``shift``: each worker's sums, int64 (workers, samples)."""
    (units, workers), count = layout, layout[0].size - 1
    addends = np.empty(count, np.int64)
    _totals(features, first, units, workers, (0, count), offset(form), shift, weights, addends, sums)


def backward(features: ByteArray, first: int, columns: slice, deltas: IntArray, run: DenseRun, w: FloatArray) -> bool:
    """Gradients and Round 3 of the micro-batches from sample ``first`` on, in order; returns whether one saturated."""
    own = columns.start, columns.stop
    return bool(_descend(features, first, *own, deltas.astype(np.float64), float(run.offset), run.scale, w))


def regularize(weights: FloatArray, run: DenseRun, exempt: IntArray = _NONE) -> None:
    """L2 shrinkage and L1 soft thresholding of weights in place, but for those at the indices ``exempt``."""
    if run.shrink or run.threshold:
        kept = weights[exempt]
        _penalise(weights, run.shrink, run.threshold)
        weights[exempt] = kept


@_compiled(nogil=True, fastmath=_SUMS)
def _dot(features: Any, weights: Any) -> float:
    """The exact dot product of a unit, without the rounding of Round 1."""
    total = 0.0
    for j in range(weights.shape[0]):
        total += np.float64(features[j]) * weights[j]
    return total


@_compiled(nogil=True)
def _totals(
    features: Any,
    first: int,
    units: Any,
    workers: Any,
    own: Any,
    offset: int,
    shift: int,
    weights: Any,
    addends: Any,
    totals: Any,
) -> None:
    """Forward pass of the units from ``own[0]`` to ``own[1]``: their part of each worker's sum, (workers, samples).

    ``addends`` is scratch space, int64 (units,).
    """
    half = np.int64((1 << shift) >> 1)  # an addend is half a step, less what the offset adds to its unit
    for unit in range(own[0], own[1]):
        addends[unit] = half
        if offset:
            for weight in weights[units[unit] : units[unit + 1]]:
                addends[unit] -= offset * np.int64(weight)
    for row in range(totals.shape[1]):
        for worker in range(totals.shape[0]):
            total = np.int64(0)
            for unit in range(max(own[0], workers[worker]), min(own[1], workers[worker + 1])):
                begin, end = units[unit], units[unit + 1]
                prefetch(features, min(first + row + _AHEAD, features.shape[0] - 1), begin)
                exact = np.int64(_dot(features[first + row, begin:end], weights[begin:end]))
                total += (exact + addends[unit]) >> shift
            totals[worker, row] = total


@_compiled(nogil=True, fastmath=_SUMS)
def _descend(
    features: Any, first: int, begin: int, end: int, deltas: Any, offset: float, scale: float, weights: Any
) -> bool:
    """Gradients and Round 3 of the micro-batches of a mini-batch, for the columns from ``begin`` to ``end``."""
    saturated = False
    block = 2048  # weights that stay in the first-level cache
    for left in range(begin, end, block):
        right = min(left + block, end)
        part = weights[left:right]
        for micro_batch in range(deltas.size // BANKS):
            row = BANKS * micro_batch
            d0, d1, d2, d3 = deltas[row], deltas[row + 1], deltas[row + 2], deltas[row + 3]
            d4, d5, d6, d7 = deltas[row + 4], deltas[row + 5], deltas[row + 6], deltas[row + 7]
            start = -offset * (d0 + d1 + d2 + d3 + d4 + d5 + d6 + d7)
            row += first
            # Slices of rows, because with an index that may be negative the compiler uses no vectors.
            f0, f1, f2 = features[row, left:right], features[row + 1, left:right], features[row + 2, left:right]
            f3, f4, f5 = features[row + 3, left:right], features[row + 4, left:right], features[row + 5, left:right]
            f6, f7 = features[row + 6, left:right], features[row + 7, left:right]
            for j in range(part.size):
                gradient = (
                    start
                    + d0 * np.float64(f0[j])
                    + d1 * np.float64(f1[j])
                    + d2 * np.float64(f2[j])
                    + d3 * np.float64(f3[j])
                    + d4 * np.float64(f4[j])
                    + d5 * np.float64(f5[j])
                    + d6 * np.float64(f6[j])
                    + d7 * np.float64(f7[j])
                )
                moved = part[j] - np.floor(gradient * scale + 0.5)
                # min and max would heed NaN, which keeps the compiler from using vectors.
                clipped = _WEIGHT_LOW if moved < _WEIGHT_LOW else moved
                clipped = _WEIGHT_HIGH if clipped > _WEIGHT_HIGH else clipped
                saturated |= clipped != moved
                part[j] = clipped
    return saturated


@_compiled(nogil=True)
def _penalise(weights: Any, shrink: float, threshold: float) -> None:
    """L2 shrinkage and L1 soft thresholding of weights, float64 (n,), in place."""
    for j in range(weights.size):
        weight = weights[j]
        shrunk = weight - np.floor(weight * shrink + 0.5)
        # min and max would heed NaN, which keeps the compiler from using vectors.
        lower, upper = shrunk - threshold, shrunk + threshold
        weights[j] = lower if lower > 0.0 else (upper if upper < 0.0 else 0.0)


@_compiled(nogil=True)
def train(team: Any, batches: Any, run: Any, features: Any, state: Any, addends: Any, kept: Any) -> bool:
    """Do mini-batches as one thread of a `Team`; returns whether a residual or its argument was saturated.

    ``features`` are those of `Batches`. Scratch space: ``addends``, int64 (units,), and ``kept``, float64 (exempt
    columns,).
    """
    units, workers, weights, read = run.units, run.workers, state.weights, state.read
    threads, batch, count = team.totals.shape[1], team.sums.size, units.size - 1
    own = count * team.thread // threads, count * (team.thread + 1) // threads
    left, right = units[own[0]], units[own[1]]
    residual_saturated = False
    for mini_batch in range(batches.labels.size // batch):
        first = mini_batch * batch
        # A thread may begin the next mini-batch while others still read the sums of this one.
        partials = team.totals[mini_batch % 2, team.thread]
        _totals(features, first, units, workers, own, run.offset, run.shift, read, addends, partials)
        residual_saturated |= next_deltas(team, batches, mini_batch)
        if run.stale:
            for j in range(left, right):  # an assignment of slices takes 2 seconds to compile, for its error's text
                read[j] = weights[j]
        for worker in range(batches.limits.size):
            begin, end = units[max(own[0], workers[worker])], units[min(own[1], workers[worker + 1])]
            if begin < end and _descend(
                features, first, begin, end, team.deltas, float(run.offset), run.scale, weights
            ):
                batches.saturated[worker] = True
        if run.shrink or run.threshold:
            for number in range(run.exempt.size):
                kept[number] = weights[run.exempt[number]]
            _penalise(weights[left:right], run.shrink, run.threshold)
            for number in range(run.exempt.size):
                if left <= run.exempt[number] < right:
                    weights[run.exempt[number]] = kept[number]
            if team.thread == 0:
                _penalise(state.others, run.shrink, run.threshold)
    return residual_saturated
