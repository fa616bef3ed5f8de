"""Weights of dense workers during a run."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from p4sgd.hw.spec.fixed import ByteArray, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.run import RunSettings
from p4sgd.sim.dense import passes
from p4sgd.sim.dense.features import DenseFeatures
from p4sgd.sim.dense.lines import offset
from p4sgd.sim.model import Model

__all__ = ["DenseModel"]

_THREAD_FEATURES = 1 << 15
"""Fewest features of a mini-batch for a thread, some 10 µs of work: less would not make up for the waiting."""

_PART = 1 << 26
"""Number of features that a call of the loops trains on, a few hundredths of a second: between calls Ctrl-C acts."""


class DenseModel(Model):
    """Weights of dense workers during a run.

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
        features: DenseFeatures,
        weights: Sequence[EngineWeights],
        settings: RunSettings,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> None:
        super().__init__(settings, limits)
        units, workers = features.layout
        self._features, self._penalties = features, passes.penalties_of(settings)
        self._layout = units, workers if limits.size == workers.size - 1 else workers[[0, -1]]
        self._given = [np.asarray(each) for each in weights]
        self._weights = features.gather(weights)
        self._rest = [np.delete(own, columns) for own, columns in zip(self._given, features.columns, strict=True)]
        self._others = np.concatenate([part if part.any() else part[:0] for part in self._rest]).astype(np.float64)
        # Weights of forward passes; with staleness those before the last update.
        self._read = self._weights.copy() if settings.stale else self._weights
        self._rows: deque[tuple[ByteArray, int]] = deque()
        """Those of each call of `partials` whose `update` is still to come."""
        self._exempt_places, begin, exempt_columns = exempt, 0, []
        for columns, place in zip(features.columns, exempt, strict=True):
            exempt_columns += (begin + np.flatnonzero(columns == place)).tolist()
            begin += columns.size
        self._exempt = np.array(exempt_columns, np.int64)

    def update(self, first: int, deltas: IntArray) -> None:
        """See `Model`."""
        rows, row = self._rows.popleft()
        settings, (units, workers) = self._settings, self._layout
        if settings.stale and first % settings.batch == 0:
            self._read[:] = self._weights
        for worker in range(self.saturated.size):
            columns = int(units[workers[worker]]), int(units[workers[worker + 1]])
            self.saturated[worker] |= passes.backward(
                rows, row, columns, deltas, settings.features, settings.gradient_shift, self._weights
            )

    @property
    def mini_batches_at_once(self) -> int:
        """See `Model`."""
        return max(1, _PART // max(1, self._settings.batch * self._features.count))

    def dots(self, samples: slice) -> IntArray:
        """See `Model`."""
        return self._features.dots(self._weights, samples)

    def values(self, *, last: bool = False) -> list[WeightArray]:
        """See `Model`."""
        begin = other = 0
        result = []
        for given, columns, rest, exempt in zip(
            self._given, self._features.columns, self._rest, self._exempt_places, strict=True
        ):
            result.append(given.copy())
            own = result[-1].reshape(-1)
            if rest.any():
                own[np.delete(np.arange(own.size), columns)] = self._others[other : other + rest.size]
                other += rest.size
            if exempt is not None:
                own[exempt] = given.reshape(-1)[exempt]  # if it is one of the others, nothing has changed it
            own[columns] = self._weights[begin : begin + columns.size]
            begin += columns.size
        return result

    def _add_up(self, first: int, shift: int, totals: IntArray) -> None:
        features = self._features
        rows, row = features.rows(first, totals.shape[1])
        self._rows.append((rows, row))
        # Ahead of the updates of the mini-batch before, these are the weights that it will leave to be read.
        read = self._read if self._under_way == 1 else self._weights
        passes.totals(rows, row, self._layout, features.form, shift, read, totals)

    def _regularize(self) -> None:
        passes.regularize(self._weights, self._penalties, self._exempt)
        passes.regularize(self._others, self._penalties)

    def _most_threads(self, first: int, samples: int) -> int:
        return min(self._layout[0].size - 1, self._settings.batch * self._features.count // _THREAD_FEATURES)

    def _share(
        self, first: int, labels: IntArray, importances: IntArray, loss: Any, threads: int
    ) -> Callable[[int, IntArray, IntArray], bool]:
        rows, row = self._features.rows(first, labels.size)
        settings, features = self._settings, rows[row : row + labels.size]

        def share(thread: int, arrivals: IntArray, totals: IntArray) -> bool:
            batch, units = settings.batch, self._layout[0].size - 1
            saturated: bool = passes.train(
                thread,
                arrivals,
                totals,
                (np.empty(batch, np.int64), np.empty(batch), np.empty(units, np.int64), np.empty(self._exempt.size)),
                features,
                labels,
                importances,
                self._layout,
                (offset(settings.features), settings.features.forward_shift),
                self._limits,
                loss,
                (settings.rate_mantissa, 2.0**-settings.gradient_shift),
                self._penalties,
                self._exempt,
                settings.stale,
                self._weights,
                self._read,
                self._others,
                self.clamped,
                self.saturated,
            )
            return saturated

        return share
