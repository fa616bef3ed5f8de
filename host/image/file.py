"""Image files: the memory image of a worker in a file (:mod:`p4sgd.host.tensor_file`).

Its arrays begin at multiples of 4096 bytes: ``lines0`` … (one for each memory port of each engine; of a sparse worker
``starts``, ``keys`` and ``values``), ``labels`` (int32), ``offset`` and ``scale`` (float64), by which the features were
scaled: a = (x − offset) · scale, before whitening, if any; ``units`` (int64), the numbers of its units; ``columns``
(int64), its features among those of the data, if the job has another order; ``importances`` (int32), if samples have
weights; and ``starts`` (int64), the lines of each engine before each micro-batch, if there are directories.
For the order of bits and entries see :mod:`p4sgd.hw.spec.image`.
"""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.image.image import EntryBlock, Image, Shard
from p4sgd.host.tensor_file import Arrays, FileKind, TensorWriter
from p4sgd.hw.spec.config import WorkerConfig

FORMAT_VERSION = 7
"""Increased whenever a reader of the old version would misread the new one."""

_KIND = FileKind(
    "p4sgd-image",
    FORMAT_VERSION,
    "memory image",
    "prepare the data again with p4sgd data prepare",
    "prepare the data again",
    alignment=4096,
)

_ENTRIES = ("starts", "keys", "values")


class LineWriter(ABC):
    """Takes the lines or entries of an image, some micro-batches after others."""

    shapes: dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]
    """Type and shape of the arrays that they fill; of keys and values there may be fewer."""

    def __init__(self, image: Image) -> None:
        self.sparse, self._entries = image.layout.config.sparse, 0
        if self.sparse:
            starts, room = (image.layout.micro_batches + 1,), (image.room,)
            self.shapes = {"starts": (np.int64, starts), "keys": (np.uint32, room), "values": (np.uint8, room)}
        else:
            self.shapes = {f"lines{number}": (np.uint8, shape) for number, shape in enumerate(image.lines_shapes)}

    def append(self, part: Iterable[npt.NDArray[np.uint8]] | EntryBlock) -> None:
        """Append some micro-batches: the lines of each memory, as ``Image.port_lines`` has them, or entries."""
        if isinstance(part, EntryBlock):
            ends = self._entries + np.cumsum(part.counts)
            self._entries += part.keys.size
            parts: Arrays = {"starts": ends, "keys": part.keys, "values": part.values}
        else:
            parts = {f"lines{number}": lines for number, lines in enumerate(part)}
        for name, values in parts.items():
            self._put(name, values)

    @abstractmethod
    def _put(self, name: str, values: npt.NDArray[Any]) -> None:
        """Append to an array."""


def memories(arrays: Mapping[str, npt.NDArray[Any]], config: WorkerConfig) -> tuple[npt.NDArray[np.uint8], ...]:
    """``Image.port_lines``, from the arrays that a `LineWriter` has filled."""
    if not config.sparse:
        return tuple(arrays[f"lines{number}"] for number in range(config.labels_memory))
    lists = [arrays[name].view(np.uint8) for name in _ENTRIES]
    return (*lists, *[np.empty(0, np.uint8)] * (config.labels_memory - len(lists)))


class ImageWriter(LineWriter):
    """Writes an image file, micro-batch by micro-batch.

    ``image`` is complete except for its lines; with directories they are counted (``starts``).
    """

    def __init__(self, image: Image) -> None:
        super().__init__(image)
        self._small = _small_arrays(image)
        layout = image.layout
        header = {
            "config": vars(layout.config),
            "directory": layout.directory,
            "padded_samples": layout.samples,
            "stored": layout.stored,
            "unit": layout.unit,
            "signed": image.signed,
            "worker": image.shard.worker,
            "workers": image.workers,
            "total": image.shard.total,
            "samples": image.samples,
            "bias": image.bias,
        }
        small = {name: (values.dtype, values.shape) for name, values in self._small.items()}
        self._writer = TensorWriter(_KIND, header, {**self.shapes, **small})

    @property
    def size(self) -> int:
        """Largest size of the file in bytes."""
        return self._writer.size

    def begin(self, file: BinaryIO) -> Self:
        """Write all but the lines to a new file, which the caller closes."""
        self._file = file
        for name, values in self._small.items():
            self._put(name, values)
        if self.sparse:
            self._put("starts", np.zeros(1, np.int64))
        return self

    def _put(self, name: str, values: npt.NDArray[Any]) -> None:
        self._writer.append(self._file, name, values)

    def finish(self) -> None:
        """Complete the file."""
        self._writer.finish(self._file, shorter=("keys", "values") if self.sparse else ())


def _small_arrays(image: Image) -> Arrays:
    """Arrays but for the lines."""
    shard, placed = image.shard, image.shard.placed
    bias = np.zeros(int(image.has_bias))  # is not scaled
    some = {
        "importances": image.importances,
        "starts": image.starts,
        "columns": None if placed is None else placed.astype(np.int64),
    }
    return {
        "labels": image.labels,
        "offset": np.append(image.offset, bias),
        "scale": np.append(image.scale, bias),
        "units": shard.units,
        **{name: values for name, values in some.items() if values is not None},
    }


def image_file(folder: Path, worker: int) -> Path:
    """Path of a worker's image in a folder of images."""
    return folder / f"worker{worker}.p4sgd"


is_image_file = _KIND.is_of
"""Whether a file is an image file of any version."""


def open_image(path: Path, *, verify: bool = True) -> Image:
    """Open an image file; its lines are mapped, not loaded.

    With ``verify`` lines, or keys and values, are compared with their checksums, too, which reads the whole file.
    Raises `UserError` if it cannot be read, is no image file, is damaged, or is of another version.
    """
    arrays, header, mapped = _KIND.map(path, lambda name: verify or not name.startswith(("keys", "values", "lines")))
    with _KIND.decoding(path):
        config, units = WorkerConfig(**header["config"]), arrays["units"]
        placed = arrays["columns"].astype(np.int32) if "columns" in arrays else None
        shard = Shard(header["worker"], config, units, header["unit"], header["total"], placed, header["directory"])
        scaled = shard.features - (header["bias"] and (int(units[-1]) + 1) * shard.unit >= shard.total)
        image = Image(
            layout=shard.layout(header["padded_samples"], header["stored"]),
            signed=header["signed"],
            shard=shard,
            workers=header["workers"],
            samples=header["samples"],
            bias=header["bias"],
            labels=arrays["labels"],
            offset=_shortened(arrays["offset"][:scaled]),
            scale=_shortened(arrays["scale"][:scaled]),
            port_lines=memories(arrays, config),
            path=path,
            importances=arrays.get("importances"),
            starts=arrays["starts"] if shard.directory else None,
        )
    # What was read so far may be more than lines and labels, and counts as this process's memory while it is mapped.
    mapped.madvise(mmap.MADV_DONTNEED)
    return image


def _shortened(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A view of one number if all have the same bits; there may be millions."""
    bits = values.view(np.int64)
    return np.broadcast_to(values[0], values.shape) if values.size and (bits == bits[0]).all() else values
