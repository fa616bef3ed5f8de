"""Sparse data by heat: columns in the order of their nonzeros, and which workers get which.

The first columns are the hottest. Boards, whose time depends on the number of columns, get hot ones; sparse workers,
whose time depends on the number of nonzeros, get the others. The order of columns is part of the problem: it depends on
the data alone, so that the weights do not depend on who has which columns.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from p4sgd.host.data.scaling import HeatArray
from p4sgd.host.errors import UserError
from p4sgd.host.image import Shard
from p4sgd.host.image.file import ColumnArray
from p4sgd.host.image.partition import divide, units_held
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS, CLOCK_NS
from p4sgd.hw.spec.fixed import IntArray

__all__ = ["ENTRY_NS", "PACKETS_NS", "Split", "choose_hot", "deal_by_heat", "heat_order", "split_remarks"]

ENTRY_NS = 5.0
"""Time of a sparse worker for a nonzero in an epoch, in ns: tests/bench/bench_sparse.py has measured 4 with 47,236
columns and 5 with a million, whose weights are not in the caches."""

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

SPACING_CYCLES = 11
"""Cycles that a micro-batch takes a board at least (``Model.UPDATE_SPACING``)."""

SUMS_CYCLES = 98
"""Cycles of a mini-batch in which a board of the configuration u280 reads no lines, less the precision: forward and
backward pipelines, and 50 for the network (`p4sgd.hw.spec.timing`)."""


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
class Split:
    """How columns are divided into hot ones on dense workers and cold ones on sparse workers.

    Parameters
    ----------
    columns
        Number of hot columns.
    nonzeros
        Fraction of the nonzeros that they have.
    dense_ns, sparse_ns
        Predicted time of the slowest dense and of the slowest sparse worker for a sample, in ns.
    """

    columns: int
    nonzeros: float
    dense_ns: float
    sparse_ns: float


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
    first = shards[0]
    order, count = heat_order(heat, first.total), -(-first.total // first.unit)
    begins = np.arange(0, first.total, first.unit)
    units = np.add.reduceat(_in_order(heat, order, samples), begins, dtype=np.int64)
    rooms = [units_held(shard.config, first.unit, options.precision, stale=bool(options.staleness)) for shard in shards]
    dense = [shard.worker for shard in shards if not shard.config.sparse]
    sparse = [shard.worker for shard in shards if shard.config.sparse]
    if not sparse:
        return [shard.in_order(order) for shard in shards], None
    split, hot = None, 0
    if dense:
        split, hot = _choose(units, shards, rooms, samples, options, PACKETS_NS if network else 0.0)
    counts = dict.fromkeys(range(len(shards)), 0)
    if dense:
        shares = [float(shards[worker].units.size) for worker in dense]
        counts |= zip(dense, divide(hot, [rooms[worker] for worker in dense], shares), strict=True)
    shares = [float(shards[worker].units.size) for worker in sparse]
    counts |= zip(sparse, _balanced(units[hot:], [rooms[worker] for worker in sparse], shares), strict=True)
    begin, units_of = 0, {}
    for worker in (*dense, *sparse):
        units_of[worker] = np.arange(begin, begin + counts[worker])
        begin += counts[worker]
    assert begin == count
    dealt = [dataclasses.replace(shard, units=units_of[shard.worker]).in_order(order) for shard in shards]
    return dealt, split


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


def split_remarks(split: Split | None, features: int) -> tuple[str, ...]:
    """What the user should know about a split of so many features."""
    if split is None:
        return ()
    return (
        f"{split.columns:,} hot columns of {features:,}, with {split.nonzeros:.1%} of the nonzeros, are on dense "
        f"workers, the others on sparse ones: predicted {split.dense_ns:,.0f} ns a sample on boards and "
        f"{split.sparse_ns:,.0f} on sparse workers",
    )


def _choose(
    units: IntArray,
    shards: Sequence[Shard],
    rooms: Sequence[int],
    samples: int,
    options: TrainingOptions,
    packets_ns: float,
) -> tuple[Split, int]:
    """How many units are hot: those that the user wants, or as many as make the slowest worker fastest."""
    dense, unit = [shard for shard in shards if not shard.config.sparse], shards[0].unit
    sparse = len(shards) - len(dense)
    least = max(len(dense), units.size - sum(rooms[shard.worker] for shard in shards if shard.config.sparse))
    most = min(sum(rooms[shard.worker] for shard in dense), units.size - sparse)
    hot = np.arange(least, most + 1)
    if not hot.size:
        raise UserError("the workers cannot hold these columns, some of them dense and some sparse: use more of either")
    # Dense workers have units in proportion to what they had: the slowest is the one with the most for its engines.
    shares = np.array([shard.units.size for shard in dense]) / sum(shard.units.size for shard in dense)
    lines = np.zeros(hot.size)
    for shard, share in zip(dense, shares, strict=True):
        chunks = np.ceil(np.ceil(hot * share) / shard.config.engines) * max(1, unit // shard.config.lanes)
        lines = np.maximum(lines, chunks * options.precision)
    # As `mini_batch_cycles` of `p4sgd.hw.spec.timing`.
    spacing, micro_batches = np.maximum(lines, SPACING_CYCLES), options.batch // BANKS
    cycles = lines + (micro_batches - 1) * spacing + options.precision + SUMS_CYCLES
    if options.staleness:
        cycles = np.maximum(micro_batches * spacing, cycles / 2)
    nonzeros = np.cumsum(units)
    shares = np.array([shard.units.size for shard in shards if shard.config.sparse])
    cold = (nonzeros[-1] - nonzeros[hot - 1]) / samples * shares.max() / shares.sum()
    dense_ns, sparse_ns = cycles * CLOCK_NS / options.batch, cold * ENTRY_NS + packets_ns
    if options.split == "auto":
        place = int(np.argmin(np.maximum(dense_ns, sparse_ns)))
    else:
        own = sum(shard.units.size for shard in dense)
        wanted = own if options.split == "none" else -(-int(options.split) // unit)
        if not least <= wanted <= most:
            raise UserError(
                f"--split {options.split}: these workers can have {least * unit:,} to {most * unit:,} hot columns"
            )
        place = wanted - least
    columns = min(int(hot[place]) * unit, int(shards[0].total))
    part = float(nonzeros[hot[place] - 1] / nonzeros[-1])
    return Split(columns, part, float(dense_ns[place]), float(sparse_ns[place])), int(hot[place])


def _balanced(loads: IntArray, rooms: Sequence[int], shares: Sequence[float]) -> list[int]:
    """How many of consecutive units each worker gets, at least one and at most its room, with loads by shares."""
    ends, wanted_ends = np.cumsum(loads), loads.sum() * np.cumsum(shares) / sum(shares)
    if loads.size < len(rooms) or sum(rooms) < loads.size:
        raise UserError(
            f"{len(rooms)} sparse workers cannot share {loads.size} units of columns: they hold {sum(rooms)}, and each "
            "needs one"
        )
    counts, begin = [], 0
    for number, room in enumerate(rooms):
        after = len(rooms) - number - 1
        wanted = int(np.searchsorted(ends, wanted_ends[number])) + 1 - begin
        low = max(1, loads.size - begin - sum(rooms[number + 1 :]))
        counts.append(min(max(wanted, low), room, loads.size - begin - after))
        begin += counts[-1]
    return counts
