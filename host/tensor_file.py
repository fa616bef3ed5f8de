"""The container of p4sgd's files: arrays by name and a header, sealed by checksums.

A file is what safetensors defines, whose own reader copies arrays and whose writer needs all at once. In its
``__metadata__``, ``kind`` and ``version`` say what the file is, ``header`` is a JSON text of all that is no array,
``checksums`` has the CRC-32 of each array, and ``crc32`` is that of everything before the arrays, with zeros in its own
place. Arrays named ``padding…`` fill the gaps before aligned arrays. A file without arrays may be a JSON text alone
(`FileKind.save_text`).
"""

import json
import mmap
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file, parse_json

Arrays = dict[str, npt.NDArray[Any]]

_MOST_HEADER = 100_000_000  # bytes of the text before the arrays, as safetensors has it
_SPARE = 256  # bytes of the text that are left for gaps behind arrays that end shorter than was planned
_SEAL = re.compile(rb'(?<="crc32":)( ?")([0-9a-f]{8})(?=")')
_NO_SEAL = "0" * 8

_DAMAGE = (UserError, AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions of decoding a content that is not as it must be."""


@dataclass(frozen=True)
class FileKind:
    """A kind of file, whose readers raise `UserError` if one cannot be read, is of another kind or version, or damaged.

    It has a ``noun`` for messages, and remedies: ``hint`` if there is no such file, ``renewal`` if it is damaged or of
    another version. Arrays begin at multiples of ``alignment`` bytes.
    """

    kind: str
    version: int
    noun: str
    hint: str
    renewal: str = "train again, or use the p4sgd that wrote it"
    alignment: int = 1

    def save(self, path: Path, arrays: Mapping[str, npt.NDArray[Any]], header: Mapping[str, Any]) -> None:
        """Write a file, whole or not at all; `UserError` if it cannot be written."""
        ordered = sorted(arrays, key=lambda name: -arrays[name].itemsize)
        writer = TensorWriter(self, header, {name: (arrays[name].dtype, arrays[name].shape) for name in ordered})
        with new_file(path, writer.size) as file:
            for name, array in arrays.items():
                writer.append(file, name, array)
            writer.finish(file)

    def load(self, path: Path) -> tuple[Arrays, dict[str, Any]]:
        """The arrays and the header of a file."""
        with self._reading(path):
            content = bytearray(path.read_bytes())
        return self._decode(path, content)

    def map(self, path: Path, check: Callable[[str], bool]) -> tuple[Arrays, dict[str, Any], mmap.mmap]:
        """`load` with arrays that are read-only maps of the file, and this map; checksums are compared of arrays whose
        name ``check`` accepts."""
        with self._reading(path), open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return *self._decode(path, mapped, check), mapped

    def is_of(self, path: Path) -> bool:
        """Whether a file is of this kind, of any version; only its beginning is read. `UserError` if it cannot be."""
        try:
            with open(path, "rb") as file:
                length = min(int.from_bytes(file.read(8), "little"), _MOST_HEADER)
                return bool(parse_json(file.read(length))["__metadata__"]["kind"] == self.kind)
        except OSError as error:  # without the hint, as it may be a file that is to be replaced
            raise UserError(f"{path}: cannot read: {error.strerror}") from error
        except _DAMAGE:
            return False

    def save_text(self, path: Path, header: Mapping[str, Any]) -> None:
        """Write a header without arrays, as JSON; `UserError` if it cannot be written."""
        fields = {"crc32": _NO_SEAL, "schema": self.kind, "version": self.version, **header}
        text = _sealed((json.dumps(fields, indent=1) + "\n").encode())
        with new_file(path, len(text)) as file:
            file.write(text)

    def load_text(self, path: Path) -> tuple[dict[str, Any], bytes]:
        """The header that `save_text` wrote, and the whole text."""
        with self._reading(path):
            text = path.read_bytes()
        with self._of_kind(path):
            fields = parse_json(text)
            kind, version = fields.pop("schema"), fields.pop("version")
        self._check_version(path, kind, version)
        with self.decoding(path):
            _check_seal(text)
            del fields["crc32"]
        return fields, text

    @contextmanager
    def decoding(self, path: Path) -> Iterator[None]:
        """Raise a `UserError` that names the file for whatever goes wrong in decoding its content."""
        try:
            yield
        except _DAMAGE as error:
            raise UserError(f"{path}: a damaged {self.noun}: {error}: {self.renewal}") from error

    def _decode(
        self, path: Path, content: bytearray | mmap.mmap, check: Callable[[str], bool] = lambda name: True
    ) -> tuple[Arrays, dict[str, Any]]:
        data = 8 + int.from_bytes(content[:8], "little")
        with self._of_kind(path):
            if data - 8 > min(len(content) - 8, _MOST_HEADER):
                raise ValueError("the text before the arrays is cut off")
            start = bytes(content[:data])
            fields = parse_json(start[8:])
            metadata = fields.pop("__metadata__")
            kind, version = metadata["kind"], metadata["version"]
        self._check_version(path, kind, version)
        with self.decoding(path):
            _check_seal(start)
            header, checksums = parse_json(metadata["header"]), parse_json(metadata["checksums"])
            end = data + max((own["data_offsets"][1] for own in fields.values()), default=0)
            if len(content) != end:
                raise ValueError(f"it has {len(content):,} of {end:,} bytes")
            arrays = {}
            for name, checksum in checksums.items():
                own = fields[name]
                begin, stop = own["data_offsets"]
                part = np.frombuffer(content, np.uint8, stop - begin, data + begin)
                if check(name) and f"{zlib.crc32(part.data):08x}" != checksum:
                    raise ValueError(f"{name} has another checksum")
                letter, bits = own["dtype"][0], int(own["dtype"][1:])  # safetensors has F64, I32 or U8
                arrays[name] = part.view(np.dtype(f"<{letter.lower()}{bits // 8}")).reshape(own["shape"])
            return arrays, dict(header)

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: it is empty, and cannot be mapped
            reason = getattr(error, "strerror", error)
            raise UserError(f"{path}: cannot read the {self.noun}: {reason}: {self.hint}") from error

    @contextmanager
    def _of_kind(self, path: Path) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise UserError(f"{path}: not a {self.noun} of p4sgd, or damaged: {self.hint}") from error

    def _check_version(self, path: Path, kind: Any, version: Any) -> None:
        if kind != self.kind:
            raise UserError(f"{path}: not a {self.noun} of p4sgd: {self.hint}")
        if str(version) != str(self.version):
            raise UserError(
                f"{path}: a {self.noun} of version {version}, this p4sgd reads version {self.version}: {self.renewal}"
            )


class TensorWriter:
    """Layout of a new file, whose arrays are written piece by piece; the header is JSON data.

    Arrays are given by type and shape, and are little-endian in the file.
    """

    def __init__(
        self, kind: FileKind, header: Mapping[str, Any], arrays: Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]]
    ) -> None:
        self._metadata = {"kind": kind.kind, "version": str(kind.version), "header": json.dumps(header)}
        self._types = {name: np.dtype(kind).newbyteorder("<") for name, (kind, _) in arrays.items()}
        self._shapes = {name: list(shape) for name, (_, shape) in arrays.items()}
        self._begins, self._end = {}, 0
        for name in arrays:
            self._begins[name] = self._end
            self._end = _aligned(self._end + self._bytes(name), kind.alignment)
        self._written = dict.fromkeys(arrays, 0)
        self._checksums = dict.fromkeys(arrays, 0)
        self._data = _aligned(8 + len(self._text()) + _SPARE, max(8, kind.alignment))

    @property
    def size(self) -> int:
        return self._data + self._end

    def append(self, file: BinaryIO, name: str, values: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(values, self._types[name]).reshape(-1).view(np.uint8).data
        file.seek(self._data + self._begins[name] + self._written[name])
        file.write(data)
        self._written[name] += data.nbytes
        self._checksums[name] = zlib.crc32(data, self._checksums[name])

    def finish(self, file: BinaryIO, shorter: Collection[str] = ()) -> None:
        """Write what is before the arrays, which completes the file; those that are ``shorter`` than was planned have
        one axis."""
        for name in shorter:
            self._shapes[name] = [self._written[name] // self._types[name].itemsize]
        for name, written in self._written.items():
            assert written == self._bytes(name), f"{name} is not complete"
        text = self._text().ljust(self._data - 8)
        assert len(text) == self._data - 8
        file.truncate(self.size)
        file.seek(0)
        file.write(_sealed(len(text).to_bytes(8, "little") + text))

    def _bytes(self, name: str) -> int:
        return int(np.prod(self._shapes[name], dtype=np.int64)) * self._types[name].itemsize

    def _text(self) -> bytes:
        checksums = json.dumps({name: f"{checksum:08x}" for name, checksum in self._checksums.items()})
        fields: dict[str, Any] = {"__metadata__": {"crc32": _NO_SEAL, **self._metadata, "checksums": checksums}}
        place = 0
        for number, (name, begin) in enumerate([*self._begins.items(), ("", self._end)]):
            if begin > place:
                fields[f"padding{number}"] = {"dtype": "U8", "shape": [begin - place], "data_offsets": [place, begin]}
            if name:
                own, place = self._types[name], begin + self._bytes(name)
                fields[name] = {
                    "dtype": f"{own.kind.upper()}{8 * own.itemsize}",
                    "shape": self._shapes[name],
                    "data_offsets": [begin, place],
                }
        return json.dumps(fields, separators=(",", ":")).encode()


def _sealed(content: bytes) -> bytes:
    """A content with its checksum, in whose place there are zeros or another one."""
    cleared, found = _SEAL.subn(rb"\g<1>00000000", content, count=1)
    if not found:
        raise ValueError("it has no checksum")
    return _SEAL.sub(rb"\g<1>%08x" % zlib.crc32(cleared), cleared, count=1)


def _check_seal(content: bytes) -> None:
    if _sealed(content) != content:
        raise ValueError("its header has another checksum")


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
