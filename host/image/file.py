"""Images in memory or as files, from blocks of their lines or entries.

A file (:mod:`p4sgd.host.tensor_file`) has arrays that begin at multiples of 4096 bytes: ``lines0`` … (one for each
memory port of each engine; of a sparse worker ``starts``, ``keys`` and ``values``), ``labels`` (int32), ``offset`` and
``scale`` (float64), by which the features were scaled: a = (x − offset) · scale, before whitening, if any; ``units``
(int64), the numbers of its units; ``columns`` (int64), its features among those of the data, if the job has another
order; ``importances`` (int32), if samples have weights; and ``starts`` (int64), the lines of each engine before each
micro-batch, if there are directories. For the order of bits and entries see :mod:`p4sgd.hw.spec.image`.
"""

import contextlib
import dataclasses
import mmap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, raise_on_all
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file, write_error
from p4sgd.host.image.image import EntryBlock, Image, Shard
from p4sgd.host.tensor_file import Arrays, FileKind, TensorWriter
from p4sgd.hw.spec.config import WorkerConfig

if TYPE_CHECKING:
    from p4sgd.host.image.directories import DirectoryPacker

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

Blocks: TypeAlias = Iterable[list[npt.NDArray[np.uint8] | EntryBlock]]
"""For some micro-batches after others what each worker has of them: lines, uint8 (engines · ports, T, C, S, 8/ports,
lanes/8), or entries, of which lines with directories are made, too. They can be gone through again."""


def image_file(folder: Path, worker: int) -> Path:
    """Path of a worker's image in a folder of images."""
    return folder / f"worker{worker}.p4sgd"


is_image_file = _KIND.is_of


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
            port_lines=_memories(arrays, config),
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


def _memories(arrays: Arrays, config: WorkerConfig) -> tuple[npt.NDArray[np.uint8], ...]:
    if not config.sparse:
        return tuple(arrays[f"lines{number}"] for number in range(config.labels_memory))
    lists = [arrays[name].view(np.uint8) for name in ("starts", "keys", "values")]
    return (*lists, *[np.empty(0, np.uint8)] * (config.labels_memory - len(lists)))


def store_images(
    images: Sequence[Image],
    blocks: Blocks,
    directory: Path | None,
    *,
    name: str,
    remedy: str,
    communicator: Communicator = SINGLE_PROCESS,
) -> list[Image]:
    """Give images of the workers of this process their lines or entries.

    ``directory`` and raised exceptions are those of `p4sgd.host.image.packing.prepare_images`; ``name`` is of the data,
    and ``remedy`` what helps if images do not fit into memory, for messages.
    """
    if directory is not None:
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise write_error(directory, error) from error
    # All processes go through the blocks together, also those whose own workers have no directories.
    if any(communicator.all_gather(any(image.shard.directory for image in images))):
        images = _count_lines(images, blocks)
    if directory is not None:
        return _in_files(images, blocks, directory)
    raise_on_all(communicator, partial(_check_room, images, name, remedy))
    rooms = [_Room(image) for image in images]
    _append([room.put for room in rooms], images, blocks)
    return [
        dataclasses.replace(image, port_lines=_memories(room.arrays, image.layout.config))
        for image, room in zip(images, rooms, strict=True)
    ]


def _count_lines(images: Sequence[Image], blocks: Blocks) -> list[Image]:
    """Count the lines of images with directories, so that there is room for just these: entries need not be kept."""
    counts = [[np.zeros((image.layout.config.engines, 1), np.int64)] for image in images]
    for block in blocks:
        for part, image, known in zip(block, images, counts, strict=True):
            if image.shard.directory:
                known.append(np.diff(_packer(part, image).starts))
    starts = (np.cumsum(np.concatenate(known, axis=1), axis=1) for known in counts)
    return [
        dataclasses.replace(image, starts=each if image.shard.directory else None)
        for image, each in zip(images, starts, strict=True)
    ]


def _packer(part: npt.NDArray[np.uint8] | EntryBlock, image: Image) -> "DirectoryPacker":
    from p4sgd.host.image.directories import DirectoryPacker

    assert isinstance(part, EntryBlock)
    return DirectoryPacker(part, image.layout)


def _check_room(images: Sequence[Image], name: str, remedy: str) -> None:
    """Those of dense workers store all features of all samples, so that a small sparse file may have large ones."""
    needed, available = sum(image.lines_bytes for image in images), available_memory()
    if available is not None and needed > available:
        features = images[0].shard.total - images[0].bias
        zeros = "" if all(image.shard.lists_values for image in images) else ", zeros included,"
        raise UserError(
            f"{name}: the memory images of {images[0].samples:,} samples of {features:,} features take "
            f"{needed / 1e9:,.1f} GB{zeros} and {available / 1e9:,.1f} GB of memory are available: {remedy}"
        )


def available_memory() -> int | None:
    """Memory that can still be allocated, including swap, in bytes; ``None`` where the system does not report it."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = sum(int(fields[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None
    group = Path("/sys/fs/cgroup")  # a container may be allowed less than the machine has
    try:
        limit = int((group / "memory.max").read_text())
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return min(free, limit - int(used["anon"]))  # file caches can be evicted
    except (OSError, KeyError, ValueError):  # no limit, or no control groups
        return free


_Put: TypeAlias = Callable[[str, npt.NDArray[Any]], None]
"""Appends values to the array of an image that has this name."""


def _append(puts: Sequence[_Put], images: Sequence[Image], blocks: Blocks) -> None:
    entries = [0] * len(images)
    for image, put in zip(images, puts, strict=True):
        if image.shard.config.sparse:
            put("starts", np.zeros(1, np.int64))
    for block in blocks:
        for number, (part, image, put) in enumerate(zip(block, images, puts, strict=True)):
            for lines in _packer(part, image) if image.shard.directory else (part,):
                if isinstance(lines, EntryBlock):
                    put("starts", entries[number] + np.cumsum(lines.counts))
                    put("keys", lines.keys)
                    put("values", lines.values)
                    entries[number] += lines.keys.size
                else:
                    for memory, each in enumerate(lines):
                        put(f"lines{memory}", each)


def _shapes(image: Image) -> dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]:
    """Type and shape of the arrays that `_append` fills; of keys and values there may be fewer."""
    if image.shard.config.sparse:
        starts, room = (image.layout.micro_batches + 1,), (image.room,)
        return {"starts": (np.int64, starts), "keys": (np.uint32, room), "values": (np.uint8, room)}
    return {f"lines{number}": (np.uint8, shape) for number, shape in enumerate(image.lines_shapes)}


class _Room:
    """Arrays in memory, which `_append` fills."""

    def __init__(self, image: Image) -> None:
        self._all = {name: np.empty(shape, kind) for name, (kind, shape) in _shapes(image).items()}
        self._done = dict.fromkeys(self._all, 0)

    def put(self, name: str, values: npt.NDArray[Any]) -> None:
        first, self._done[name] = self._done[name], self._done[name] + len(values)
        self._all[name][first : self._done[name]] = values

    @property
    def arrays(self) -> Arrays:
        return {name: room[: self._done[name]] for name, room in self._all.items()}


def _in_files(images: Sequence[Image], blocks: Blocks, directory: Path) -> list[Image]:
    paths = [image_file(directory, image.shard.worker) for image in images]
    with contextlib.ExitStack() as opened:
        files: list[tuple[TensorWriter, BinaryIO]] = []
        for path, image in zip(paths, images, strict=True):
            header, small = _small_contents(image)
            shapes = {**_shapes(image), **{name: (values.dtype, values.shape) for name, values in small.items()}}
            writer = TensorWriter(_KIND, header, shapes)
            file = opened.enter_context(new_file(path, writer.size))
            for name, values in small.items():
                writer.append(file, name, values)
            files.append((writer, file))
        _append([partial(writer.append, file) for writer, file in files], images, blocks)
        for image, (writer, file) in zip(images, files, strict=True):
            writer.finish(file, shorter=("keys", "values") if image.shard.config.sparse else ())
    return [open_image(path, verify=False) for path in paths]


def _small_contents(image: Image) -> tuple[dict[str, Any], Arrays]:
    """The header of a file, and its arrays but for the lines."""
    layout, shard, bias = image.layout, image.shard, np.zeros(int(image.has_bias))  # which is not scaled
    header = {
        "config": vars(layout.config),
        "directory": layout.directory,
        "padded_samples": layout.samples,
        "stored": layout.stored,
        "unit": layout.unit,
        "signed": image.signed,
        "worker": shard.worker,
        "workers": image.workers,
        "total": shard.total,
        "samples": image.samples,
        "bias": image.bias,
    }
    arrays: dict[str, npt.NDArray[Any] | None] = {
        "labels": image.labels,
        "offset": np.append(image.offset, bias),
        "scale": np.append(image.scale, bias),
        "units": shard.units,
        "importances": image.importances,
        "starts": image.starts,
        "columns": None if shard.placed is None else shard.placed.astype(np.int64),
    }
    return header, {name: values for name, values in arrays.items() if values is not None}
