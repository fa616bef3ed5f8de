"""Repartition: the units in finished images dealt to other workers, and the samples of a sparse image to ranks."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.image.contents import (
    Values,
    entries_of,
    entry_places,
    features_of,
    lists_of,
    own_words,
    pack_lines,
    unpack_lines,
)
from p4sgd.host.image.file import store_images
from p4sgd.host.image.image import EntryBlock, Image, Shard, join_scaling
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import split_words
from p4sgd.sim.sparse.data_parallel import SampleRanks
from p4sgd.sim.sparse.entries import blocks_of

_BLOCK_VALUES = 1 << 20
"""Values that are dealt at once, at most, unless a single micro-batch has more."""

_COUNTED = 1 << 12
"""Micro-batches whose ones are counted at once."""


def repartition_images(
    images: Sequence[Image],
    shards: Sequence[Shard],
    *,
    name: str,
    communicator: Communicator = SINGLE_PROCESS,
) -> list[Image]:
    """Deal units to other workers, from their images: what `prepare_images` makes of the data for these workers.

    ``images`` are those of all workers that have them, ``shards`` the workers that get them, ``name`` is that of the
    data, for messages; for raised exceptions see `prepare_images`. Each process gets the images of
    its own workers: ``images`` themselves if they are for these. Memory beyond the new images is a block of samples.
    """
    own = slice(communicator.rank, None, communicator.size)
    if suits(images, shards):
        return list(images[own])
    known = images[0]
    offset, scale = join_scaling(images)
    units = np.concatenate([shard.units for shard in shards[own]])
    needed = [image for image in images if np.isin(image.shard.units, units).any()]
    counts = np.zeros(known.shard.total, np.int64)  # values of each feature that are not 0
    if any(shard.config.sparse for shard in shards[own]):
        for image in needed:
            for which in blocks_of(_most_values(image), _BLOCK_VALUES):
                counts += np.bincount(_values(image, which).columns, minlength=counts.size)
    new = [
        dataclasses.replace(
            known,
            layout=shard.layout(known.layout.samples, known.layout.stored),
            shard=shard,
            workers=len(shards),
            offset=shard.take(offset),
            scale=shard.take(scale),
            port_lines=(),
            room=int(shard.take(counts).sum()),
            starts=None,
        )
        for shard in shards[own]
    ]
    remedy = "prepare the data for these workers"
    blocks = _Repartitioned(needed, new)
    return store_images(new, blocks, None, name=name, remedy=remedy, communicator=communicator)


def suits(images: Sequence[Image], shards: Sequence[Shard]) -> bool:
    """Whether images are for these workers, which have the same lines in the same memories."""

    def form(shard: Shard) -> tuple[object, ...]:
        config = shard.config
        return config.engines, config.ports, config.lanes, config.sparse, shard.directory, shard.units.tobytes()

    return [form(image.shard) for image in images] == [form(shard) for shard in shards]


def first_values(images: Sequence[Image], samples: int) -> Values:
    """What is not 0 in the first samples, whole micro-batches, of a job whose workers have these images.

    Raises `ValueError` or `IndexError` if an image is damaged.
    """
    parts = []
    for image in images:
        count = min(-(-samples // BANKS), image.layout.micro_batches)
        for which in blocks_of(_most_values(image, count), _BLOCK_VALUES):
            values = _values(image, which)
            parts.append(values._replace(rows=values.rows + BANKS * which.start))
    return Values.join(parts)


@dataclass(frozen=True, eq=False)
class _Repartitioned:
    """`p4sgd.host.image.file.Blocks` of new images, from images that together have all their units."""

    images: Sequence[Image]
    new: Sequence[Image]

    def __iter__(self) -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
        total, micro_batches = self.new[0].shard.total, self.new[0].layout.micro_batches
        if any(image.shard.lists_values for image in (*self.images, *self.new)):
            places = [entry_places(image) for image in self.new]
            for which in blocks_of(self._most, _BLOCK_VALUES):
                values = Values.join([_values(image, which) for image in self.images])
                yield [_pack(image, values, place, which) for image, place in zip(self.new, places, strict=True)]
            return
        for which in blocks_of(np.full(micro_batches, BANKS * total), _BLOCK_VALUES):
            q = np.empty(((which.stop - which.start) * BANKS, total), np.uint8)  # features of other units: unset
            for image in self.images:
                q[:, image.shard.columns] = _unpacked(image, which)
            yield [pack_lines(q[:, image.shard.columns], image.layout, len(q)) for image in self.new]

    @cached_property
    def _most(self) -> IntArray:
        """How many values the images have of each micro-batch at most, or the new lines of a worker have places for."""
        dense = [image.shard.features for image in self.new if not image.shard.lists_values]
        most: IntArray = np.maximum(sum(map(_most_values, self.images)), BANKS * max(dense, default=1))
        return most


def _most_values(image: Image, micro_batches: int | None = None) -> IntArray:
    """How many values each of the first micro-batches of a worker has at most, by default of all: int64 (T,)."""
    layout = image.layout
    count = layout.micro_batches if micro_batches is None else micro_batches
    if layout.config.sparse:
        return np.diff(lists_of(image)[0][: count + 1])
    if image.starts is None:
        return np.full(count, BANKS * layout.features)
    most = np.zeros(count, np.int64)  # every value has a 1 in some line
    for number, part in enumerate(image.port_lines):
        starts = image.starts[number // layout.config.ports, : count + 1]
        for first in range(0, count, _COUNTED):
            edges = starts[first : first + _COUNTED + 1]
            ones = np.bitwise_count(part[edges[0] : edges[-1]]).sum(axis=(1, 2), dtype=np.int64)
            most[first : first + _COUNTED] += np.add.reduceat(ones, edges[:-1] - edges[0])
    return most


def _values(image: Image, which: slice) -> Values:
    if image.shard.lists_values:
        rows, columns, values = _rows_and_features(entries_of(image, which), image)
    else:
        q = _unpacked(image, which)
        rows, columns = np.nonzero(q)
        values = q[rows, columns]
    own = image.shard.columns
    return Values(rows, columns + own.start if isinstance(own, slice) else own[columns].astype(np.int64), values)


def _pack(
    image: Image, values: Values, places: npt.NDArray[np.int32], which: slice
) -> npt.NDArray[np.uint8] | EntryBlock:
    """A new image's lines or entries, from all values of some micro-batches; ``places`` from `entry_places`."""
    micro_batches = which.stop - which.start
    block = EntryBlock(*split_words(own_words([values], places, image.layout.stored), micro_batches))
    if image.shard.lists_values:
        return block
    rows, features, integers = _rows_and_features(block, image)
    q = np.zeros((BANKS * micro_batches, image.shard.features), np.uint8)
    q[rows, features] = integers
    return pack_lines(q, image.layout, len(q))


def _rows_and_features(block: EntryBlock, image: Image) -> tuple[IntArray, IntArray, npt.NDArray[np.uint8]]:
    rows = BANKS * np.repeat(np.arange(block.counts.size), block.counts) + block.keys % BANKS
    return rows, features_of(block.keys, image.layout), block.values


def _unpacked(image: Image, which: slice) -> npt.NDArray[np.uint8]:
    return unpack_lines(np.stack([part[which] for part in image.port_lines]), image.layout)


# -- samples of a sparse image to ranks --------------------------------------------------------------------------------


def own_samples(image: Image, micro_batches: int, ranks: SampleRanks) -> Image:
    """A sparse image with the entries of a rank's samples only; mini-batches have so many micro-batches."""
    starts, keys, values = lists_of(image)
    own = ranks.holders(np.arange(starts.size - 1), micro_batches) == ranks.rank
    edges = np.flatnonzero(np.diff(own, prepend=False, append=False)).reshape(-1, 2)
    slices = [slice(first, stop) for first, stop in starts[edges].tolist()] or [slice(0)]
    keys, values = (np.concatenate([part[each] for each in slices]) for part in (keys, values))
    return _with_entries(image, np.where(own, np.diff(starts), 0), keys, values)


def first_samples(image: Image, samples: int, ranks: SampleRanks) -> Image | None:
    """A sparse image whose first samples have the entries of all ranks, in rank 0; None in the others."""
    block, parts = entries_of(image, slice(0, -(-samples // BANKS))), []
    micro_batches = np.repeat(np.arange(block.counts.size), block.counts)
    for part in (micro_batches, block.keys, block.values):
        sent = [np.ascontiguousarray(part).view(np.uint8), *[np.empty(0, np.uint8)] * (ranks.size - 1)]
        parts.append(np.concatenate(ranks.exchange(sent, None)))
    if ranks.rank:
        return None
    rows, keys, values = parts[0].view(np.int64), parts[1].view("<u4"), parts[2]
    order = np.argsort(rows, kind="stable")  # each micro-batch is of a single rank, and in order there
    counts = np.bincount(rows, minlength=image.layout.micro_batches)
    return _with_entries(image, counts, keys[order], values[order])


def _with_entries(image: Image, counts: IntArray, keys: npt.NDArray[np.uint32], values: npt.NDArray[np.uint8]) -> Image:
    starts = np.append(0, np.cumsum(counts)).astype("<i8")
    return dataclasses.replace(
        image, port_lines=(starts.view(np.uint8), keys.view(np.uint8), values, *image.port_lines[3:])
    )
