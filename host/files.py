"""Writing files atomically, whole or not at all; and reading those that are TOML or JSON."""

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from p4sgd.host.errors import UserError

_MOST_LEVELS = 64
"""Levels of tables and lists in each other that a document may have: Python's own limit depends on who reads them."""


@contextmanager
def new_file(path: Path, size: int | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` at the end of the ``with`` block.

    It is in the same folder, because only there a rename is atomic, and is deleted if the block raises an exception,
    also at Ctrl-C. The new file has the permissions of an older one; a symbolic link stays, and the file that it leads
    to is replaced. The ``size`` in bytes, if known, is reserved, so that a full disk is found before the work.

    Raises
    ------
    UserError
        If the file cannot be written, as which every `OSError` in the block counts, or is not an ordinary file.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: cannot write: it is not an ordinary file: choose another name")
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        try:
            # Not tempfile: its files are readable only by their owner.
            with open(temporary, "x+b") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                if size:
                    _reserve(file, size)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise write_error(path, error, size) from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The document in a TOML file; `UserError` if ``what`` the file is cannot be read."""
    import tomllib

    try:
        with open_ordinary(path) as file:
            return dict(_shallow(tomllib.loads, file.read().decode()))
    except OSError as error:
        raise UserError(f"{path}: cannot read the {what}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error


def parse_json(text: str | bytes) -> Any:
    """The document of a JSON text; `ValueError` if it is none, or is nested too deeply."""
    return _shallow(json.loads, text)


def _shallow(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    problem = f"tables or lists are nested more than {_MOST_LEVELS} levels deep"
    try:
        document = parse(text)
    except RecursionError:
        raise ValueError(problem) from None
    level = [document]
    for _ in range(_MOST_LEVELS):
        level = [
            each
            for outer in level
            for each in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(each, dict | list)
        ]
        if not level:
            return document
    raise ValueError(problem)


def open_ordinary(path: Path) -> BinaryIO:
    """Open a file for reading; `OSError` if it cannot be, also if it is a pipe or a device, which might never end."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    return file


def begins_with(path: Path, start: bytes) -> bool:
    """Whether a file begins with these bytes, by which a program knows its own; `UserError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(start)) == start
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from error


def fingerprint(path: Path) -> str:
    """Size and checksum of a file, to tell whether two are alike; the path if it is no ordinary file.

    The checksum is of 256 evenly spaced parts of 1 MiB, or of a smaller file as a whole.
    """
    if not path.is_file():
        return str(path)
    digest, part = hashlib.sha256(), 1 << 20
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for first in range(0, size, max(part, size // 256)):
            file.seek(first)
            digest.update(file.read(part))
    return f"{size:,} bytes with checksum {digest.hexdigest():.12}"


def write_error(path: Path, error: OSError, size: int | None = None) -> UserError:
    """The error to raise for a file, of ``size`` bytes if known, that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        needed = f", {size:,} bytes are needed" if size else ""
        return UserError(f"{path}: cannot write: the disk is full{needed}: free some space or choose another folder")
    return UserError(f"{path}: cannot write: {error.strerror or error}")


def _reserve(file: BinaryIO, size: int) -> None:
    """Reserve the disk space of a file, if the file system supports it."""
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
