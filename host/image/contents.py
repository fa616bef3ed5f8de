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
from p4sgd.sim.lines import TRANSPOSE, Lines
from p4sgd.sim.sparse.entries import Directories, sort_words

# -- lines -------------------------------------------------------------------------------------------------------------


def pack_lines(q: npt.NDArray[np.uint8], layout: ImageLayout, samples: int) -> npt.NDArray[np.uint8]:
    """Lines of some micro-batches, uint8 (engines · ports, T, C, S, 8/ports, lanes/8), as `ImageLayout.pack_lines`
    defines them, from S-bit features in the low bits, uint8 (up to samples, features); zeros fill up samples.

    The 8 bits of 8 neighbouring lanes are an 8×8 bit matrix in one 64-bit word; its transpose has one byte per plane.
    """
    micro_batches, (_, chunks, stored, banks, groups) = samples // BANKS, layout.lines_shape
    lines = np.empty((layout.config.labels_memory, micro_batches, chunks, stored, banks * groups), np.uint8)
    words, matrices = layout.pad(q).view(np.uint64), np.empty((chunks, banks * groups), np.uint64)
    _pack(words, layout.config.ports, layout.unit_chunks, matrices, matrices.reshape(-1), lines)
    return lines.reshape(*lines.shape[:4], banks, groups)


@compiled("the packing of dense data", nogil=True)
def _pack(words: Any, ports: int, unit_chunks: int, matrices: Any, flat: Any, lines: Any) -> None:
    """Pack words of 8 features, (samples, padded features / 8), to ``lines``, (engines · ports, T, C, S, bytes); there
    are zeros where samples end. Scratch space: ``matrices``, uint64 (C, bytes), ``flat`` if seen as a vector."""
    engines, stored, banks = lines.shape[0] // ports, lines.shape[3], BANKS // ports
    groups = matrices.shape[1] // banks
    for memory in range(lines.shape[0]):
        engine, port = memory // ports, memory % ports
        for micro_batch in range(lines.shape[1]):
            row = BANKS * micro_batch + port * banks
            for chunk in range(matrices.shape[0]):
                begin = ((chunk // unit_chunks * engines + engine) * unit_chunks + chunk % unit_chunks) * groups
                for bank in range(banks):
                    for group in range(groups):
                        word = words[row + bank, begin + group] if row + bank < words.shape[0] else np.uint64(0)
                        matrices[chunk, bank * groups + group] = word
            # Loops over neighbours, so that the compiler uses vectors.
            for place in range(flat.size):
                word = flat[place]
                for shift, mask in TRANSPOSE:
                    swapped = (word ^ (word >> shift)) & mask
                    word ^= swapped ^ (swapped << shift)
                flat[place] = word
            for chunk in range(matrices.shape[0]):
                for plane in range(stored):
                    line, drop = lines[memory, micro_batch, chunk, plane], np.uint64(8 * (stored - 1 - plane))
                    for place in range(line.size):
                        line[place] = np.uint8(matrices[chunk, place] >> drop)


def unpack_lines(lines: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """Undo `pack_lines`: the S-bit features in the low bits, 0 above them."""
    form = FeatureFormat(layout.stored, layout.stored, False)
    engines = Lines(tuple(lines), form, layout.unit).decode(0, lines.shape[1])
    units = engines.reshape(*engines.shape[:2], -1, layout.unit_lanes).transpose(1, 2, 0, 3)
    return layout.unpad(units.reshape(engines.shape[1], -1))


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
