"""Deals columns to workers in the order of heat, the number of samples that have a column: the hottest to boards, whose
time depends on the number of columns or of lines that are not 0; the others to sparse workers, whose time depends on
the number of nonzeros."""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from p4sgd.host.data import Scaling
from p4sgd.host.data.statistics import HeatArray
from p4sgd.host.errors import UserError, option
from p4sgd.host.image import Shard
from p4sgd.host.image.contents import Values
from p4sgd.host.image.image import ColumnArray
from p4sgd.host.image.packing import zeros_error
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import Whitening
from p4sgd.host.training.dealing.costs import ENTRY_NS, HOT_NS, KEY_NS, PACKETS_NS, ListedLines, all_lines_ns
from p4sgd.host.training.dealing.split import Alternative, Dealt, Split, WorkerShare, microseconds
from p4sgd.host.training.dealing.units import take_turns, units_held
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray

SAMPLED = 512
"""Samples, the first ones in random order, whose lines are counted."""

_SAMPLED_VALUES = 1 << 20
"""Fewer if they have more values, each of which takes up to 60 bytes."""

_ENOUGH = 0.9
"""Zeros are skipped for so much of the time or less: predictions are up to 4 % off, and packing takes longer."""


def deal_columns(
    shards: Sequence[Shard],
    scaling: Scaling | Whitening,
    options: TrainingOptions,
    *,
    samples: int,
    values: Callable[[int], Values],
    network: bool = False,
    may_read_zeros: bool = False,
) -> Dealt:
    """Deal sparse columns by heat, for boards that read all lines or that pass over zeros, whichever is faster.

    Parameters
    ----------
    shards
        The workers, with units by their shares.
    values
        Gives what is not 0 in so many of the first samples, which are in random order: whole micro-batches, or all.
    network
        Whether sparse workers are processes that exchange packets, which takes them time.
    may_read_zeros
        Whether workers that cannot skip zeros read them where ``skip_zeros`` is ``always``, instead of being refused.

    Raises `UserError` if the workers cannot hold the columns that way, or if zeros are to be skipped and cannot be.
    """
    heat = scaling.heat if isinstance(scaling, Scaling) else None
    if heat is None and options.skip_zeros != "always":
        return Dealt(list(shards))
    if (problem := skipping_problem(shards, scaling, options)) is not None:
        if options.skip_zeros == "always" and not may_read_zeros:
            raise problem
        if heat is None:
            return Dealt(list(shards))
        options = dataclasses.replace(options, skip_zeros="never")
    dealer = _Dealer(shards, heat, samples, options, PACKETS_NS * network)
    before, before_ns = dealer.deal()
    if options.skip_zeros == "never":
        return before
    total = shards[0].total
    width = total if heat is None else int(heat.sum()) // samples + 1
    sampled = min(samples, SAMPLED, max(1, _SAMPLED_VALUES // width // BANKS) * BANKS)
    dealer.lines = ListedLines(values(sampled), dealer.order, shards[0].unit, total, options)
    after, after_ns = dealer.deal()
    if after_ns > _ENOUGH * before_ns and options.skip_zeros != "always":
        return before
    where = "on boards" if before.split is None else "with sparse workers"
    return after._replace(
        remark=f"dense workers pass over zeros: predicted {microseconds(after_ns)} µs a sample {where}, "
        f"{microseconds(before_ns)} µs if they read all lines"
    )


class _Dealer:
    """Deals units in the order of heat: the first, hot ones to dense workers in the proportions of the units that they
    have, the others to sparse workers, with nonzeros in these proportions. With ``lines`` dense workers pass over zeros
    and get units in turn, so that all engines have hot ones. Without ``heat`` all columns count the same.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        heat: HeatArray | None,
        samples: int,
        options: TrainingOptions,
        packets_ns: float,
    ) -> None:
        self.lines: ListedLines | None = None
        self._shards, self._samples, self._options, self._packets_ns = shards, samples, options, packets_ns
        self._unit, self._total = unit, total = shards[0].unit, shards[0].total
        self._count = -(-total // unit)
        self._dense = [shard for shard in shards if not shard.config.sparse]
        self._sparse = [shard for shard in shards if shard.config.sparse]
        self._rooms, self._cold_rooms = (
            [units_held(each.config, unit, options.least_lines, stale=bool(options.staleness)) for each in kind]
            for kind in (self._dense, self._sparse)
        )
        self._bias = heat is not None and total > heat.size
        self.order: ColumnArray | None = None
        loads = np.full(self._count, samples * unit)
        if heat is not None:
            self.order = heat_order(heat, total)
            begins = np.arange(0, total, unit)
            loads = np.add.reduceat(_in_order(heat, self.order, samples), begins, dtype=np.int64)
        self._before = np.append(0, np.cumsum(loads))  # nonzeros before each unit
        sizes = [shard.units.size for shard in self._dense]
        rooms = self._rooms if self._sparse else sizes
        # Dense worker of each unit, as long as there is room.
        self._turns = take_turns(min(sum(rooms), self._count), rooms, sizes)

    def deal(self) -> tuple[Dealt, float]:
        """All units, so many hot ones as the options say, or as make the slowest worker fastest; and the predicted time
        for a sample in ns: if there is no split, that of the dense workers."""
        hot, shards = self._hot(), list(self._shards)
        for shard in (*self._deal_hot(hot), *self._deal_cold(hot)):
            shards[shard.worker] = shard.in_order(self.order)
        dense = [shard for shard in shards if not shard.config.sparse]
        dense_ns = self._dense_ns(dense) if dense else 0.0
        if self.order is None or not dense or not self._sparse:
            return Dealt(shards), dense_ns
        workers = []
        for shard in shards:
            if shard.config.sparse:
                sample_ns = float(self._cold_ns(shard.units[0], shard.units[-1] + 1))
            else:
                sample_ns = self._dense_ns([shard])
            nonzeros = float(np.diff(self._before)[shard.units].sum() / max(1, self._before[-1]))
            workers.append(WorkerShare(shard.config.sparse, shard.features, nonzeros, sample_ns))
        all_dense, all_sparse = sum(self._rooms), sum(self._cold_rooms)
        split = Split(
            columns=min(hot * self._unit, self._total),
            total=self._total,
            workers=tuple(workers),
            sample_ns=max(dense_ns, *(worker.sample_ns for worker in workers if worker.sparse)),
            all_dense=Alternative(
                all_dense * self._unit,
                self._dense_ns(self._deal_hot(self._count)) if all_dense >= self._count else None,
            ),
            all_sparse=Alternative(
                all_sparse * self._unit,
                float(self._coldest_ns(np.array([0]))[0]) if all_sparse >= self._count else None,
            ),
            bias=self._bias,
        )
        return Dealt(shards, split), split.sample_ns

    def _hot(self) -> int:
        if not self._sparse:
            return self._count
        dense, sparse = sum(self._rooms), sum(self._cold_rooms)
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
        if split == "auto" and self.order is not None:
            return self._fastest(least, most)
        wanted = -(-int(split) // unit) if split.isdecimal() else sum(shard.units.size for shard in self._dense)
        if not least <= wanted <= most:
            raise UserError(
                f"{option('split', split)}: these workers can have {least * unit:,} to {most * unit:,} hot columns: "
                f"choose as many, or auto"
            )
        return wanted

    def _fastest(self, least: int, most: int) -> int:
        """How many hot units make the slowest worker fastest.

        With more of them dense workers take longer. So the best number is the last before they take longer than sparse
        workers do with any number up to it, or the next.
        """
        cold = self._coldest_ns(np.arange(least, most + 1))
        best = np.minimum.accumulate(cold)
        dense_ns = functools.cache(lambda more: self._dense_ns(self._deal_hot(least + more)))
        following = bisect.bisect_left(range(cold.size), True, key=lambda more: bool(dense_ns(more) >= best[more]))
        found = [int(np.argmin(cold[: more + 1])) for more in (following - 1, following) if 0 <= more < cold.size]
        return least + min(found, key=lambda more: max(dense_ns(more), cold[more]))

    def _deal_hot(self, hot: int) -> list[Shard]:
        skips = self.lines is not None
        owners = self._turns[:hot] if skips else np.sort(self._turns[:hot])
        return [
            dataclasses.replace(shard, units=np.flatnonzero(owners == worker), directory=skips)
            for worker, shard in enumerate(self._dense)
        ]

    def _deal_cold(self, hot: int) -> list[Shard]:
        edges = zip(self._sparse, self._cold_edges(np.array([hot])), strict=True)
        return [dataclasses.replace(shard, units=np.arange(begin[0], end[0])) for shard, (begin, end) in edges]

    def _cold_edges(self, hot: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
        """For each sparse worker its first unit behind so many hot ones, (n,), and the one after its last, (n,)."""
        rooms, shares = self._cold_rooms, np.cumsum([shard.units.size for shard in self._sparse])
        cold, begin = self._before[-1] - self._before[hot], hot
        for number, share in enumerate(shares / shares[-1:]):
            wanted = np.searchsorted(self._before, self._before[hot] + cold * share)
            # Each gets a unit, and no more than its room; those after it must be able to hold what is left.
            least = np.maximum(begin + 1, self._count - sum(rooms[number + 1 :]))
            most = np.minimum(begin + rooms[number], self._count - (len(rooms) - number - 1))
            end = np.minimum(np.maximum(wanted, least), most)
            yield begin, end
            begin = end

    def _coldest_ns(self, hot: IntArray) -> FloatArray:
        """Predicted time of the slowest sparse worker behind so many hot units, (n,): float64 (n,)."""
        return functools.reduce(np.maximum, (self._cold_ns(*edges) for edges in self._cold_edges(hot)))

    def _cold_ns(self, begin: Any, end: Any) -> Any:
        return (self._before[end] - self._before[begin]) / self._samples * ENTRY_NS + self._packets_ns

    def _dense_ns(self, shards: Sequence[Shard]) -> float:
        return all_lines_ns(shards, self._options) if self.lines is None else self.lines.sample_ns(shards)


def heat_order(heat: HeatArray, total: int) -> ColumnArray:
    """The job's order of ``total`` features, by the samples that have each, (features,): the hottest first, then by
    their number, the bias last: int32 (total,)."""
    order, bits = np.arange(total, dtype=np.int32), total.bit_length()
    # Words with the feature in the lowest bits: a stable argsort takes several times as long.
    words = np.subtract(heat.max(), heat, dtype=np.int64)
    words <<= bits
    words |= order[: heat.size]
    words.sort()
    words &= (1 << bits) - 1
    order[: heat.size] = words
    return order


def _in_order(heat: HeatArray, order: ColumnArray, samples: int) -> HeatArray:
    """Samples that have each feature of the job, in its order: all of them have the bias."""
    return np.append(heat, np.full(order.size - heat.size, samples, heat.dtype))[order]


def choose_hot(heat: HeatArray, total: int, samples: int, options: TrainingOptions, ranks: int) -> tuple[int, str]:
    """How many columns all ranks have, if they divide the samples among themselves: a multiple of 8; and a remark.

    A rank needs a cold column in a mini-batch with a probability that follows from its ``heat``, int (features,). Then
    the column's weight comes from its owner and a step goes back, while a hot column is added in every mini-batch,
    needed or not.
    """
    needed = 1 - (1 - _in_order(heat, heat_order(heat, total), samples) / samples) ** (options.batch / ranks)
    # The hot columns are the first ones; behind them only the bias, the last one, may be needed more.
    if options.split == "auto":
        hot = int(np.searchsorted(-needed[: heat.size], -HOT_NS / KEY_NS)) // BANKS * BANKS
    else:
        hot = 0 if options.split == "none" else -(-int(options.split) // BANKS) * BANKS
    hot = min(hot, -(-total // BANKS) * BANKS)
    cold = float(needed[hot:].sum())
    bias = " (the bias is the last)" if total > heat.size else ""
    return hot, (
        f"{min(hot, total):,} hot columns of {total:,}{bias} are on all ranks; of the others a rank needs "
        f"{cold:,.0f} in a mini-batch: predicted {hot * HOT_NS / 1e3:,.0f} and {cold * KEY_NS / 1e3:,.0f} µs"
    )


def skipping_problem(
    shards: Sequence[Shard], scaling: Scaling | Whitening | None, options: TrainingOptions
) -> UserError | None:
    """Why zeros cannot be skipped, if they cannot; ``scaling`` is None if it is not yet known."""
    wanted, remedy = option("skip_zeros", "always"), f"choose {option('skip_zeros', 'never')}"
    if all(shard.config.sparse for shard in shards):
        return UserError(
            f"{wanted}: all workers are sparse, which keep no zeros: {remedy}, or dense workers, such as "
            f"{option('config', 'u280')}"
        )
    if options.precision != options.stored:
        return UserError(
            f"{wanted}: all {options.stored} stored planes are read then, not {options.precision}: store as many as "
            f"are read, or {remedy}"
        )
    if isinstance(scaling, Whitening) or options.precondition != "none":
        return zeros_error(None, sparse=False)
    if scaling is not None and scaling.moves_zeros(options.stored):
        return zeros_error(scaling.kind, sparse=False)
    return None
