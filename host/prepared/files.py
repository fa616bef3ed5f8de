"""The files of a folder of prepared data beside the images, and checksums of all."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from p4sgd.host.errors import UserError
from p4sgd.host.prepared.manifest import FileFacts
from p4sgd.host.prepared.progress import OnProgress, Step

__all__ = [
    "LABELS",
    "MEANS",
    "VALIDATION",
    "VALIDATION_LABELS",
    "VALIDATION_SPARSE",
    "check_files",
    "hash_files",
]

LABELS = "labels"
"""float64 (samples,): the labels, in the order of the images, as `LabelCoding.labels_of` gives them."""

MEANS = "means"
"""float64 (features,): means of the scaled features."""

VALIDATION_LABELS = "validation_labels"
"""float64 (samples held out,): their labels, as the data have them."""

VALIDATION = "validation"
"""(samples held out, features): these samples as they are, if they are dense."""

VALIDATION_SPARSE = ("validation_data", "validation_indices", "validation_indptr")
"""The same as the parts of a CSR matrix, if they are sparse."""

_BLOCK_BYTES = 1 << 22


def hash_files(
    folder: Path, names: Iterable[str], on_progress: OnProgress, step: Step = Step.CHECK
) -> dict[str, FileFacts]:
    """Size and checksum of files.

    Raises
    ------
    UserError
        If one cannot be read.
    """
    sizes = {name: _size(folder / name) for name in names}
    done, facts = 0, {}
    for name, size in sizes.items():
        digest = hashlib.sha256()
        for data in _read(folder / name):
            digest.update(data)
            done += len(data)
            on_progress(step, done, sum(sizes.values()))
        facts[name] = FileFacts(size, digest.hexdigest())
    return facts


def check_files(folder: Path, files: Mapping[str, FileFacts], on_progress: OnProgress) -> None:
    """Refuse files that are not what they were.

    Raises
    ------
    UserError
        If one is missing, cannot be read, or is damaged.
    """
    for name, facts in files.items():
        if _size(folder / name) != facts.bytes:
            raise UserError(f"{folder / name}: has not the {facts.bytes:,} bytes that it had: prepare the data again")
    for name, facts in hash_files(folder, files, on_progress).items():
        if facts != files[name]:
            raise UserError(f"{folder / name}: is damaged: prepare the data again")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error


def _read(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while data := file.read(_BLOCK_BYTES):
                yield data
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
