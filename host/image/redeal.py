"""Dealing the units in finished images to other workers: more or fewer, or of another configuration."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.image.file import Image, Shard, join_scaling
from p4sgd.host.image.packing import pack_lines, store_images, unpack_lines
from p4sgd.hw.spec.config import BANKS

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
        (here.engines, here.ports, here.lanes) == (there.engines, there.ports, there.lanes)
    )


@dataclass(frozen=True, eq=False)
class _Redealt:
    """Lines of new images, from those of images that together have all their units: `LineBlocks`."""

    images: Sequence[Image]
    own: Sequence[Image]

    def __iter__(self) -> Iterator[list[npt.NDArray[np.uint8]]]:
        known = self.images[0]
        total, micro_batches = known.shard.total, known.layout.micro_batches
        step = max(1, _BLOCK_VALUES // (BANKS * total))
        for first in range(0, micro_batches, step):
            which = slice(first, first + step)
            q = np.empty((min(step, micro_batches - first) * BANKS, total), np.uint8)  # features of other units: unset
            for image in self.images:
                lines = np.stack([part[which] for part in image.port_lines])
                q[:, image.shard.columns] = image.layout.unpad(unpack_lines(lines, image.layout))
            yield [pack_lines(image.layout.pad(q[:, image.shard.columns]), image.layout) for image in self.own]
