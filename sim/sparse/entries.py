"""Entries: lists of the nonzero features of sparse workers, with the index of each micro-batch; also of directories."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import ByteArray, IntArray, WeightArray
from p4sgd.hw.spec.image import (
    BANK_BITS,
    DESCRIPTOR_SHIFTS,
    ENTRY_KEY,
    ENTRY_MICRO_BATCH,
    Descriptor,
    entry_words,
    split_words,
)
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.compiled import compiled

_MOST = 1 << 24  # most entries of a sample: as with so many features of a dense worker, no sum overflows

Columns = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Entries:
    """Features of a worker that are not 0."""

    starts: IntArray  # int64 (T + 1,): micro-batch t has the entries from ``starts[t]`` to ``starts[t + 1]``
    keys: npt.NDArray[np.uint32]
    """uint32 (entries,): column << 3 | bank, ascending within a micro-batch; the worker's columns, unit by unit."""
    values: ByteArray  # uint8 (entries,): integers of S bits, two's complement if signed; the higher bits are ignored
    form: FeatureFormat  # with the planes that are read
    unit: int  # features of a unit, padding included: whole chunks
    shape: tuple[int, int]
    """Of the worker's weights, (engines, chunks · lanes): unit i is the (i // engines)-th of engine i % engines."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes."""
        arrays = (self.starts, self.keys, self.values)
        return (*((each.ctypes.data, each.size) for each in arrays), self.form, self.unit, self.shape)

    @property
    def columns(self) -> int:
        """Columns of the worker, padding included."""
        return math.prod(self.shape)

    def check(self) -> None:
        """ValueError if the memory has keys of a micro-batch that do not ascend, columns that the worker has not, or
        more than 2^24 entries of a sample."""
        for micro_batch in np.flatnonzero(np.diff(self.starts) > _MOST):
            banks = self.keys[self.starts[micro_batch] : self.starts[micro_batch + 1]] & np.uint32(BANKS - 1)
            if np.bincount(banks).max() > _MOST:
                raise ValueError(f"a sample has more than {_MOST} features that are not 0: sums may be too large")
        ends = self.starts[1:]
        ascending = self.keys[1:] > self.keys[:-1]
        ascending[ends[(ends > 0) & (ends < self.keys.size)] - 1] = True  # from a micro-batch to the next
        last = self.keys[ends[np.diff(self.starts) > 0] - 1]
        if not ascending.all() or (last >> BANK_BITS >= self.columns).any():
            raise ValueError(f"the memory has no list of entries of {self.columns} features: write the image again")

    def column(self, place: int) -> int:
        """The column whose weight is at this place of the weights of all engines."""
        engine, own = divmod(place, self.shape[1])
        number, within = divmod(own, self.unit)
        return (number * self.shape[0] + engine) * self.unit + within

    def by_engine(self, weights: WeightArray) -> WeightArray:
        """The worker's weights as its engines have them, (engines, units of an engine, unit): a view of those unit by
        unit, (columns,)."""
        return weights.reshape(-1, self.shape[0], self.unit).swapaxes(0, 1)


def blocks_of(counts: IntArray, most: int) -> Iterator[slice]:
    """Blocks of micro-batches with at most so many of the ``counts`` of entries, int64 (T,), or of one with more."""
    ends, first = np.cumsum(counts), 0
    while first < ends.size:
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, "right")))
        yield slice(first, stop)
        first = stop


_DIGIT_BITS = 12  # most bits of a digit: the counters of a pass fit into the first-level cache

_COLUMN = ENTRY_KEY + BANK_BITS  # lowest bit of a column in a word

Words = npt.NDArray[np.uint64]


def sort_words(words: Words) -> Words:
    """`p4sgd.hw.spec.image.entry_words` in ascending order, uint64 (entries,); the given array is overwritten.

    Those of the same column must be in the order of their samples already. They are sorted by column and micro-batch,
    digit by digit: NumPy's sort takes four times as long on some processors.
    """
    sorted_words, spare, ones = words, np.empty_like(words), int(np.bitwise_or.reduce(words))
    column_bits = (ones % (1 << ENTRY_MICRO_BATCH) >> _COLUMN).bit_length()
    bits = max(1, column_bits + (ones >> ENTRY_MICRO_BATCH).bit_length())
    digit_bits = -(-bits // -(-bits // _DIGIT_BITS))
    places = np.empty((1 << digit_bits) + 1, np.uint32)
    for shift in range(0, bits, digit_bits):
        _sort_by_digit(sorted_words, column_bits, shift, places, spare)
        sorted_words, spare = spare, sorted_words
    return sorted_words


@compiled("the sorting of sparse data", nogil=True)
def _sort_by_digit(words: Any, column_bits: int, shift: int, places: Any, target: Any) -> None:
    """Copy words in the order of a digit, that from bit ``shift`` on of the micro-batch with the column below it; those
    with equal ones keep their order."""
    places[:] = 0
    for word in words:
        places[_digit(word, column_bits, shift, places.size) + np.uint64(1)] += 1
    for digit in range(1, places.size):
        places[digit] += places[digit - 1]
    for word in words:
        digit = _digit(word, column_bits, shift, places.size)
        target[places[digit]] = word
        places[digit] += 1


@compiled("the sorting of sparse data")
def _digit(word: Any, column_bits: int, shift: int, size: int) -> Any:
    columns = (np.uint64(1) << np.uint64(column_bits)) - np.uint64(1)
    both = word >> np.uint64(_COLUMN) & columns
    both |= word >> np.uint64(ENTRY_MICRO_BATCH) << np.uint64(column_bits)
    return both >> np.uint64(shift) & np.uint64(size - 2)


# -- directories -------------------------------------------------------------------------------------------------------

_FIRST, _LATER, _LAST = (DESCRIPTOR_SHIFTS[name] for name in ("first", "later", "last"))

_AT_ONCE = 1 << 22  # about as many entries are put in order at a time


@dataclass(frozen=True)
class Directories:
    """Lines with directories of a worker, of whole micro-batches (`p4sgd.hw.spec.image`)."""

    parts: tuple[ByteArray, ...]  # for each port of each engine: uint8 (lines, 8/ports, lanes/8)
    micro_batches: int
    chunks: int  # chunks of each engine (C)
    form: FeatureFormat  # all planes are read
    unit: int  # features of a unit, padding included: whole chunks
    room: int = np.iinfo(np.int64).max  # lines of a micro-batch that an engine has room for, without directories

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes: then they have the same entries."""
        arrays = ((part.ctypes.data, part.shape) for part in self.parts)
        return (*arrays, self.micro_batches, self.chunks, self.form, self.unit, self.room)

    def entries(self) -> Entries:
        """The features that are not 0; ValueError with the engine and micro-batch of lines that are not those of
        `p4sgd.hw.spec.image.ImageLayout.pack_directories`."""
        ports = BANKS // self.parts[0].shape[1]
        engines, lanes = len(self.parts) // ports, 8 * self.parts[0].shape[2]
        starts = np.zeros((engines, self.micro_batches + 1), np.int64)
        counts = np.zeros(self.micro_batches, np.int64)
        lines = [_of_engine(self.parts[engine * ports : (engine + 1) * ports]) for engine in range(engines)]
        for engine, own in enumerate(lines):
            problem, where = _scan(own, self.chunks, self.form.stored, self.room, starts[engine], counts)
            if problem:
                raise ValueError(f"engine {engine}, micro-batch {where}: {_PROBLEMS[problem]}: write the image again")
            if starts[engine, -1] != own[0].shape[0]:
                raise ValueError(f"engine {engine} has more lines than its directories tell of: write the image again")
        size, blocks = (engines, lanes, self.unit // lanes), []
        for which in blocks_of(counts, _AT_ONCE):
            count, done = int(counts[which].sum()), 0
            found = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint8)
            for engine, own in enumerate(lines):
                edges = starts[engine, which.start : which.stop + 1]
                done = _decode(own, edges, engine, size, self.form.stored, found, done)
            blocks.append(split_words(sort_words(entry_words(*found)), which.stop - which.start))
        counts, keys, values = (np.concatenate(each) for each in zip(*blocks, strict=True))
        entries = np.append(0, np.cumsum(counts)), keys, values
        return Entries(*entries, self.form, self.unit, (engines, self.chunks * lanes))


def _of_engine(parts: tuple[ByteArray, ...]) -> tuple[ByteArray, ByteArray]:
    """Lines of an engine as bytes: those of port 0 and those of port 1, of which there may be none."""
    low, *others = (part.reshape(part.shape[0], part.shape[1] * part.shape[2]) for part in parts)
    found = low.view(), (others[0] if others else np.empty((low.shape[0], 0), np.uint8)).view()
    for each in found:
        each.flags.writeable = False  # as images in files are, so that the loops are compiled for one type only
    return found


_RESERVED = (1 << 32) - 1 ^ Descriptor(0xFFFF, 7, 0x7F, True).encode()

_ENDS, _CHUNKS, _PLANES, _BEHIND, _ROOM = range(1, 6)
_PROBLEMS = (
    "",
    "the lines end in the middle",
    "the directory does not list chunks of the run in ascending order, up to the last one",
    "the directory leaves out the last plane of a chunk or two in a row, or has planes that the run has not",
    "the directory goes on behind the last chunk",
    "there are more lines than the line FIFO holds",
)
"""What `_scan` finds wrong."""

_compiled = functools.partial(compiled, "the emulator's loops for directories")


@_compiled(nogil=True)
def _word(lines: Any, line: int, number: int) -> Any:
    """The little-endian descriptor of this number in a directory line."""
    low, high = lines
    word = np.int64(0)
    for byte in range(4 * number, 4 * number + 4):
        own = low[line, byte] if byte < low.shape[1] else high[line, byte - low.shape[1]]
        word |= np.int64(own) << 8 * (byte - 4 * number)
    return word


@_compiled(nogil=True)
def _kept(word: int, stored: int) -> int:
    """The planes of a descriptor's lines, as bits of their places in a feature; 0 if it cannot have these."""
    top = stored - 1 - (word >> _FIRST & 7)
    later = word >> _LATER & 0x7F
    kept = 1 << 7
    for plane in range(7):
        kept |= (later >> plane & 1) << 6 - plane
    if top < 0 or kept & (1 << 7 - top) - 1:
        return 0
    kept >>= 7 - top
    # The last plane, and of two in a row one.
    if not kept & 1 or (kept | kept >> 1) != (1 << top + 1) - 1:
        return 0
    return kept


@_compiled(nogil=True)
def _ones(own: Any, line: int, count: int) -> int:
    """Number of bits that are 1 in some of these lines."""
    total = 0
    for byte in range(own.shape[1]):
        seen = 0
        for each in range(line, line + count):
            seen |= own[each, byte]
        total += _count(seen)
    return total


@_compiled(nogil=True)
def _count(bits: int) -> int:
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


@_compiled(nogil=True)
def _scan(lines: Any, chunks: int, stored: int, room: int, starts: Any, counts: Any) -> Any:
    """Find where micro-batches begin, and add their entries to counts; returns what is wrong, and where."""
    low, high = lines
    descriptors = (low.shape[1] + high.shape[1]) // 4
    line = 0
    for micro_batch in range(counts.size):
        before, kept_lines, last = -1, 0, False
        while not last:
            if line >= low.shape[0]:
                return _ENDS, micro_batch
            directory, line = line, line + 1
            for number in range(descriptors):
                word = _word(lines, directory, number)
                if last:
                    if word:
                        return _BEHIND, micro_batch
                    continue
                chunk, last, kept = word & 0xFFFF, word >> _LAST > 0, _kept(word, stored)
                if chunk <= before or chunk >= chunks or last != (chunk == chunks - 1) or word & _RESERVED:
                    return _CHUNKS, micro_batch
                if not kept:
                    return _PLANES, micro_batch
                before, count = chunk, _count(kept)
                if line + count > low.shape[0]:
                    return _ENDS, micro_batch
                counts[micro_batch] += _ones(low, line, count) + _ones(high, line, count)
                line, kept_lines = line + count, kept_lines + count
        if kept_lines > room:
            return _ROOM, micro_batch
        starts[micro_batch + 1] = line
    return 0, 0


@_compiled(nogil=True)
def _decode(lines: Any, starts: Any, engine: int, size: Any, stored: int, found: Any, done: int) -> int:
    """Add an engine's entries of some micro-batches, sample, place and value, behind the first ``done`` ones that are
    found; returns how many there are then."""
    low, high = lines
    engines, lanes, unit_chunks = size
    descriptors = (low.shape[1] + high.shape[1]) // 4
    for micro_batch in range(starts.size - 1):
        line = starts[micro_batch]
        while line < starts[micro_batch + 1]:
            directory, line = line, line + 1
            for number in range(descriptors):
                word = _word(lines, directory, number)
                chunk, kept = word & 0xFFFF, _kept(word, stored)
                unit = chunk // unit_chunks * engines + engine
                begin = BANKS * micro_batch, (unit * unit_chunks + chunk % unit_chunks) * lanes
                done = _add(low, 0, line, kept, lanes, begin, found, done)
                done = _add(high, low.shape[1], line, kept, lanes, begin, found, done)
                line += _count(kept)
                if word >> _LAST:
                    break
    return done


@_compiled(nogil=True)
def _add(own: Any, first: int, line: int, kept: int, lanes: int, begin: Any, found: Any, done: int) -> int:
    """Add the entries of a chunk that are in a port's part of its lines, bytes from ``first`` on."""
    rows, places, values = found
    planes, count = 0, 0  # a digit of 4 bits for each
    for bit in range(7, -1, -1):
        if kept >> bit & 1:
            planes |= bit << 4 * count
            count += 1
    for byte in range(own.shape[1]):
        seen = 0
        for each in range(count):
            seen |= own[line + each, byte]
        if not seen:
            continue
        place = 8 * (first + byte)
        for bit in range(8):
            if seen >> bit & 1:
                value: Any = 0
                for each in range(count):
                    value |= (np.int64(own[line + each, byte]) >> bit & 1) << (planes >> 4 * each & 7)
                rows[done] = begin[0] + place // lanes
                places[done] = begin[1] + place % lanes + bit
                values[done] = value
                done += 1
    return done
