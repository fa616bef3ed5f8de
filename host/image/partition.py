"""Which features go to which worker."""

from dataclasses import dataclass

from p4sgd.host.errors import UserError
from p4sgd.hw.spec.config import PRESETS, WorkerConfig
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["Shard", "partition"]


@dataclass(frozen=True)
class Shard:
    """A worker's slice of the features: ``first`` up to but not including ``last``, the bias counting as the last one.

    Parameters
    ----------
    worker
        Index of the worker.
    first, last
        Range of features.
    """

    worker: int
    first: int
    last: int

    @property
    def features(self) -> int:
        """How many features it has."""
        return self.last - self.first


def partition(features: int, workers: int, config: WorkerConfig, *, bias: bool) -> list[Shard]:
    """Deal features to workers in contiguous ranges of whole chunks of ``config.lanes`` features.

    Of K = ⌈(features + bias) / lanes⌉ chunks worker w of W gets ⌊w·K/W⌋ up to ⌊(w+1)·K/W⌋, so that two workers differ
    by at most one chunk.

    Parameters
    ----------
    features
        Features of the data.
    workers
        Workers, 1 to 32.
    config
        Their configuration.
    bias
        Whether a bias follows them as the last feature.

    Returns
    -------
    One shard a worker; together they are all features, in order.

    Raises
    ------
    UserError
        If a worker would get no chunk, or more features than it holds.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise UserError(f"workers must be 1 to {MAX_WORKERS}, not {workers}")
    total = features + bias
    named = f"{features} features{' and the bias' if bias else ''}"
    chunks = -(-total // config.lanes)
    if chunks < workers:
        raise UserError(
            f"{named} are {chunks} chunks of {config.lanes}, too few for {workers} workers: use at most {chunks}"
        )
    edges = [worker * chunks // workers * config.lanes for worker in range(workers)] + [total]
    shards = [Shard(worker, edges[worker], edges[worker + 1]) for worker in range(workers)]
    largest = max(shard.features for shard in shards)
    if largest > config.features:
        needed = -(-chunks // (config.features // config.lanes))
        remedies = [f"at least {needed} workers"] if needed <= MAX_WORKERS else []
        if larger := [name for name, make in PRESETS.items() if _fits(total, workers, make())]:
            remedies.append(f"a larger configuration ({', '.join(larger)})")
        raise UserError(
            f"{named} over {workers} worker{'s' if workers > 1 else ''} are up to "
            f"{largest} a worker, this configuration holds {config.features}: "
            f"use {' or '.join(remedies or ['fewer features'])}"
        )
    return shards


def _fits(features: int, workers: int, config: WorkerConfig) -> bool:
    """Whether every worker of a configuration gets a chunk, and no more than it holds."""
    chunks = -(-features // config.lanes)
    return workers <= chunks and -(-chunks // workers) * config.lanes <= config.features
