"""Entries of sparse images: nonzero features with column and sample (:mod:`p4sgd.hw.spec.image`)."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.host.image.image import EntryBlock, Image
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import BANK_BITS, entry_words, split_words
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.sparse.data_parallel import SampleRanks
from p4sgd.sim.sparse.entries import Directories, sort_words

__all__ = [
    "EntryStore",
    "Values",
    "directories_of",
    "entries_of",
    "entry_block",
    "entry_places",
    "first_samples",
    "own_samples",
    "own_words",
    "places_of",
]


@dataclass(frozen=True)
class Values:
    """Values of some samples of a job, in any order.

    Parameters
    ----------
    rows
        int64 (values,): sample of each, from 0.
    columns
        int (values,): its feature in the job.
    values
        uint8 (values,): the integer, 8-bit two's complement if signed.
    """

    rows: IntArray
    columns: IntArray
    values: npt.NDArray[np.uint8]

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
    """A worker's `entry_words` of some samples, sorted.

    Parameters
    ----------
    values
        The values of the samples.
    places
        The worker's features, from `entry_places`.
    stored
        Planes (S).
    """
    columns, integers = places[values.columns], values.values & np.uint8((1 << stored) - 1)
    own = (columns >= 0) & (integers != 0)
    return sort_words(entry_words(values.rows[own], columns[own], integers[own]))


def entry_block(words: npt.NDArray[np.uint64], micro_batches: int) -> EntryBlock:
    """The entries of so many micro-batches, from their `entry_words`, sorted."""
    return EntryBlock(*split_words(words, micro_batches))


def entries_of(image: Image, which: slice) -> tuple[IntArray, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Micro-batch (from 0), key and value of each entry of some micro-batches, of an image that is made of entries."""
    if image.shard.directory:
        entries = directories_of(image, which).entries()
        counts = np.diff(entries.starts)
        return np.repeat(np.arange(counts.size), counts), entries.keys, entries.values
    starts, keys, values = image.lines(0).view("<i8"), image.lines(1).view("<u4"), image.lines(2)
    edges = starts[which.start : which.stop + 1]
    own = slice(int(edges[0]), int(edges[-1]))
    return np.repeat(np.arange(edges.size - 1), np.diff(edges)), keys[own], values[own]


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
    """A sparse image with the entries of a rank's samples only.

    Parameters
    ----------
    image
        The image, with all entries.
    micro_batches
        Micro-batches of a mini-batch.
    ranks
        The ranks that divide the samples among themselves.
    """
    starts, keys, values = image.lines(0).view("<i8"), image.lines(1).view("<u4"), image.lines(2)
    holders = ranks.holders(np.arange(starts.size - 1), micro_batches)
    store = EntryStore(dataclasses.replace(image, room=int(np.diff(starts)[holders == ranks.rank].sum())))
    edges = np.append(0, np.flatnonzero(np.diff(holders)) + 1).tolist()
    for first, stop in zip(edges, [*edges[1:], holders.size], strict=True):
        counts, own = np.zeros(stop - first, np.int64), slice(0)
        if holders[first] == ranks.rank:
            counts, own = np.diff(starts[first : stop + 1]), slice(int(starts[first]), int(starts[stop]))
        store.append(EntryBlock(counts, keys[own], values[own]))
    return dataclasses.replace(image, port_lines=store.arrays, path=None)


def first_samples(image: Image, samples: int, ranks: SampleRanks) -> Image | None:
    """A sparse image whose first samples have the entries of all ranks, in rank 0; None in the others."""
    micro_batches = -(-samples // BANKS)
    parts = []
    for part in entries_of(image, slice(0, micro_batches)):
        blocks = [np.ascontiguousarray(part).view(np.uint8), *[np.empty(0, np.uint8)] * (ranks.size - 1)]
        parts.append(np.concatenate(ranks.exchange(blocks, None)))
    if ranks.rank:
        return None
    rows, keys, values = parts[0].view(np.int64), parts[1].view("<u4"), parts[2]
    order = np.argsort(rows, kind="stable")  # each micro-batch is of a single rank, and in order there
    store = EntryStore(dataclasses.replace(image, room=rows.size))
    counts = np.bincount(rows, minlength=image.layout.micro_batches)
    store.append(EntryBlock(counts, keys[order], values[order]))
    return dataclasses.replace(image, port_lines=store.arrays, path=None)


class EntryStore:
    """Gathers the entries of an image in memory.

    Parameters
    ----------
    image
        The image, complete except for its entries.
    """

    def __init__(self, image: Image) -> None:
        self._starts = np.zeros(image.layout.micro_batches + 1, "<i8")
        self._keys = np.empty(image.room, "<u4")
        self._values = np.empty(image.room, np.uint8)
        self._memories = image.layout.config.labels_memory
        self._done = self._count = 0

    def append(self, part: Iterable[npt.NDArray[np.uint8]] | EntryBlock) -> None:
        """Append the entries of some micro-batches."""
        assert isinstance(part, EntryBlock)
        ends = self._count + np.cumsum(part.counts)
        self._starts[self._done + 1 : self._done + 1 + ends.size] = ends
        self._keys[self._count : self._count + part.keys.size] = part.keys
        self._values[self._count : self._count + part.keys.size] = part.values
        self._done += ends.size
        self._count += part.keys.size

    @property
    def arrays(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """What each memory holds."""
        keys, values = self._keys[: self._count], self._values[: self._count]
        lists = self._starts.view(np.uint8), keys.view(np.uint8), values
        return (*lists, *[np.empty(0, np.uint8)] * (self._memories - len(lists)))
