"""Base classes of dense and sparse features, and of their weights during a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from p4sgd.hw.spec.fixed import EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.run import FeatureFormat, LossTable, RunSettings
from p4sgd.sim import parallel
from p4sgd.sim.loss import add_partials, loss_of

__all__ = ["Features", "Model"]


class Features(ABC):
    """Features of some workers, all dense or all sparse.

    Attributes
    ----------
    samples
        Number of samples, padding included.
    origin
        What they were made from; see `p4sgd.sim.features.shared_features`.
    """

    samples: int
    origin: object = None

    @property
    @abstractmethod
    def form(self) -> FeatureFormat:
        """Format of the features."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of columns."""

    def part(self, samples: int) -> "Features":
        """The first samples only, whole micro-batches, kept; or all, if they are kept anyway."""
        return self

    @abstractmethod
    def activations(self, weights: Sequence[EngineWeights]) -> IntArray:
        """Exact dot products of all samples with the weights of each worker, summed: int64 (samples,)."""


class Model(ABC):
    """Weights of workers during a run, which begins with its first mini-batch.

    Parameters
    ----------
    settings
        Settings of the run.
    limits
        int64 (workers,): largest magnitude of each worker's partial activation; (1,) if all are one worker.

    Attributes
    ----------
    clamped, saturated
        (workers,): whether a partial of a worker was clamped, and whether a weight was saturated.
    """

    def __init__(self, settings: RunSettings, limits: IntArray) -> None:
        self._settings, self._limits = settings, limits
        self.clamped, self.saturated = np.zeros(limits.size, np.bool_), np.zeros(limits.size, np.bool_)
        self._under_way = 0
        """Mini-batches that have begun with their partials and not ended."""

    def partials(self, first: int, samples: int, shift: int) -> IntArray:
        """Sums of the workers' partial activations of some samples, for their next `update`: int64 (samples,).

        With staleness this may be for the mini-batch after the one whose updates come next.

        Parameters
        ----------
        first, samples
            First sample and number of samples, whole micro-batches.
        shift
            The dot product of a unit is divided by ``2**shift`` and rounded.
        """
        totals, sums = np.empty((1, self._limits.size, samples), np.int64), np.empty(samples, np.int64)
        self._under_way += first % self._settings.batch == 0
        self._add_up(first, shift, totals[0])
        add_partials(totals, self._limits, self.clamped, sums)
        return sums

    @abstractmethod
    def update(self, first: int, deltas: IntArray) -> None:
        """Gradients and Round 3 of some samples, from δ, int64 (samples,).

        All `partials` of a mini-batch come before its updates, which take the same samples in the same order.
        """

    def regularize(self) -> None:
        """End a mini-batch, after its last `update`: penalties."""
        self._regularize()
        self._under_way -= 1

    def train(self, first: int, labels: IntArray, importances: IntArray, table: LossTable) -> bool:
        """Do mini-batches of all workers, which must be all of the job's.

        Parameters
        ----------
        first
            First sample.
        labels
            int64, of a whole number of mini-batches.
        importances
            int64, as many, or none if the run is not ``weighted``.
        table
            The loss table.

        Returns
        -------
        Whether a residual or its argument was saturated.
        """
        batch = self._settings.batch
        threads = max(1, min(parallel.THREADS, self._most_threads(first, labels.size)))
        arrivals, release = parallel.meeting(threads)
        totals = np.empty((2, threads, self._limits.size, batch), np.int64)
        saturated = np.zeros(threads, np.bool_)
        share = self._share(first, labels, importances, loss_of(table, self._settings), threads)

        def part(thread: int) -> None:
            saturated[thread] = share(thread, arrivals, totals)

        parallel.in_threads(part, threads, release)
        return bool(saturated.any())

    @property
    @abstractmethod
    def mini_batches_at_once(self) -> int:
        """How many mini-batches a call of `train` should do."""

    @abstractmethod
    def dots(self, samples: slice) -> IntArray:
        """Exact dot products with the present weights, summed over the workers: int64 (samples,)."""

    @abstractmethod
    def values(self, *, last: bool = False) -> list[WeightArray]:
        """The present weights of each worker, int32 (engines, chunks · lanes); whether the run ends with them."""

    @abstractmethod
    def _add_up(self, first: int, shift: int, totals: IntArray) -> None:
        """Forward pass: each worker's sums, (workers, samples)."""

    @abstractmethod
    def _regularize(self) -> None:
        """Penalties at the end of a mini-batch."""

    @abstractmethod
    def _most_threads(self, first: int, samples: int) -> int:
        """For how many threads the mini-batches of some samples are enough."""

    @abstractmethod
    def _share(
        self, first: int, labels: IntArray, importances: IntArray, loss: Any, threads: int
    ) -> Callable[[int, IntArray, IntArray], bool]:
        """What each of so many threads does for `train`: a function of its number, ``arrivals`` and ``totals``."""
