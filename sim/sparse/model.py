"""Entries of several sparse workers, merged by micro-batches, and their weights during a run.

Time and memory of a run are proportional to the number of entries; only its start and its end touch all weights.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import ByteArray, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.image import BANK_BITS
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim import parallel
from p4sgd.sim.compiled import compiled
from p4sgd.sim.model import Batches, Features, Model, Targets, Team, sizes_of
from p4sgd.sim.sparse import passes
from p4sgd.sim.sparse.entries import Columns, Entries
from p4sgd.sim.sparse.passes import MergedEntries, Rounding, Share, WeightState
from p4sgd.sim.sparse.penalties import Penalty, catch_up, catch_up_all, first_cold, penalise, steps_seen

_BLOCK, _PART = 1 << 10, 1 << 22
"""Units whose columns are looked at at once, and entries that a call of the loops trains on, some hundredths of a
second."""

_DOTS_ENTRIES, _THREAD_ENTRIES = 1 << 18, 1 << 12
"""Fewest entries for a thread of `SparseFeatures.dots`, which is started for them, and of a mini-batch for a thread:
fewer would not make up for the start and for the waiting."""

_ALL, _NEVER = np.iinfo(np.int32).max, -2
"""More mini-batches than a run has, and a mini-batch before all others that is not the one before the first."""

_FIRST_CHOICE = 16  # mini-batches after which weights that begin at 0 first tell which columns are hot; then 32, 64, …

# Numba makes an index that may be negative count from the end; this is not.
_BANK = np.uint64(BANKS - 1)


class SparseFeatures(Features):
    """Entries of several workers, merged by micro-batches: ``merged``.

    ``begins`` are the first column of each worker, and the end of the last; ``unit`` the columns of a unit.
    """

    def __init__(self, sources: Sequence[Entries]) -> None:
        self.sources = sources
        first = sources[0]
        self.form, self.unit = first.form, first.unit
        self.samples = BANKS * (first.starts.size - 1)
        self.begins = np.cumsum([0, *(each.columns for each in sources)])
        self.count = int(self.begins[-1])
        if len(sources) == 1:
            starts, keys, values = first.starts, first.keys, first.values
        else:
            counts = np.stack([np.diff(each.starts) for each in sources], axis=1)
            ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
            starts = np.append(0, ends[:, -1])
            keys, values = np.empty(ends[-1, -1], np.uint32), np.empty(ends[-1, -1], np.uint8)
            for worker, each in enumerate(sources):
                begin = np.uint32(int(self.begins[worker]) << BANK_BITS)
                own = _read_only(each.starts), _read_only(each.keys), _read_only(each.values)
                _merge(*own, begin, ends[:, worker] - counts[:, worker], keys, values)
        self._starts, keys = _read_only(starts), _read_only(keys)
        self._unit_bits = BANK_BITS + int(math.log2(self.unit))
        """Bits of a key that are below those of its unit."""
        firsts = np.empty(keys.size, np.uint8)
        _find_firsts(self._starts, keys, self._unit_bits, np.empty(BANKS, np.int64), firsts)
        self.merged = MergedEntries(keys, _read_only(_decoded(values, self.form)), _read_only(firsts))
        self._spans: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
        self._visits: dict[int, npt.NDArray[np.float64]] = {}

    def dots(self, weights: WeightArray, samples: slice) -> IntArray:
        """See `Features`."""
        sums = np.empty(samples.stop - samples.start, np.int64)
        micro_batches, begin = sums.size // BANKS, samples.start // BANKS
        threads = max(1, min(parallel.THREADS, micro_batches, self.entries(samples) // _DOTS_ENTRIES))
        edges = [micro_batches * thread // threads for thread in range(threads + 1)]

        def share(thread: int) -> None:
            low, high = edges[thread], edges[thread + 1]
            starts = self._starts[begin + low : begin + high + 1]
            passes.dots(self.merged, starts, weights, sums[low * BANKS : high * BANKS])

        parallel.in_threads(share, threads)
        return sums

    def flatten(self, weights: Sequence[EngineWeights]) -> WeightArray:
        """See `Features`: int32, unit by unit."""
        flat = np.empty(self.count, np.int32)
        for each, engines, part in zip(self.sources, weights, np.split(flat, self.begins[1:-1]), strict=True):
            for units, own in zip(each.by_engine(part), engines, strict=True):
                units[:] = own.reshape(units.shape)
        return flat

    def unflatten(self, flat: WeightArray) -> list[WeightArray]:
        """Undo `flatten`: int32 (engines, chunks · lanes) of each worker."""
        parts = np.split(flat, self.begins[1:-1])
        return [each.by_engine(part).reshape(each.shape) for each, part in zip(self.sources, parts, strict=True)]

    def unit_sums(self, weights: WeightArray, samples: slice, rounding: Rounding) -> IntArray:
        """Sums of rounded dot products of units with weights, as if a single worker had all columns: int64 (1, n)."""
        sums: IntArray = np.empty((1, samples.stop - samples.start), np.int64)
        nothing = np.zeros(0, np.int32)
        state = WeightState(weights, nothing, nothing, nothing)
        passes.totals(self.merged, self.spans(1, 1)[0][0], samples.start // BANKS, rounding, 0, state, sums)
        return sums

    def steps(self, samples: slice, deltas: IntArray, shift: int) -> tuple[Columns, IntArray]:
        """Rounded gradients of micro-batches, in their order: columns, uint32 (steps,), and steps, int64 (steps,)."""
        starts = self._starts[samples.start // BANKS : samples.stop // BANKS + 1]
        most = int(starts[-1] - starts[0])
        columns, steps = np.empty(most, np.uint32), np.empty(most, np.int64)
        count = passes.list_steps(self.merged, starts, deltas, shift, columns, steps)
        return columns[:count], steps[:count]

    def columns(self, samples: slice) -> Columns:
        """Columns of which some whole micro-batches have entries, ascending."""
        own = self.merged.keys[self._starts[samples.start // BANKS] : self._starts[samples.stop // BANKS]]
        return np.unique(own >> np.uint32(BANK_BITS))

    def entries(self, samples: slice) -> int:
        """See `Features`."""
        return int(self._starts[samples.stop // BANKS] - self._starts[samples.start // BANKS])

    def visits(self, batch: int) -> npt.NDArray[np.float64]:
        """Fraction of the mini-batches in which a column of each unit has entries, on average: (units,)."""
        if batch not in self._visits:
            counts = np.zeros(self.count, np.uint32)
            _count(self.merged.keys, BANK_BITS, counts)
            # As many columns catch up in a mini-batch as there are entries, or fewer. There may be millions of columns.
            blocks = np.array_split(counts.reshape(-1, self.unit), -(-self.count // (self.unit * _BLOCK)))
            visits = [np.minimum(1.0, block * (batch / self.samples)).mean(axis=1) for block in blocks]
            self._visits[batch] = np.concatenate(visits)
        return self._visits[batch]

    def begins_of(self, workers: int) -> IntArray:
        """As `begins`; of one worker if all count as one."""
        return self.begins if workers == len(self.sources) else self.begins[[0, -1]]

    def spans(self, threads: int, workers: int) -> tuple[IntArray, IntArray]:
        """The entries of each thread, whole units, about as many for each; ``workers`` is 1 if all count as one.

        Returns ``spans`` of each thread, int64 (threads, T, workers, 2), and its columns, int64 (threads, workers + 1):
        the first of each worker, and the end of the last.
        """
        if (threads, workers) not in self._spans:
            units = np.zeros(self.count // self.unit, np.int64)
            if threads > 1:
                _count(self.merged.keys, self._unit_bits, units)
            shares = units.sum() * np.arange(1, threads) / threads
            cuts = np.concatenate(([0], np.searchsorted(np.cumsum(units), shares), [units.size])) * self.unit
            # Columns from the first to the second edge; where a thread has none of a worker, they are equal.
            edges = np.clip(self.begins_of(workers), cuts[:-1, np.newaxis], cuts[1:, np.newaxis])
            spans = np.empty((threads, self._starts.size - 1, workers, 2), np.int64)
            _cut(self.merged.keys, self._starts, edges, spans)
            self._spans[threads, workers] = spans, edges
        return self._spans[threads, workers]


class SparseModel(Model):
    """Weights of sparse workers during a run; see `p4sgd.sim.features.new_model`."""

    def __init__(
        self,
        features: SparseFeatures,
        weights: Sequence[EngineWeights],
        settings: RunSettings,
        targets: Targets,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> None:
        super().__init__(settings, targets, limits)
        self._features = features
        penalised, stale = settings.shrink > 0 or settings.threshold > 0, settings.stale
        columns = features.count
        self._exempted = [
            columns if place is None else int(begin) + each.column(place)
            for begin, each, place in zip(features.begins[:-1], features.sources, exempt, strict=True)
        ]
        self._state = WeightState(
            weights=features.flatten(weights),
            done=np.zeros(columns if penalised else 0, np.int32),
            before=np.zeros(columns if stale else 0, np.int32),
            changed=np.full(columns if stale else 0, _NEVER, np.int32),
        )
        self._mini_batch = 0
        self._penalty = Penalty.of(settings.shrink, settings.threshold)
        self._rounding = Rounding.by(settings.features.forward_shift, settings.gradient_shift)
        self._choose()
        self._next_choice = _FIRST_CHOICE if settings.shrink and not stale and not self._state.weights.any() else 0
        """Mini-batch after which to choose again, as weights that are all 0 tell nothing; 0 for never."""

    def dots(self, samples: slice) -> IntArray:
        """See `Model`."""
        return self._features.dots(self._present(), samples)

    def values(self, *, last: bool = False) -> list[WeightArray]:
        """See `Model`."""
        weights = self._present()
        if last:
            del self._state  # may take as much memory as the weights
        return self._features.unflatten(weights)

    def sizes(self) -> IntArray:
        """See `Model`."""
        exempt = np.array(self._exempted)
        return sizes_of(self._present(), exempt[exempt < self._features.count])

    def _choose(self) -> None:
        """Choose which columns are hot. All weights must have the penalties of all mini-batches so far."""
        begins, ends, done = self._features.begins[:-1], self._features.begins[1:], self._state.done
        self._cold = self._first_cold() if done.size else np.zeros(self._limits.size, np.int64)
        ends = np.clip(self._cold, begins, ends)
        middles = np.minimum(self._exempted, ends)
        self._hot = np.concatenate((np.stack((begins, middles), 1), np.stack((middles + 1, ends), 1)))
        """Ranges of hot columns that are not exempt, begins and ends; some are empty."""
        if done.size:
            if self._mini_batch > 0:  # else they are 0, and most of this memory is never touched
                done[:] = self._mini_batch
            done[[column for column in self._exempted if column < self._features.count]] = _ALL

    def _first_cold(self) -> IntArray:
        """Each worker's first column whose weight catches up with penalties: int64 (workers,)."""
        features, settings = self._features, self._settings
        begins = features.begins_of(self._limits.size)
        # With staleness weights are read as they were before, which is kept only of those that entries change.
        if settings.stale:
            return begins[:-1]
        return first_cold(features.visits(settings.batch), self._state.weights, settings.shrink, begins)

    def _begin(self, samples: slice) -> None:
        state, own = self._state, self._spans[samples.start // BANKS : samples.stop // BANKS]
        if state.done.size:
            seen = steps_seen(self._mini_batch + self._under_way - 1, self._settings.stale)
            keys = self._features.merged.keys
            catch_up(keys, BANK_BITS, own, self._cold, seen, self._penalty, state.weights, state.done)

    def _forward(self, samples: slice, totals: IntArray) -> None:
        entries, spans, begin, state = self._features.merged, self._spans, samples.start // BANKS, self._state
        mini_batch = self._mini_batch + self._under_way - 1
        passes.totals(entries, spans, begin, self._rounding, mini_batch, state, totals)

    def _backward(self, samples: slice, deltas: IntArray) -> None:
        entries, spans, begin, state = self._features.merged, self._spans, samples.start // BANKS, self._state
        if self._settings.stale:
            own = spans[begin : samples.stop // BANKS]
            passes.remember(entries, own, self._cold, self._mini_batch, self._penalty, state)
        shift = self._settings.gradient_shift
        passes.descend(entries, spans, begin, deltas, shift, state.weights, True, self.saturated)

    def _regularize(self) -> None:
        penalise(self._hot, self._penalty, self._state.weights)
        self._mini_batch += 1

    def _mini_batches_at_once(self) -> int:
        if 0 < self._next_choice <= self._mini_batch:
            self._present()
            self._choose()
            self._next_choice = 2 * self._mini_batch
        features = self._features
        entries = max(1, int(features.merged.keys.size))
        count = max(1, _PART * features.samples // (self._settings.batch * entries))
        return min(count, self._next_choice - self._mini_batch) if self._next_choice else count

    def _most_threads(self, samples: slice) -> int:
        mini_batches = int(samples.stop - samples.start) // self._settings.batch
        entries = self._features.entries(samples)
        return min(entries // (mini_batches * _THREAD_ENTRIES), self._features.count // self._settings.unit)

    def _share(self, samples: slice, batches: Batches, threads: int) -> Callable[[Team], bool]:
        settings, mini_batch, merged = self._settings, self._mini_batch, self._features.merged
        spans, edges = self._features.spans(threads, self._limits.size)
        hot = np.clip(self._hot, edges[:, :1, np.newaxis], edges[:, -1:, np.newaxis])
        self._mini_batch += (samples.stop - samples.start) // settings.batch

        def share(team: Team) -> bool:
            number, penalty = team.thread, Penalty.of(settings.shrink, settings.threshold)
            own = Share(spans[number], edges[number, 0], edges[number, -1], hot[number], self._cold, penalty)
            first, state = samples.start // BANKS, self._state
            return bool(passes.train(team, batches, merged, own, self._rounding, state, first, mini_batch))

        return share

    @property
    def _spans(self) -> IntArray:
        spans: IntArray = self._features.spans(1, self._limits.size)[0][0]
        return spans

    def _present(self) -> WeightArray:
        """Weights with all penalties."""
        if not self._state.done.size:
            return self._state.weights
        weights, done = self._state.weights, self._state.done
        if self._settings.stale:  # the last mini-batch reads weights without their last penalty
            weights, done = weights.copy(), done.copy()
        ranges = np.stack((self._cold, self._features.begins_of(self._limits.size)[1:]), 1)
        catch_up_all(ranges, self._mini_batch, self._penalty, weights, done)
        return weights


def _decoded(values: ByteArray, form: FeatureFormat) -> npt.NDArray[np.integer[Any]]:
    """Values as the run reads them, int8 if signed, else uint8, from those of an image."""
    high = values if form.stored == 8 else values << np.uint8(8 - form.stored)  # which drops the ignored bits
    own: npt.NDArray[np.integer[Any]] = high.view(np.int8) if form.signed else high
    return own if form.precision == 8 else own >> own.dtype.type(8 - form.precision)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array as in mapped files, so that the loops are compiled for one type only."""
    view = array.view()
    view.flags.writeable = False
    return view


_compiled = functools.partial(compiled, "the emulator's loops for sparse data")


@_compiled(nogil=True)
def _merge(starts: Any, keys: Any, values: Any, begin: int, target: Any, all_keys: Any, all_values: Any) -> None:
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
