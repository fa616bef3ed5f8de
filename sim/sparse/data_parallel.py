"""Data-parallel training: a sparse worker whose samples are spread over several processes (ranks).

The ranks share the micro-batches of every mini-batch, and each holds only the features of its own samples. Weights of
hot columns are on all ranks; a cold column has an owner. In a mini-batch a rank

1. gets the weights of the cold columns of its samples from their owners,
2. computes dot products, residuals, and the step of each weight in its micro-batches,
3. adds the steps of hot columns over all ranks, 8 columns to a row, as an aggregator adds partial activations,
4. sends the steps of cold columns to their owners.

Steps are rounded per micro-batch, and integers may be added in any order, so the weights are those of one worker that
has all samples, bit for bit. The exception is a weight that might saturate on the way: if any rank sees a weight or a
step so large that this is possible, all exchange the steps of that mini-batch one by one and apply them in order.
"""

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import WEIGHT, ByteArray, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.packet import VALUES
from p4sgd.hw.spec.run import RunSettings
from p4sgd.sim.compiled import compiled
from p4sgd.sim.model import Targets
from p4sgd.sim.sparse.entries import Columns
from p4sgd.sim.sparse.model import SparseFeatures, SparseModel
from p4sgd.sim.sparse.penalties import catch_up_columns, steps_seen

_WEIGHT_LOW, _WEIGHT_HIGH = WEIGHT.minimum, WEIGHT.maximum

_PART = 1 << 22  # entries of all ranks that a call trains on: between calls Ctrl-C acts

_HALF = _WEIGHT_HIGH // 2  # if no weight is larger and no sum of steps is, no weight can be saturated


@dataclass(eq=False)
class SampleRanks:
    """The processes that train one sparse worker, each on some of the samples. All make the same calls."""

    rank: int
    size: int
    add: Callable[[IntArray], IntArray]
    """Sums over the ranks of int64 arrays. Ctrl-C in any rank may raise `KeyboardInterrupt` in all."""
    exchange: Callable[[Sequence[ByteArray], IntArray | None], list[ByteArray]]
    """Sends block r to rank r and returns the ranks' blocks, uint8 (bytes,), whose sizes are given if they are known:
    int64 (size,)."""
    hot: int = 0
    """Number of hot columns, the first ones: a multiple of 8. It may change between runs: no bit depends on it."""
    counts: Counter[str] = field(default_factory=Counter, init=False)
    """``ROWS`` of 8 numbers to be added, and ``BYTES_SENT`` to other ranks for cold columns, of mini-batches."""
    _lists: "ColumnLists | None" = field(default=None, init=False, repr=False)

    def micro_batches(self, count: int) -> range:
        """Which of the ``count`` micro-batches of each mini-batch this rank has; shares differ by at most one."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def holders(self, micro_batches: IntArray, count: int) -> IntArray:
        """Rank that has each of these micro-batches of the job, of which a mini-batch has ``count``."""
        ends = np.arange(1, self.size) * count // self.size
        return np.searchsorted(ends, micro_batches % count, side="right")

    def owner(self, columns: Columns) -> Columns:
        """The rank that has the weights of cold columns. Neighbours, about as frequent, have different ones."""
        return columns % np.uint32(self.size)

    def lists(self, features: SparseFeatures, micro_batches: int, hot: int) -> "ColumnLists":
        """The lists of cold columns for a run, exchanged unless all ranks still have them from the last one."""
        key = weakref.ref(features), micro_batches, hot
        known = self._lists if self._lists is not None and self._lists.key == key else None
        if self.add(np.array([known is None], np.int64))[0]:
            known = self._lists = ColumnLists(features, micro_batches, hot, self, key)
        assert known is not None
        return known


class ColumnLists:
    """Cold columns, those from ``cold`` on, that each rank needs in each mini-batch; the owners get all lists at once.

    ``key`` identifies what the lists are made for.
    """

    def __init__(
        self, features: SparseFeatures, micro_batches: int, cold: int, ranks: SampleRanks, key: object
    ) -> None:
        self.key = key
        batch = BANKS * micro_batches
        wanted, served, counts = [], [], np.empty((2, features.samples // batch, ranks.size), np.int64)
        for number in range(features.samples // batch):
            columns = features.columns(slice(number * batch, (number + 1) * batch))
            columns = columns[np.searchsorted(columns, cold) :]
            owners = ranks.owner(columns)
            columns = columns[np.argsort(owners, kind="stable")]
            counts[0, number] = np.bincount(owners, minlength=ranks.size)
            # One mini-batch at a time: all lists may be too long for a message.
            theirs = ranks.exchange(np.split(columns.view(np.uint8), 4 * np.cumsum(counts[0, number])[:-1]), None)
            counts[1, number] = [part.size // 4 for part in theirs]
            wanted.append(columns)
            served.append(np.concatenate(theirs).view(np.uint32))
        self._wanted, self._served, self._counts = wanted, served, counts

    def of(self, mini_batch: int) -> tuple[Columns, IntArray, Columns, IntArray]:
        """Columns that this rank wants, by owners and then in ascending order, and how many from each; columns that it
        serves, rank by rank, and how many to each."""
        wanted_counts, served_counts = self._counts[:, mini_batch]
        return self._wanted[mini_batch], wanted_counts, self._served[mini_batch], served_counts


class DataParallelModel(SparseModel):
    """Weights of a sparse worker during a run; ``features`` are those of this rank's micro-batches."""

    def __init__(
        self,
        features: SparseFeatures,
        weights: Sequence[EngineWeights],
        settings: RunSettings,
        targets: Targets,
        limits: IntArray,
        exempt: Sequence[int | None],
        ranks: SampleRanks,
    ) -> None:
        super().__init__(features, weights, settings, targets, limits, exempt)
        self._ranks = ranks
        own = ranks.micro_batches(settings.micro_batches)
        self._own = slice(BANKS * own.start, BANKS * own.stop)
        """This rank's samples of a mini-batch."""
        self._shared = np.arange(min(ranks.hot, features.count), dtype=np.uint32)
        self._lists = ranks.lists(features, settings.micro_batches, self._shared.size)
        self._seen = np.zeros(features.count, np.int32)
        """Weights as the forward pass reads them, of the columns that this rank needs."""
        self._moved = np.zeros(features.count, np.int32)
        """How far this rank's micro-batches move the weights of a mini-batch; 0 in between."""
        total = int(ranks.add(np.array([features.merged.keys.size]))[0])
        self._at_once = max(1, _PART * features.samples * ranks.size // (settings.batch * max(1, total)))

    def _first_cold(self) -> IntArray:
        """See `SparseModel`: all columns catch up."""
        return np.zeros(1, np.int64)

    def _mini_batches_at_once(self) -> int:
        return self._at_once  # the same on all ranks

    def _train(self, samples: slice) -> None:
        """Do mini-batches, together with the other ranks. Flags are those of all ranks."""
        batch = self._settings.batch
        for first in range(samples.start, samples.stop, batch):
            self._step(first // batch)
        flags = np.array([self.residual_saturated, self.clamped[0], self.saturated[0]], np.int64)
        self.residual_saturated, self.clamped[0], self.saturated[0] = (self._ranks.add(flags) > 0).tolist()

    def _step(self, mini_batch: int) -> None:
        ranks, settings, number = self._ranks, self._settings, self._mini_batch
        wanted, wanted_counts, served, served_counts = self._lists.of(mini_batch)
        hot, weights = np.empty(self._shared.size, np.int32), np.empty(served.size, np.int32)
        large = _read(self._shared, number, self._penalty, self._state, hot)
        large |= _read(served, number, self._penalty, self._state, weights)
        self._seen[: hot.size] = hot
        self._seen[wanted] = self._send(weights, served_counts, wanted_counts)

        first = mini_batch * settings.batch
        own = slice(first + self._own.start, first + self._own.stop)
        columns, steps = self._features.steps(own, self._deltas(own, self.forward(own)), settings.gradient_shift)
        largest = int(np.abs(steps).max(initial=0))
        large |= largest * (own.stop - own.start) // BANKS > _HALF // ranks.size
        _add_steps(columns, steps, self._moved)
        rows = np.zeros(self._shared.size + VALUES, np.int64)
        if large:
            rows[-VALUES] = 1
        else:
            rows[:-VALUES] = self._moved[: hot.size]
        ranks.counts["ROWS"] += rows.size // VALUES
        rows = ranks.add(rows)
        moved = self._moved[wanted]
        self._moved[: hot.size] = 0
        self._moved[wanted] = 0
        if rows[-VALUES]:
            self._take_in_order(columns, steps)
        else:
            self._apply(self._shared, rows[:-VALUES])
            self._apply(served, self._send(moved, wanted_counts, served_counts).astype(np.int64))
        self._mini_batch += 1

    def _begin(self, samples: slice) -> None:
        return

    def _forward(self, samples: slice, totals: IntArray) -> None:
        totals[:] = self._features.unit_sums(self._seen, samples, self._rounding)

    def _send(self, values: npt.NDArray[np.int32], counts: IntArray, expected: IntArray) -> npt.NDArray[np.int32]:
        """Send so many values to each rank; returns those that come, as many as expected from each."""
        blocks = np.split(values.view(np.uint8), 4 * np.cumsum(counts)[:-1])
        self._ranks.counts["BYTES_SENT"] += values.nbytes - blocks[self._ranks.rank].size
        return np.concatenate(self._ranks.exchange(blocks, 4 * expected)).view(np.int32)

    def _take_in_order(self, columns: Columns, steps: IntArray) -> None:
        """Exchange steps one by one, and take those of hot and own columns in the order of micro-batches."""
        size = self._ranks.size
        columns_of = self._ranks.exchange([columns.view(np.uint8)] * size, None)
        steps_of = self._ranks.exchange([steps.view(np.uint8)] * size, None)
        for part, values in zip(columns_of, steps_of, strict=True):
            theirs = part.view(np.uint32)
            own = (theirs < self._shared.size) | (self._ranks.owner(theirs) == self._ranks.rank)
            self._apply(theirs[own], values.view(np.int64)[own])

    def _apply(self, columns: Columns, steps: IntArray) -> None:
        saturated = _take_steps(columns, steps, self._mini_batch, self._penalty, self._state)
        self.saturated[0] = self.saturated[0] or saturated

    def _present(self) -> WeightArray:
        """The weights of all columns, from their owners."""
        ranks, weights = self._ranks, super()._present().copy()
        own = np.ascontiguousarray(weights[ranks.rank :: ranks.size])
        for rank, part in enumerate(ranks.exchange([own.view(np.uint8)] * ranks.size, None)):
            weights[rank :: ranks.size] = part.view(np.int32)
        return weights


_compiled = functools.partial(compiled, "the emulator's loops for data-parallel training")


@_compiled(nogil=True)
def _read(columns: Any, mini_batch: int, penalty: Any, state: Any, values: Any) -> bool:
    """Weights as the forward pass of a mini-batch reads them; returns whether one is larger than `_HALF`."""
    weights, before, changed = state.weights, state.before, state.changed
    stale = changed.size > 0
    large = False
    if state.done.size > 0:
        catch_up_columns(columns, steps_seen(mini_batch, stale), penalty, weights, state.done)
    for place in range(columns.size):
        column = columns[place]
        weight: Any = np.int64(weights[column])
        large = large or abs(weight) > _HALF
        values[place] = before[column] if stale and changed[column] == mini_batch - 1 else weight
    return large


@_compiled(nogil=True)
def _add_steps(columns: Any, steps: Any, moved: Any) -> None:
    for place in range(columns.size):
        moved[columns[place]] += steps[place]


@_compiled(nogil=True)
def _take_steps(columns: Any, steps: Any, mini_batch: int, penalty: Any, state: Any) -> bool:
    """Subtract steps from weights, one after the other; returns whether a weight was saturated."""
    weights, before, changed = state.weights, state.before, state.changed
    stale = changed.size > 0
    saturated = False
    if stale and state.done.size > 0:
        catch_up_columns(columns, mini_batch, penalty, weights, state.done)
    for place in range(columns.size):
        column = columns[place]
        if stale and changed[column] != mini_batch:
            before[column], changed[column] = weights[column], mini_batch
        moved = np.int64(weights[column]) - steps[place]
        saturated = saturated or moved < _WEIGHT_LOW or moved > _WEIGHT_HIGH
        weights[column] = min(max(moved, _WEIGHT_LOW), _WEIGHT_HIGH)
    return saturated
