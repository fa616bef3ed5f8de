"""Forward and backward passes on decoded features, penalties, and the loop that trains, compiled.

`train` does many mini-batches of all workers of a process in one call, because with few features calls take longer than
the arithmetic. It takes the features of all workers side by side: ``features`` is uint8 (samples, n),
C-contiguous, with signed features q as q + 2^(P-1) (`p4sgd.sim.dense.lines.offset`). Unit i of the job's units in this
process is the columns ``units[i]`` to ``units[i + 1]``, at most 64, and worker i has the units ``workers[i]`` to
``workers[i + 1]``; both are int64. Weights are float64 (n,), integers; those of the columns ``exempt``, int64, have no
penalties.

Sums use float64 where it is exact, that is, where every partial sum is an integer below 2^53 in magnitude:

- gradients always: a sum of 8 products of a 32-bit δ and an 8-bit feature stays below 2^43;
- updates always: the largest intermediate is weight · shrink, below 2^49;
- dot products of units always: a sum of 64 products of a 32-bit weight and an 8-bit feature stays below 2^46.

Exact sums do not depend on the order of addition, so the compiler may vectorise them.
"""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT, ByteArray, IntArray
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim.compiled import compiled
from p4sgd.sim.dense.lines import offset
from p4sgd.sim.intrinsics import prefetch
from p4sgd.sim.loss import add_partials, deltas_of
from p4sgd.sim.parallel import meet

__all__ = ["FloatArray", "backward", "penalties_of", "regularize", "totals", "train"]

FloatArray = npt.NDArray[np.float64]

# Constants for the compiler, from the formats.
_WEIGHT_LOW, _WEIGHT_HIGH = float(WEIGHT.minimum), float(WEIGHT.maximum)

_SUMS = {"reassoc", "contract", "nsz"}

_AHEAD = 8
"""How many rows ahead to prefetch. The processor itself looks no farther than the end of a row, and a thread reads only
a part of each."""

_NONE = np.empty(0, np.int64)

_compiled = functools.partial(compiled, "the emulator's loops")


def totals(
    features: ByteArray,
    first: int,
    layout: tuple[IntArray, IntArray],
    form: FeatureFormat,
    shift: int,
    weights: FloatArray,
    sums: IntArray,
) -> None:
    """Forward pass of some samples, rounded: each worker's sums.

    Parameters
    ----------
    features, weights
        See the module.
    first
        First sample.
    layout
        ``units`` and ``workers``, see the module.
    form
        Format of the features.
    shift
        The dot product of a unit is divided by ``2**shift``.
    sums
        int64 (workers, samples), which get the sums.
    """
    (units, workers), count = layout, layout[0].size - 1
    addends = np.empty(count, np.int64)
    _totals(features, first, units, workers, (0, count), offset(form), shift, weights, addends, sums)


def backward(
    features: ByteArray,
    first: int,
    columns: tuple[int, int],
    deltas: IntArray,
    form: FeatureFormat,
    gradient_shift: int,
    weights: FloatArray,
) -> bool:
    """Gradients and Round 3 of all micro-batches of a mini-batch, in order; returns whether any weight saturated.

    Parameters
    ----------
    features, weights
        See the module; weights are updated in place.
    first
        First sample.
    columns
        First column, and the one after the last.
    deltas
        int64 (B,).
    form
        Format of the features.
    gradient_shift
        Right shift of Round 3.
    """
    scale = 2.0**-gradient_shift
    return bool(_descend(features, first, *columns, deltas.astype(np.float64), float(offset(form)), scale, weights))


def penalties_of(settings: RunSettings) -> tuple[float, float]:
    """L2 and L1 penalties as the loops take them: the fraction of a weight, and the integer, that it loses."""
    return settings.shrink * 2.0**-SHRINK.fraction, float(settings.threshold)


def regularize(weights: FloatArray, penalties: tuple[float, float], exempt: IntArray = _NONE) -> None:
    """L2 shrinkage and L1 soft thresholding, by `penalties_of`, of weights, float64 (n,), in place.

    Those at the places ``exempt``, int64 (few,), stay as they are.
    """
    if any(penalties):
        kept = weights[exempt]
        _penalise(weights, *penalties)
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
def train(
    thread: int,
    arrivals: Any,
    totals: Any,
    scratch: Any,
    features: Any,
    labels: Any,
    importances: Any,
    layout: Any,
    form: Any,
    limits: Any,
    loss: Any,
    rate: Any,
    penalties: Any,
    exempt: Any,
    stale: bool,
    weights: Any,
    read: Any,
    others: Any,
    clamped: Any,
    saturated: Any,
) -> bool:
    """Do mini-batches, as one of several threads, each with some of the units: they exchange sums, as workers do.

    Parameters
    ----------
    thread, arrivals
        Number of this thread, and where threads `meet`.
    totals
        int64 (2, threads, workers, B), shared by all: sums of a mini-batch, and of the next one.
    scratch
        Space of this thread: sums, int64 (B,), δ, float64 (B,), int64 (units,), and the weights of exempt columns.
    features, labels, importances
        Of whole mini-batches: see the module; int64 (samples,), no importances if the run is not ``weighted``.
    layout
        ``units`` and ``workers``, see the module.
    form
        The `offset` of features, and the shift of Round 1.
    limits, clamped, saturated
        See `p4sgd.sim.model.Model`.
    loss, rate
        `p4sgd.sim.loss.loss_of`, and the mantissa of the rate with the scale of Round 3.
    penalties, exempt
        `penalties_of`, and the columns that have none.
    stale
        Whether ``read``, the weights that forward passes read, are those before the last update; else they are the same
        array as ``weights``.
    others
        float64: weights that no sample has a feature for, which penalties change.

    Returns
    -------
    Whether a residual or its argument was saturated.
    """
    sums, deltas, addends, kept = scratch
    units, workers = layout
    offset, shift = form
    mantissa, scale = rate
    shrink, threshold = penalties
    threads, batch = totals.shape[1], totals.shape[3]
    count = units.size - 1
    own = count * thread // threads, count * (thread + 1) // threads
    left, right = units[own[0]], units[own[1]]
    residual_saturated = False
    for mini_batch in range(labels.size // batch):
        first = mini_batch * batch
        # A thread may begin the next mini-batch while others still read the sums of this one.
        parts = totals[mini_batch % 2]
        _totals(features, first, units, workers, own, offset, shift, read, addends, parts[thread])
        if threads > 1:
            meet(arrivals, thread, mini_batch + 1)
        add_partials(parts, limits, clamped, sums)
        rows = slice(first, first + batch)
        residual_saturated |= deltas_of(sums, labels[rows], importances[rows], loss, mantissa, deltas)
        if stale:
            for j in range(left, right):  # an assignment of slices takes 2 seconds to compile, for its error's text
                read[j] = weights[j]
        for worker in range(limits.size):
            begin, end = max(own[0], workers[worker]), min(own[1], workers[worker + 1])
            if begin < end:
                full = _descend(features, first, units[begin], units[end], deltas, float(offset), scale, weights)
                if full:
                    saturated[worker] = True
        if shrink or threshold:
            for number in range(exempt.size):
                kept[number] = weights[exempt[number]]
            _penalise(weights[left:right], shrink, threshold)
            for number in range(exempt.size):
                if left <= exempt[number] < right:
                    weights[exempt[number]] = kept[number]
            if thread == 0:
                _penalise(others, shrink, threshold)
    return residual_saturated
