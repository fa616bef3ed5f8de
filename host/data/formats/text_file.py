"""Text files, compressed or not, read in blocks of whole lines. All errors in reading are `UserError`."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from p4sgd.host.errors import UserError
from p4sgd.host.files import write_error

SUFFIXES = (".gz", ".bz2", ".xz")
"""File name extensions of compressed files. The compression itself is detected from the first bytes."""

_BLOCK = 1 << 20

_COMPRESSIONS: Mapping[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
"""Functions that open a compressed file, by its first bytes."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by their byte order marks, the longer ones first."""


def check_compression(path: Path) -> None:
    """Read a compressed file to its end, where checksums are; `UserError` if it is damaged. Others are not read."""
    with open_data(path) as file:
        while not isinstance(file, io.BufferedReader) and file.read(_BLOCK):
            pass


def plain_name(path: Path) -> str:
    """File name in lower case, without the extension of its compression."""
    name = path.name.lower()
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


@contextmanager
def open_data(path: Path, on_open: Callable[[BinaryIO], None] = lambda raw: None) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed, after the byte order mark with which it may begin.

    ``on_open`` is called with the file on the disk, whose position shows the progress. Raises `UserError` if the file
    cannot be read, or if its compressed data are damaged; also from within the ``with`` block.
    """
    try:
        with open(path, "rb") as raw:
            start = raw.read(6)
            raw.seek(0)
            on_open(raw)
            opened = (each(raw, "rb") for first, each in _COMPRESSIONS.items() if start.startswith(first))
            with next(opened, nullcontext(raw)) as file:
                if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
                    file.seek(0)
                yield file
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not from gzip or bz2
            raise UserError(f"{path}: cannot read: {error.strerror}") from error
        raise UserError(f"{path}: the compressed data are damaged or cut off: get the file again") from error


def is_utf8(encoding: str) -> bool:
    """Whether text in an encoding of this name need not be decoded; `UserError` if there is none of the name."""
    try:
        b"text".decode(encoding, errors="replace")  # some that Python knows are not of texts
        return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    except (LookupError, UnicodeError):
        known = "such as utf-8, utf-16, cp1252, latin-1, cp850 or shift_jis"
        raise UserError(f"must be an encoding that Python knows, {known}, not {encoding!r}", field="encoding") from None


def find_encoding(path: Path) -> str:
    """The encoding of a text: what a byte order mark says, or UTF-8 if it is, else cp1252, that of Windows in the west.

    The file is read up to the first character that is not in UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_data(path) as file:
        block = file.read(_BLOCK)
        for mark, name in _MARKS.items():
            if block.startswith(mark):
                return name
        try:
            while block:
                if not block.isascii() or decoder.getstate()[0]:
                    decoder.decode(block)
                block = file.read(_BLOCK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8"


def decoded(path: Path, encoding: str, name: str) -> Iterator[bytes]:
    """The blocks of a text, in UTF-8; `UserError`, with the ``name`` of the file, names the first wrong line."""
    decoder, lines, block = codecs.getincrementaldecoder(encoding)(), 0, b"\n"
    with open_data(path) as file:
        while block:
            block = file.read(_BLOCK)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeError as error:
                before = error.object[: error.start] if isinstance(error, UnicodeDecodeError) else b""
                line = lines + before.decode(encoding, errors="replace").count("\n") + 1
                raise UserError(f"{name}, line {line}: is not {encoding} text: --encoding NAME takes another") from None
            lines += text.count("\n")
            yield text.encode()


def temporary_file(blocks: Iterable[bytes]) -> Any:
    """A temporary file with these contents, which is gone with the object."""
    try:
        file = tempfile.NamedTemporaryFile(prefix="p4sgd-")  # noqa: SIM115 - closed with the object
        for block in blocks:
            file.write(block)
        file.flush()
    except OSError as error:
        raise write_error(Path(tempfile.gettempdir()), error) from error
    return file


def line_blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The rest of a file in blocks of whole lines: ``size`` bytes and the rest of the last line."""
    while block := file.read(size):
        yield block if block.endswith(b"\n") else block + file.readline()


def one_word_each(line: bytes) -> bytes:
    """A line of LIBSVM's format without the blanks before values: some programs write ``63: .50``."""
    return re.sub(rb":\s+", b":", line)
