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
from p4sgd.hw.spec.run import LossTable, RunSettings
from p4sgd.sim.compiled import compiled
from p4sgd.sim.loss import add_partials, deltas
from p4sgd.sim.sparse.entries import Columns
from p4sgd.sim.sparse.features import SparseFeatures
from p4sgd.sim.sparse.model import SparseModel
from p4sgd.sim.sparse.penalties import catch_up_columns, steps_seen

__all__ = ["DataParallelModel", "SampleRanks"]

_PACKETS = 1 << 12
"""Rows that a call sends to an aggregator, some tenths of a second."""

_WEIGHT_LOW, _WEIGHT_HIGH = WEIGHT.minimum, WEIGHT.maximum

_PART = 1 << 22
"""Entries of all ranks that a call trains on: between calls Ctrl-C acts."""

_HALF = _WEIGHT_HIGH // 2
"""If no weight is larger and no sum of steps is, no weight can be saturated."""


@dataclass(eq=False)
class SampleRanks:
    """The processes that train one sparse worker, each on some of the samples. All make the same calls.

    Parameters
    ----------
    rank, size
        Number of this process, from 0, and of all.
    add
        Sums over the ranks of int64 (8·n,), of which no sum exceeds int32.
    agree
        The same for a few numbers now and then. Ctrl-C in any rank may raise `KeyboardInterrupt` in all.
    exchange
        Sends block r to rank r and returns what the ranks have sent, in their order: uint8 (bytes,). If the sizes of
        what comes are known, they are given: int64 (size,), in bytes.
    packets
        Whether ``add`` exchanges packets with an aggregator.
    hot
        Number of hot columns, the first ones: a multiple of 8. It may change between runs: no bit depends on it.

    Attributes
    ----------
    counts
        What this rank has sent for mini-batches: ``ROWS`` of 8 numbers to be added, and ``BYTES_SENT`` to other ranks
        for cold columns.
    """

    rank: int
    size: int
    add: Callable[[IntArray], IntArray]
    agree: Callable[[IntArray], IntArray]
    exchange: Callable[[Sequence[ByteArray], IntArray | None], list[ByteArray]]
    packets: bool = False
    hot: int = 0
    counts: Counter[str] = field(default_factory=Counter, init=False)
    _lists: "ColumnLists | None" = field(default=None, init=False, repr=False)

    def micro_batches(self, count: int) -> range:
        """Which of the ``count`` micro-batches of each mini-batch this rank has; shares differ by at most one."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def holders(self, micro_batches: IntArray, count: int) -> IntArray:
        """Rank that has each of these micro-batches of the job, of which a mini-batch has ``count``."""
        ends = np.arange(1, self.size) * count // self.size
        return np.searchsorted(ends, micro_batches % count, side="right")

    def owner(self, columns: Columns) -> Columns:
        """The rank that has the weights of cold columns. Neighbours have different ones, since heat falls slowly."""
        return columns % np.uint32(self.size)

    def lists(self, features: SparseFeatures, micro_batches: int, hot: int) -> "ColumnLists":
        """The lists of cold columns for a run, exchanged unless all ranks still have them from the last one."""
        key = weakref.ref(features), micro_batches, hot
        known = self._lists if self._lists is not None and self._lists.key == key else None
        if self.agree(np.array([known is None], np.int64))[0]:
            known = self._lists = ColumnLists(features, micro_batches, hot, self)
            known.key = key
        assert known is not None
        return known


class ColumnLists:
    """Which cold columns each rank needs in each mini-batch. The owners are told all of them before the first one.

    Parameters
    ----------
    features
        Entries of this rank's samples.
    micro_batches
        Micro-batches of a mini-batch.
    cold
        First cold column.
    ranks
        The ranks.

    Attributes
    ----------
    wanted, served
        uint32 (columns,): for each mini-batch what this rank needs, by owners, and then in ascending order; and what it
        sends to the others, rank by rank.
    """

    key: object = None
    """What they were made for."""

    def __init__(self, features: SparseFeatures, micro_batches: int, cold: int, ranks: SampleRanks) -> None:
        mini_batches = features.samples // (BANKS * micro_batches)
        wanted, served, counts = [], [], np.empty((2, mini_batches, ranks.size), np.int64)
        for number in range(mini_batches):
            columns = features.columns(number * micro_batches, micro_batches)
            columns = columns[np.searchsorted(columns, cold) :]
            owners = ranks.owner(columns)
            columns = columns[np.argsort(owners, kind="stable")]
            counts[0, number] = np.bincount(owners, minlength=ranks.size)
            # One mini-batch at a time: all lists may be too long for a message.
            theirs = ranks.exchange(np.split(columns.view(np.uint8), 4 * np.cumsum(counts[0, number])[:-1]), None)
            counts[1, number] = [part.size // 4 for part in theirs]
            wanted.append(columns)
            served.append(np.concatenate(theirs).view(np.uint32))
        self.wanted, self.served = np.concatenate(wanted), np.concatenate(served)
        self._wanted_counts, self._served_counts = counts
        self._wanted_ends = np.append(0, np.cumsum(self._wanted_counts.sum(axis=1)))
        self._served_ends = np.append(0, np.cumsum(self._served_counts.sum(axis=1)))

    def of(self, mini_batch: int) -> tuple[Columns, IntArray, Columns, IntArray]:
        """Columns that this rank wants, how many from each owner, columns that it serves, and how many to each rank."""
        wanted = self.wanted[self._wanted_ends[mini_batch] : self._wanted_ends[mini_batch + 1]]
        served = self.served[self._served_ends[mini_batch] : self._served_ends[mini_batch + 1]]
        return wanted, self._wanted_counts[mini_batch], served, self._served_counts[mini_batch]


class DataParallelModel(SparseModel):
    """Weights of a sparse worker during a run in which ranks have some of its samples each.

    Parameters
    ----------
    features
        Entries of the worker, in the micro-batches of this rank.
    weights, settings, limits, exempt
        See `SparseModel`.
    ranks
        The ranks.
    """

    def __init__(
        self,
        features: SparseFeatures,
        weights: Sequence[EngineWeights],
        settings: RunSettings,
        limits: IntArray,
        exempt: Sequence[int | None],
        ranks: SampleRanks,
    ) -> None:
        super().__init__(features, weights, settings, limits, exempt)
        self._ranks = ranks
        self._own = ranks.micro_batches(settings.micro_batches)
        self._shared = np.arange(min(ranks.hot, features.count), dtype=np.uint32)
        self._lists = ranks.lists(features, settings.micro_batches, self._shared.size)
        self._seen = np.zeros(features.count, np.int32)
        """Weights as the forward pass reads them, of the columns that this rank needs."""
        self._moved = np.zeros(features.count, np.int32)
        """How far this rank's micro-batches move the weights of a mini-batch; 0 in between."""
        total = int(ranks.agree(np.array([features.entries]))[0])
        at_once = _PART * features.samples * ranks.size // (settings.batch * max(1, total))
        if ranks.packets:
            at_once = min(at_once, _PACKETS // (1 + self._shared.size // VALUES))
        self._at_once = max(1, at_once)

    def _first_cold(self) -> IntArray:
        """See `SparseModel`: all columns catch up."""
        return np.zeros(1, np.int64)

    @property
    def mini_batches_at_once(self) -> int:
        """See `SparseModel`; the same on all ranks."""
        return self._at_once

    def train(self, first: int, labels: IntArray, importances: IntArray, table: LossTable) -> bool:
        """Do mini-batches, together with the other ranks; see `SparseModel.train`. Flags are those of all ranks."""
        batch, saturated = self._settings.batch, False
        for begin in range(0, labels.size, batch):
            rows = slice(begin, begin + batch)
            saturated |= self._step(first + begin, labels[rows], importances[rows], table)
        flags = self._ranks.agree(np.array([saturated, self.clamped[0], self.saturated[0]], np.int64))
        self.clamped[0], self.saturated[0] = flags[1:] > 0
        return bool(flags[0])

    def _step(self, first: int, labels: IntArray, importances: IntArray, table: LossTable) -> bool:
        """Do a mini-batch; returns whether a residual of this rank was saturated."""
        ranks, settings, number = self._ranks, self._settings, self._mini_batch
        wanted, wanted_counts, served, served_counts = self._lists.of(first // settings.batch)
        hot, weights = np.empty(self._shared.size, np.int32), np.empty(served.size, np.int32)
        large = _read(self._shared, number, self._penalty, self._state, hot)
        large |= _read(served, number, self._penalty, self._state, weights)
        self._seen[: hot.size] = hot
        self._seen[wanted] = self._send(weights, served_counts, wanted_counts)

        own_deltas, saturated = self._deltas(first, labels, importances, table)
        columns, steps = self._features.steps(first // BANKS + self._own.start, own_deltas, settings.gradient_shift)
        largest = int(np.abs(steps).max(initial=0))
        large |= largest * len(self._own) > _HALF // ranks.size
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
        return saturated

    def _send(self, values: npt.NDArray[np.int32], counts: IntArray, expected: IntArray) -> npt.NDArray[np.int32]:
        """Send so many values to each rank, and return those that come, as many as expected from each."""
        blocks = np.split(values.view(np.uint8), 4 * np.cumsum(counts)[:-1])
        self._ranks.counts["BYTES_SENT"] += values.nbytes - blocks[self._ranks.rank].size
        return np.concatenate(self._ranks.exchange(blocks, 4 * expected)).view(np.int32)

    def _deltas(self, first: int, labels: IntArray, importances: IntArray, table: LossTable) -> tuple[IntArray, bool]:
        """δ of this rank's samples of a mini-batch, and whether a residual was saturated."""
        settings = self._settings
        own = slice(BANKS * self._own.start, BANKS * self._own.stop)
        count, shift = len(self._own), settings.features.forward_shift
        totals = self._features.unit_sums(self._seen, first // BANKS + self._own.start, count, shift)
        sums = np.empty(BANKS * count, np.int64)
        add_partials(totals[None, None], self._limits, self.clamped, sums)
        return deltas(sums, labels[own], importances[own], table, settings)

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
        """See `SparseModel`: the weights of all columns, from their owners."""
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
