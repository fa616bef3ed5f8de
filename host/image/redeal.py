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

__all__ = ["redeal_images", "same_lines"]


_BLOCK_VALUES = 1 << 20
"""Features that are dealt at once, about."""


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
    counts = _entry_counts(images) if any(shard.config.sparse for shard in shards) else None
    new = [
        dataclasses.replace(
            known,
            layout=shard.layout(known.layout.samples, known.layout.stored),
            shard=shard,
            workers=len(shards),
            offset=offset[shard.columns],
            scale=scale[shard.columns],
            port_lines=(),
            path=None,
            room=int(counts[shard.columns].sum()) if counts is not None and shard.config.sparse else 0,
        )
        for shard in shards[own]
    ]
    units = np.concatenate([image.shard.units for image in new])
    needed = [image for image in images if np.isin(image.shard.units, units).any()]
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
        (here.engines, here.ports, here.lanes, here.sparse) == (there.engines, there.ports, there.lanes, there.sparse)
    )


def _entry_counts(images: Sequence[Image]) -> IntArray:
    """Most entries of each feature of the job: int64 (features,)."""
    known = images[0]
    counts = np.full(known.shard.total, BANKS * known.layout.micro_batches)
    for image in images:
        if image.shard.config.sparse:
            _, keys, _ = entries_of(image, slice(0, known.layout.micro_batches))
            counts[image.shard.columns] = np.bincount(places_of(image, keys), minlength=image.shard.features)
    return counts


@dataclass(frozen=True, eq=False)
class _Redealt:
    """Lines of new images, from those of images that together have all their units: `LineBlocks`."""

    images: Sequence[Image]
    own: Sequence[Image]

    def __iter__(self) -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
        known = self.images[0]
        total, micro_batches = known.shard.total, known.layout.micro_batches
        sparse = any(image.shard.config.sparse for image in (*self.images, *self.own))
        width = max(
            (image.shard.features for image in (*self.images, *self.own) if not image.shard.config.sparse), default=1
        )
        step = max(1, _BLOCK_VALUES // (BANKS * (width if sparse else total)))
        places = [entry_places(image) for image in self.own]
        for first in range(0, micro_batches, step):
            which = slice(first, min(first + step, micro_batches))
            if sparse:
                values = self._values(which)
                yield [self._pack(image, values, place, which) for image, place in zip(self.own, places, strict=True)]
                continue
            q = np.empty(((which.stop - first) * BANKS, total), np.uint8)  # features of other units: unset
            for image in self.images:
                q[:, image.shard.columns] = _unpacked(image, which)
            yield [pack_lines(image.layout.pad(q[:, image.shard.columns]), image.layout) for image in self.own]

    def _values(self, which: slice) -> Values:
        """What is not 0 in some micro-batches."""
        parts = []
        for image in self.images:
            if image.shard.config.sparse:
                micro_batch, keys, values = entries_of(image, which)
                rows, columns = BANKS * micro_batch + keys % BANKS, places_of(image, keys)
            else:
                q = _unpacked(image, which)
                rows, columns = np.nonzero(q)
                values = q[rows, columns]
            own = image.shard.columns
            columns = columns + own.start if isinstance(own, slice) else own[columns]
            parts.append((rows, columns, values))
        rows, columns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Values(rows, columns, values)

    def _pack(
        self, image: Image, values: Values, places: npt.NDArray[np.int32], which: slice
    ) -> npt.NDArray[np.uint8] | EntryBlock:
        words, micro_batches = own_words(values, places, image.layout.stored), which.stop - which.start
        block = entry_block(words, micro_batches)
        if image.shard.config.sparse:
            return block
        q = np.zeros((BANKS * micro_batches, image.shard.features), np.uint8)
        rows = BANKS * np.repeat(np.arange(micro_batches), block.counts) + block.keys % BANKS
        q[rows, places_of(image, block.keys)] = block.values
        return pack_lines(image.layout.pad(q), image.layout)


def _unpacked(image: Image, which: slice) -> npt.NDArray[np.uint8]:
    lines = np.stack([part[which] for part in image.port_lines])
    return image.layout.unpad(unpack_lines(lines, image.layout))
