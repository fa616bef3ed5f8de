"""Cycles of a worker whose image has directories, to which the simulated RTL is held (``tests/system/test_cycles.py``).

They depend on what each micro-batch lists, so there is no formula as in :mod:`p4sgd.hw.spec.timing`. Memory keeps up
and there are enough slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import DESCRIPTOR_BITS, ImageLayout
from p4sgd.hw.spec.timing import (
    CHUNK_SPACING,
    TABLE_ENTRIES,
    UPDATE_SPACING,
    chaining_cycles,
    round_trip_cycles,
)

Listed: TypeAlias = Sequence[tuple[int, int, int]]
"""Chunks of a micro-batch in the order in which they are listed, with the number of lines of each, and of planes from
its first line to its last."""

_LONG_AGO = -(1 << 40)


def listed_chunks(layout: ImageLayout, q: IntArray) -> list[list[list[tuple[int, int, int]]]]:
    """What directories list of each engine's micro-batches: S-bit features (samples, features)."""
    return [
        [[(each.chunk, len(each.planes), each.planes[-1] - each.first + 1) for each in own] for own in engine]
        for engine in layout.descriptors(q)
    ]


class BackwardPass:
    """Backward passes of an engine.

    A chunk is completed at least `CHUNK_SPACING` cycles after the one before it, and `UPDATE_SPACING` after the
    micro-batch before has completed it or one behind it; the chunks that are passed over wait for the one behind them.
    A plane without a line takes a cycle, too. Tables are filled one after the other, `TABLE_ENTRIES` cycles each, once
    the micro-batch before last has ended.
    """

    def __init__(self) -> None:
        self._filled = self._end_before = self._end = _LONG_AGO
        self._completed: list[tuple[int, int]] = []  # by the micro-batch before: cycles and chunks

    def take(self, chunks: Listed, earliest: int, *, final: bool) -> tuple[int, list[tuple[int, int]]]:
        """The cycle of a micro-batch's first line, and those in which chunks are completed.

        ``earliest``: cycle before which it cannot begin; ``final``: it is the last of its mini-batch.
        """
        before = iter(self._completed)
        passed = next(before, None)
        self._filled = max(earliest, self._filled + TABLE_ENTRIES, self._end_before + TABLE_ENTRIES)
        at = max(self._filled, self._end + 1)
        completed: list[tuple[int, int]] = []
        begin = expected = 0
        free = self._completed[-1][0] + CHUNK_SPACING if self._completed else _LONG_AGO
        for place, (chunk, lines, planes) in enumerate(chunks):
            while passed is not None and passed[1] < chunk:
                passed = next(before, None)
            apart = _LONG_AGO if passed is None else passed[0] + UPDATE_SPACING
            for absent in range(expected, chunk) if final else ():
                at = max(at, apart, free)
                completed.append((at, absent))
                at, free = at + 1, at + CHUNK_SPACING
            end = max(at + planes - 1, apart, free)
            if place == 0:
                begin = at if lines > 1 else end
            completed.append((end, chunk))
            expected, at, free = chunk + 1, end + 1, end + CHUNK_SPACING
        self._end_before, self._end, self._completed = self._end, at - 1, completed
        return begin, completed


@dataclass(frozen=True)
class Schedule:
    """Cycles of each engine's passes, int64 (engines, micro-batches): those of the first and last lines, without
    directories."""

    forward_begin: IntArray
    forward_end: IntArray
    backward_begin: IntArray
    backward_end: IntArray


def schedule(
    listed: Sequence[Sequence[Listed]], micro_batches: int, chunks: int, config: WorkerConfig, network: int
) -> Schedule:
    """When the engines of workers, all of one configuration, take their lines.

    ``listed``: what each engine's micro-batches list; ``micro_batches``: micro-batches of a mini-batch; ``chunks``:
    chunks of an engine; ``network``: cycles from PARTIAL to FULL.
    """
    count = len(listed[0])
    times = [np.zeros((len(listed), count), np.int64) for _ in range(4)]
    forward_begin, forward_end, backward_begin, backward_end = times
    descriptors = config.line_bits // DESCRIPTOR_BITS
    way = round_trip_cycles(config, network)
    final_after = chaining_cycles(1)  # from the last line of a chunk until its weights can be read
    taken = [-1] * len(listed)
    final = [[0] * chunks for _ in listed]
    passes = [BackwardPass() for _ in listed]
    for first in range(0, count, micro_batches):
        for engine, of_engine in enumerate(listed):
            at, ready = taken[engine], final[engine]
            for micro_batch in range(first, first + micro_batches):
                expected = 0
                for place, (chunk, lines, _) in enumerate(of_engine[micro_batch]):
                    at += 1
                    if place % descriptors == 0:
                        at += 2  # the directory, and a cycle in which no line is taken
                    if micro_batch == first:
                        for absent in range(expected, chunk):
                            at = max(at, ready[absent]) + 1
                        at = max(at, ready[chunk])
                    if place == 0:
                        forward_begin[engine, micro_batch] = at
                    at += lines - 1
                    expected = chunk + 1
                forward_end[engine, micro_batch] = at
            taken[engine] = at
        for micro_batch in range(first, first + micro_batches):
            earliest = int(forward_end[:, micro_batch].max()) + 1 + way
            last = micro_batch == first + micro_batches - 1
            for engine, of_engine in enumerate(listed):
                begin, completed = passes[engine].take(of_engine[micro_batch], earliest, final=last)
                backward_begin[engine, micro_batch], backward_end[engine, micro_batch] = begin, completed[-1][0]
                if last:
                    for cycle, chunk in completed:
                        final[engine][chunk] = cycle + final_after
    return Schedule(*times)
