"""The image of a worker as a session writes it: what is in which memory, and whether there is room for it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import DESCRIPTOR_FIELDS, DESCRIPTOR_SHIFTS, ImageLayout

_PAGE = 4096
"""Images and weights begin at multiples of this, so that bursts are not cut short at a 4 KiB boundary."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkerImage:
    """Contents of a worker's memory."""

    layout: ImageLayout  # its samples include the zero samples that fill the last mini-batch
    labels: npt.NDArray[np.int32]  # (8·T,): `LABEL` integers, 0 for padding
    importances: npt.NDArray[np.int32] | None = None  # `IMPORTANCE` integers, as labels; None if all weigh the same
    # Lines of each memory port of each engine: (T, C, S, 8/ports, lanes/8), or with directories (lines, 8/ports,
    # lanes/8); of a sparse worker, what is in each memory: (bytes,). If there is a file, read-only maps of it.
    port_lines: tuple[npt.NDArray[np.uint8], ...]
    # Lines of each engine before each micro-batch, those of directories included, if there are any: (engines, T + 1).
    starts: IntArray | None = None

    @property
    def exempt(self) -> tuple[int, int, int] | None:
        """Engine, chunk and lane of the weight that penalties leave alone, that of the bias, if the worker has it."""
        return None

    @property
    def model_address(self) -> int:
        """Address of the first page after what is in any memory, where an engine's weights are."""
        return _aligned(max(lines.nbytes for lines in self.port_lines))

    @property
    def longest_micro_batch(self) -> int | None:
        """Most lines of a micro-batch on an engine, without directories; None for an image without any.

        The line FIFO keeps no directories. Where it has room for them, too, they are counted as well, as that is
        quicker.
        """
        if self.starts is None:
            return None
        lines, config = np.diff(self.starts), self.layout.config
        if lines.max() <= config.line_fifo_depth:
            return int(lines.max())
        for engine in range(config.engines):
            parts = self.port_lines[engine * config.ports : (engine + 1) * config.ports]
            (unread,) = np.nonzero(lines[engine] > config.line_fifo_depth)
            place = self.starts[engine, unread]  # of the next directory of each
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


def _aligned(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
