"""Weights of sparse workers during a run.

Time and memory of a run are proportional to the number of entries; only its start and its end touch all weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.image import BANK_BITS
from p4sgd.hw.spec.run import LossTable, RunSettings
from p4sgd.sim.model import Model
from p4sgd.sim.sparse import passes
from p4sgd.sim.sparse.features import SparseFeatures
from p4sgd.sim.sparse.passes import Rounding, WeightState
from p4sgd.sim.sparse.penalties import Penalty, catch_up, catch_up_all, first_cold, penalise, steps_seen

__all__ = ["SparseModel"]

_THREAD_ENTRIES = 1 << 12
"""Fewest entries of a mini-batch for a thread: less would not make up for the waiting."""

_PART = 1 << 22
"""Number of entries that a call trains on, some hundredths of a second: between calls Ctrl-C acts."""

_ALL = np.iinfo(np.int32).max
"""More mini-batches than a run has."""

_FIRST_CHOICE = 16
"""Mini-batch after which weights that begin at 0 first tell which columns are hot; then after 32, 64, …"""

_NEVER = -2
"""A mini-batch before all others, and not the one before the first."""


class SparseModel(Model):
    """Weights of sparse workers during a run.

    Parameters
    ----------
    features
        The features.
    weights
        Initial weights of each worker.
    settings, limits
        See `Model`.
    exempt
        See `p4sgd.sim.features.new_model`.
    """

    def __init__(
        self,
        features: SparseFeatures,
        weights: Sequence[EngineWeights],
        settings: RunSettings,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> None:
        super().__init__(settings, limits)
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
        self._choose()
        self._next_choice = _FIRST_CHOICE if settings.shrink and not stale and not self._state.weights.any() else 0
        """Mini-batch after which to choose again, as weights that are all 0 tell nothing; 0 for never."""

    def _choose(self) -> None:
        """Choose which columns are hot. All weights must have the penalties of all mini-batches so far."""
        features = self._features
        self._cold = self._first_cold() if self._state.done.size else np.zeros(self._limits.size, np.int64)
        """Each worker's first column whose weight catches up with penalties."""
        begins, ends = features.begins[:-1], np.clip(self._cold, features.begins[:-1], features.begins[1:])
        middles = np.minimum(self._exempted, ends)
        self._hot = np.concatenate((np.stack((begins, middles), 1), np.stack((middles + 1, ends), 1)))
        """Ranges of hot columns that are not exempt, begins and ends; some are empty."""
        if self._state.done.size:
            if self._mini_batch > 0:  # else they are 0, and most of this memory is never touched
                self._state.done[:] = self._mini_batch
            self._state.done[[column for column in self._exempted if column < features.count]] = _ALL

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
        features, settings = self._features, self._settings
        begins = features.begins_of(self._limits.size)
        # With staleness weights are read as they were before, which is kept only of those that entries change.
        if settings.stale:
            return begins[:-1]
        return first_cold(features.visits(settings.batch), self._state.weights, settings.shrink, begins)

    def update(self, first: int, deltas: IntArray) -> None:
        """See `Model`."""
        entries, spans, begin, shift = self._features.merged, self._spans, first // BANKS, self._settings.gradient_shift
        if self._settings.stale:
            own = spans[begin : begin + deltas.size // BANKS]
            passes.remember(entries, own, self._cold, self._mini_batch, self._penalty, self._state)
        passes.descend(entries, spans, begin, deltas, shift, self._state.weights, True, self.saturated)

    @property
    def mini_batches_at_once(self) -> int:
        """See `Model`."""
        features = self._features
        return max(1, _PART * features.samples // (self._settings.batch * max(1, features.entries)))

    def dots(self, samples: slice) -> IntArray:
        """See `Model`."""
        return self._features.dots(self._present(), samples)

    def values(self, *, last: bool = False) -> list[WeightArray]:
        """See `Model`."""
        weights = self._present()
        if last:
            del self._state  # may take as much memory as the weights
        return self._features.unflatten(weights)

    def _add_up(self, first: int, shift: int, totals: IntArray) -> None:
        entries, spans, begin, state = self._features.merged, self._spans, first // BANKS, self._state
        mini_batch = self._mini_batch + self._under_way - 1
        if state.done.size:
            own, seen = spans[begin : begin + totals.shape[1] // BANKS], steps_seen(mini_batch, self._settings.stale)
            catch_up(entries.keys, BANK_BITS, own, self._cold, seen, self._penalty, state.weights, state.done)
        passes.totals(entries, spans, begin, Rounding.by(shift), mini_batch, state, totals)

    def _regularize(self) -> None:
        penalise(self._hot, self._penalty, self._state.weights)
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
        rounding = Rounding.by(settings.features.forward_shift)
        self._mini_batch += labels.size // settings.batch

        def share(thread: int, arrivals: IntArray, totals: IntArray) -> bool:
            done: bool = passes.train(
                thread,
                arrivals,
                totals,
                np.empty((2, settings.batch), np.int64),
                features.merged,
                spans[thread],
                (edges[thread, 0], edges[thread, -1]),
                hot[thread],
                self._cold,
                first,
                labels,
                importances,
                mini_batch,
                self._limits,
                loss,
                rounding,
                (settings.rate_mantissa, settings.gradient_shift),
                Penalty.of(settings.shrink, settings.threshold),
                self._state,
                self.clamped,
                self.saturated,
            )
            return done

        return share

    @property
    def _spans(self) -> IntArray:
        """Where each worker's entries of each micro-batch begin and end: int64 (T, workers, 2)."""
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
