"""Contents of a folder of prepared data: files, checksums, and a JSON manifest that is written last."""

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from p4sgd.host.data import FeatureSpace
from p4sgd.host.data.encoding import space_from_json, space_to_json
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.errors import UserError
from p4sgd.host.streaming import OnProgress, Step
from p4sgd.host.tensor_file import FileKind
from p4sgd.host.training.options import Fact, TrainingOptions, options_with
from p4sgd.hw.spec.config import WorkerConfig

MANIFEST = "manifest.json"
"""Name of the manifest in its folder. A folder without it is unfinished."""

FORMAT_VERSION = 9
"""Increased whenever a reader of the old version would misread the new one."""

_KIND = FileKind("p4sgd-prepared", FORMAT_VERSION, "manifest of prepared data", "prepare the data again")

_BLOCK_BYTES = 1 << 22


class Array:
    """Names of arrays, which are files NAME.npy. Those of features are int64 (features,)."""

    LABELS = "labels"  # float64 (samples,), in the order of the images, as `LabelCoding.labels_of` gives them
    WEIGHTS, VALIDATION_WEIGHTS = "weights", "validation_weights"  # of `Targets`, if samples do not all weigh the same
    OFFSETS, VALIDATION_OFFSETS = "offsets", "validation_offsets"  # of samples, if there are any
    HEAT = "heat"  # of sparse data: `p4sgd.host.data.Scaling.heat`
    SUMS = "sums"  # `p4sgd.host.training.hardware_features.feature_sums` of the training samples
    WHITENING = ("whitening_matrix", "whitening_exponent", "whitening_centre")  # of `Whitening`: int32 (features, 64) …
    # Held-out samples: labels as in the data, and features, unchanged; sparse ones are the parts of a CSR matrix.
    VALIDATION_LABELS, VALIDATION = "validation_labels", "validation"
    VALIDATION_SPARSE = ("validation_data", "validation_indices", "validation_indptr")


@dataclass(frozen=True)
class SourceFacts:
    """The file that was prepared, 0 bytes and no checksum for a built-in data set; held-out samples included."""

    name: str
    bytes: int
    sha256: str
    samples: int


@dataclass(frozen=True)
class FileFacts:
    """Size and digest of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Description of prepared data, with the options that are chosen then (`Fact.PREPARED`), and of files, by name.

    For scaling, reason, sign and common scale see `p4sgd.host.data.Scaling`; offset and scale of every feature are in
    the images. Of whitened features it is the scaling before that.
    """

    source: SourceFacts
    options: dict[str, Any]
    config: WorkerConfig
    samples: int
    validation_samples: int
    space: FeatureSpace
    sparse: bool
    scaling: str
    reason: str
    remarks: tuple[str, ...]
    signed: bool
    common: float
    labels: LabelCoding
    mean_square: float
    files: dict[str, FileFacts]

    @property
    def stored(self) -> int:
        return TrainingOptions(**self.options).stored

    def to_json(self) -> dict[str, Any]:
        own = {"space": space_to_json(self.space), "labels": self.labels.to_json()}
        head = {"schema": _KIND.kind, "version": _KIND.version, "p4sgd": importlib.metadata.version("p4sgd")}
        plain: dict[str, Any] = msgspec.to_builtins({**head, **vars(self), **own})
        return plain

    def save(self, folder: Path) -> None:
        _KIND.save_text(folder / MANIFEST, self.to_json())


def load_manifest(folder: Path, *, remedy: str = "prepare the data again") -> tuple[Manifest, str]:
    """The manifest of a folder, whose files are not checked, and its SHA-256, which identifies them; `UserError`, with
    the remedy, if it cannot be read, is damaged, or is of another version."""
    path, kind = folder / MANIFEST, dataclasses.replace(_KIND, hint=remedy, renewal=remedy)
    content, text = kind.load_text(path)
    with kind.decoding(path):
        manifest = msgspec.convert(content | {"space": space_from_json(content["space"])}, Manifest)
        if manifest.options.keys() != set(options_with(Fact.PREPARED)):
            raise ValueError("options are missing")
        return manifest, hashlib.sha256(text).hexdigest()


def open_array(folder: Path, name: str) -> npt.NDArray[Any]:
    """An array of the folder, memory-mapped; `UserError` if it cannot be read."""
    try:
        array: npt.NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (OSError, SyntaxError, ValueError) as error:  # of NumPy's header, which is Python
        raise UserError(f"{folder / name}.npy: cannot read: {error}: prepare the data again") from error
    return array


def hash_files(
    folder: Path, names: Iterable[str], on_progress: OnProgress, step: Step = Step.CHECK
) -> dict[str, FileFacts]:
    """Size and checksum of files; `UserError` if one cannot be read."""
    facts, done, path = {}, 0, folder
    try:
        sizes = {name: (path := folder / name).stat().st_size for name in names}
        for name, size in sizes.items():
            path, digest = folder / name, hashlib.sha256()
            with open(path, "rb") as file:
                while data := file.read(_BLOCK_BYTES):
                    digest.update(data)
                    done += len(data)
                    on_progress(step, done, sum(sizes.values()))
            facts[name] = FileFacts(size, digest.hexdigest())
    except OSError as error:
        remedy = "prepare the data again with p4sgd data prepare"
        raise UserError(f"{path}: cannot read: {error.strerror}: {remedy}") from error
    return facts


def check_files(folder: Path, files: Mapping[str, FileFacts], on_progress: OnProgress) -> None:
    """Compare files with their recorded size and checksum; `UserError` if one is missing or damaged."""
    for name, facts in hash_files(folder, files, on_progress).items():
        if facts != files[name]:
            raise UserError(f"{folder / name}: is damaged: prepare the data again")
