"""Dealing the units in finished images to other workers: more or fewer, or of another configuration."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.image.entries import Values, entries_of, entry_block, entry_places, own_words, places_of
from p4sgd.host.image.file import EntryBlock, Image, Shard, join_scaling
from p4sgd.host.image.packing import pack_lines, store_images, unpack_lines
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.sim.directories import blocks_of

__all__ = ["first_values", "redeal_images", "same_lines"]


_BLOCK_VALUES = 1 << 20
"""Values that are dealt at once, at most, unless a single micro-batch has more."""


def redeal_images(
    images: Sequence[Image],
    shards: Sequence[Shard],
    *,
    name: str,
    communicator: Communicator = SINGLE_PROCESS,
    directory: Path | None = None,
) -> list[Image]:
    """Deal units to other workers, from their images: what `prepare_images` makes of the data for these workers.

    Memory beyond the new images is a block of samples.

    Parameters
    ----------
    images
        The images of all workers that have them, in order.
    shards
        The workers that get them, as `partition` gives them.
    name
        Name of the data, for messages.
    communicator
        The processes that train together. Each packs the images of its own workers.
    directory
        See `prepare_images`.

    Returns
    -------
    One image for every worker of this process; ``images`` themselves if they are for these workers.

    Raises
    ------
    UserError
        As `prepare_images`.
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
        _Redealt(needed, new),
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
        for which in _blocks(_most_values(image)):
            counts += np.bincount(_values(image, which).columns, minlength=counts.size)
    return counts


def _blocks(most: IntArray) -> Iterator[slice]:
    """All micro-batches in blocks; micro-batch t has at most ``most[t]`` values."""
    return blocks_of(most, _BLOCK_VALUES)


def _most_values(image: Image) -> IntArray:
    """How many values each micro-batch of a worker has at most: int64 (T,)."""
    layout = image.layout
    if layout.config.sparse:
        return np.diff(image.lines(0).view("<i8"))
    most = np.full(layout.micro_batches, BANKS * layout.features)
    if image.starts is not None:  # every value has a 1 in some line
        np.minimum(most, np.diff(image.starts).sum(axis=0) * layout.config.line_bits, out=most)
    return most


@dataclass(frozen=True, eq=False)
class _Redealt:
    """Lines or entries of new images, from images that together have all their units: `LineBlocks`."""

    images: Sequence[Image]
    own: Sequence[Image]

    def __iter__(self) -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
        known = self.images[0]
        total = known.shard.total
        if any(image.shard.lists_values for image in (*self.images, *self.own)):
            new = [image.shard.features for image in self.own if not image.shard.lists_values]
            most = np.maximum(sum(map(_most_values, self.images)), BANKS * max(new, default=1))
            places = [entry_places(image) for image in self.own]
            for which in _blocks(most):
                values = Values.join([_values(image, which) for image in self.images])
                yield [_pack(image, values, place, which) for image, place in zip(self.own, places, strict=True)]
            return
        for which in _blocks(np.full(known.layout.micro_batches, BANKS * total)):
            q = np.empty(((which.stop - which.start) * BANKS, total), np.uint8)  # features of other units: unset
            for image in self.images:
                q[:, image.shard.columns] = _unpacked(image, which)
            yield [pack_lines(image.layout.pad(q[:, image.shard.columns]), image.layout) for image in self.own]


def first_values(images: Sequence[Image], samples: int) -> Values:
    """What is not 0 in the first samples, whole micro-batches, of a job whose workers have these images.

    Raises
    ------
    ValueError
        If an image has no proper directories.
    """
    parts = [
        dataclasses.replace(values, rows=values.rows + BANKS * which.start)
        for image in images
        for which in blocks_of(_most_values(image)[: -(-samples // BANKS)], _BLOCK_VALUES)
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
    block = entry_block(own_words(values, places, image.layout.stored), micro_batches)
    if image.shard.lists_values:
        return block
    q = np.zeros((BANKS * micro_batches, image.shard.features), np.uint8)
    rows = BANKS * np.repeat(np.arange(micro_batches), block.counts) + block.keys % BANKS
    q[rows, places_of(image, block.keys)] = block.values
    return pack_lines(image.layout.pad(q), image.layout)


def _unpacked(image: Image, which: slice) -> npt.NDArray[np.uint8]:
    lines = np.stack([part[which] for part in image.port_lines])
    return image.layout.unpad(unpack_lines(lines, image.layout))
