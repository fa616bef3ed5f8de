"""Deals sparse columns to boards and sparse workers by heat, the number of samples that have a column (``--split``).

The hottest columns come first. Boards, whose time depends on the number of columns, get hot ones; sparse workers, whose
time depends on the number of nonzeros, get the others. The order of columns is part of the problem: it depends on the
data alone, so the weights do not depend on who has which columns.
"""

import bisect
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from p4sgd.host.data.statistics import HeatArray
from p4sgd.host.errors import UserError
from p4sgd.host.image import Shard
from p4sgd.host.image.image import ColumnArray
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.dealing.board_times import ListedLines, all_lines_ns
from p4sgd.host.training.dealing.partition import take_turns, units_held
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray

__all__ = [
    "ENTRY_NS",
    "PACKETS_NS",
    "Alternative",
    "Split",
    "WorkerShare",
    "choose_hot",
    "deal_by_heat",
    "deal_in_turn",
    "heat_order",
    "microseconds",
]

ENTRY_NS = 4.0
"""Time of a sparse worker for a nonzero in an epoch, in ns: tests/bench/bench_sparse.py has measured 2.3 with 47,236
columns and 3.9 with a million, whose weights are not in the caches."""

KEY_NS = 40.0
"""Time that a cold column in a mini-batch takes the rank that needs it and its owner together, in ns: 26 were measured
in a single process (half of rcv1's shape, B = 256), to which messages add an estimate."""

HOT_NS = 8.0
"""Time that a hot column in a mini-batch takes a rank if MPI adds its steps over the ranks, in ns: 5 were measured in a
single process, to which messages add an estimate."""

PACKETS_NS = 10_000.0
"""Time of a worker process for the packets of a sample, in ns, on a core of its own and with a packet for each
micro-batch, as boards want: tests/bench/bench_processes.py has measured 58 to 87 µs of processor time of a dense
worker for a packet, with what it computes. Where packets carry several micro-batches it takes less."""


def heat_order(heat: HeatArray, total: int) -> ColumnArray:
    """The job's order of features: the hottest first, then by their number, the bias last: int32 (total,).

    Parameters
    ----------
    heat
        int (features,): samples that have a feature.
    total
        Features of the job.
    """
    order = np.arange(total, dtype=np.int32)
    order[: heat.size] = np.argsort(-heat, kind="stable")
    return order


def _in_order(heat: HeatArray, order: ColumnArray, samples: int) -> HeatArray:
    """Samples that have each feature of the job, in its order: all of them have the bias."""
    return np.append(heat, np.full(order.size - heat.size, samples, heat.dtype))[order]


@dataclasses.dataclass(frozen=True)
class WorkerShare:
    """What a worker has of a split.

    Parameters
    ----------
    sparse
        Whether it is a sparse worker.
    columns
        Number of its columns.
    nonzeros
        Fraction of all nonzeros that they have.
    sample_ns
        Predicted time for a sample, in ns.
    """

    sparse: bool
    columns: int
    nonzeros: float
    sample_ns: float


@dataclasses.dataclass(frozen=True)
class Alternative:
    """All columns on the workers of one kind.

    Parameters
    ----------
    room
        Columns that these workers can hold.
    sample_ns
        Predicted time of the slowest for a sample, in ns; ``None`` if there are more columns.
    """

    room: int
    sample_ns: float | None


@dataclasses.dataclass(frozen=True)
class Split:
    """How columns are divided into hot ones on dense workers and cold ones on sparse workers.

    Parameters
    ----------
    columns
        Number of hot columns.
    total
        Number of all columns, the bias, if there is one, included as the last.
    workers
        What each worker has, by shard.
    sample_ns
        Predicted time for a sample, in ns: that of the slowest worker. Dense ones that pass over zeros also wait for
        each other: now this one is the slowest, now that.
    all_dense, all_sparse
        What it would be without sparse and without dense workers.
    bias
        Whether there is a bias.
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
        """As plain data, for reports."""
        return dataclasses.asdict(self) | {"nonzeros": self.nonzeros}

    def __str__(self) -> str:
        bias = " (the bias is the last)" if self.bias else ""
        told = (
            f"{self.columns:,} hot columns of {self.total:,}{bias}, with {self.nonzeros:.1%} of the nonzeros, are on "
            f"dense workers, the others on sparse ones: predicted {microseconds(self.sample_ns)} µs a sample"
        )
        faster = [
            f"{microseconds(other.sample_ns)} on {kind} alone"
            for kind, other in (("boards", self.all_dense), ("sparse workers", self.all_sparse))
            if other.sample_ns is not None and other.sample_ns < self.sample_ns
        ]
        return told + (f", but {' and '.join(faster)}" if faster else "")


def deal_by_heat(
    shards: Sequence[Shard],
    heat: HeatArray,
    samples: int,
    options: TrainingOptions,
    *,
    network: bool = False,
    lines: ListedLines | None = None,
    order: ColumnArray | None = None,
) -> tuple[list[Shard], Split | None]:
    """Deal the units of sparse data to the workers that have shards, in the order of heat.

    Dense workers get the first units, in the proportions that they have, and sparse workers the others, with nonzeros
    in the proportions of the units that they have.

    Parameters
    ----------
    shards
        The workers, with units by their shares.
    heat
        int (features,): training samples that have a feature.
    samples
        Number of training samples.
    options
        Options of the training run; ``split`` says how many columns are hot.
    network
        Whether sparse workers are processes that exchange packets, which takes them time.
    lines
        What directories list, in the order of heat, if dense workers are to have them, see `deal_in_turn`; ``None`` if
        they read all lines.
    order
        `heat_order`, if it is known, which takes seconds for tens of millions of features.

    Returns
    -------
    The shards, and the split if there are dense and sparse workers.

    Raises
    ------
    UserError
        If the workers cannot hold the columns that way.
    """
    total, unit = shards[0].total, shards[0].unit
    order = heat_order(heat, total) if order is None else order
    if not any(shard.config.sparse for shard in shards):
        dealt = list(shards) if lines is None else deal_in_turn(shards)
        return [shard.in_order(order) for shard in dealt], None
    begins = np.arange(0, total, unit)
    loads = np.add.reduceat(_in_order(heat, order, samples), begins, dtype=np.int64)
    model = _TimeModel(shards, loads, samples, options, PACKETS_NS if network else 0.0, lines)
    hot = model.choose()
    dealt = [shard.in_order(order) for shard in model.deal(hot)]
    if all(shard.config.sparse for shard in shards):
        return dealt, None
    nonzeros = max(1, loads.sum())
    workers = tuple(
        WorkerShare(
            shard.config.sparse, shard.features, float(loads[shard.units].sum() / nonzeros), model.sample_ns(shard)
        )
        for shard in dealt
    )
    sample_ns = max(
        model.dense_ns([shard for shard in dealt if not shard.config.sparse]),
        *(worker.sample_ns for worker in workers if worker.sparse),
    )
    alone = model.all_dense(), model.all_sparse()
    return dealt, Split(min(hot * unit, total), total, workers, sample_ns, *alone, bias=total > heat.size)


def deal_in_turn(shards: Sequence[Shard]) -> list[Shard]:
    """Deal the units of dense workers to them in turn, to each as many as it has, and give them directories.

    What is not 0 is mostly in the first, hot units. So all engines have about as many lines.
    """
    dense, dealt = [shard for shard in shards if not shard.config.sparse], list(shards)
    units, sizes = np.sort(np.concatenate([shard.units for shard in dense])), [shard.units.size for shard in dense]
    owners = take_turns(units.size, sizes, sizes)
    for number, shard in enumerate(dense):
        dealt[shard.worker] = dataclasses.replace(shard, units=units[owners == number], directory=True)
    return dealt


def choose_hot(
    heat: HeatArray, total: int, samples: int, options: TrainingOptions, ranks: int, *, network: bool
) -> tuple[int, str]:
    """How many columns all ranks have, if they divide the samples among themselves.

    A rank needs a cold column in a mini-batch with a probability that follows from its heat. Then the column's weight
    comes from its owner and a step goes back, while a hot column is added in every mini-batch, needed or not.

    Parameters
    ----------
    heat
        int (features,): training samples that have a feature.
    total
        Features of the job.
    samples
        Number of training samples.
    options
        Options of the training run; ``split`` may say how many columns are hot.
    ranks
        Number of ranks.
    network
        Whether an aggregator adds hot columns, and not MPI.

    Returns
    -------
    Number of hot columns, a multiple of 8; and a remark on it.
    """
    sorted_heat = _in_order(heat, heat_order(heat, total), samples)
    needed = 1 - (1 - sorted_heat / samples) ** (options.batch / ranks)
    # The hot columns are the first ones; behind them only the bias, the last one, may be needed more.
    hot_ns = PACKETS_NS if network else HOT_NS  # a packet is for 8 columns, or for 8 samples
    if options.split == "auto":
        hot = int(np.searchsorted(-needed[: heat.size], -hot_ns / KEY_NS)) // BANKS * BANKS
    else:
        hot = 0 if options.split == "none" else -(-int(options.split) // BANKS) * BANKS
    hot = min(hot, -(-total // BANKS) * BANKS)
    cold = float(needed[hot:].sum())
    bias = " (the bias is the last)" if total > heat.size else ""
    told = (
        f"{min(hot, total):,} hot columns of {total:,}{bias} are on all ranks; of the others a rank needs "
        f"{cold:,.0f} in a mini-batch: predicted {hot * hot_ns / 1e3:,.0f} and {cold * KEY_NS / 1e3:,.0f} µs"
    )
    return hot, told


def microseconds(ns: float) -> str:
    """A predicted time in µs, for people."""
    return f"{ns / 1000:.3g}" if ns < 1e6 else f"{ns / 1000:,.0f}"


class _TimeModel:
    """Predicted times of workers by the number of hot units.

    Parameters
    ----------
    shards, samples, options, lines
        See `deal_by_heat`.
    loads
        int64 (units,): nonzeros of each unit, in the order of heat.
    packets_ns
        Time of a sparse worker for the packets of a sample, in ns.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        loads: IntArray,
        samples: int,
        options: TrainingOptions,
        packets_ns: float,
        lines: ListedLines | None,
    ) -> None:
        self._shards = shards
        self._dense = [shard for shard in shards if not shard.config.sparse]
        self._sparse = [shard for shard in shards if shard.config.sparse]
        self._unit, self._options = shards[0].unit, options
        self._count, self._samples, self._packets_ns, self._lines = loads.size, samples, packets_ns, lines
        self._before = np.append(0, np.cumsum(loads))
        """Nonzeros before each unit."""
        rooms = [self._room(shard) for shard in self._dense]
        shares = [shard.units.size for shard in self._dense]
        self._turns = take_turns(min(sum(rooms), loads.size), rooms, shares)
        """Which dense worker gets each unit, as long as there is room."""

    def choose(self) -> int:
        """How many units are hot: those that the user wants, or as many as make the slowest worker fastest."""
        dense, sparse = (sum(map(self._room, each)) for each in (self._dense, self._sparse))
        least = max(len(self._dense), self._count - sparse)
        most = min(dense, self._count - len(self._sparse))
        if least > most:
            raise UserError(
                f"the workers cannot share {self._count} units of columns: {len(self._dense)} dense ones hold {dense}, "
                f"{len(self._sparse)} sparse ones {sparse}, and each needs one: use more or larger workers, or fewer"
            )
        if not self._dense:
            return 0
        split, unit = self._options.split, self._unit
        if split == "auto":
            return self._fastest(least, most)
        wanted = sum(shard.units.size for shard in self._dense) if split == "none" else -(-int(split) // unit)
        if not least <= wanted <= most:
            raise UserError(
                f"--split {split}: these workers can have {least * unit:,} to {most * unit:,} hot columns: choose as "
                f"many, or auto"
            )
        return wanted

    def _fastest(self, least: int, most: int) -> int:
        """How many hot units make the slowest worker fastest.

        With more of them dense workers take longer. So the best number is the last before they take longer than sparse
        workers do with any number up to it, or the next.
        """
        times = (self._cold_ns(begin, end) for _, begin, end in self._deal_cold(np.arange(least, most + 1)))
        cold = functools.reduce(np.maximum, times)
        best = np.minimum.accumulate(cold)
        dense_ns = functools.cache(lambda more: self.dense_ns(self._deal_hot(least + more)))
        next_one = bisect.bisect_left(range(cold.size), True, key=lambda more: bool(dense_ns(more) >= best[more]))
        found = [int(np.argmin(cold[: more + 1])) for more in (next_one - 1, next_one) if 0 <= more < cold.size]
        return least + min(found, key=lambda more: max(dense_ns(more), cold[more]))

    def deal(self, hot: int) -> list[Shard]:
        """Deal the first units to the dense workers and the others to the sparse ones."""
        dealt = list(self._shards)
        for shard in self._deal_hot(hot):
            dealt[shard.worker] = shard
        for shard, begin, end in self._deal_cold(np.array([hot])):
            dealt[shard.worker] = dataclasses.replace(shard, units=np.arange(begin[0], end[0]))
        return dealt

    def sample_ns(self, shard: Shard) -> float:
        """Predicted time of a worker for a sample, in ns."""
        if shard.config.sparse:
            return float(self._cold_ns(shard.units[:1], shard.units[-1:] + 1)[0])
        return self.dense_ns([shard])

    def dense_ns(self, shards: Sequence[Shard]) -> float:
        """Predicted time of dense workers that work together for a sample, in ns."""
        if self._lines is not None:
            return self._lines.sample_ns(shards)
        return max(all_lines_ns(shard, self._options) for shard in shards)

    def all_dense(self) -> Alternative:
        """All units on the dense workers."""
        room = sum(map(self._room, self._dense))
        if room < self._count:
            return Alternative(room * self._unit, None)
        return Alternative(room * self._unit, self.dense_ns(self._deal_hot(self._count)))

    def all_sparse(self) -> Alternative:
        """All units on the sparse workers."""
        room = sum(map(self._room, self._sparse))
        if room < self._count:
            return Alternative(room * self._unit, None)
        times = (self._cold_ns(begin, end)[0] for _, begin, end in self._deal_cold(np.array([0])))
        return Alternative(room * self._unit, float(max(times)))

    def _deal_hot(self, hot: int) -> list[Shard]:
        """Deal so many units to the dense workers, by shares: one after the other, or in turn if they pass over zeros.

        See `deal_in_turn`.
        """
        owners = self._turns[:hot] if self._lines is not None else np.sort(self._turns[:hot])
        return [
            dataclasses.replace(shard, units=np.flatnonzero(owners == worker), directory=self._lines is not None)
            for worker, shard in enumerate(self._dense)
        ]

    def _deal_cold(self, hot: IntArray) -> Iterator[tuple[Shard, IntArray, IntArray]]:
        """Deal the units behind so many hot ones, (n,), to the sparse workers, with nonzeros by shares: the first of
        their units and the one after the last, (n,)."""
        rooms = [self._room(shard) for shard in self._sparse]
        shares = np.cumsum([shard.units.size for shard in self._sparse])
        cold, begin = self._before[-1] - self._before[hot], hot
        for number, (shard, share) in enumerate(zip(self._sparse, shares / shares[-1], strict=True)):
            wanted = np.searchsorted(self._before, self._before[hot] + cold * share)
            # Each gets a unit, and no more than its room; those after it must be able to hold what is left.
            least = np.maximum(begin + 1, self._count - sum(rooms[number + 1 :]))
            most = np.minimum(begin + rooms[number], self._count - (len(rooms) - number - 1))
            end = np.minimum(np.maximum(wanted, least), most)
            yield shard, begin, end
            begin = end

    def _cold_ns(self, begin: IntArray, end: IntArray) -> FloatArray:
        """Predicted time of a sparse worker with these units for a sample, in ns."""
        entries: FloatArray = (self._before[end] - self._before[begin]) / self._samples
        return entries * ENTRY_NS + self._packets_ns

    def _room(self, shard: Shard) -> int:
        """Units that a worker can hold."""
        options = self._options
        return units_held(shard.config, self._unit, options.least_lines, stale=bool(options.staleness))
