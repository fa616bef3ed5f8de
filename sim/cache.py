"""Size-limited cache of built simulators and of the Verilog they are built from.

An entry is a folder. A process that adds one removes the least recently used ones. An entry that is in use is locked,
from the beginning of its build until the process that uses it ends. Renaming the entry keeps the lock.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

LIMIT_BYTES = 5_000_000_000
"""Size to which the cache is reduced; entries in use are never removed."""

_held: dict[tuple[int, int], int] = {}
"""File descriptors of the entries that this process uses, by device and inode; open until it ends."""


def cache_directory() -> Path:
    """Absolute path: ``$P4SGD_CACHE``, else ``p4sgd`` in ``$XDG_CACHE_HOME`` if that is absolute, else in ``~/.cache``.

    FileNotFoundError if none of these is set and the user has no home, as in some containers.
    """
    if chosen := os.environ.get("P4SGD_CACHE"):
        return Path(chosen).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "p4sgd"
    try:
        return Path.home() / ".cache" / "p4sgd"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "this user has no home: set HOME or P4SGD_CACHE to a folder") from None


def check_private(folder: Path) -> None:
    """PermissionError if users other than this one and the superuser may change programs in a folder."""
    status, user = folder.stat(), os.geteuid()
    if status.st_mode & stat.S_IWOTH or (user != 0 and status.st_uid not in (0, user)):
        raise PermissionError(errno.EACCES, "other users may change the programs in this folder", str(folder))


def hold(path: Path) -> bool:
    """Mark an entry of the cache as in use until this process ends; returns False if it does not exist."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_SH)
    status = os.fstat(handle)
    key = (status.st_dev, status.st_ino)
    try:
        exists = os.path.samestat(os.stat(path), status)
    except OSError:  # removed while this process waited for the lock
        exists = False
    if exists and key not in _held:
        _held[key] = handle
    else:
        os.close(handle)
    if exists:
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
    return exists


def cached(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """The entry ``name``, held; if it does not exist, ``make`` fills its folder, in one process at a time.

    The name ends in two hexadecimal digits. Entries that share them share a lock: there are at most 256 lock files.
    """
    target = cache_directory() / kind / name
    if hold(target):
        return target
    locks = cache_directory() / "locks"
    for folder in (locks, target.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with open(locks / name[-2:], "w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if hold(target):
            return target
        scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=target.parent))
        hold(scratch)
        try:
            make(scratch)
            try:
                scratch.rename(target)
            except OSError:  # another process was faster, where there are no locks
                if not hold(target):
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    prune()
    return target


def prune(limit: int = LIMIT_BYTES) -> None:
    """Remove the least recently used entries that are not in use until at most ``limit`` bytes are left."""
    folders = [cache_directory() / kind for kind in ("verilated", "verilog")]
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    sizes = {entry: size(entry) for entry in sorted(paths, key=_used)}
    total = sum(sizes.values())
    for entry, bytes_ in sizes.items():
        if total > limit and _remove(entry):
            total -= bytes_


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; files that disappear meanwhile count as 0."""
    total = 0
    # Not rglob(), which may raise; and no paths of thousands of files, which would take most of the time.
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in files if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            total += os.lstat(file).st_size
    return total


def _used(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _remove(entry: Path) -> bool:
    """Remove an entry unless it is in use. It is renamed first, so that no process sees it half deleted."""
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
    shutil.rmtree(doomed, ignore_errors=True)
    return True
