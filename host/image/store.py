"""Builds images from blocks of their lines or entries, in memory or in files."""

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, raise_on_all
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file, write_error
from p4sgd.host.image.file import ImageWriter, LineWriter, image_file, memories, open_image
from p4sgd.host.image.image import EntryBlock, Image
from p4sgd.host.tensor_file import Arrays

if TYPE_CHECKING:
    from p4sgd.host.image.directories import DirectoryPacker

LineBlocks: TypeAlias = Iterable[list[npt.NDArray[np.uint8] | EntryBlock]]
"""For some micro-batches after others what each worker has of them: lines, uint8 (engines · ports, T, C, S, 8/ports,
lanes/8), or entries, of which lines with directories are made, too. They can be gone through again."""


def store_images(
    images: Sequence[Image],
    blocks: LineBlocks,
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
    return _in_memory(images, blocks)


def _count_lines(own: Sequence[Image], blocks: LineBlocks) -> list[Image]:
    """Count the lines of images with directories, so that there is room for just these: entries need not be kept."""
    counts = [[np.zeros((image.layout.config.engines, 1), np.int64)] for image in own]
    for block in blocks:
        for part, image, known in zip(block, own, counts, strict=True):
            if image.shard.directory:
                known.append(np.diff(_packer(part, image).starts))
    return [
        dataclasses.replace(image, starts=np.cumsum(np.concatenate(known, axis=1), axis=1))
        if image.shard.directory
        else image
        for image, known in zip(own, counts, strict=True)
    ]


def _packer(part: npt.NDArray[np.uint8] | EntryBlock, image: Image) -> "DirectoryPacker":
    from p4sgd.host.image.directories import DirectoryPacker

    assert isinstance(part, EntryBlock)
    return DirectoryPacker(part, image.layout)


def _check_room(own: Sequence[Image], name: str, remedy: str) -> None:
    """Refuse images that do not fit into memory. Those of dense workers store all features of all samples, so that a
    small sparse file may have large ones."""
    needed = sum(image.lines_bytes for image in own)
    available = available_memory()
    if available is not None and needed > available:
        features = own[0].shard.total - own[0].bias
        zeros = "" if all(image.shard.lists_values for image in own) else ", zeros included,"
        raise UserError(
            f"{name}: the memory images of {own[0].samples:,} samples of {features:,} features take "
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


class _MemoryWriter(LineWriter):
    """Keeps lines or entries of an image in memory."""

    def __init__(self, image: Image) -> None:
        super().__init__(image)
        self._room = {name: np.empty(shape, kind) for name, (kind, shape) in self.shapes.items()}
        self._done = dict.fromkeys(self._room, 0)
        if self.sparse:
            self._put("starts", np.zeros(1, np.int64))

    def _put(self, name: str, values: npt.NDArray[Any]) -> None:
        first, self._done[name] = self._done[name], self._done[name] + len(values)
        self._room[name][first : self._done[name]] = values

    @property
    def arrays(self) -> Arrays:
        return {name: room[: self._done[name]] for name, room in self._room.items()}


def _in_memory(own: Sequence[Image], blocks: LineBlocks) -> list[Image]:
    writers = list(map(_MemoryWriter, own))
    _append_blocks(writers, own, blocks)
    return [
        dataclasses.replace(image, port_lines=memories(writer.arrays, image.layout.config))
        for image, writer in zip(own, writers, strict=True)
    ]


def _in_files(own: Sequence[Image], blocks: LineBlocks, directory: Path) -> list[Image]:
    paths, writers = [image_file(directory, image.shard.worker) for image in own], list(map(ImageWriter, own))
    with contextlib.ExitStack() as files:
        for path, writer in zip(paths, writers, strict=True):
            writer.begin(files.enter_context(new_file(path, writer.size)))
        _append_blocks(writers, own, blocks)
        for writer in writers:
            writer.finish()
    return [open_image(path, verify=False) for path in paths]


def _append_blocks(writers: Sequence[LineWriter], own: Sequence[Image], blocks: LineBlocks) -> None:
    """Append all lines or entries to the writer of each image."""
    for block in blocks:
        for part, image, writer in zip(block, own, writers, strict=True):
            if image.shard.directory:
                for lines in _packer(part, image):
                    writer.append(lines)
            else:
                writer.append(part)
