"""Entries of several sparse workers, merged by micro-batches."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import ByteArray, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.image import BANK_BITS
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim import parallel
from p4sgd.sim.compiled import compiled
from p4sgd.sim.model import Features
from p4sgd.sim.sparse import passes
from p4sgd.sim.sparse.entries import Columns, Entries, MergedEntries
from p4sgd.sim.sparse.passes import Rounding, WeightState

__all__ = ["SparseFeatures"]

_BLOCK = 1 << 10
"""Units whose columns are looked at at once."""

_THREAD_ENTRIES = 1 << 18
"""Fewest entries for each of the threads of `SparseFeatures.dots`: to read fewer takes less time than to start one."""

# Numba makes an index that may be negative count from the end; this is not.
_BANK = np.uint64(BANKS - 1)


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
            self._starts, keys, values = first.starts, first.keys, first.values
        else:
            counts = np.stack([np.diff(each.starts) for each in sources], axis=1)
            ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
            self._starts = np.append(0, ends[:, -1])
            keys, values = np.empty(ends[-1, -1], np.uint32), np.empty(ends[-1, -1], np.uint8)
            for worker, each in enumerate(sources):
                begin = np.uint32(int(self.begins[worker]) << BANK_BITS)
                own = _read_only(each.starts), _read_only(each.keys), _read_only(each.values)
                _place(*own, begin, ends[:, worker] - counts[:, worker], keys, values)
        self._starts, keys = _read_only(self._starts), _read_only(keys)
        firsts = np.empty(keys.size, np.uint8)
        _find_firsts(self._starts, keys, BANK_BITS + self._unit_bits, np.empty(BANKS, np.int64), firsts)
        self.merged = MergedEntries(keys, _read_only(_decoded(values, self.form)), _read_only(firsts))
        """Those of all workers."""
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

    def activations(self, weights: Sequence[EngineWeights]) -> IntArray:
        """See `Features`."""
        return self.dots(self.flatten(weights), slice(0, self.samples))

    def dots(self, weights: WeightArray, samples: slice) -> IntArray:
        """Exact dot products of some whole micro-batches, summed over the workers: int64 (samples,)."""
        sums = np.empty(samples.stop - samples.start, np.int64)
        micro_batches, begin = sums.size // BANKS, samples.start // BANKS
        threads = max(1, min(parallel.THREADS, micro_batches, self.entries_of(samples) // _THREAD_ENTRIES))
        edges = [micro_batches * thread // threads for thread in range(threads + 1)]

        def share(thread: int) -> None:
            low, high = edges[thread], edges[thread + 1]
            starts = self._starts[begin + low : begin + high + 1]
            passes.dots(self.merged, starts, weights, sums[low * BANKS : high * BANKS])

        parallel.in_threads(share, threads)
        return sums

    def flatten(self, weights: Sequence[EngineWeights]) -> WeightArray:
        """Weights of all workers unit by unit, int32 (columns,)."""
        flat = np.empty(self.count, np.int32)
        for each, engines, part in zip(self.sources, weights, np.split(flat, self.begins[1:-1]), strict=True):
            target = each.by_engine(part)
            if isinstance(engines, np.ndarray):  # which NumPy copies in the better order
                target[:] = engines.reshape(target.shape)
                continue
            for unit_by_unit, own in zip(target, engines, strict=True):
                unit_by_unit[:] = own.reshape(unit_by_unit.shape)
        return flat

    def unflatten(self, flat: WeightArray) -> list[WeightArray]:
        """Undo `flatten`: int32 (engines, chunks · lanes) of each worker."""
        parts = np.split(flat, self.begins[1:-1])
        return [each.by_engine(part).reshape(each.shape) for each, part in zip(self.sources, parts, strict=True)]

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
        state = WeightState(weights, nothing, nothing, nothing)
        passes.totals(self.merged, self.spans(1, 1)[0][0], first, Rounding.by(shift), 0, state, sums)
        return sums.reshape(-1)

    def steps(self, first: int, deltas: IntArray, shift: int) -> tuple[Columns, IntArray]:
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
        count = passes.list_steps(self.merged, starts, deltas, shift, columns, steps)
        return columns[:count], steps[:count]

    def columns(self, first: int, micro_batches: int) -> Columns:
        """Columns of which some micro-batches have entries, ascending."""
        own = self.merged.keys[self._starts[first] : self._starts[first + micro_batches]]
        return np.unique(own >> np.uint32(BANK_BITS))

    @property
    def entries(self) -> int:
        """Number of entries."""
        return int(self.merged.keys.size)

    def entries_of(self, samples: slice) -> int:
        """Number of entries of some whole micro-batches."""
        return int(self._starts[samples.stop // BANKS] - self._starts[samples.start // BANKS])

    @property
    def _unit(self) -> int:
        """Columns of a unit."""
        return self.sources[0].unit

    @property
    def _unit_bits(self) -> int:
        """Bits of a column that are its place in the unit."""
        return int(math.log2(self._unit))

    def visits(self, batch: int) -> npt.NDArray[np.float64]:
        """In how much of the mini-batches of ``batch`` samples a column of each unit has entries, on average:
        (units,)."""
        if batch not in self._visits:
            counts = np.zeros(self.count, np.uint32)
            _count(self.merged.keys, BANK_BITS, counts)
            units = counts.reshape(-1, self._unit)
            visits = self._visits[batch] = np.empty(len(units))
            for first in range(0, len(units), _BLOCK):  # there may be millions of columns
                block = slice(first, first + _BLOCK)
                # As many columns catch up in a mini-batch as there are entries, or fewer.
                visits[block] = np.minimum(1.0, units[block] * (batch / self.samples)).mean(axis=1)
        return self._visits[batch]

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
            unit = self._unit
            units = np.zeros(self.count // unit, np.int64)
            _count(self.merged.keys, BANK_BITS + self._unit_bits, units)
            shares = units.sum() * np.arange(1, threads) / threads
            cuts = np.concatenate(([0], np.searchsorted(np.cumsum(units), shares), [units.size])) * unit
            begins = self.begins_of(workers)
            # Columns from the first to the second edge; where a thread has none of a worker, they are equal.
            edges = np.clip(begins, cuts[:-1, np.newaxis], cuts[1:, np.newaxis])
            spans = np.empty((threads, self._starts.size - 1, workers, 2), np.int64)
            _cut(self.merged.keys, self._starts, edges, spans)
            self._spans[threads, workers] = spans, edges
        return self._spans[threads, workers]


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
