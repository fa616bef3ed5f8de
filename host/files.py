"""Writing a file that appears whole or not at all."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from p4sgd.host.errors import UserError

__all__ = ["begins_with", "new_file", "reserve", "write_error"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def new_file(path: Path, size: int | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of ``path`` at the end of the ``with`` block.

    The temporary file lies in the same folder, because only there the rename is atomic. If the block raises anything,
    Ctrl-C included, it is deleted and an older file of that name stays as it was. The new file has the permissions of
    the older one; a symbolic link stays, and the file that it leads to is replaced.

    Parameters
    ----------
    path
        The file to be.
    size
        Bytes that it will have, if known: they are reserved at once, so that a full disk shows before the work is done.

    Raises
    ------
    UserError
        If the file cannot be written, or something that is no ordinary file is there. Every `OSError` of the block
        counts as such: convert others inside.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: cannot write: it is no ordinary file: choose another name")
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        try:
            # "x" and not tempfile, whose files only their owner may read
            with open(temporary, "x+b") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                if size:
                    reserve(file, size)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise write_error(path, error, size) from error


def begins_with(path: Path, start: bytes) -> bool:
    """Whether a file begins with these bytes, which say that it may be replaced.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(len(start)) == start
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from error


def write_error(path: Path, error: OSError, size: int | None = None) -> UserError:
    """What to tell of a file, of ``size`` bytes if that is known, that cannot be written."""
    if error.errno in _FULL:
        needed = f", {size / 1e6:,.1f} MB are needed" if size else ""
        return UserError(f"{path}: cannot write: the disk is full{needed}: free some space or choose another folder")
    return UserError(f"{path}: cannot write: {error.strerror or error}")


def reserve(file: BinaryIO, size: int) -> None:
    """Claim the disk blocks of a file, where the file system can."""
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
