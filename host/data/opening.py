"""Opening a data file, compressed or not, with every failure told as the user's."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from p4sgd.host.errors import UserError

__all__ = ["SUFFIXES", "check_compression", "open_data", "plain_name"]

SUFFIXES = (".gz", ".bz2", ".xz")
"""Endings of the names of compressed files. What a file is compressed with is seen from its first bytes, though."""

_BLOCK = 1 << 20

_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"


def check_compression(path: Path) -> None:
    """Read a compressed file to its end; checksums stand there. Plain files are left alone.

    Raises
    ------
    UserError
        If the compressed data are damaged.
    """
    with open_data(path) as file:
        if not isinstance(file, io.BufferedReader):
            while file.read(_BLOCK):
                pass


def plain_name(path: Path) -> str:
    """The name of a file without the ending of its compression, lower case."""
    name = path.name.lower()
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


@contextmanager
def open_data(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressing on the way.

    Raises
    ------
    UserError
        If the file cannot be opened or read, or if its compressed data are damaged; also from within the ``with``
        block.
    """
    try:
        with open(path, "rb") as raw:
            start = raw.read(6)
            raw.seek(0)
            if start.startswith(_GZIP):
                with gzip.open(raw, "rb") as file:
                    yield cast(BinaryIO, file)
            elif start.startswith(_BZIP2):
                with bz2.open(raw, "rb") as file:
                    yield cast(BinaryIO, file)
            elif start.startswith(_XZ):
                with lzma.open(raw, "rb") as file:
                    yield cast(BinaryIO, file)
            else:
                yield raw
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the compressed data are damaged or cut off: get the file again") from error
    except OSError as error:
        if error.errno is None:  # bz2 reports damage so
            raise UserError(f"{path}: the compressed data are damaged or cut off: get the file again") from error
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
