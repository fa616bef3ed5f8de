"""Repartition: the units in finished images dealt to more or fewer workers, or to workers of another configuration."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.image.entries import Values, entries_of, entry_places, own_words, places_of
from p4sgd.host.image.image import EntryBlock, Image, Shard, join_scaling
from p4sgd.host.image.lines import pack_lines, unpack_lines
from p4sgd.host.image.store import store_images
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import split_words
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
    directory: Path | None = None,
) -> list[Image]:
    """Deal units to other workers, from their images: what `prepare_images` makes of the data for these workers.

    ``images`` are those of all workers that have them, ``shards`` the workers that get them, ``name`` is that of the
    data, for messages; for ``directory`` and raised exceptions see `prepare_images`. Each process gets the images of
    its own workers: ``images`` themselves if they are for these. Memory beyond the new images is a block of samples.
    """
    own = slice(communicator.rank, None, communicator.size)
    if len(images) == len(shards) and all(map(same_lines, (image.shard for image in images), shards)):
        return list(images[own])
    known = images[0]
    offset, scale = join_scaling(images)
    units = np.concatenate([shard.units for shard in shards[own]])
    needed = [image for image in images if np.isin(image.shard.units, units).any()]
    counts = _count_values(needed) if any(shard.config.sparse for shard in shards[own]) else None
    new = [
        dataclasses.replace(
            known,
            layout=shard.layout(known.layout.samples, known.layout.stored),
            shard=shard,
            workers=len(shards),
            offset=shard.take(offset),
            scale=shard.take(scale),
            port_lines=(),
            path=None,
            room=int(shard.take(counts).sum()) if counts is not None and shard.config.sparse else 0,
            starts=None,
        )
        for shard in shards[own]
    ]
    return store_images(
        new,
        _Repartitioned(needed, new),
        directory,
        name=name,
        remedy="keep the new images in files with --images DIR, or prepare the data for these workers",
        communicator=communicator,
    )


def same_lines(ours: Shard, theirs: Shard) -> bool:
    """Whether two workers have the same lines in the same memories."""
    here, there = ours.config, theirs.config
    return np.array_equal(ours.units, theirs.units) and (
        (here.engines, here.ports, here.lanes, here.sparse, ours.directory)
        == (there.engines, there.ports, there.lanes, there.sparse, theirs.directory)
    )


def _count_values(images: Sequence[Image]) -> IntArray:
    """How many values of each feature of the job are not 0, in these images: int64 (features,)."""
    known = images[0]
    counts = np.zeros(known.shard.total, np.int64)
    for image in images:
        for which in blocks_of(_most_values(image), _BLOCK_VALUES):
            counts += np.bincount(_values(image, which).columns, minlength=counts.size)
    return counts


def _most_values(image: Image, micro_batches: int | None = None) -> IntArray:
    """How many values each of the first micro-batches of a worker has at most, by default of all: int64 (T,)."""
    layout = image.layout
    count = layout.micro_batches if micro_batches is None else micro_batches
    if layout.config.sparse:
        return np.diff(image.port_lines[0].view("<i8")[: count + 1])
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


@dataclass(frozen=True, eq=False)
class _Repartitioned:
    """Lines or entries of new images, from images that together have all their units: `LineBlocks`."""

    images: Sequence[Image]
    own: Sequence[Image]

    def __iter__(self) -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
        known = self.images[0]
        total = known.shard.total
        if any(image.shard.lists_values for image in (*self.images, *self.own)):
            places = [entry_places(image) for image in self.own]
            for which in blocks_of(self._most, _BLOCK_VALUES):
                values = Values.join([_values(image, which) for image in self.images])
                yield [_pack(image, values, place, which) for image, place in zip(self.own, places, strict=True)]
            return
        for which in blocks_of(np.full(known.layout.micro_batches, BANKS * total), _BLOCK_VALUES):
            q = np.empty(((which.stop - which.start) * BANKS, total), np.uint8)  # features of other units: unset
            for image in self.images:
                q[:, image.shard.columns] = _unpacked(image, which)
            yield [pack_lines(image.layout.pad(q[:, image.shard.columns]), image.layout) for image in self.own]

    @functools.cached_property
    def _most(self) -> IntArray:
        """How many values the images have of each micro-batch at most, or the new lines of a worker have places for."""
        new = [image.shard.features for image in self.own if not image.shard.lists_values]
        most: IntArray = np.maximum(sum(map(_most_values, self.images)), BANKS * max(new, default=1))
        return most


def first_values(images: Sequence[Image], samples: int) -> Values:
    """What is not 0 in the first samples, whole micro-batches, of a job whose workers have these images.

    Raises `ValueError` or `IndexError` if an image is damaged.
    """
    parts = [
        dataclasses.replace(values, rows=values.rows + BANKS * which.start)
        for image in images
        for which in blocks_of(
            _most_values(image, min(-(-samples // BANKS), image.layout.micro_batches)), _BLOCK_VALUES
        )
        for values in [_values(image, which)]
    ]
    return Values.join(parts)


def _values(image: Image, which: slice) -> Values:
    """What is not 0 in some micro-batches of a worker."""
    if image.shard.lists_values:
        micro_batches, keys, values = entries_of(image, which)
        rows, columns = BANKS * micro_batches + keys % BANKS, places_of(image, keys)
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
    block = EntryBlock(*split_words(own_words(values, places, image.layout.stored), micro_batches))
    if image.shard.lists_values:
        return block
    q = np.zeros((BANKS * micro_batches, image.shard.features), np.uint8)
    rows = BANKS * np.repeat(np.arange(micro_batches), block.counts) + block.keys % BANKS
    q[rows, places_of(image, block.keys)] = block.values
    return pack_lines(image.layout.pad(q), image.layout)


def _unpacked(image: Image, which: slice) -> npt.NDArray[np.uint8]:
    lines = np.stack([part[which] for part in image.port_lines])
    return image.layout.unpad(unpack_lines(lines, image.layout))
