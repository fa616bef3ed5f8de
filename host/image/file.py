"""Image files: the memory image of a worker in a file.

An image file has a header and sections. All sections begin at multiples of 4096 bytes, so that they can be mapped and
passed to a board without a copy. The header is:

====== ==========================================================================
bytes  content
====== ==========================================================================
0–7    magic ``P4SGDIMG``
8–11   format version
12–15  length of the JSON text in bytes
16–19  CRC-32 of the JSON text
20–    JSON text: shapes, and offset, type and CRC-32 of each section
====== ==========================================================================

The sections are ``lines0`` … (one for each memory port of each engine; of a sparse worker ``starts``, ``keys`` and
``values``), ``labels`` (int32), ``offset`` and ``scale`` (float64), by which the shard's features were scaled:
a = (x − offset) · scale, before whitening, if any; ``units`` (int64), the numbers of its units; ``columns`` (int64),
its features among those of the data, if the job has another order; ``importances`` (int32), if samples have weights;
and ``starts`` (int64), the lines of each engine before each micro-batch, if there are directories. All numbers are
little-endian. For the order of bits and entries see :mod:`p4sgd.hw.spec.image`.
"""

import dataclasses
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
from p4sgd.host.files import begins_with
from p4sgd.host.image.image import EntryBlock, Image, Shard
from p4sgd.hw.spec.config import WorkerConfig

__all__ = [
    "FORMAT_VERSION",
    "MAGIC",
    "PAGE",
    "ImageWriter",
    "image_file",
    "is_image_file",
    "open_image",
]

MAGIC = b"P4SGDIMG"
"""First bytes of an image file."""

FORMAT_VERSION = 5
"""Increased whenever a reader of the old version would misread the new one."""

DIRECTORY_VERSION = 6
"""Version of an image with directories; others stay what they were."""

PAGE = 4096
"""Sections begin at multiples of this many bytes."""

_START = struct.Struct("<8sIII")
_NO_CHECKSUM = "0" * 8


class ImageWriter:
    """Writes an image file, micro-batch by micro-batch.

    Parameters
    ----------
    file
        A new file, opened for reading and writing; the caller closes it.
    image
        The image, complete except for its lines; with directories they are counted (``starts``).
    written
        To continue a file: the value of `written` at that point.
    """

    def __init__(self, file: BinaryIO, image: Image, written: Mapping[str, Sequence[int]] | None = None) -> None:
        self._file = file
        self._header = _header(image)
        self._sections: dict[str, dict[str, Any]] = self._header["sections"]
        self._written = dict.fromkeys(self._sections, 0)
        self._checksums = dict.fromkeys(self._sections, 0)
        if written is not None:
            for name, (size, checksum) in written.items():
                self._written[name], self._checksums[name] = size, checksum
            return
        for name, values in _small_sections(image).items():
            self._append(name, values.astype(self._sections[name]["dtype"]).reshape(-1).view(np.uint8))
        if image.shard.config.sparse:
            self._append("starts", np.zeros(8, np.uint8))

    @staticmethod
    def file_bytes(image: Image) -> int:
        """Size of the finished file in bytes."""
        return _total(_header(image)["sections"])

    @property
    def written(self) -> dict[str, tuple[int, int]]:
        """Progress: bytes written to each section, and their CRC-32."""
        return {name: (size, self._checksums[name]) for name, size in self._written.items()}

    def append(self, part: Iterable[npt.NDArray[np.uint8]] | EntryBlock) -> None:
        """Append some micro-batches: the lines of each memory, as ``Image.port_lines`` has them, or entries."""
        if isinstance(part, EntryBlock):
            ends = self._written["values"] + np.cumsum(part.counts)
            for name, values in (("starts", ends), ("keys", part.keys), ("values", part.values)):
                self._append(name, values.astype(self._sections[name]["dtype"]).view(np.uint8))
            return
        for number, lines in enumerate(part):
            self._append(f"lines{number}", lines.reshape(-1))

    def sync(self) -> None:
        """Sync what was written to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write the header, which completes the file."""
        for name, section in self._sections.items():
            if name in ("keys", "values"):  # there was room for more
                section["bytes"], section["shape"] = self._written[name], [self._written["values"]]
            assert self._written[name] == section["bytes"], f"{name} is not complete"
            section["crc32"] = f"{self._checksums[name]:08x}"
        text = _encode(self._header)
        self._file.seek(0)
        version = DIRECTORY_VERSION if "directory" in self._header else FORMAT_VERSION
        self._file.write(_START.pack(MAGIC, version, len(text), zlib.crc32(text)) + text)
        self._file.truncate(_total(self._sections))

    def _append(self, name: str, data: npt.NDArray[np.uint8]) -> None:
        section = self._sections[name]
        self._file.seek(section["offset"] + self._written[name])
        self._file.write(data.data)
        self._written[name] += data.size
        self._checksums[name] = zlib.crc32(data.data, self._checksums[name])


def _small_sections(image: Image) -> dict[str, npt.NDArray[Any]]:
    """Sections but for the lines."""
    shard = image.shard
    bias = np.zeros(int(image.has_bias))  # is not scaled
    small: dict[str, npt.NDArray[Any]] = {
        "labels": image.labels,
        "offset": np.append(image.offset, bias),
        "scale": np.append(image.scale, bias),
        "units": shard.units,
    }
    if image.importances is not None:
        small["importances"] = image.importances
    if image.starts is not None:
        small["starts"] = image.starts
    if shard.placed is not None:
        small["columns"] = shard.placed.astype(np.int64)
    return small


def _header(image: Image) -> dict[str, Any]:
    """The header of an image, with the checksums left blank."""
    layout = image.layout
    shapes: dict[str, tuple[str, tuple[int, ...]]]
    if layout.config.sparse:
        entries = (image.room,)
        shapes = {"starts": ("<i8", (layout.micro_batches + 1,)), "keys": ("<u4", entries), "values": ("|u1", entries)}
    else:
        shapes = {f"lines{number}": ("|u1", shape) for number, shape in enumerate(image.lines_shapes)}
    shapes |= {
        name: (values.dtype.newbyteorder("<").str, values.shape) for name, values in _small_sections(image).items()
    }
    sections: dict[str, dict[str, Any]] = {
        name: {
            "offset": 0,
            "bytes": int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize,
            "dtype": kind,
            "shape": list(shape),
            "crc32": _NO_CHECKSUM,
        }
        for name, (kind, shape) in shapes.items()
    }
    header = {
        "config": dataclasses.asdict(layout.config),
        **({"directory": True} if layout.directory else {}),
        "features": layout.features,
        "padded_samples": layout.samples,
        "stored": layout.stored,
        "unit": layout.unit,
        "signed": image.signed,
        "worker": image.shard.worker,
        "workers": image.workers,
        "total": image.shard.total,
        "samples": image.samples,
        "bias": image.bias,
        "sections": sections,
    }
    # The offsets depend on the length of the header, and that on their digits: leave room for the longest.
    place = _aligned(_START.size + len(_encode(header)) + 20 * len(sections))
    for section in sections.values():
        section["offset"] = place
        place = _aligned(place + section["bytes"])
    return header


def _total(sections: dict[str, dict[str, Any]]) -> int:
    return max(_aligned(section["offset"] + section["bytes"]) for section in sections.values())


def _encode(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def _aligned(size: int) -> int:
    return -(-size // PAGE) * PAGE


def image_file(folder: Path, worker: int) -> Path:
    """Path of a worker's image in a folder of images."""
    return folder / f"worker{worker}.p4sgd"


def is_image_file(path: Path) -> bool:
    """Whether a file is an image file of p4sgd, of any version; only its first bytes are read.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    return begins_with(path, MAGIC)


def open_image(path: Path, *, verify: bool = True) -> Image:
    """Open an image file; its lines are mapped, not loaded.

    Parameters
    ----------
    path
        The file.
    verify
        Compare lines or entries with their checksums, too, which reads the whole file.

    Raises
    ------
    UserError
        If it cannot be read, is no image file, is damaged, or is of another version.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(_START.size)
            if len(start) < _START.size or not start.startswith(MAGIC):
                raise UserError(f"{path}: not an image file of p4sgd")
            _, version, length, checksum = _START.unpack(start)
            if version not in (FORMAT_VERSION, DIRECTORY_VERSION):
                raise UserError(
                    f"{path}: is an image file of version {version}, this p4sgd reads versions {FORMAT_VERSION} and "
                    f"{DIRECTORY_VERSION}: prepare the data again"
                )
            text = file.read(length)
            if len(text) != length or zlib.crc32(text) != checksum:
                raise UserError(f"{path}: the header is damaged: prepare the data again")
            header = json.loads(text)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UserError(
            f"{path}: cannot read: {error.strerror or error}: prepare the data again with p4sgd data prepare"
        ) from error
    whole = np.frombuffer(mapped, np.uint8)
    sections: dict[str, dict[str, Any]] = header["sections"]
    if whole.size < _total(sections):
        raise UserError(f"{path}: is cut off at {whole.size} of {_total(sections)} bytes: prepare the data again")
    arrays = {name: _section(whole, section) for name, section in sections.items()}
    config = WorkerConfig(**header["config"])
    for name, section in sections.items():
        begin = section["offset"]
        large = name in ("starts", "keys", "values") if config.sparse else name.startswith("lines")
        if large and not verify:
            continue
        if f"{zlib.crc32(whole[begin : begin + section['bytes']].data):08x}" != section["crc32"]:
            raise UserError(f"{path}: {name} is damaged: prepare the data again")
    units = arrays["units"].astype(np.int64, copy=False)
    placed = arrays["columns"].astype(np.int32) if "columns" in arrays else None
    directory = header.get("directory", False)
    shard = Shard(header["worker"], config, units, header["unit"], header["total"], placed, directory)
    scaled = shard.features - (header["bias"] and (int(units[-1]) + 1) * shard.unit >= shard.total)
    offset, scale = (_shortened(arrays[name][:scaled].astype(np.float64, copy=False)) for name in ("offset", "scale"))
    # What was read so far may be more than lines and labels, and counts as this process's memory while it is mapped.
    mapped.madvise(mmap.MADV_DONTNEED)
    return Image(
        layout=shard.layout(header["padded_samples"], header["stored"]),
        signed=header["signed"],
        shard=shard,
        workers=header["workers"],
        samples=header["samples"],
        bias=header["bias"],
        labels=arrays["labels"].astype(np.int32, copy=False),
        offset=offset,
        scale=scale,
        port_lines=_memories(arrays, config),
        path=path,
        importances=arrays["importances"].astype(np.int32, copy=False) if "importances" in arrays else None,
        starts=arrays["starts"].astype(np.int64, copy=False) if directory else None,
    )


def _memories(arrays: Mapping[str, npt.NDArray[Any]], config: WorkerConfig) -> tuple[npt.NDArray[np.uint8], ...]:
    """What is in the memories but that of the labels."""
    if not config.sparse:
        return tuple(arrays[f"lines{number}"] for number in range(config.labels_memory))
    lists = [arrays[name].view(np.uint8) for name in ("starts", "keys", "values")]
    return (*lists, *[np.empty(0, np.uint8)] * (config.labels_memory - len(lists)))


def _shortened(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A view of one number if all have the same bits; there may be millions."""
    bits = values.view(np.int64)
    return np.broadcast_to(values[0], values.shape) if values.size and (bits == bits[0]).all() else values


def _section(whole: npt.NDArray[np.uint8], section: dict[str, Any]) -> npt.NDArray[Any]:
    begin = section["offset"]
    part: npt.NDArray[Any] = whole[begin : begin + section["bytes"]].view(np.ndarray).view(section["dtype"])
    return part.reshape(section["shape"])
