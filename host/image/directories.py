"""Packing of images with directories (:mod:`p4sgd.hw.spec.image`) from the entries of nonzeros.

Time and memory are proportional to the number of entries and of lines, whatever the number of columns.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.image.image import EntryBlock
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import BANK_BITS, DESCRIPTOR_SHIFTS, ImageLayout
from p4sgd.sim.compiled import compiled

_FIRST, _LATER, _LAST = (DESCRIPTOR_SHIFTS[name] for name in ("first", "later", "last"))

_BLOCK_BYTES = 1 << 24
"""About as many bytes of lines are made at a time."""


class DirectoryPacker:
    """Packs a worker's entries of some micro-batches into lines with directories.

    Iterating gives the lines, some micro-batches at a time: for each memory port of each engine uint8 (lines, 8/ports,
    lanes/8). ``starts``, int64 (engines, micro-batches + 1), are the lines of each engine before each micro-batch.
    """

    def __init__(self, block: EntryBlock, layout: ImageLayout) -> None:
        self._entries = np.append(0, np.cumsum(block.counts)), block.keys, block.values
        self._layout = layout
        config = layout.config
        shape = config.engines, config.lanes, layout.unit_chunks, layout.chunks, layout.stored
        self._size = *shape, layout.line_descriptors
        self.starts: IntArray = np.zeros((config.engines, block.counts.size + 1), np.int64)
        nothing = np.empty((config.ports, 0, config.port_bytes), np.uint8)
        scratch = np.empty((4, config.engines), np.int64)
        _pack(*self._entries, self._size, self.starts, scratch, nothing, nothing.view("<u4"))

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.uint8], ...]]:
        micro_batches = self.starts.shape[1] - 1
        step = max(1, _BLOCK_BYTES * micro_batches // (int(self.starts[:, -1].sum()) * self._layout.config.line_bytes))
        for first in range(0, micro_batches, step):
            yield self._lines(first, min(first + step, micro_batches))

    def _lines(self, first: int, stop: int) -> tuple[npt.NDArray[np.uint8], ...]:
        config, edges = self._layout.config, slice(first, stop + 1)
        starts = self.starts[:, edges] - self.starts[:, first : first + 1]
        begins = np.append(0, np.cumsum(starts[:, -1]))
        lines = np.zeros((config.ports, begins[-1], config.port_bytes), np.uint8)
        offsets, keys, values = self._entries
        starts, scratch = starts + begins[:-1, np.newaxis], np.empty((4, config.engines), np.int64)
        _pack(offsets[edges], keys, values, self._size, starts, scratch, lines, lines.view("<u4"))
        shape = -1, BANKS // config.ports, config.lanes // 8
        spans = [slice(*span) for span in itertools.pairwise(begins.tolist())]
        return tuple(port[span].reshape(shape) for span in spans for port in lines)


_compiled = functools.partial(compiled, "the packing of images with directories")


@_compiled(nogil=True)
def _pack(offsets: Any, keys: Any, values: Any, size: Any, starts: Any, scratch: Any, lines: Any, words: Any) -> None:
    """Write the lines of some micro-batches to zeros, (ports, lines, bytes), and their numbers to ``starts``.

    The lines of engine e are from ``starts[e, 0]`` on. If there is no room for lines, they are only counted. ``words``
    are the same lines as descriptors. ``scratch`` is space, int64 (4, engines).
    """
    engines, lanes, unit_chunks, chunks, stored, _ = size
    line, directory, listed, before = scratch[0], scratch[1], scratch[2], scratch[3]
    for engine in range(engines):
        line[engine] = starts[engine, 0]
    for micro_batch in range(offsets.size - 1):
        listed[:], before[:] = 0, -1
        entry, end = offsets[micro_batch], offsets[micro_batch + 1]
        while entry < end:
            group: Any = (np.int64(keys[entry]) >> BANK_BITS) // lanes
            first, ones = entry, np.int64(0)
            while entry < end and (np.int64(keys[entry]) >> BANK_BITS) // lanes == group:
                ones |= np.int64(values[entry])
                entry += 1
            number, chunk = group // unit_chunks, group % unit_chunks
            engine, chunk = number % engines, number // engines * unit_chunks + chunk
            kept = _kept(ones, stored)
            begin = _list_chunk(engine, chunk, kept, size, line, directory, listed, words)
            if lines.size:
                for each in range(first, entry):
                    place = np.int64(keys[each])
                    bit = (place & BANKS - 1) * lanes + (place >> BANK_BITS) % lanes
                    _put_value(lines, begin, kept, bit, np.int64(values[each]))
            before[engine] = chunk
        for engine in range(engines):
            if before[engine] < chunks - 1:  # of a last chunk without a 1 there is a line of zeros
                _list_chunk(engine, chunks - 1, 1, size, line, directory, listed, words)
            starts[engine, micro_batch + 1] = line[engine]


@_compiled(nogil=True)
def _list_chunk(
    engine: int, chunk: int, kept: int, size: Any, line: Any, directory: Any, listed: Any, words: Any
) -> Any:
    _, _, _, chunks, stored, descriptors = size
    number = listed[engine] % descriptors
    if number == 0:
        directory[engine] = line[engine]
        line[engine] += 1
    if words.size:
        port, place = divmod(number, words.shape[2])
        words[port, directory[engine], place] = _describe(chunk, kept, stored, chunk == chunks - 1)
    begin = line[engine]
    for plane in range(stored):
        line[engine] += kept >> plane & 1
    listed[engine] += 1
    return begin


@_compiled(nogil=True)
def _kept(ones: int, stored: int) -> int:
    """The planes that have a line, as bits of their places in a feature: `p4sgd.hw.spec.image.kept_planes`."""
    kept = ones | 1
    for bit in range(stored - 2, 0, -1):
        if kept >> bit + 1 and not kept >> bit + 1 & 1:
            kept |= 1 << bit
    return kept


@_compiled(nogil=True)
def _describe(chunk: int, kept: int, stored: int, last: bool) -> Any:
    top: Any = 0
    while kept >> top + 1:
        top += 1
    later = 0
    for bit in range(top):
        later |= (kept >> bit & 1) << top - 1 - bit
    return chunk | stored - 1 - top << _FIRST | later << _LATER | int(last) << _LAST


@_compiled(nogil=True)
def _put_value(lines: Any, line: int, kept: int, bit: int, value: int) -> None:
    """Set a bit in each line of the chunk, which begins at ``line``, whose plane has a 1 in this value."""
    port, byte = divmod(bit >> 3, lines.shape[2])
    for plane in range(7, -1, -1):
        if kept >> plane & 1:
            if value >> plane & 1:
                lines[port, line, byte] |= 1 << (bit & 7)
            line += 1
