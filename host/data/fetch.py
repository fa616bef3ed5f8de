"""Downloads of original data sets from the LIBSVM data page, with checksums.

The page publishes no checksums. The first download of a file, over https, is therefore trusted, and its SHA-256 is
recorded in ``checksums.json`` beside it. Every later `fetch` of the file compares it with this checksum; reading it as
data does not. To verify the first download too, give the checksum.
"""

import hashlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file

_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"

LOCK_FILE = "checksums.json"
"""Name of the file with the recorded checksums."""

_BLOCK = 1 << 18
_TIMEOUT_S = 30


ORIGINALS = {
    "a9a": f"{_PAGE}a9a",  # 32,561 people, 123 features: income above 50,000
    "a9a-test": f"{_PAGE}a9a.t",  # 16,281 more
    "gisette": f"{_PAGE}gisette_scale.bz2",  # 6,000 digits 4 or 9, 5,000 features
    "gisette-test": f"{_PAGE}gisette_scale.t.bz2",  # 1,000 more
    "real-sim": f"{_PAGE}real-sim.bz2",  # 72,309 news articles, 20,958 features
    "rcv1": f"{_PAGE}rcv1_train.binary.bz2",  # 20,242 news articles, 47,236 features
    "rcv1-test": f"{_PAGE}rcv1_test.binary.bz2",  # 677,399 more
}
"""URLs of files by the names that users give."""


@dataclass(frozen=True)
class Fetched:
    """A file that has been fetched, with its SHA-256 in hexadecimal.

    ``downloaded`` tells that it did not exist before, ``pinned`` that its checksum was unknown, and is recorded now.
    """

    path: Path
    sha256: str
    downloaded: bool
    pinned: bool


def fetch(
    name: str,
    directory: Path,
    *,
    sha256: str | None = None,
    on_progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Fetched:
    """Download one of the `ORIGINALS` to a folder, which is made if needed, unless it exists already, and check it.

    ``sha256`` is the expected checksum, if known; ``on_progress`` is called with the bytes so far and the total, or
    ``None`` if that is not known. Raises `UserError` if the name is unknown, if the file cannot be downloaded or
    written, or if its checksum is wrong. A download that fails is not kept.
    """
    if name not in ORIGINALS:
        raise UserError(f"there is no data set {name!r} to fetch: choose one of {', '.join(ORIGINALS)}")
    url = ORIGINALS[name]
    file_name = url.rpartition("/")[2]
    path, lock_file = directory / file_name, directory / LOCK_FILE
    lock = _read_lock(lock_file)
    expected = (sha256 or lock.get(file_name) or "").lower()
    downloaded = not path.exists()
    try:
        if downloaded:
            directory.mkdir(parents=True, exist_ok=True)
            with new_file(path) as file:
                found = _download(url, path, file, on_progress)
                if expected not in ("", found):
                    trust = "as given: to trust it, give that checksum"
                    trust = trust if sha256 else f"as before: to trust it, remove its line from {lock_file}"
                    raise UserError(f"{url}: has SHA-256 {found}, not {expected} {trust}")
        else:
            with open(path, "rb") as existing:
                found = hashlib.file_digest(existing, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot read or make it: {error.strerror}") from error
    if expected not in ("", found):
        raise UserError(f"{path}: has SHA-256 {found}, not {expected}: delete it and fetch it again")
    pinned = lock.get(file_name) != found
    if pinned:
        lock[file_name] = found
        with new_file(lock_file) as file:
            file.write(json.dumps(lock, indent=2, sort_keys=True).encode() + b"\n")
    return Fetched(path, found, downloaded, pinned and sha256 is None)


def _download(url: str, path: Path, file: BinaryIO, on_progress: Callable[[int, int | None], None]) -> str:
    """Download a URL to a file; returns the SHA-256. Errors of the disk are left to the caller."""
    digest, done = hashlib.sha256(), 0
    advice = f"check the network, or get the file elsewhere and put it at {path}"
    try:
        response = urllib.request.urlopen(url, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise UserError(f"{url}: the server says {error.code} {error.reason}: {advice}") from error
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"{url}: cannot be reached ({getattr(error, 'reason', error)}): {advice}") from error
    with response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        while True:
            try:
                block = response.read(_BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise UserError(f"{url}: broke off ({error}): {advice}") from error
            if not block:
                break
            digest.update(block)
            file.write(block)
            done += len(block)
            on_progress(done, total)
    if total is not None and done != total:
        raise UserError(f"{url}: broke off after {done} of {total} bytes: fetch it again")
    return digest.hexdigest()


def _read_lock(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
    except ValueError:
        raise UserError(f"{path}: must hold names and checksums as JSON: put it right or delete it") from None
