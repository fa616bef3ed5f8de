"""Entries of sparse images: nonzero features with column and sample (:mod:`p4sgd.hw.spec.image`)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.host.image.file import memories
from p4sgd.host.image.image import Image
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import BANK_BITS, entry_words
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.sparse.data_parallel import SampleRanks
from p4sgd.sim.sparse.entries import Directories, sort_words


@dataclass(frozen=True)
class Values:
    """Values of some samples of a job, in any order."""

    rows: IntArray  # sample of each, from 0
    columns: IntArray  # feature in the job
    values: npt.NDArray[np.uint8]  # 8-bit two's complement if signed

    def of(self, which: npt.NDArray[np.bool_]) -> "Values":
        """Some of the values."""
        return Values(self.rows[which], self.columns[which], self.values[which])

    @classmethod
    def join(cls, parts: Sequence["Values"]) -> "Values":
        """Those of several."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "columns", "values")))


def entry_places(image: Image) -> npt.NDArray[np.int32]:
    """Where a worker has the features of the job, units filled up to whole chunks: int32 (features,), −1 if nowhere."""
    places, layout = np.full(image.shard.total, -1, np.int32), image.layout
    own = np.arange(layout.features, dtype=np.int32)
    if layout.unit < layout.unit_lanes:
        own = own // layout.unit * layout.unit_lanes + own % layout.unit
    image.shard.put(own, places)
    return places


def places_of(image: Image, keys: npt.NDArray[np.uint32]) -> IntArray:
    """Features of a worker that keys belong to: undoes `entry_places`."""
    place, layout = (keys >> BANK_BITS).astype(np.int64), image.layout
    return place // layout.unit_lanes * layout.unit + place % layout.unit_lanes


def own_words(values: Values, places: npt.NDArray[np.int32], stored: int) -> npt.NDArray[np.uint64]:
    """A worker's `entry_words` of some samples, sorted; ``places`` from `entry_places`."""
    columns, integers = places[values.columns], values.values & np.uint8((1 << stored) - 1)
    own = (columns >= 0) & (integers != 0)
    return sort_words(entry_words(values.rows[own], columns[own], integers[own]))


def entries_of(image: Image, which: slice) -> tuple[IntArray, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Micro-batch (from 0), key and value of each entry of some micro-batches, of an image that is made of entries."""
    if image.shard.directory:
        entries = directories_of(image, which).entries()
        counts = np.diff(entries.starts)
        return np.repeat(np.arange(counts.size), counts), entries.keys, entries.values
    starts, keys, values = lists_of(image)
    edges = starts[which.start : which.stop + 1]
    own = slice(int(edges[0]), int(edges[-1]))
    return np.repeat(np.arange(edges.size - 1), np.diff(edges)), keys[own], values[own]


def lists_of(image: Image) -> tuple[IntArray, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Starts, keys and values of a sparse image."""
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


def own_samples(image: Image, micro_batches: int, ranks: SampleRanks) -> Image:
    """A sparse image with the entries of a rank's samples only; mini-batches have so many micro-batches."""
    starts, keys, values = lists_of(image)
    own = ranks.holders(np.arange(starts.size - 1), micro_batches) == ranks.rank
    edges = np.flatnonzero(np.diff(own, prepend=False, append=False)).reshape(-1, 2)
    slices = [slice(first, stop) for first, stop in starts[edges].tolist()] or [slice(0)]
    keys, values = (np.concatenate([part[each] for each in slices]) for part in (keys, values))
    return _of_entries(image, np.where(own, np.diff(starts), 0), keys, values)


def first_samples(image: Image, samples: int, ranks: SampleRanks) -> Image | None:
    """A sparse image whose first samples have the entries of all ranks, in rank 0; None in the others."""
    parts = []
    for part in entries_of(image, slice(0, -(-samples // BANKS))):
        blocks = [np.ascontiguousarray(part).view(np.uint8), *[np.empty(0, np.uint8)] * (ranks.size - 1)]
        parts.append(np.concatenate(ranks.exchange(blocks, None)))
    if ranks.rank:
        return None
    rows, keys, values = parts[0].view(np.int64), parts[1].view("<u4"), parts[2]
    order = np.argsort(rows, kind="stable")  # each micro-batch is of a single rank, and in order there
    counts = np.bincount(rows, minlength=image.layout.micro_batches)
    return _of_entries(image, counts, keys[order], values[order])


def _of_entries(image: Image, counts: IntArray, keys: npt.NDArray[np.uint32], values: npt.NDArray[np.uint8]) -> Image:
    """A sparse image with other entries, so many of each micro-batch."""
    arrays = {"starts": np.append(0, np.cumsum(counts)).astype("<i8"), "keys": keys, "values": values}
    return dataclasses.replace(image, port_lines=memories(arrays, image.layout.config), path=None)
