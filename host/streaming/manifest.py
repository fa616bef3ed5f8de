"""The contents of a folder of prepared data: its files, their checksums, and a JSON manifest that is written last."""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import FeatureSpace
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file
from p4sgd.host.streaming import OPTIONS
from p4sgd.host.streaming.state import OnProgress, Step
from p4sgd.hw.spec.config import WorkerConfig

__all__ = [
    "FORMAT_VERSION",
    "LABELS",
    "MANIFEST",
    "MEANS",
    "VALIDATION",
    "VALIDATION_LABELS",
    "VALIDATION_SPARSE",
    "FileFacts",
    "Manifest",
    "SourceFacts",
    "check_files",
    "hash_files",
    "load_manifest",
]


MANIFEST = "manifest.json"
"""Name of the document in its folder. A folder without it is not whole."""

FORMAT_VERSION = 1
"""Changes whenever a reader of the old version would misread the new."""

_SCHEMA = "p4sgd-prepared"


@dataclass(frozen=True)
class SourceFacts:
    """Which data were prepared.

    Parameters
    ----------
    name
        Name of the data set, without folders.
    bytes
        Bytes of its file; 0 for one that is built in.
    sha256
        Of the file; empty for one that is built in.
    samples
        All samples, held out or not.
    """

    name: str
    bytes: int
    sha256: str
    samples: int


@dataclass(frozen=True)
class FileFacts:
    """A file of the folder.

    Parameters
    ----------
    bytes
        Its size.
    sha256
        Of its contents.
    """

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that is known of prepared data beside the files that it names.

    Parameters
    ----------
    source
        Which data were prepared.
    options
        `OPTIONS` by name, as they were chosen.
    config
        Configuration of the workers.
    samples, validation_samples
        Samples to train on, and held out.
    space
        Their features.
    sparse
        Whether they are sparse.
    scaling
        ``minmax`` or ``maxabs``; the images have offset and scale of every feature.
    signed
        Whether features are two's complement.
    labels
        Meaning of the labels.
    mean_square
        See `p4sgd.host.training.preparation.Prepared`.
    files
        By name.
    """

    source: SourceFacts
    options: Mapping[str, Any]
    config: WorkerConfig
    samples: int
    validation_samples: int
    space: FeatureSpace
    sparse: bool
    scaling: str
    signed: bool
    labels: LabelCoding
    mean_square: float
    files: Mapping[str, FileFacts]

    @property
    def stored(self) -> int:
        """Planes that are stored."""
        planes, precision = self.options["planes"], self.options["precision"]
        return int(precision if planes is None else planes)

    def to_json(self) -> dict[str, Any]:
        """As plain data; a float comes back from JSON exactly as it was."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        nested = {name: dataclasses.asdict(fields[name]) for name in ("source", "config", "space")}
        files = {name: dataclasses.asdict(facts) for name, facts in self.files.items()}
        head = {"schema": _SCHEMA, "version": FORMAT_VERSION, "p4sgd": importlib.metadata.version("p4sgd")}
        return {**head, **fields, **nested, "labels": self.labels.to_json(), "files": files}

    def save(self, folder: Path) -> None:
        """Write the document.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        text = (json.dumps(self.to_json(), indent=1) + "\n").encode()
        with new_file(folder / MANIFEST, len(text)) as file:
            file.write(text)

    def array(self, folder: Path, name: str) -> npt.NDArray[Any]:
        """An array of the folder, mapped."""
        array: npt.NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
        return array


def load_manifest(folder: Path) -> tuple[Manifest, str]:
    """Read the document; what it says of the files is not looked at.

    Returns
    -------
    The manifest and its SHA-256, which stands for all that the folder has.

    Raises
    ------
    UserError
        If it cannot be read, is none, is damaged or of another version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
    try:
        content = json.loads(text)
        if content["schema"] != _SCHEMA:
            raise ValueError(f"the schema is {content['schema']}")
        if content["version"] != FORMAT_VERSION:
            raise UserError(
                f"{path}: prepared data of version {content['version']}, this p4sgd reads version {FORMAT_VERSION}: "
                f"prepare the data again"
            )
        fields = {field.name: content[field.name] for field in dataclasses.fields(Manifest)}
        fields["source"] = SourceFacts(**content["source"])
        fields["config"] = WorkerConfig(**content["config"])
        names = tuple(content["space"].pop("names"))
        fields["space"] = FeatureSpace(names=names, **content["space"])
        fields["labels"] = LabelCoding.from_json(content["labels"])
        fields["files"] = {name: FileFacts(**facts) for name, facts in content["files"].items()}
        if sorted(content["options"]) != sorted(OPTIONS):
            raise ValueError("options are missing")
        return Manifest(**fields), hashlib.sha256(text).hexdigest()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: no manifest of prepared data, or damaged: {error}: prepare the data again") from error


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
