"""Memory image of a worker: the shard of columns that it has, and what is packed of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.statistics import column_blocks
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import ImageLayout

ColumnArray: TypeAlias = npt.NDArray[np.int32]
"""Numbers of columns, which may be millions."""

_Value = TypeVar("_Value", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Shard:
    """The units of a worker. Unit i has the job's features i·unit up to (i + 1)·unit; the last may have fewer."""

    worker: int  # index of the worker
    config: WorkerConfig
    units: IntArray  # int64 (n,): numbers of its units, ascending
    unit: int  # features of a unit
    total: int  # features of the job, the bias counting as the last one
    placed: ColumnArray | None = None  # int32 (features,): its features in the data, if the job has another order
    directory: bool = False  # its image leaves out lines of zeros, of which directories tell

    @property
    def lists_values(self) -> bool:
        """Whether its image is made of a list of what is not 0, so that zeros must stay zeros."""
        return self.config.sparse or self.directory

    @property
    def features(self) -> int:
        last = int(self.units[-1] + 1) * self.unit
        return self.units.size * self.unit - max(0, last - self.total)

    def layout(self, samples: int, stored: int) -> ImageLayout:
        return ImageLayout(self.config, self.features, samples, stored, self.unit, self.directory)

    @property
    def columns(self) -> IntArray | ColumnArray | slice:
        """Where its features are among those of the data: a slice if they are consecutive, else int (features,)."""
        return self._in_job if self.placed is None else self.placed

    def take(self, values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """What its features have, (features,), from what those of the data have; if these lack the bias, so does it."""
        columns = self.columns
        if isinstance(columns, slice):
            return values[columns]
        known = columns[:-1] if columns[-1] >= values.size else columns
        if values.strides == (0,):  # one number for all
            return values[: known.size]
        own = np.empty(known.size, values.dtype)
        for block in column_blocks(known.size):  # NumPy converts an index to 64 bits first
            own[block] = values[known[block]]
        return own

    def put(self, own: npt.NDArray[_Value], values: npt.NDArray[_Value]) -> None:
        """Undo `take`: write what its features have to their places among those of the data."""
        columns = self.columns
        if isinstance(columns, slice):
            values[columns] = own
            return
        for block in column_blocks(own.size):
            values[columns[: own.size][block]] = own[block]

    def in_order(self, order: ColumnArray | None) -> "Shard":
        """The same units of a job whose i-th feature is ``order[i]`` of the data, the bias counting as the last one."""
        return dataclasses.replace(self, placed=None if order is None else order[self._in_job])

    @property
    def _in_job(self) -> IntArray | slice:
        first, last = int(self.units[0]), int(self.units[-1]) + 1
        if last - first == self.units.size:
            return slice(first * self.unit, min(last * self.unit, self.total))
        columns = self.units[:, np.newaxis] * self.unit + np.arange(self.unit)
        return columns.reshape(-1)[: self.features]


@dataclass(frozen=True, eq=False, kw_only=True)
class Image(WorkerImage):
    """Contents of a worker's memory: its shard of a data set, packed."""

    signed: bool  # features are two's complement
    shard: Shard
    workers: int  # of the job
    samples: int  # without padding
    bias: bool  # the job's last feature is the bias
    # (features,) without the bias: scaling of each feature, a = (x − offset) · scale, before whitening, if any. Either
    # may be a view of one number, see `p4sgd.host.data.Scaling`.
    offset: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    room: int = 0  # most entries that it is made of, if these are not there yet

    @property
    def exempt(self) -> tuple[int, int, int] | None:
        return self.layout.place(self.layout.features - 1) if self.has_bias else None

    @property
    def has_bias(self) -> bool:
        return self.bias and (int(self.shard.units[-1]) + 1) * self.shard.unit >= self.shard.total

    @property
    def lines_bytes(self) -> int:
        """Bytes of all lines; of entries, and of directories before lines are counted, the most of the entries."""
        if self.starts is not None:
            return int(self.starts[:, -1].sum()) * self.layout.config.line_bytes
        if self.shard.lists_values:
            return 8 * (self.layout.micro_batches + 1) + 5 * self.room
        return self.layout.config.labels_memory * self.layout.lines_bytes

    @property
    def lines_shapes(self) -> list[tuple[int, ...]]:
        """Shape of the lines in each memory, as ``port_lines`` has them; with directories they must be counted."""
        config, shape = self.layout.config, self.layout.lines_shape
        if self.starts is None:
            return [shape] * config.labels_memory
        return [(lines, *shape[-2:]) for lines in np.repeat(self.starts[:, -1], config.ports).tolist()]


@dataclass(frozen=True, eq=False)
class EntryBlock:
    """Entries of some micro-batches, after those of others (:mod:`p4sgd.hw.spec.image`)."""

    counts: IntArray  # how many each micro-batch has
    keys: npt.NDArray[np.uint32]
    values: npt.NDArray[np.uint8]


def join_scaling(images: Sequence[Image]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Offset and scale of all features of the data, from the images of all workers: float64 (features,) each, as in
    images maybe views of one number."""
    features = images[0].shard.total - images[0].bias

    def join(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        known = [part for part in parts if part.size]
        if all(part.strides == (0,) and part[:1].tobytes() == known[0][:1].tobytes() for part in known):
            return np.broadcast_to(known[0][0], features)
        joined = np.empty(features)
        for image, part in zip(images, parts, strict=True):
            image.shard.put(part, joined)
        return joined

    return join([image.offset for image in images]), join([image.scale for image in images])
