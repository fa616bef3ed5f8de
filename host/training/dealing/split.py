"""How columns are divided among workers, and how long these are predicted to take: times are for a sample, in ns."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

from p4sgd.host.image.image import Shard


@dataclass(frozen=True)
class WorkerShare:
    """What a worker has: its columns, its part of the nonzeros, and its predicted time in ns."""

    sparse: bool
    columns: int
    nonzeros: float
    sample_ns: float


@dataclass(frozen=True)
class Alternative:
    """All columns on the workers of one kind: how many they can hold, and their predicted time, if they hold all."""

    room: int
    sample_ns: float | None


@dataclass(frozen=True)
class Split:
    """Division of columns into hot ones on dense workers and cold ones on sparse workers, ``workers`` by shard.

    Of all columns ``bias`` counts as the last. The predicted time is that of the slowest worker; dense ones that pass
    over zeros also wait for each other.
    """

    columns: int
    total: int
    workers: tuple[WorkerShare, ...]
    sample_ns: float
    all_dense: Alternative
    all_sparse: Alternative
    bias: bool = True

    @property
    def nonzeros(self) -> float:
        """Fraction of the nonzeros in the hot columns."""
        return sum(worker.nonzeros for worker in self.workers if not worker.sparse)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"nonzeros": self.nonzeros}

    def __str__(self) -> str:
        bias = " (the bias is the last)" if self.bias else ""
        text = (
            f"{self.columns:,} hot columns of {self.total:,}{bias}, with {self.nonzeros:.1%} of the nonzeros, are on "
            f"dense workers, the others on sparse ones: predicted {microseconds(self.sample_ns)} µs a sample"
        )
        for kind, other in (("boards", self.all_dense), ("sparse workers", self.all_sparse)):
            if other.sample_ns is not None and other.sample_ns < self.sample_ns:
                text += f", but {microseconds(other.sample_ns)} on {kind} alone"
        return text


class Dealt(NamedTuple):
    """The workers with their columns; the split, if there are dense and sparse workers; and a remark."""

    shards: list[Shard]
    split: Split | None = None
    remark: str | None = None


def microseconds(ns: float) -> str:
    """A time in µs, for messages."""
    return f"{ns / 1000:.3g}" if ns < 1e6 else f"{ns / 1000:,.0f}"
