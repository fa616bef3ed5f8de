"""What an image holds (:mod:`p4sgd.hw.spec.image`): lines or entries of some micro-batches, packed and read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.host.image.image import EntryBlock, Image
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import BANK_BITS, ENTRY_KEY, ENTRY_MICRO_BATCH, ImageLayout
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.compiled import compiled
from p4sgd.sim.lines import TRANSPOSE
from p4sgd.sim.sparse.entries import Directories, sort_words

# -- lines -------------------------------------------------------------------------------------------------------------


def pack_lines(q: npt.NDArray[np.uint8], layout: ImageLayout, samples: int) -> npt.NDArray[np.uint8]:
    """Lines of some micro-batches, uint8 (engines · ports, T, C, S, 8/ports, lanes/8), as `ImageLayout.pack_lines`
    defines them, from S-bit features in the low bits, uint8 (up to samples, features); zeros fill up samples.

    The 8 bits of 8 neighbouring lanes are an 8×8 bit matrix in one 64-bit word; its transpose has one byte per plane.
    """
    q = layout.pad(q)
    if q.shape[0] < samples:
        q = np.concatenate((q, np.zeros((samples - q.shape[0], layout.padded_features), np.uint8)))
    words = q.view(np.uint64)
    _transpose_bits(words)
    planes = words.view(np.uint8).reshape(-1, *_plane_shape(layout))
    most_significant_first = planes[..., layout.stored - 1 :: -1]
    lines = np.ascontiguousarray(most_significant_first.transpose(_LINE_ORDER))
    return lines.reshape(-1, planes.shape[0], layout.chunks, *lines.shape[5:])


def unpack_lines(lines: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """Undo `pack_lines`: the S-bit features in the low bits, 0 above them."""
    planes = np.zeros((lines.shape[1], *_plane_shape(layout)), np.uint8)
    most_significant_first = planes[..., layout.stored - 1 :: -1]
    in_line_order = lines.reshape([most_significant_first.shape[axis] for axis in _LINE_ORDER])
    most_significant_first[:] = in_line_order.transpose(np.argsort(_LINE_ORDER))
    words = planes.reshape(lines.shape[1] * BANKS, -1).view(np.uint64)
    _transpose_bits(words)
    return layout.unpad(words.view(np.uint8))


_LINE_ORDER = (4, 1, 0, 3, 5, 7, 2, 6)
"""Axes of `_plane_shape`, after that of micro-batches, in the order in which lines have them."""


def _plane_shape(layout: ImageLayout) -> tuple[int, ...]:
    """Bytes of a micro-batch before they are put in order: port, bank of the port, unit of the engine, engine, chunk of
    the unit, group of 8 lanes, bit of the feature."""
    config = layout.config
    units = layout.chunks // layout.unit_chunks
    return (config.ports, BANKS // config.ports, units, config.engines, layout.unit_chunks, config.lanes // 8, 8)


def _transpose_bits(words: npt.NDArray[np.uint64]) -> None:
    swapped = np.empty_like(words)
    for shift, mask in TRANSPOSE:
        np.right_shift(words, shift, out=swapped)
        swapped ^= words
        swapped &= mask
        words ^= swapped
        swapped <<= shift
        words ^= swapped


# -- entries -----------------------------------------------------------------------------------------------------------


class Values(NamedTuple):
    """Values of some samples of a job; those of a column are in the order of the samples."""

    rows: npt.NDArray[np.integer[Any]]  # sample of each, from 0
    columns: npt.NDArray[np.integer[Any]]  # feature in the job
    values: npt.NDArray[np.uint8]  # 8-bit two's complement if signed

    def of(self, which: npt.NDArray[np.bool_]) -> "Values":
        return Values(self.rows[which], self.columns[which], self.values[which])

    @classmethod
    def join(cls, parts: Sequence["Values"]) -> "Values":
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def entry_places(image: Image) -> npt.NDArray[np.int32]:
    """Where a worker has the features of the job, units filled up to whole chunks: int32 (features,), −1 if nowhere."""
    places, layout = np.full(image.shard.total, -1, np.int32), image.layout
    own = np.arange(layout.features, dtype=np.int32)
    if layout.unit < layout.unit_lanes:
        own = own // layout.unit * layout.unit_lanes + own % layout.unit
    image.shard.put(own, places)
    return places


def features_of(keys: npt.NDArray[np.uint32], layout: ImageLayout) -> IntArray:
    """Features of a worker that keys of entries belong to: undoes `entry_places`."""
    place = (keys >> BANK_BITS).astype(np.int64)
    return place // layout.unit_lanes * layout.unit + place % layout.unit_lanes


def own_words(parts: Sequence[Values], places: npt.NDArray[np.int32], stored: int) -> npt.NDArray[np.uint64]:
    """Sorted words of the entries of a worker, whose ``places`` are those of columns in it, below 0 elsewhere; no
    column is in several parts."""
    words, count = np.empty(sum(part.rows.size for part in parts), np.uint64), 0
    for part in parts:
        count += int(_pack_words(*part, places, np.uint8((1 << stored) - 1), words[count:]))
    return sort_words(words[:count])


@compiled("the sorting of sparse data", nogil=True)
def _pack_words(rows: Any, columns: Any, values: Any, places: Any, mask: Any, words: Any) -> Any:
    """`p4sgd.hw.spec.image.entry_words` of the values that have a place and are not 0; returns their number."""
    count = np.uint64(0)
    for entry in range(np.uint64(rows.size)):
        row, place, value = np.uint64(rows[entry]), places[np.uint64(columns[entry])], values[entry] & mask
        key = np.uint64(place) << np.uint64(BANK_BITS) | row % np.uint64(BANKS)
        micro_batch = row // np.uint64(BANKS) << np.uint64(ENTRY_MICRO_BATCH)
        words[count] = micro_batch | key << np.uint64(ENTRY_KEY) | np.uint64(value)
        count += np.uint64(place >= 0 and value != 0)
    return count


def entries_of(image: Image, which: slice) -> EntryBlock:
    """Entries of some micro-batches of an image that is made of entries."""
    if image.shard.directory:
        entries = directories_of(image, which).entries()
        return EntryBlock(np.diff(entries.starts), entries.keys, entries.values)
    starts, keys, values = lists_of(image)
    edges = starts[which.start : which.stop + 1]
    own = slice(int(edges[0]), int(edges[-1]))
    return EntryBlock(np.diff(edges), keys[own], values[own])


def lists_of(image: Image) -> tuple[IntArray, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Starts of the micro-batches of an image of entries, then keys and values of its entries."""
    starts, keys, values, *_ = image.port_lines
    return starts.view("<i8"), keys.view("<u4"), values


def directories_of(image: Image, which: slice | None = None) -> Directories:
    """The lines of some micro-batches of an image with directories, by default of all."""
    layout, starts, ports = image.layout, image.starts, image.layout.config.ports
    assert starts is not None
    which = slice(0, layout.micro_batches) if which is None else which
    edges = starts[:, [which.start, which.stop]].tolist()
    parts = tuple(part[slice(*edges[number // ports])] for number, part in enumerate(image.port_lines))
    form = FeatureFormat(layout.stored, layout.stored, image.signed)
    return Directories(parts, which.stop - which.start, layout.chunks, form, layout.unit_lanes)
