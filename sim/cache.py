"""The cache of simulators and their Verilog, which take long to make and can be made again.

Its size is limited: a process that adds to it removes what was used least recently. A lock marks an entry as in use,
from when its making begins until the process that uses it ends; renaming the entry keeps the lock.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LIMIT_BYTES", "cache_directory", "hold", "making", "prune", "size"]

LIMIT_BYTES = 5_000_000_000
"""Size to which the cache is reduced; entries in use are kept in any case."""

_held: dict[tuple[int, int], int] = {}
"""Descriptors of entries that this process uses, by device and inode; they stay open until it ends."""


def cache_directory() -> Path:
    """Folder of the cache, as an absolute path.

    ``$P4SGD_CACHE``, else ``p4sgd`` in ``$XDG_CACHE_HOME`` (which counts only if absolute), else in ``~/.cache``.
    """
    if chosen := os.environ.get("P4SGD_CACHE"):
        return Path(chosen).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "p4sgd"


def hold(path: Path) -> bool:
    """Keep a file or folder of the cache until this process ends; returns False if it does not exist."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_SH)
    status = os.fstat(handle)
    key = (status.st_dev, status.st_ino)
    try:
        there = os.stat(path)
    except OSError:  # removed while this waited for the lock
        there = None
    if there is None or (there.st_dev, there.st_ino) != key:
        os.close(handle)
        return False
    if key in _held:
        os.close(handle)
    else:
        _held[key] = handle
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return True


@contextlib.contextmanager
def making(path: Path) -> Iterator[None]:
    """Lock a file or folder of the cache for making it. Another process may have made it before: check again.

    Locks are shared by entries whose names end alike, so that there are no more than 256 of them.
    """
    locks = cache_directory() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / path.stem[-2:], "w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prune(limit: int = LIMIT_BYTES) -> None:
    """Remove what was used least recently and is not in use, until no more than ``limit`` bytes are left."""
    entries = sorted((_used(entry), size(entry), entry) for entry in _entries())
    total = sum(bytes_ for _, bytes_, _ in entries)
    for _, bytes_, entry in entries:
        if total <= limit:
            return
        if _remove(entry):
            total -= bytes_


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; those that are removed meanwhile count as 0."""
    total = 0
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)  # not rglob(), which may raise
    for file in files if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total


def _entries() -> Iterator[Path]:
    for kind in ("verilated", "verilog"):
        folder = cache_directory() / kind
        if folder.is_dir():
            yield from folder.iterdir()


def _used(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _remove(entry: Path) -> bool:
    """Remove an entry that is not in use, by renaming it first, so that no process sees part of it."""
    try:
        handle = os.open(entry, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        doomed = entry.rename(entry.with_name(f"removed-{secrets.token_hex(8)}"))
    except OSError:
        return False
    finally:
        os.close(handle)
    if doomed.is_dir():
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink(missing_ok=True)
    return True
