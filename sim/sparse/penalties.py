"""L2 and L1 penalties of sparse workers, which change all weights after every mini-batch, exactly.

Weights of the first, hot columns of each worker get them at once (`penalise`). Weights of rarely seen columns catch up
when they are needed next, many steps at a time, because most steps subtract the same. The number of hot columns
affects the time only.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.fixed import SHRINK, IntArray, WeightArray
from p4sgd.sim.compiled import compiled
from p4sgd.sim.intrinsics import LANES, shrink_lanes

_STEP_TIME, _CATCH_UP_TIME, _CHANGE_TIME = 0.04, 7.0, 5.0
"""Nanoseconds that a penalty takes for a weight beside others, that one takes to catch up, and that it takes for each
change of what a penalty subtracts in between; measured on one core."""

_SAMPLED = 8
"""One of so many neighbouring weights, by which a unit can be divided, is looked at to estimate these times."""

_PENDING = 1 << 9  # most weights that `_finish` does at the same time: they stay in the first-level cache

_SHRINK_FRACTION = SHRINK.fraction
_SHRINK_ONE, _SHRINK_HALF, _SHRINK_SCALE = 2.0**SHRINK.fraction, 2.0 ** (SHRINK.fraction - 1), 2.0**-SHRINK.fraction

_COLUMN_BITS = np.uint64(32)  # bits of a word of `Penalty.words` for the column

_ONE = np.uint64(1)


class Penalty(NamedTuple):
    """Penalties for the loops, with scratch space: no two threads may use the same."""

    shrink: int
    threshold: int
    words: npt.NDArray[np.uint64]
    """(n,): weights whose steps `_finish` has still to do, as columns, with the numbers of steps above them."""
    values: npt.NDArray[np.float64]
    left: npt.NDArray[np.float64]  # (n,): these weights, and numbers of steps, while it does them
    columns: npt.NDArray[np.uint32]  # (n,): columns that `catch_up_all` has found

    @classmethod
    def of(cls, shrink: int, threshold: int) -> "Penalty":
        """The penalties with space of their own."""
        words, columns = np.empty(_PENDING, np.uint64), np.empty(_PENDING, np.uint32)
        return cls(shrink, threshold, words, np.empty(_PENDING), np.empty(_PENDING), columns)


def first_cold(visits: npt.NDArray[np.float64], weights: WeightArray, shrink: int, begins: IntArray) -> IntArray:
    """Each worker's first column from which on penalties take less time if columns catch up: int64 (workers,).

    ``visits``, (units,), are the fractions of mini-batches in which a column of a unit has entries. ``weights``, int32
    (columns,), are about as large as those of the run. ``begins``, int64 (workers + 1,), are the first column of each
    worker, and the end of the last.
    """
    unit = weights.size // visits.size
    # L2 subtracts w·shrink, which falls by w·shrink² in every mini-batch.
    sizes = np.abs(weights[::_SAMPLED].astype(np.float64).reshape(visits.size, -1))
    changes = np.minimum(1.0, sizes * (shrink / SHRINK.one) ** 2).mean(axis=1)
    times = _STEP_TIME - _CATCH_UP_TIME * visits - _CHANGE_TIME * changes
    parts = np.split(times, begins[1:-1] // unit)
    hot = [unit * int(np.argmin(np.append(0.0, np.cumsum(part)))) for part in parts]
    cold: IntArray = begins[:-1] + np.array(hot)
    return cold


_compiled = functools.partial(compiled, "the emulator's loops for sparse data")


@_compiled(nogil=True)
def penalise(hot: Any, penalty: Any, weights: Any) -> None:
    """The penalties of a mini-batch, for ranges of hot columns: `p4sgd.sim.golden.regularize`."""
    shrink, threshold = np.int64(penalty.shrink), np.int32(penalty.threshold)
    half, lowest = np.int64(1) << (_SHRINK_FRACTION - 1), np.int32(-threshold)
    for number in range(hot.shape[0]):
        own = weights[hot[number, 0] : hot[number, 1]]
        # A loop for each penalty, because vectors take less time for these than for one with both.
        if shrink > 0:
            whole = own.size - own.size % LANES
            for place in range(0, whole, LANES):
                shrink_lanes(own, np.uint64(place), shrink)
            for place in range(whole, own.size):
                own[place] -= (own[place] * shrink + half) >> _SHRINK_FRACTION
        if threshold > 0:
            for place in range(own.size):
                own[place] -= min(max(own[place], lowest), threshold)


@_compiled(nogil=True)
def catch_up(keys: Any, bits: int, spans: Any, cold: Any, steps: int, penalty: Any, weights: Any, done: Any) -> None:
    """Give weights the penalties of the first ``steps`` mini-batches.

    ``keys`` have the columns above their lowest ``bits`` and ascend within each of the ``spans``, (n, workers, 2).
    Columns below ``cold``, (workers,), are left alone.
    """
    count = np.uint64(0)
    for number in range(spans.shape[0]):
        for worker in range(cold.size):
            begin, end = np.uint64(spans[number, worker, 0]), np.uint64(spans[number, worker, 1])
            first = np.uint64(cold[worker])
            count = _catch_up_span(keys, bits, begin, end, first, steps, penalty, weights, done, count)
    _finish(count, penalty, weights)


@_compiled(nogil=True)
def catch_up_columns(columns: Any, steps: int, penalty: Any, weights: Any, done: Any) -> None:
    """Give the weights of some columns the penalties of the first ``steps`` mini-batches."""
    none, end = np.uint64(0), np.uint64(columns.size)
    _finish(_catch_up_span(columns, 0, none, end, none, steps, penalty, weights, done, none), penalty, weights)


@_compiled(nogil=True)
def catch_up_all(ranges: Any, steps: int, penalty: Any, weights: Any, done: Any) -> None:
    """Give all weights of ranges of columns, (n, 2), the penalties of the first ``steps`` mini-batches; most are 0."""
    columns = penalty.columns
    for number in range(ranges.shape[0]):
        count = np.uint64(0)
        for column in range(np.uint64(ranges[number, 0]), np.uint64(ranges[number, 1])):
            columns[count] = column
            count += np.uint64(weights[column] != 0)
            if count == np.uint64(_PENDING):
                catch_up_columns(columns, steps, penalty, weights, done)
                count = np.uint64(0)
        catch_up_columns(columns[:count], steps, penalty, weights, done)


@_compiled()
def steps_seen(mini_batch: int, stale: bool) -> int:
    """Number of mini-batches whose penalties the weights have that a mini-batch reads."""
    # With staleness weights are read as they were before the last update.
    return max(0, mini_batch - 1) if stale else mini_batch


@_compiled(nogil=True)
def _catch_up_span(
    keys: Any, bits: int, begin: Any, end: Any, cold: Any, steps: int, penalty: Any, weights: Any, done: Any, count: Any
) -> Any:
    """`catch_up` for the keys from ``begin`` to ``end``, but for what `_finish` has still to do: the first ``count`` of
    `Penalty.words`; returns how many there are then."""
    shrink, threshold, words = np.int64(np.int32(penalty.shrink)), np.int64(np.int32(penalty.threshold)), penalty.words
    # No slices of the keys: Numba counts references to them, which takes as long as two weights.
    for place in range(end - begin):
        column = np.uint64(keys[end - _ONE - place]) >> np.uint64(bits)
        if column < cold:
            break
        missing = steps - np.int64(done[column])
        if missing <= 0:
            continue
        done[column] = steps
        weight = np.int64(weights[column])
        size, half = abs(weight), (np.int64(1) << (_SHRINK_FRACTION - 1)) - np.int64(weight < 0)
        whole = (size * shrink + half) >> _SHRINK_FRACTION
        # If a step after all these would subtract the same as the first, all do; the others are left to `_finish`.
        # There is no branch, because no processor could predict it.
        size = max(size - missing * (whole + threshold), np.int64(0))
        same = (size * shrink + half) >> _SHRINK_FRACTION == whole
        words[count] = column | np.uint64(missing) << _COLUMN_BITS
        count += np.uint64(not same)
        size = -size if weight < 0 else size
        weights[column] = size if same else weight
        if count == np.uint64(_PENDING):
            _finish(count, penalty, weights)
            count = np.uint64(0)
    return count


@_compiled(nogil=True)
def _finish(count: Any, penalty: Any, weights: Any) -> None:
    """Do the steps of the first ``count`` weights of `Penalty.words`, side by side."""
    shrink, threshold = np.float64(penalty.shrink), np.float64(penalty.threshold)
    words, values, left = penalty.words, penalty.values, penalty.left
    mask = (_ONE << _COLUMN_BITS) - _ONE
    for place in range(count):
        values[place], left[place] = weights[words[place] & mask], words[place] >> _COLUMN_BITS
    while count > 0:
        for place in range(count):  # with vectors
            values[place], left[place] = _same_steps(values[place], left[place], shrink, threshold)
        rest = np.uint64(0)
        for place in range(count):
            word, value, steps = words[place], values[place], left[place]
            weights[word & mask] = np.int64(value)
            words[rest], values[rest], left[rest] = word, value, steps
            rest += np.uint64(steps > 0.0)
        count = rest


@_compiled(error_model="numpy")
def _same_steps(weight: float, steps: float, shrink: float, threshold: float) -> Any:
    """Steps of `p4sgd.sim.golden.regularize` while they subtract the same: the weight then, and how many are left.

    Products of integers are exact, unless they exceed all weights, and then only that matters; quotients of such small
    ones are never rounded up to the next integer.
    """
    size = abs(weight)
    # A half is rounded up, so towards 0 if the weight is negative.
    product = size * shrink + (_SHRINK_HALF - 1.0 if weight < 0.0 else _SHRINK_HALF)
    whole = np.floor(product * _SHRINK_SCALE)
    loss = whole + threshold
    # A step subtracts the same as the one before while only the fraction of the product falls.
    same = np.floor((product - whole * _SHRINK_ONE) / (loss * shrink)) + 1.0
    same = same if same < steps else steps
    size -= same * loss
    left = steps - same if size > 0.0 else 0.0
    size = size if size > 0.0 else 0.0
    return (-size if weight < 0.0 else size), left
