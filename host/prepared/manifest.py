"""What is in a folder of prepared data, as a JSON document that is written last."""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import FeatureSpace
from p4sgd.host.errors import UserError
from p4sgd.host.losses.labels import LabelCoding
from p4sgd.host.new_file import new_file
from p4sgd.host.prepared.options import OPTIONS
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["FORMAT_VERSION", "MANIFEST", "FileFacts", "Manifest", "SourceFacts", "load_manifest"]

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
