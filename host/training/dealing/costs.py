"""Predicted time of workers for a sample, by what they are dealt.

Times of boards follow from :mod:`p4sgd.hw.spec.timing`, with `BOARDS_NETWORK`. The others were measured.
"""

import functools
from collections.abc import Sequence

import numpy as np

from p4sgd.host.image import Shard
from p4sgd.host.image.contents import Values
from p4sgd.host.image.image import ColumnArray
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS, CLOCK_NS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import kept_planes
from p4sgd.hw.spec.timing import (
    BOARDS_NETWORK,
    CHUNK_SPACING,
    TABLE_ENTRIES,
    chaining_cycles,
    mini_batch_cycles,
    round_trip_cycles,
)

ENTRY_NS = 4.0
"""A nonzero, for a sparse worker in an epoch: 2.3 ns were measured with 47,236 columns and 3.9 with a million, whose
weights are not in the caches."""

KEY_NS = 40.0
"""A cold column in a mini-batch, for the rank that needs it and its owner together: 26 ns were measured in a single
process (half of rcv1's shape, B = 256), to which messages add an estimate."""

HOT_NS = 8.0
"""A hot column in a mini-batch, for a rank, as MPI adds its steps over the ranks: 5 ns were measured in a single
process, to which messages add an estimate."""

PACKETS_NS = 10_000.0
"""The packets of a sample, for a worker process on a core of its own with a packet for each micro-batch, as boards
want: tests/bench/bench_processes.py has measured 58 to 87 µs of processor time of a dense worker for a packet, with
what it computes. Where packets carry several micro-batches it takes less."""


def all_lines_ns(shards: Sequence[Shard], options: TrainingOptions) -> float:
    """Time of boards that read all lines: that of the fullest engine of all."""
    batch, precision, stale = options.batch, options.precision, bool(options.staleness)
    return max(
        mini_batch_cycles(shard.config, batch, shard.layout(BANKS, 8).chunks, precision, BOARDS_NETWORK, stale=stale)
        * CLOCK_NS
        / batch
        for shard in shards
    )


@functools.cache
def lines_by_ones(stored: int) -> IntArray:
    """Of a listed chunk by the bits that are 1 in any of its features: lines, and planes from the first line on, for
    each of which a backward pass takes a cycle. int64 (2^S, 2)."""
    bits = np.arange(1 << stored)[:, np.newaxis] >> np.arange(stored - 1, -1, -1) & 1
    kept = kept_planes(bits.astype(np.bool_))
    return np.stack([kept.sum(axis=1), stored - kept.argmax(axis=1)], axis=1)


class ListedLines:
    """Lines that directories list of some samples, by unit, as a chunk has columns of a single unit. ``values`` is what
    is not 0 in the first samples, ``order`` the job's order of features, ``None`` for that of the data."""

    def __init__(
        self, values: Values, order: ColumnArray | None, unit: int, total: int, options: TrainingOptions
    ) -> None:
        self._unit, self._options = unit, options
        self._count = -(-total // unit)
        self._micro_batches = int(values.rows.max(initial=0)) // BANKS + 1
        ranks = np.arange(total, dtype=np.int32)
        if order is not None:
            ranks[order] = np.arange(total, dtype=np.int32)
        self._rows, self._columns, self._values = values.rows, ranks[values.columns].astype(np.int64), values.values
        self._listed = functools.cache(self._list)

    def sample_ns(self, shards: Sequence[Shard]) -> float:
        """Time of boards with these units that pass over lines of zeros and work together.

        As `mini_batch_cycles`, with the lines that there are: in each mini-batch the sums wait for the slowest engine.
        """
        slowest = float(np.concatenate([self._cycles(shard) for shard in shards]).max(axis=0).mean())
        way = max(round_trip_cycles(shard.config, BOARDS_NETWORK) for shard in shards)
        way += chaining_cycles(self._options.precision)
        cycles = max(slowest, (slowest + way) / 2) if self._options.staleness else slowest + way
        return cycles * CLOCK_NS / self._options.batch

    def _cycles(self, shard: Shard) -> FloatArray:
        """Cycles of each engine of a board for each whole mini-batch of the samples: float64 (engines, mini-batches).

        A directory takes two cycles of forward passes, a chunk at least two of backward passes. At the end of a
        mini-batch every chunk is updated, so those that are absent from its last micro-batch take two cycles each. Of a
        mini-batch that is larger than the samples it is an average one.
        """
        config, layout, count = shard.config, shard.layout(BANKS, self._options.stored), self._micro_batches
        engines, unit_chunks, chunks_each = config.engines, layout.unit_chunks, layout.chunks
        micro_batches, listed, lines_and_planes = self._listed(config.lanes, unit_chunks)
        numbers = np.full(self._count, -1)
        numbers[shard.units] = np.arange(shard.units.size)
        own = numbers[listed // unit_chunks]
        mine = own >= 0
        chunk = own[mine] // engines * unit_chunks + listed[mine] % unit_chunks
        keys = own[mine] % engines * count + micro_batches[mine]
        # The last chunk is always listed; if it is 0, with a line of zeros.
        absent = np.ones(engines * count, np.bool_)
        absent[keys[chunk == chunks_each - 1]] = False
        lines, planes, chunks = (
            (np.bincount(keys, weights, engines * count) + least * absent).reshape(engines, count)
            for weights, least in (
                (lines_and_planes[mine, 0], 1),
                (np.maximum(lines_and_planes[mine, 1], CHUNK_SPACING), CHUNK_SPACING),
                (None, 1),
            )
        )
        forward = lines + 2 * -(-chunks // layout.line_descriptors)
        cycles: FloatArray = np.maximum(np.maximum(forward, planes), TABLE_ENTRIES)
        passed, step = CHUNK_SPACING * (chunks_each - chunks), self._options.batch // BANKS
        if count < step:
            average: FloatArray = (cycles * step + passed).mean(axis=1, keepdims=True)
            return average
        complete = slice(count // step * step)
        each: FloatArray = (
            cycles[:, complete].reshape(engines, -1, step).sum(axis=2) + passed[:, complete][:, step - 1 :: step]
        )
        return each

    def _list(self, lanes: int, unit_chunks: int) -> tuple[IntArray, IntArray, IntArray]:
        """Micro-batch, number, and lines and planes of each chunk of the job that is not 0 in a micro-batch."""
        unit, stored = self._unit, self._options.stored
        total = self._count * unit_chunks
        keys = self._rows // BANKS * total + self._columns // unit * unit_chunks + self._columns % unit // lanes
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], self._values[order] & np.uint8((1 << stored) - 1)
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        ones = np.bitwise_or.reduceat(values, begins) if begins.size else values[:0]
        there = ones != 0
        micro_batches, chunks = np.divmod(keys[begins[there]], total)
        return micro_batches, chunks, lines_by_ones(stored)[ones[there]]
