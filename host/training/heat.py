"""Sparse data by heat: columns in the order of their nonzeros, and which workers get which.

The first columns are the hottest. Boards, whose time depends on the number of columns, get hot ones; sparse workers,
whose time depends on the number of nonzeros, get the others. The order of columns is part of the problem: it depends on
the data alone, so that the weights do not depend on who has which columns.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from p4sgd.host.data.scaling import HeatArray
from p4sgd.host.errors import UserError
from p4sgd.host.image import Shard
from p4sgd.host.image.file import ColumnArray
from p4sgd.host.image.partition import units_held
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.timing import BOARDS_NETWORK, mini_batch_cycles

__all__ = [
    "ENTRY_NS",
    "PACKETS_NS",
    "Alternative",
    "Split",
    "WorkerShare",
    "choose_hot",
    "deal_by_heat",
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
        Number of all columns, the bias included.
    workers
        What each worker has, by shard.
    all_dense, all_sparse
        What it would be without sparse and without dense workers, if dense ones read all lines.
    skips_zeros
        Whether the dense ones of ``workers`` pass over lines of zeros.
    """

    columns: int
    total: int
    workers: tuple[WorkerShare, ...]
    all_dense: Alternative
    all_sparse: Alternative
    skips_zeros: bool = False

    @property
    def nonzeros(self) -> float:
        """Fraction of the nonzeros in the hot columns."""
        return sum(worker.nonzeros for worker in self.workers if not worker.sparse)

    @property
    def sample_ns(self) -> float:
        """Predicted time of the slowest worker for a sample, in ns."""
        return max(worker.sample_ns for worker in self.workers)

    def to_json(self) -> dict[str, Any]:
        """As plain data, for reports."""
        return dataclasses.asdict(self) | {"nonzeros": self.nonzeros, "sample_ns": self.sample_ns}

    def __str__(self) -> str:
        told = (
            f"{self.columns:,} hot columns of {self.total:,}, with {self.nonzeros:.1%} of the nonzeros, are on dense "
            f"workers, the others on sparse ones: predicted {microseconds(self.sample_ns)} µs a sample"
        )
        reading = " (all lines read)" if self.skips_zeros else ""
        faster = [
            f"{microseconds(other.sample_ns)} without the {without}"
            for without, other in ((f"sparse workers{reading}", self.all_dense), ("dense workers", self.all_sparse))
            if other.sample_ns is not None and other.sample_ns < self.sample_ns
        ]
        return told + (f", but {' and '.join(faster)}" if faster else "")


def deal_by_heat(
    shards: Sequence[Shard], heat: HeatArray, samples: int, options: TrainingOptions, *, network: bool = False
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

    Returns
    -------
    The shards, and the split if there are dense and sparse workers.

    Raises
    ------
    UserError
        If the workers cannot hold the columns that way.
    """
    total, unit = shards[0].total, shards[0].unit
    order = heat_order(heat, total)
    if not any(shard.config.sparse for shard in shards):
        return [shard.in_order(order) for shard in shards], None
    begins = np.arange(0, total, unit)
    loads = np.add.reduceat(_in_order(heat, order, samples), begins, dtype=np.int64)
    model = _TimeModel(shards, loads, samples, options, PACKETS_NS if network else 0.0)
    hot = np.array([model.choose()])
    dealt, shares = list(shards), {}
    for shard, first, end in (*model.deal_hot(hot), *model.deal_cold(hot)):
        mine = dataclasses.replace(shard, units=np.arange(first[0], end[0])).in_order(order)
        dealt[shard.worker] = mine
        part = loads[mine.units].sum() / max(1, loads.sum())
        shares[shard.worker] = WorkerShare(
            shard.config.sparse, mine.features, float(part), float(model.sample_ns(shard, first, end)[0])
        )
    if all(shard.config.sparse for shard in shards):
        return dealt, None
    workers = tuple(shares[shard.worker] for shard in shards)
    columns = min(int(hot[0]) * unit, total)
    return dealt, Split(columns, total, workers, model.all_dense(), model.all_sparse())


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
    told = (
        f"{hot:,} hot columns of {total:,} are on all ranks; of the others a rank needs {cold:,.0f} in a mini-batch: "
        f"predicted {hot * hot_ns / 1e3:,.0f} and {cold * KEY_NS / 1e3:,.0f} µs"
    )
    return hot, told


def microseconds(ns: float) -> str:
    """A predicted time in µs, for people."""
    return f"{ns / 1000:.3g}" if ns < 1e6 else f"{ns / 1000:,.0f}"


_Dealt: TypeAlias = Iterator[tuple[Shard, IntArray, IntArray]]
"""Workers, with the first of their units and the one after the last."""


class _TimeModel:
    """Predicted times of workers by the number of hot units.

    Numbers of hot units are int (count,), to see many at once; what depends on them has the same shape.

    Parameters
    ----------
    shards, samples, options
        See `deal_by_heat`.
    loads
        int64 (units,): nonzeros of each unit, in the order of heat.
    packets_ns
        Time of a sparse worker for the packets of a sample, in ns.
    """

    def __init__(
        self, shards: Sequence[Shard], loads: IntArray, samples: int, options: TrainingOptions, packets_ns: float
    ) -> None:
        self._dense = [shard for shard in shards if not shard.config.sparse]
        self._sparse = [shard for shard in shards if shard.config.sparse]
        self._unit, self._options = shards[0].unit, options
        self._count, self._samples, self._packets_ns = loads.size, samples, packets_ns
        self._before = np.append(0, np.cumsum(loads))
        """Nonzeros before each unit."""
        self._turns = _take_turns(
            [min(self._room(shard), loads.size) for shard in self._dense],
            [shard.units.size for shard in self._dense],
        )
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
            hot = np.arange(least, most + 1)
            times = (self.sample_ns(*each) for deal in (self.deal_hot, self.deal_cold) for each in deal(hot))
            return least + int(np.argmin(reduce(np.maximum, times)))
        wanted = sum(shard.units.size for shard in self._dense) if split == "none" else -(-int(split) // unit)
        if not least <= wanted <= most:
            raise UserError(f"--split {split}: these workers can have {least * unit:,} to {most * unit:,} hot columns")
        return wanted

    def deal_hot(self, hot: IntArray) -> _Dealt:
        """Deal the hot units to the dense workers, by shares."""
        begin = np.zeros_like(hot)
        for worker, shard in enumerate(self._dense):
            end = begin + np.append(0, np.cumsum(self._turns == worker))[hot]
            yield shard, begin, end
            begin = end

    def deal_cold(self, hot: IntArray) -> _Dealt:
        """Deal the other units to the sparse workers, with nonzeros by shares."""
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

    def sample_ns(self, shard: Shard, begin: IntArray, end: IntArray) -> FloatArray:
        """Predicted time of a worker with these units for a sample, in ns."""
        if shard.config.sparse:
            entries: FloatArray = (self._before[end] - self._before[begin]) / self._samples
            return entries * ENTRY_NS + self._packets_ns
        return self._board_ns(shard.config, end - begin)

    def all_dense(self) -> Alternative:
        """All units on the dense workers."""
        return self._alternative(self._dense, self.deal_hot(np.array([self._count])))

    def all_sparse(self) -> Alternative:
        """All units on the sparse workers."""
        return self._alternative(self._sparse, self.deal_cold(np.array([0])))

    def _alternative(self, shards: Sequence[Shard], dealt: _Dealt) -> Alternative:
        room = sum(map(self._room, shards))
        if room < self._count:
            return Alternative(room * self._unit, None)
        return Alternative(room * self._unit, max(float(self.sample_ns(*each)[0]) for each in dealt))

    def _room(self, shard: Shard) -> int:
        """Units that a worker can hold."""
        options = self._options
        return units_held(shard.config, self._unit, options.least_lines, stale=bool(options.staleness))

    def _board_ns(self, config: WorkerConfig, units: IntArray) -> FloatArray:
        """Predicted time of a board with so many units for a sample, in ns: that of its fullest engine."""
        options = self._options
        chunks, places = np.unique(-(-units // config.engines), return_inverse=True)
        chunks *= max(1, self._unit // config.lanes)
        stale = bool(options.staleness)
        cycles = [
            mini_batch_cycles(config, options.batch, int(each), options.precision, BOARDS_NETWORK, stale=stale)
            for each in chunks
        ]
        sample_ns: FloatArray = np.array(cycles)[places] * (CLOCK_NS / options.batch)
        return sample_ns


def _take_turns(rooms: Sequence[int], shares: Sequence[int]) -> IntArray:
    """Which worker gets each unit, one after another until all are full.

    After as many units as there are workers each has one; after any number each has those that
    `p4sgd.host.image.partition.divide` gives it.
    """
    further = [np.arange(2, room + 1) for room in rooms]
    workers = np.repeat(np.arange(len(rooms)), np.array([each.size for each in further], np.int64))
    quotients = np.concatenate([np.empty(0), *(each / share for each, share in zip(further, shares, strict=True))])
    return np.append(np.arange(len(rooms)), workers[np.lexsort((workers, quotients))])
