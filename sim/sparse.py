"""Features of which most are 0, as lists of the others, and the golden model's arithmetic on them.

The entries of a worker are grouped by micro-batches, and sorted by column and bank within each. So a column that
several samples of a micro-batch have is updated once, and forward passes, which add up all samples of a micro-batch
side by side, come to the units of each in order. Time and memory of a run are proportional to the number of entries;
only its beginning and its end touch all weights. Weights are int32 here, and all sums int64, which none of them
overflows (`p4sgd.sim.golden`).

L2 and L1 change all weights after every mini-batch. Those of the first, hot columns of each worker are changed then,
side by side. The others catch up when they are needed next: `_catch_up` does many steps at once, and exactly, because
most of them subtract the same. How many columns are hot decides about the time only.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT, IntArray, WeightArray
from p4sgd.hw.spec.image import BANK_BITS
from p4sgd.hw.spec.run import FeatureFormat, LossTable, RunSettings
from p4sgd.sim import kernels
from p4sgd.sim.compiled import compiled
from p4sgd.sim.model import Features, Model

__all__ = ["Entries", "SparseFeatures", "SparseModel", "bring_up", "penalties"]

_THREAD_ENTRIES = 1 << 12
"""Fewest entries of a mini-batch for a thread: less would not make up for the waiting."""

_PART = 1 << 22
"""Number of entries that a call trains on, some hundredths of a second: between calls Ctrl-C acts."""

_WEIGHT_LOW, _WEIGHT_HIGH = WEIGHT.minimum, WEIGHT.maximum
_SHRINK_FRACTION = SHRINK.fraction
_SHRINK_ONE, _SHRINK_HALF = 2.0**SHRINK.fraction, 2.0 ** (SHRINK.fraction - 1)
# Numba makes an index that may be negative count from the end; these are not.
_BANK, _BANK_BITS, _ONE, _TWO = np.uint64(BANKS - 1), np.uint64(BANK_BITS), np.uint64(1), np.uint64(2)

_MOST = 1 << 24
"""Most entries of a sample: as with so many features of a dense worker, no sum overflows."""

_STEP_TIME, _CATCH_UP_TIME, _CHANGE_TIME = 0.08, 7.0, 5.0
"""Nanoseconds that a penalty takes for a weight beside others, that one takes to catch up, and that it takes for each
change of what a penalty subtracts in between; measured on one core."""

_SPEAKER = 8
"""Of so many neighbouring weights, by which a unit can be divided, one is looked at to estimate these times."""

_ALL = np.iinfo(np.int32).max
"""More mini-batches than a run has."""

_PENDING = 1 << 9
"""Most weights that `_finish` does at the same time: they stay in the first-level cache."""

_COLUMN_BITS = np.uint64(32)
"""Bits of its words for the column."""

_FIRST_CHOICE = 16
"""Mini-batch after which weights that begin at 0 first tell which columns are hot; then after 32, 64, …"""

_NEVER = -2
"""A mini-batch before all others, and not the one before the first."""

ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Entries:
    """Features of a worker that are not 0.

    Parameters
    ----------
    starts
        int64 (T + 1,): micro-batch t has the entries from ``starts[t]`` to ``starts[t + 1]``.
    keys
        uint32 (entries,): column << 3 | bank, ascending within a micro-batch. Columns are those of the worker, unit by
        unit.
    values
        uint8 (entries,): integers of S bits, two's complement if signed; the higher bits are ignored.
    form
        Format of the features, with the planes that are read.
    unit
        Features of a unit, padding included: whole chunks.
    shape
        Shape of the worker's weights, (engines, chunks · lanes): unit i is the (i // engines)-th of engine i % engines.
    """

    starts: IntArray
    keys: npt.NDArray[np.uint32]
    values: ByteArray
    form: FeatureFormat
    unit: int
    shape: tuple[int, int]

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes."""
        arrays = (self.starts, self.keys, self.values)
        return (*((each.ctypes.data, each.size) for each in arrays), self.form, self.unit, self.shape)

    @property
    def columns(self) -> int:
        """Columns of the worker, padding included."""
        return math.prod(self.shape)

    def check(self) -> None:
        """Check the keys, because whoever writes to a worker's memory may write anything.

        Raises
        ------
        ValueError
            If those of a micro-batch do not ascend, if the worker has no such columns, or if a sample has more than
            2^24 entries.
        """
        for micro_batch in np.flatnonzero(np.diff(self.starts) > _MOST):
            banks = self.keys[self.starts[micro_batch] : self.starts[micro_batch + 1]] & np.uint32(BANKS - 1)
            if np.bincount(banks).max() > _MOST:
                raise ValueError(f"a sample has more than {_MOST} features that are not 0: sums may be too large")
        ends = self.starts[1:]
        ascending = self.keys[1:] > self.keys[:-1]
        ascending[ends[(ends > 0) & (ends < self.keys.size)] - 1] = True  # from a micro-batch to the next
        last = self.keys[ends[np.diff(self.starts) > 0] - 1]
        if not ascending.all() or (last >> BANK_BITS >= self.columns).any():
            raise ValueError(f"the memory has no list of entries of {self.columns} features: write the image again")

    def column(self, place: int) -> int:
        """The column whose weight is at this place of the weights of all engines."""
        engine, own = divmod(place, self.shape[1])
        number, within = divmod(own, self.unit)
        return (number * self.shape[0] + engine) * self.unit + within

    def by_engine(self, weights: WeightArray) -> WeightArray:
        """The worker's weights as its engines have them, (engines, units of an engine, unit): a view of those unit by
        unit, (columns,)."""
        return weights.reshape(-1, self.shape[0], self.unit).swapaxes(0, 1)


class SparseFeatures(Features):
    """Entries of several workers, merged by micro-batches.

    Parameters
    ----------
    sources
        Those of each worker.
    """

    def __init__(self, sources: Sequence[Entries]) -> None:
        self.sources = sources
        first = sources[0]
        self.samples = BANKS * (first.starts.size - 1)
        self.begins = np.cumsum([0, *(each.columns for each in sources)])
        """First column of each worker, and the end of the last."""
        if len(sources) == 1:
            self._starts, self._keys, values = first.starts, first.keys, first.values
        else:
            counts = np.stack([np.diff(each.starts) for each in sources], axis=1)
            ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
            self._starts = np.append(0, ends[:, -1])
            self._keys, values = np.empty(ends[-1, -1], np.uint32), np.empty(ends[-1, -1], np.uint8)
            for worker, each in enumerate(sources):
                begin = np.uint32(int(self.begins[worker]) << BANK_BITS)
                own = _read_only(each.starts), _read_only(each.keys), _read_only(each.values)
                _place(*own, begin, ends[:, worker] - counts[:, worker], self._keys, values)
        self._starts, self._keys = _read_only(self._starts), _read_only(self._keys)
        self._values = _read_only(_decoded(values, self.form))
        firsts = np.empty(self._keys.size, np.uint8)
        _find_firsts(self._starts, self._keys, BANK_BITS + self._unit_bits, np.empty(BANKS, np.int64), firsts)
        self._firsts = _read_only(firsts)
        self._spans: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
        self._visits: dict[int, npt.NDArray[np.float64]] = {}
        """By batch, in how much of the mini-batches a column of each unit has entries, on average."""

    @property
    def form(self) -> FeatureFormat:
        """Format of the features."""
        return self.sources[0].form

    @property
    def count(self) -> int:
        """Number of columns."""
        return int(self.begins[-1])

    def model(
        self,
        weights: Sequence[WeightArray],
        settings: RunSettings,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> "SparseModel":
        """See `Features`."""
        return SparseModel(self, weights, settings, limits, exempt)

    def activations(self, weights: Sequence[WeightArray]) -> IntArray:
        """See `Features`."""
        return self.dots(weights[0] if len(weights) == 1 else np.concatenate(weights), slice(0, self.samples))

    def dots(self, weights: WeightArray, samples: slice) -> IntArray:
        """Exact dot products of some whole micro-batches, summed over the workers: int64 (samples,)."""
        sums = np.empty(samples.stop - samples.start, np.int64)
        micro_batches, begin = sums.size // BANKS, samples.start // BANKS
        threads = max(1, min(kernels.THREADS, micro_batches))
        edges = [micro_batches * thread // threads for thread in range(threads + 1)]

        def share(thread: int) -> None:
            low, high = edges[thread], edges[thread + 1]
            starts = self._starts[begin + low : begin + high + 1]
            _dots(self._keys, self._values, starts, weights, sums[low * BANKS : high * BANKS])

        kernels.in_threads(share, threads)
        return sums

    def flatten(self, weights: Sequence[WeightArray]) -> WeightArray:
        """Weights of all workers unit by unit, int32 (columns,), from those of each, (engines · chunks · lanes,)."""
        flat = np.empty(self.count, np.int32)
        for each, own, part in zip(self.sources, weights, np.split(flat, self.begins[1:-1]), strict=True):
            target = each.by_engine(part)
            target[:] = own.reshape(target.shape)
        return flat

    def unflatten(self, flat: WeightArray) -> list[WeightArray]:
        """Undo `flatten`."""
        parts = np.split(flat, self.begins[1:-1])
        return [each.by_engine(part).reshape(-1) for each, part in zip(self.sources, parts, strict=True)]

    def unit_sums(self, weights: WeightArray, first: int, micro_batches: int, shift: int) -> IntArray:
        """Sums of rounded dot products of units, of some micro-batches, as if a single worker had all columns.

        Parameters
        ----------
        weights
            int32 (columns,), unit by unit.
        first, micro_batches
            First micro-batch, and their number.
        shift
            The dot product of a unit is divided by ``2**shift`` and rounded.

        Returns
        -------
        int64 (samples,).
        """
        sums: IntArray = np.empty((1, micro_batches * BANKS), np.int64)
        nothing = np.zeros(0, np.int32)
        state = weights, nothing, nothing, nothing
        _totals(self.lists, self.spans(1, 1)[0][0], first, (shift, _rounding(shift)), 0, state, sums)
        return sums.reshape(-1)

    def steps(self, first: int, deltas: IntArray, shift: int) -> tuple[npt.NDArray[np.uint32], IntArray]:
        """What micro-batches subtract from weights by Round 3, one after the other.

        Parameters
        ----------
        first
            First micro-batch.
        deltas
            δ of the samples, int64 (samples,).
        shift
            A gradient is divided by ``2**shift`` and rounded.

        Returns
        -------
        Columns, uint32 (steps,), and steps, int64 (steps,), in the order of micro-batches.
        """
        starts = self._starts[first : first + deltas.size // BANKS + 1]
        most = int(starts[-1] - starts[0])
        columns, steps = np.empty(most, np.uint32), np.empty(most, np.int64)
        count = _list_steps(self.lists, starts, deltas, shift, columns, steps)
        return columns[:count], steps[:count]

    def columns(self, first: int, micro_batches: int) -> npt.NDArray[np.uint32]:
        """Columns of which some micro-batches have entries, ascending."""
        own = self._keys[self._starts[first] : self._starts[first + micro_batches]]
        return np.unique(own >> np.uint32(BANK_BITS))

    @property
    def entries(self) -> int:
        """Number of entries."""
        return int(self._keys.size)

    def entries_of(self, samples: slice) -> int:
        """Number of entries of some whole micro-batches."""
        return int(self._starts[samples.stop // BANKS] - self._starts[samples.start // BANKS])

    @property
    def lists(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.integer[Any]], ByteArray]:
        """Of each entry its key, its value, int8 if signed, else uint8, and 1 if no entry of its sample before it has
        the same unit, else 0; ascending by the key within each micro-batch."""
        return self._keys, self._values, self._firsts

    @property
    def _unit_bits(self) -> int:
        """Bits of a column that are its place in the unit."""
        return int(math.log2(self.sources[0].unit))

    def cold(self, batch: int, workers: int, weights: WeightArray, shrink: int) -> IntArray:
        """Each worker's first column from which on penalties take less time if columns catch up: (workers,).

        Parameters
        ----------
        batch
            Samples of a mini-batch.
        workers
            As for `spans`.
        weights
            Weights about as large as those of the run: int32 (columns,).
        shrink
            `RunSettings.shrink`.
        """
        unit = self.sources[0].unit
        if batch not in self._visits:
            counts = np.zeros(self.count, np.int64)
            _count(self._keys, BANK_BITS, counts)
            # Of a column in a mini-batch. As many columns catch up as there are entries, or fewer.
            visits = counts * (batch / self.samples)
            del counts  # there may be millions
            self._visits[batch] = np.minimum(1.0, visits, out=visits).reshape(-1, unit).mean(axis=1)
        # L2 subtracts w·shrink, which falls by w·shrink² in every mini-batch. Some weights of a unit speak for all.
        speakers = unit // _SPEAKER
        sizes = np.abs(weights[::_SPEAKER].astype(np.float64)).reshape(-1, speakers)
        changes = np.minimum(1.0, sizes * (shrink / SHRINK.one) ** 2) @ np.full(speakers, 1 / speakers)
        times = _STEP_TIME - _CATCH_UP_TIME * self._visits[batch] - _CHANGE_TIME * changes
        begins = self.begins_of(workers)
        parts = np.split(times, begins[1:-1] // unit)
        hot = [unit * int(np.argmin(np.append(0.0, np.cumsum(part)))) for part in parts]
        cold: IntArray = begins[:-1] + np.array(hot)
        return cold

    def begins_of(self, workers: int) -> IntArray:
        """As `begins`; of one worker if all count as one."""
        return self.begins if workers == len(self.sources) else self.begins[[0, -1]]

    def spans(self, threads: int, workers: int) -> tuple[IntArray, IntArray]:
        """The entries of each thread, whole units, about as many entries for each: their begins and ends.

        Parameters
        ----------
        threads
            Number of threads.
        workers
            Number of workers, or 1 if all count as one.

        Returns
        -------
        Those of each micro-batch, int64 (threads, T, workers, 2). And the columns of each thread, int64 (threads,
        workers + 1): the first of each worker, and the end of the last.
        """
        if (threads, workers) not in self._spans:
            unit = self.sources[0].unit
            units = np.zeros(self.count // unit, np.int64)
            _count(self._keys, BANK_BITS + self._unit_bits, units)
            shares = units.sum() * np.arange(1, threads) / threads
            cuts = np.concatenate(([0], np.searchsorted(np.cumsum(units), shares), [units.size])) * unit
            begins = self.begins_of(workers)
            # Columns from the first to the second edge; where a thread has none of a worker, they are equal.
            edges = np.clip(begins, cuts[:-1, np.newaxis], cuts[1:, np.newaxis])
            spans = np.empty((threads, self._starts.size - 1, workers, 2), np.int64)
            _cut(self._keys, self._starts, edges, spans)
            self._spans[threads, workers] = spans, edges
        return self._spans[threads, workers]


class SparseModel(Model):
    """Weights of sparse workers during a run.

    Parameters
    ----------
    features
        The features.
    weights
        Initial weights of each worker: int32 (engines · chunks · lanes,).
    settings, limits
        See `Model`.
    exempt
        See `SparseFeatures.model`.
    """

    def __init__(
        self,
        features: SparseFeatures,
        weights: Sequence[WeightArray],
        settings: RunSettings,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> None:
        super().__init__(settings, limits)
        self._features = features
        self._weights = features.flatten(weights)
        penalised, stale = settings.shrink > 0 or settings.threshold > 0, settings.stale
        columns = features.count
        self._exempted = [
            columns if place is None else int(begin) + each.column(place)
            for begin, each, place in zip(features.begins[:-1], features.sources, exempt, strict=True)
        ]
        self._done = np.zeros(columns if penalised else 0, np.int32)
        """Mini-batches whose penalty each weight has that catches up and is not 0; the largest number for exempt ones,
        which have none."""
        self._before = np.zeros(columns if stale else 0, np.int32)
        """Weights before the last mini-batch that changed them."""
        self._changed = np.full(columns if stale else 0, _NEVER, np.int32)
        """That mini-batch."""
        self._mini_batch = 0
        self._state = self._weights, self._done, self._before, self._changed
        self._penalty = penalties(settings.shrink, settings.threshold)
        self._choose()
        self._next_choice = _FIRST_CHOICE if settings.shrink and not stale and not self._weights.any() else 0
        """Mini-batch after which to choose again, as weights that are all 0 tell nothing; 0 for never."""

    def _choose(self) -> None:
        """Choose which columns are hot. All weights must have the penalties of all mini-batches so far."""
        features = self._features
        self._cold = self._first_cold() if self._done.size else np.zeros(self._limits.size, np.int64)
        """Each worker's first column whose weight catches up with penalties."""
        begins, ends = features.begins[:-1], np.clip(self._cold, features.begins[:-1], features.begins[1:])
        middles = np.minimum(self._exempted, ends)
        self._hot = np.concatenate((np.stack((begins, middles), 1), np.stack((middles + 1, ends), 1)))
        """Ranges of hot columns that are not exempt, begins and ends; some are empty."""
        if self._done.size:
            if self._mini_batch > 0:  # else they are 0, and most of this memory is never touched
                self._done[:] = self._mini_batch
            self._done[[column for column in self._exempted if column < features.count]] = _ALL

    def train(self, first: int, labels: IntArray, importances: IntArray, table: LossTable) -> bool:
        """See `Model`."""
        saturated, batch = False, self._settings.batch
        while labels.size:
            if 0 < self._next_choice <= self._mini_batch:
                self._present()
                self._choose()
                self._next_choice = 2 * self._mini_batch
            count = (self._next_choice - self._mini_batch) * batch if self._next_choice else labels.size
            saturated |= super().train(first, labels[:count], importances[:count], table)
            first, labels, importances = first + count, labels[count:], importances[count:]
        return saturated

    def _first_cold(self) -> IntArray:
        """Each worker's first column whose weight is to catch up with penalties: int64 (workers,)."""
        begins = self._features.begins_of(self._limits.size)[:-1]
        # With staleness weights are read as they were before, which is kept only of those that entries change.
        settings = self._settings
        if settings.stale:
            return begins
        return self._features.cold(settings.batch, self._limits.size, self._weights, settings.shrink)

    def update(self, first: int, deltas: IntArray) -> None:
        """See `Model`."""
        settings, lists, (spans, _) = self._settings, self._features.lists, self._features.spans(1, self._limits.size)
        where = spans[0], first // BANKS
        if settings.stale:
            micro_batches = deltas.size // BANKS
            _remember(lists[0], *where, micro_batches, self._cold, self._mini_batch, self._penalty, self._state)
        _descend(lists, *where, deltas, settings.gradient_shift, self._weights, True, self.saturated)

    @property
    def mini_batches_at_once(self) -> int:
        """See `Model`."""
        features = self._features
        return max(1, _PART * features.samples // (self._settings.batch * max(1, features.entries)))

    def dots(self, samples: slice) -> IntArray:
        """See `Model`."""
        return self._features.dots(self._present(), samples)

    def values(self) -> list[WeightArray]:
        """See `Model`."""
        return self._features.unflatten(self._present())

    def _add_up(self, first: int, shift: int, totals: IntArray) -> None:
        features, (spans, _) = self._features, self._features.spans(1, self._limits.size)
        where = spans[0], first // BANKS, totals.shape[1] // BANKS
        mini_batch = self._mini_batch + self._under_way - 1
        if self._done.size:
            seen, own = _penalties_seen(mini_batch, self._settings.stale), slice(where[1], where[1] + where[2])
            _catch_up(features.lists[0], BANK_BITS, spans[0][own], self._cold, seen, self._penalty, *self._state[:2])
        _totals(features.lists, *where[:2], (shift, _rounding(shift)), mini_batch, self._state, totals)

    def _regularize(self) -> None:
        _penalise(self._hot, self._penalty, self._weights)
        self._mini_batch += 1

    def _most_threads(self, first: int, samples: int) -> int:
        mini_batches = samples // self._settings.batch
        entries = self._features.entries_of(slice(first, first + samples))
        return min(entries // (mini_batches * _THREAD_ENTRIES), self._features.count // self._settings.unit)

    def _share(
        self, first: int, labels: IntArray, importances: IntArray, loss: Any, threads: int
    ) -> Callable[[int, IntArray, IntArray], bool]:
        features, settings, mini_batch = self._features, self._settings, self._mini_batch
        spans, edges = features.spans(threads, self._limits.size)
        hot = np.clip(self._hot, edges[:, :1, np.newaxis], edges[:, -1:, np.newaxis])
        shift = settings.features.forward_shift
        rounding = shift, _rounding(shift)
        self._mini_batch += labels.size // settings.batch

        def share(thread: int, arrivals: IntArray, totals: IntArray) -> bool:
            done: bool = _train(
                thread,
                arrivals,
                totals,
                np.empty((2, settings.batch), np.int64),
                features.lists,
                spans[thread],
                (edges[thread, 0], edges[thread, -1]),
                (hot[thread], self._cold),
                first,
                labels,
                importances,
                mini_batch,
                self._limits,
                loss,
                (rounding, settings.rate_mantissa, settings.gradient_shift),
                penalties(settings.shrink, settings.threshold),
                self._state,
                self.clamped,
                self.saturated,
            )
            return done

        return share

    def _present(self) -> WeightArray:
        """Weights with all penalties."""
        if not self._done.size:
            return self._weights
        weights, done = self._weights, self._done
        if self._settings.stale:  # the last mini-batch reads weights without their last penalty
            weights, done = weights.copy(), done.copy()
        ranges = np.stack((self._cold, self._features.begins_of(self._limits.size)[1:]), 1)
        columns = np.empty(_PENDING, np.uint32)
        _catch_up_all(ranges, columns, self._mini_batch, self._penalty, weights, done)
        return weights


def penalties(shrink: int, threshold: int) -> tuple[Any, ...]:
    """L2 and L1 penalties for compiled loops: `RunSettings.shrink` and `RunSettings.threshold`.

    With them is the scratch space of `bring_up`, so that no two threads may use the same.
    """
    return shrink, threshold, np.empty(_PENDING, np.uint64), np.empty(_PENDING), np.empty(_PENDING)


def _decoded(values: ByteArray, form: FeatureFormat) -> npt.NDArray[np.integer[Any]]:
    """Values as the run reads them, int8 if signed, else uint8, from those of an image."""
    high = values if form.stored == 8 else values << np.uint8(8 - form.stored)  # which drops the ignored bits
    own: npt.NDArray[np.integer[Any]] = high.view(np.int8) if form.signed else high
    return own if form.precision == 8 else own >> own.dtype.type(8 - form.precision)


def _rounding(shift: int) -> IntArray:
    """What `_totals` adds to a sum and which bits it keeps of it before an entry: of a unit that others of its sample
    have begun, or of a new one, which makes the sum so far a multiple of ``2**shift``, rounded half up."""
    return np.array([0, (1 << shift) >> 1, -1, -1 << shift])


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array as in mapped files, so that the loops are compiled for one type only."""
    view = array.view()
    view.flags.writeable = False
    return view


_compiled = functools.partial(compiled, "the emulator's loops for sparse data")


@_compiled(error_model="numpy")
def _same_steps(weight: float, steps: float, shrink: float, threshold: float) -> Any:
    """Steps of `p4sgd.sim.golden.regularize` while they subtract the same: the weight then, and how many are left.

    All are integers. Products are exact, unless they exceed all weights, and then only that matters; quotients of such
    small integers are never rounded up to the next one.
    """
    size = abs(weight)
    # A half is rounded up, so towards 0 if the weight is negative.
    product = size * shrink + (_SHRINK_HALF - 1.0 if weight < 0.0 else _SHRINK_HALF)
    whole = np.floor(product * kernels.SHRINK_SCALE)
    loss = whole + threshold
    # A step subtracts the same as the one before while only the fraction of the product falls.
    same = np.floor((product - whole * _SHRINK_ONE) / (loss * shrink)) + 1.0
    same = same if same < steps else steps
    size -= same * loss
    left = steps - same if size > 0.0 else 0.0
    size = size if size > 0.0 else 0.0
    return (-size if weight < 0.0 else size), left


@_compiled(nogil=True)
def _finish(count: Any, penalty: Any, weights: Any) -> None:
    """Do steps of ``count`` weights side by side. Words have the column, and the number of steps above it."""
    shrink, threshold = np.float64(penalty[0]), np.float64(penalty[1])
    words, values, left = penalty[2], penalty[3], penalty[4]
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


@_compiled(nogil=True)
def _catch_up_span(
    keys: Any, bits: int, begin: Any, end: Any, cold: Any, steps: int, penalty: Any, weights: Any, done: Any, count: Any
) -> Any:
    """`_catch_up` for the keys from ``begin`` to ``end``, but for the words before ``count``, which `_finish` has still
    to do; returns their number."""
    shrink, threshold, words = np.int64(np.int32(penalty[0])), np.int64(np.int32(penalty[1])), penalty[2]
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
def _catch_up(keys: Any, bits: int, spans: Any, cold: Any, steps: int, penalty: Any, weights: Any, done: Any) -> None:
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
def bring_up(columns: Any, steps: int, penalty: Any, weights: Any, done: Any) -> None:
    """Give the weights of some columns the `penalties` of the first ``steps`` mini-batches."""
    none, end = np.uint64(0), np.uint64(columns.size)
    _finish(_catch_up_span(columns, 0, none, end, none, steps, penalty, weights, done, none), penalty, weights)


@_compiled(nogil=True)
def _catch_up_all(ranges: Any, columns: Any, steps: int, penalty: Any, weights: Any, done: Any) -> None:
    """Give all weights of ranges of columns the penalties of the first ``steps`` mini-batches; most are 0.

    ``columns`` is scratch space, uint32 (`_PENDING`,).
    """
    for number in range(ranges.shape[0]):
        count = np.uint64(0)
        for column in range(np.uint64(ranges[number, 0]), np.uint64(ranges[number, 1])):
            columns[count] = column
            count += np.uint64(weights[column] != 0)
            if count == np.uint64(_PENDING):
                bring_up(columns, steps, penalty, weights, done)
                count = np.uint64(0)
        bring_up(columns[:count], steps, penalty, weights, done)


@_compiled()
def _penalties_seen(mini_batch: int, stale: bool) -> int:
    """Number of mini-batches whose penalties the weights have that a mini-batch reads."""
    # With staleness weights are read as they were before the last update.
    return max(0, mini_batch - 1) if stale else mini_batch


@_compiled(nogil=True)
def _penalise(hot: Any, penalty: Any, weights: Any) -> None:
    """The penalties of a mini-batch, for ranges of hot columns: `p4sgd.sim.golden.regularize`."""
    shrink, threshold = np.int64(penalty[0]), np.int32(penalty[1])
    half, lowest = np.int64(1) << (_SHRINK_FRACTION - 1), np.int32(-threshold)
    for number in range(hot.shape[0]):
        own = weights[hot[number, 0] : hot[number, 1]]
        # A loop for each penalty, because vectors take less time for these than for one with both.
        if shrink > 0:
            whole = own.size - own.size % kernels.LANES
            for place in range(0, whole, kernels.LANES):
                kernels.shrink_lanes(own, np.uint64(place), shrink)
            for place in range(whole, own.size):
                own[place] -= (own[place] * shrink + half) >> _SHRINK_FRACTION
        if threshold > 0:
            for place in range(own.size):
                own[place] -= min(max(own[place], lowest), threshold)


@_compiled(nogil=True)
def _totals(lists: Any, spans: Any, first: int, rounding: Any, mini_batch: int, state: Any, totals: Any) -> None:
    """Forward pass from micro-batch ``first`` on: each worker's sums, (workers, samples)."""
    keys, values, firsts = lists
    shift, parts = rounding
    weights, _, before, changed = state
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
                own[bank] = (own[bank] + parts[1]) >> shift


@_compiled(nogil=True)
def _descend(
    lists: Any, spans: Any, first: int, deltas: Any, shift: int, weights: Any, checked: bool, saturated: Any
) -> None:
    """Gradients and Round 3 of the micro-batches of a mini-batch; not ``checked`` where no weight can saturate."""
    half = np.int64((1 << shift) >> 1)
    keys, values, _ = lists
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
def _remember(
    keys: Any, spans: Any, first: int, micro_batches: int, cold: Any, mini_batch: int, penalty: Any, state: Any
) -> None:
    """Keep the weights that a mini-batch is going to change, with all penalties."""
    weights, done, before, changed = state
    if done.size > 0:
        own = spans[first : first + micro_batches]
        _catch_up(keys, BANK_BITS, own, cold, mini_batch, penalty, weights, done)
    for micro_batch in range(first, first + micro_batches):
        for worker in range(spans.shape[1]):
            for key in keys[spans[micro_batch, worker, 0] : spans[micro_batch, worker, 1]]:
                column = key >> _BANK_BITS
                if changed[column] != mini_batch:
                    before[column], changed[column] = weights[column], mini_batch


@_compiled(nogil=True)
def _list_steps(
    lists: Any,
    starts: Any,
    deltas: Any,
    shift: int,
    columns: Any,
    steps: Any,
) -> int:
    """Rounded gradients of each column of each micro-batch; returns their number."""
    half = np.int64((1 << shift) >> 1)
    keys, values, _ = lists
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
def _train(
    thread: int,
    arrivals: Any,
    totals: Any,
    scratch: Any,
    lists: Any,
    spans: Any,
    columns: Any,
    heat: Any,
    first: int,
    labels: Any,
    importances: Any,
    mini_batch: int,
    limits: Any,
    loss: Any,
    arithmetic: Any,
    penalty: Any,
    state: Any,
    clamped: Any,
    saturated: Any,
) -> bool:
    """Do mini-batches, as one of several threads, each with some of the units: they exchange sums, as workers do."""
    table, mode = loss
    hot, cold = heat
    rounding, mantissa, gradient_shift = arithmetic
    batch = totals.shape[3]
    micro_batches = batch // BANKS
    sums, deltas, residual_saturated = scratch[0], scratch[1], False
    weights = state[0][columns[0] : columns[1]]
    room, entries = np.int64(-1), np.int64(0)
    for number in range(labels.size // batch):
        micro_batch, now = first // BANKS + number * micro_batches, mini_batch + number
        # A thread may begin the next mini-batch while others still read the sums of this one.
        parts = totals[number % 2]
        if state[1].size > 0:
            own, seen = spans[micro_batch : micro_batch + micro_batches], _penalties_seen(now, state[3].size > 0)
            _catch_up(lists[0], BANK_BITS, own, cold, seen, penalty, state[0], state[1])
        _totals(lists, spans, micro_batch, rounding, now, state, parts[thread])
        if totals.shape[1] > 1:
            kernels.meet(arrivals, thread, number + 1)
        kernels.add(parts, limits, clamped, sums)
        part = slice(number * batch, (number + 1) * batch)
        residual_saturated |= kernels.deltas_of(sums, labels[part], importances[part], table, mode, mantissa, deltas)
        # Checks of weights that cannot saturate would take a tenth of the time. A look at all weights pays after as
        # many entries. The room is −1 where it is not known.
        most = _most_change(deltas, gradient_shift)
        entries += spans[micro_batch + micro_batches - 1, -1, 1] - spans[micro_batch, 0, 0]
        if room < most and entries > weights.size:
            room, entries = _room(weights), np.int64(0)
        room = max(room - most, np.int64(-1))
        if state[3].size > 0:
            _remember(lists[0], spans, micro_batch, micro_batches, cold, now, penalty, state)
        _descend(lists, spans, micro_batch, deltas, gradient_shift, state[0], room < 0, saturated)
        _penalise(hot, penalty, state[0])
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
def _dots(keys: Any, values: Any, starts: Any, weights: Any, sums: Any) -> None:
    for micro_batch in range(starts.size - 1):
        own = sums[BANKS * micro_batch : BANKS * (micro_batch + 1)]
        own[:] = 0
        for entry in range(np.uint64(starts[micro_batch]), np.uint64(starts[micro_batch + 1])):
            column, bank = keys[entry] >> _BANK_BITS, keys[entry] & _BANK
            own[bank] += np.int64(weights[column]) * np.int64(values[entry])


@_compiled(nogil=True)
def _place(starts: Any, keys: Any, values: Any, begin: int, target: Any, all_keys: Any, all_values: Any) -> None:
    """Copy a worker's entries to their place among those of all; its first column is there at key ``begin``."""
    for micro_batch in range(target.size):
        place = target[micro_batch]
        for entry in range(starts[micro_batch], starts[micro_batch + 1]):
            all_keys[place] = keys[entry] + begin
            all_values[place] = values[entry]
            place += 1


@_compiled(nogil=True)
def _find_firsts(starts: Any, keys: Any, bits: int, units: Any, firsts: Any) -> None:
    """Set to 1 the entries that are the first of their unit, which keys have above their lowest ``bits``, in a sample;
    the others to 0. ``units`` is scratch space, (BANKS,)."""
    for micro_batch in range(starts.size - 1):
        units[:] = -1
        for entry in range(np.uint64(starts[micro_batch]), np.uint64(starts[micro_batch + 1])):
            bank, unit = keys[entry] & _BANK, np.int64(keys[entry]) >> bits
            firsts[entry] = unit != units[bank]
            units[bank] = unit


@_compiled(nogil=True)
def _count(keys: Any, bits: int, counts: Any) -> None:
    """Count keys by what they have above the lowest ``bits``."""
    for key in keys:
        counts[np.uint64(key) >> np.uint64(bits)] += 1


@_compiled(nogil=True)
def _cut(keys: Any, starts: Any, edges: Any, spans: Any) -> None:
    """Divide the keys of each micro-batch at columns: (threads, T, workers, 2)."""
    for micro_batch in range(starts.size - 1):
        begin, end = starts[micro_batch], starts[micro_batch + 1]
        for thread in range(edges.shape[0]):
            for edge in range(edges.shape[1]):
                low, high = begin, end
                while low < high:
                    middle = (low + high) // 2
                    if np.int64(keys[middle]) >> BANK_BITS < edges[thread, edge]:
                        low = middle + 1
                    else:
                        high = middle
                if edge > 0:
                    spans[thread, micro_batch, edge - 1, 1] = low
                if edge < spans.shape[2]:
                    spans[thread, micro_batch, edge, 0] = low
