"""The image of a worker as a session writes it: what is in which memory, and whether there is room for it."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import DESCRIPTOR_FIELDS, DESCRIPTOR_SHIFTS, ImageLayout

_PAGE = 4096
"""Images and weights begin at multiples of this, so that bursts are not cut short at a 4 KiB boundary."""


class WorkerImage(Protocol):
    """What a session reads of a worker's `p4sgd.host.image.Image`, which describes it."""

    @property
    def layout(self) -> ImageLayout: ...
    @property
    def labels(self) -> npt.NDArray[np.int32]: ...
    @property
    def importances(self) -> npt.NDArray[np.int32] | None: ...
    @property
    def exempt(self) -> tuple[int, int, int] | None: ...
    @property
    def starts(self) -> IntArray | None: ...
    def lines(self, number: int) -> npt.NDArray[np.uint8]: ...


def longest_micro_batch(image: WorkerImage) -> int:
    """Most lines of a micro-batch on an engine of an image with directories, without these.

    The line FIFO keeps no directories. Where it has room for them, too, they are counted as well, as that is quicker.
    """
    layout, starts = image.layout, image.starts
    assert starts is not None
    lines, config = np.diff(starts), layout.config
    if lines.max() <= config.line_fifo_depth:
        return int(lines.max())
    for engine in range(config.engines):
        parts = [image.lines(engine * config.ports + port) for port in range(config.ports)]
        (unread,) = np.nonzero(lines[engine] > config.line_fifo_depth)
        place = starts[engine, unread]  # of the next directory of each
        while unread.size:
            lines[engine, unread] -= 1
            words = np.concatenate([part[place].reshape(place.size, -1) for part in parts], axis=1).view("<u4")
            more = ~(words >> DESCRIPTOR_SHIFTS["last"]).any(axis=1)
            # Where another directory follows, all descriptors of this one list chunks.
            later = words[more] >> DESCRIPTOR_SHIFTS["later"] & (1 << DESCRIPTOR_FIELDS["later"]) - 1
            listed = 1 + np.bitwise_count(later).astype(np.int64)
            unread, place = unread[more], place[more] + 1 + listed.sum(axis=1)
    return int(lines.max())


def bank_bytes(layout: ImageLayout, *, weighted: bool = False) -> int:
    """Bytes used in the fullest memory bank of a worker with an image of this shape; samples may have weights."""
    return max(_aligned(layout.lines_bytes) + layout.model_bytes, (1 + weighted) * layout.labels_bytes)


def model_address(image: WorkerImage) -> int:
    """Address of the first page after what is in any memory."""
    return _aligned(max(image.lines(number).nbytes for number in range(image.layout.config.labels_memory)))


def _aligned(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
