"""Predicted time of boards for a sample, whether they read all lines or skip lines of zeros.

Times follow from :mod:`p4sgd.hw.spec.timing`, with `BOARDS_NETWORK`.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from p4sgd.host.image import Shard
from p4sgd.host.image.entries import Values
from p4sgd.host.image.image import ColumnArray
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS, CLOCK_NS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import kept_planes
from p4sgd.hw.spec.timing import (
    BOARDS_NETWORK,
    UPDATE_SPACING,
    chaining_cycles,
    mini_batch_cycles,
    round_trip_cycles,
)

__all__ = ["ListedLines", "all_lines_ns", "lines_by_ones"]


def all_lines_ns(shard: Shard, options: TrainingOptions) -> float:
    """Predicted time for a sample of a board that reads all lines, in ns: that of its fullest engine."""
    chunks, stale = shard.layout(BANKS, options.stored).chunks, bool(options.staleness)
    cycles = mini_batch_cycles(shard.config, options.batch, chunks, options.precision, BOARDS_NETWORK, stale=stale)
    return cycles * CLOCK_NS / options.batch


class _Listed(NamedTuple):
    """Chunks that are not 0, in all units of the job, one for each micro-batch that has it."""

    micro_batches: IntArray
    chunks: IntArray
    lines: IntArray
    """How many the chunk has in the micro-batch."""


class ListedLines:
    """What directories list of some samples, from which follows what boards take that pass over lines of zeros.

    It is known by unit before units are dealt, because a chunk has columns of a single unit.

    Parameters
    ----------
    values
        What is not 0 in the first samples, which are in random order.
    order
        The job's order of features, see `p4sgd.host.training.dealing.heat.heat_order`; ``None`` for that of the data.
    unit, total
        Features of a unit and of the job.
    options
        Options of the training run.
    """

    def __init__(
        self, values: Values, order: ColumnArray | None, unit: int, total: int, options: TrainingOptions
    ) -> None:
        self._unit, self._options = unit, options
        self._count = -(-total // unit)
        self._micro_batches = int(values.rows.max(initial=0)) // BANKS + 1
        places = np.arange(total, dtype=np.int32)
        if order is not None:
            places[order] = np.arange(total, dtype=np.int32)
        self._rows, self._places, self._values = values.rows, places[values.columns].astype(np.int64), values.values
        self._listed = functools.cache(self._list)

    def sample_ns(self, shards: Sequence[Shard]) -> float:
        """Predicted time for a sample of boards with these units that work together, in ns.

        As `mini_batch_cycles`, with the lines that there are: in each mini-batch the sums wait for the slowest engine.
        """
        slowest = float(np.concatenate([self._cycles(shard) for shard in shards]).max(axis=0).mean())
        way = max(round_trip_cycles(shard.config, BOARDS_NETWORK) for shard in shards)
        way += chaining_cycles(self._options.precision)
        whole = max(slowest, (slowest + way) / 2) if self._options.staleness else slowest + way
        return whole * CLOCK_NS / self._options.batch

    def _cycles(self, shard: Shard) -> FloatArray:
        """What each engine of a board takes for each whole mini-batch of the samples: float64 (engines, mini-batches).

        A directory takes two cycles. At the end of a mini-batch every chunk is updated, so those that are absent from
        its last micro-batch take a cycle each. Of a mini-batch that is larger than the samples it is an average one.
        """
        config, layout, count = shard.config, shard.layout(BANKS, self._options.stored), self._micro_batches
        engines, unit_chunks, chunks_each = config.engines, layout.unit_chunks, layout.chunks
        listed = self._listed(config.lanes, unit_chunks)
        numbers = np.full(self._count, -1)
        numbers[shard.units] = np.arange(shard.units.size)
        own = numbers[listed.chunks // unit_chunks]
        mine = own >= 0
        chunk = own[mine] // engines * unit_chunks + listed.chunks[mine] % unit_chunks
        keys = own[mine] % engines * count + listed.micro_batches[mine]
        # The last chunk is always listed; if it is 0, with a line of zeros.
        absent = np.ones(engines * count, np.bool_)
        absent[keys[chunk == chunks_each - 1]] = False
        lines, chunks = (
            (np.bincount(keys, weights, engines * count) + absent).reshape(engines, count)
            for weights in (listed.lines[mine], None)
        )
        cycles: FloatArray = np.maximum(lines + 2 * -(-chunks // layout.line_descriptors), UPDATE_SPACING)
        passed, step = chunks_each - chunks, self._options.batch // BANKS
        if count < step:
            average: FloatArray = (cycles * step + passed).mean(axis=1, keepdims=True)
            return average
        whole = slice(count // step * step)
        each: FloatArray = (
            cycles[:, whole].reshape(engines, -1, step).sum(axis=2) + passed[:, whole][:, step - 1 :: step]
        )
        return each

    def _list(self, lanes: int, unit_chunks: int) -> _Listed:
        unit, stored = self._unit, self._options.stored
        total = self._count * unit_chunks
        keys = self._rows // BANKS * total + self._places // unit * unit_chunks + self._places % unit // lanes
        values = self._values & np.uint8((1 << stored) - 1)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        ones = np.bitwise_or.reduceat(values[order], begins) if begins.size else values[:0]
        there = ones != 0
        micro_batches, chunks = np.divmod(keys[begins[there]], total)
        return _Listed(micro_batches, chunks, lines_by_ones(stored)[ones[there]])


@functools.cache
def lines_by_ones(stored: int) -> IntArray:
    """Lines of a listed chunk by the bits that are 1 in any of its features: int64 (2^S,)."""
    bits = np.arange(1 << stored)[:, np.newaxis] >> np.arange(stored - 1, -1, -1) & 1
    lines: IntArray = kept_planes(bits.astype(np.bool_)).sum(axis=1)
    return lines
