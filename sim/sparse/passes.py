"""Forward and backward passes of sparse workers on their entries, and the loop that trains, compiled.

Entries are sorted by column and bank within each micro-batch: a column that several samples have is updated once, and
forward passes see the units of each sample in order. Weights are int32, and sums int64, which none of them overflows
(`p4sgd.sim.golden`). ``spans`` are begin and end of the entries of each micro-batch and worker, int64 (T, workers, 2).
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import WEIGHT, ByteArray, IntArray, WeightArray
from p4sgd.hw.spec.image import BANK_BITS
from p4sgd.sim.compiled import compiled
from p4sgd.sim.model import next_deltas
from p4sgd.sim.sparse.entries import Columns
from p4sgd.sim.sparse.penalties import Penalty, catch_up, penalise, steps_seen

_WEIGHT_LOW, _WEIGHT_HIGH = WEIGHT.minimum, WEIGHT.maximum
# Numba makes an index that may be negative count from the end; these are not.
_BANK, _BANK_BITS, _ONE, _TWO = np.uint64(BANKS - 1), np.uint64(BANK_BITS), np.uint64(1), np.uint64(2)


class MergedEntries(NamedTuple):
    """Entries of all workers of a process, read-only, micro-batch by micro-batch."""

    keys: Columns  # as in `Entries`; the columns of the workers follow each other
    values: npt.NDArray[np.integer[Any]]  # the integers that a run reads: int8 (entries,) if signed, else uint8
    firsts: ByteArray  # uint8 (entries,): 1 if no entry of its sample before it has the same unit, else 0


class WeightState(NamedTuple):
    """Weights of all columns during a run, and the state of each; arrays that a run does not need are empty."""

    weights: WeightArray  # int32 (columns,)
    done: WeightArray
    """With penalties, int32 (columns,): mini-batches whose penalty each weight has that catches up and is not 0; the
    largest number for exempt ones, which have none."""
    before: WeightArray  # with staleness, int32 (columns,): weights before the last mini-batch that changed them
    changed: WeightArray  # with staleness, int32 (columns,): that mini-batch


class Rounding(NamedTuple):
    """Right shifts of Rounds 1 and 3."""

    shift: int
    parts: IntArray
    """int64 (4,): what `totals` adds to a sum before an entry, and which bits it keeps of it then. Nothing and all, of
    a unit that others of its sample have begun. Of a new one what makes the sum so far a multiple of ``2**shift``."""
    gradient_shift: int

    @classmethod
    def by(cls, shift: int, gradient_shift: int) -> "Rounding":
        """Rounding by two shifts."""
        return cls(shift, np.array([0, (1 << shift) >> 1, -1, -1 << shift]), gradient_shift)


class Share(NamedTuple):
    """Columns of a thread, whole units: from ``begin`` to ``end``."""

    spans: IntArray
    begin: int
    end: int
    hot: IntArray  # ranges of hot columns, int64 (n, 2)
    cold: IntArray  # each worker's first cold column, int64 (workers,)
    penalty: Penalty


_compiled = functools.partial(compiled, "the emulator's loops for sparse data")


@_compiled(nogil=True)
def totals(entries: Any, spans: Any, first: int, rounding: Any, mini_batch: int, state: Any, totals: Any) -> None:
    """Forward pass from micro-batch ``first`` on: each worker's sums, (workers, samples)."""
    keys, values, firsts = entries.keys, entries.values, entries.firsts
    weights, before, changed, parts = state.weights, state.before, state.changed, rounding.parts
    stale = changed.size > 0
    for micro_batch in range(totals.shape[1] // BANKS):
        for worker in range(totals.shape[0]):
            own = totals[worker, BANKS * micro_batch : BANKS * (micro_batch + 1)]
            for bank in range(BANKS):
                own[bank] = 0
            begin, end = spans[first + micro_batch, worker, 0], spans[first + micro_batch, worker, 1]
            # Slices, because with fewer arrays in use their addresses stay in registers.
            own_keys, own_values, own_firsts = keys[begin:end], values[begin:end], firsts[begin:end]
            # Where a unit begins the sum is rounded without a branch, because no processor could predict it.
            for entry in range(np.uint64(own_keys.size)):
                key, new = own_keys[entry], np.uint64(own_firsts[entry])
                column, bank = key >> _BANK_BITS, key & _BANK
                weight = before[column] if stale and changed[column] == mini_batch - 1 else weights[column]
                product = np.int64(weight) * np.int64(own_values[entry])
                own[bank] = ((own[bank] + parts[new]) & parts[new + _TWO]) + product
            for bank in range(BANKS):
                own[bank] = (own[bank] + parts[1]) >> rounding.shift


@_compiled(nogil=True)
def descend(
    entries: Any, spans: Any, first: int, deltas: Any, shift: int, weights: Any, checked: bool, saturated: Any
) -> None:
    """Gradients and Round 3 of the micro-batches of a mini-batch; not ``checked`` where no weight can saturate."""
    half = np.int64((1 << shift) >> 1)
    keys, values = entries.keys, entries.values
    for micro_batch in range(deltas.size // BANKS):
        own = deltas[BANKS * micro_batch : BANKS * (micro_batch + 1)]
        for worker in range(saturated.size):
            begin, end = spans[first + micro_batch, worker, 0], spans[first + micro_batch, worker, 1]
            own_keys, own_values = keys[begin:end], values[begin:end]
            column: Any = ~np.uint64(0)
            weight: Any = np.int64(0)
            gradient: Any = np.int64(0)
            # A column's entries are neighbours, and its weight is written after each of them: only the last one counts.
            # A branch at the end of a column would take longer, because no processor can predict it.
            for entry in range(np.uint64(own_keys.size)):
                key = own_keys[entry]
                same, column = key >> _BANK_BITS == column, key >> _BANK_BITS
                present = np.int64(weights[column])
                weight = weight if same else present
                gradient = gradient if same else half
                gradient += own[key & _BANK] * np.int64(own_values[entry])
                moved = weight - (gradient >> shift)
                if checked and moved != np.int64(np.int32(moved)):
                    moved = min(max(moved, _WEIGHT_LOW), _WEIGHT_HIGH)
                    if entry + _ONE == own_keys.size or own_keys[entry + _ONE] >> _BANK_BITS != column:
                        saturated[worker] = True
                weights[column] = moved


@_compiled(nogil=True)
def remember(entries: Any, spans: Any, cold: Any, mini_batch: int, penalty: Any, state: Any) -> None:
    """Keep the weights, with all penalties, that a mini-batch is going to change: those of the entries of ``spans``."""
    keys, weights, before, changed = entries.keys, state.weights, state.before, state.changed
    if state.done.size > 0:
        catch_up(keys, BANK_BITS, spans, cold, mini_batch, penalty, weights, state.done)
    for micro_batch in range(spans.shape[0]):
        for worker in range(spans.shape[1]):
            for key in keys[spans[micro_batch, worker, 0] : spans[micro_batch, worker, 1]]:
                column = key >> _BANK_BITS
                if changed[column] != mini_batch:
                    before[column], changed[column] = weights[column], mini_batch


@_compiled(nogil=True)
def train(
    team: Any, batches: Any, entries: Any, share: Any, rounding: Any, state: Any, first: int, mini_batch: int
) -> bool:
    """Do mini-batches as one thread of a `Team`; returns whether a residual or its argument was saturated.

    ``first`` is the first micro-batch of `Batches`, and ``mini_batch`` the number of mini-batches of the run before.
    ``share`` is that of this thread, which alone changes the weights of its columns in the `WeightState`.
    """
    spans, penalty, batch, shift = share.spans, share.penalty, team.sums.size, rounding.gradient_shift
    weights, residual_saturated = state.weights[share.begin : share.end], False
    room, unchecked = np.int64(-1), np.int64(0)
    for number in range(batches.labels.size // batch):
        micro_batch, now = first + number * (batch // BANKS), mini_batch + number
        own = spans[micro_batch : micro_batch + batch // BANKS]
        if state.done.size > 0:
            seen = steps_seen(now, state.changed.size > 0)
            catch_up(entries.keys, BANK_BITS, own, share.cold, seen, penalty, state.weights, state.done)
        # A thread may begin the next mini-batch while others still read the sums of this one.
        totals(entries, spans, micro_batch, rounding, now, state, team.totals[number % 2, team.thread])
        residual_saturated |= next_deltas(team, batches, number)
        # Checks of weights that cannot saturate would take a tenth of the time. A look at all weights pays after as
        # many entries. The room is −1 where it is not known.
        most = _most_change(team.deltas, shift)
        unchecked += own[-1, -1, 1] - own[0, 0, 0]
        if room < most and unchecked > weights.size:
            room, unchecked = _room(weights), np.int64(0)
        room = max(room - most, np.int64(-1))
        if state.changed.size > 0:
            remember(entries, own, share.cold, now, penalty, state)
        descend(entries, spans, micro_batch, team.deltas, shift, state.weights, room < 0, batches.saturated)
        penalise(share.hot, penalty, state.weights)
    return residual_saturated


@_compiled(nogil=True)
def _most_change(deltas: Any, shift: int) -> Any:
    """A bound of what the updates of a mini-batch change a weight by."""
    total = np.int64(0)
    for delta in deltas:
        total += abs(delta)
    return ((total << 8) >> shift) + deltas.size


@_compiled(nogil=True)
def _room(weights: Any) -> Any:
    """What may be added to and subtracted from all weights before one saturates."""
    lowest, highest = np.int32(0), np.int32(0)
    for weight in weights:
        lowest, highest = min(lowest, weight), max(highest, weight)
    return min(_WEIGHT_HIGH - np.int64(highest), np.int64(lowest) - _WEIGHT_LOW)


@_compiled(nogil=True)
def list_steps(entries: Any, starts: Any, deltas: Any, shift: int, columns: Any, steps: Any) -> int:
    """Rounded gradients of each column of each micro-batch; returns their number."""
    half = np.int64((1 << shift) >> 1)
    keys, values = entries.keys, entries.values
    count = 0
    for micro_batch in range(deltas.size // BANKS):
        own = deltas[BANKS * micro_batch : BANKS * (micro_batch + 1)]
        entry, end = starts[micro_batch], starts[micro_batch + 1]
        while entry < end:
            column = np.int64(keys[entry]) >> BANK_BITS
            gradient = half
            while entry < end and np.int64(keys[entry]) >> BANK_BITS == column:
                gradient += own[np.int64(keys[entry]) & (BANKS - 1)] * np.int64(values[entry])
                entry += 1
            columns[count], steps[count] = column, gradient >> shift
            count += 1
    return count


@_compiled(nogil=True)
def dots(entries: Any, starts: Any, weights: Any, sums: Any) -> None:
    """Exact dot products of the micro-batches that have the entries from ``starts`` on, int64 (T + 1,)."""
    keys, values = entries.keys, entries.values
    for micro_batch in range(starts.size - 1):
        own = sums[BANKS * micro_batch : BANKS * (micro_batch + 1)]
        own[:] = 0
        for entry in range(np.uint64(starts[micro_batch]), np.uint64(starts[micro_batch + 1])):
            column, bank = keys[entry] >> _BANK_BITS, keys[entry] & _BANK
            own[bank] += np.int64(weights[column]) * np.int64(values[entry])
