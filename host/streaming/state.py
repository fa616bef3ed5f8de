"""Progress of a preparation, saved in a file from which an interrupted one is resumed.

The state file is replaced atomically, after everything that it mentions is on the disk. Whatever else is on the disk is
written again. The request, which describes data and options, shows whether these have changed since.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import FeatureSpace
from p4sgd.host.data.encoding import TableEncoding, space_from_json, space_to_json
from p4sgd.host.data.read import Source
from p4sgd.host.data.scaling import Scaling
from p4sgd.host.data.statistics import Extremes, is_sparse
from p4sgd.host.data.table import Table
from p4sgd.host.errors import UserError
from p4sgd.host.precondition import Moments
from p4sgd.host.streaming import OPTIONS
from p4sgd.host.tensor_file import TensorFileKind
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IntArray

__all__ = [
    "STATE",
    "Attempt",
    "FirstPass",
    "OnProgress",
    "State",
    "Step",
    "check_same",
    "check_unchanged",
    "describe_request",
    "has_changed",
    "load_state",
]


class Step(Enum):
    """The steps of a preparation in order, each with a title and the unit of its progress."""

    IDENTIFY = ("identifying the data", "bytes")
    READ = ("reading labels", "bytes")
    SORT = ("sorting samples", "bytes")
    ENCODE = ("encoding texts", "samples")
    SCALE = ("measuring features", "samples")
    CORRELATE = ("correlating features", "samples")
    COUNT = ("counting lines", "samples")
    PACK = ("packing samples", "samples")
    CHECK = ("checking files", "bytes")

    def __init__(self, title: str, unit: str) -> None:
        self.title = title
        self.unit = unit


OnProgress: TypeAlias = Callable[[Step, int, int], None]
"""Called with a step, how much of it is done, and its total."""


def describe_request(
    source: Source, options: TrainingOptions, config: WorkerConfig | None, memory: int
) -> dict[str, Any]:
    """Describe data and options as JSON data. A file is identified by path, size and modification time."""
    reading = dataclasses.asdict(source.options)
    del reading["communicator"]  # says which processes read, not how
    del reading["missing"]  # is among the options
    del reading["target_columns"]  # there are none
    reading["ignore_columns"] = list(reading["ignore_columns"])  # as it comes back from JSON
    return {
        "file": _file(source),
        "reading": reading,
        "options": {name: getattr(options, name) for name in OPTIONS},
        "config": None if config is None else dataclasses.asdict(config),
        "memory": memory,
    }


def has_changed(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether both requests name the same file, and it has changed in between."""
    return bool(begun["file"] != asked["file"] and begun["file"].get("path") == asked["file"].get("path"))


def check_same(begun: Mapping[str, Any], asked: Mapping[str, Any], place: str, *, only_data: bool = False) -> None:
    """Refuse to resume a preparation with another request, unless only the limit of the memory is another.

    Parameters
    ----------
    begun, asked
        Results of `describe_request`: at the beginning, and now.
    place
        The folder, for messages.
    only_data
        Compare only the data, because nothing else has been used so far.

    Raises
    ------
    UserError
        If they differ; the message says where.
    """
    restart = f"delete {place} to start again"
    if has_changed(begun, asked):
        raise UserError(f"{place}: {asked['file']['path']} has changed since this was begun: {restart}")
    if begun["file"] != asked["file"]:
        raise UserError(f"{place}: was begun with {begun['file']['path']}: name that file, or {restart}")
    if begun["reading"] != asked["reading"]:
        raise UserError(f"{place}: was begun with another way to read the file: use that, or {restart}")
    if only_data:
        return
    for name, theirs in asked["options"].items():
        words = name.replace("_", "-")
        if name not in begun["options"]:
            raise UserError(f"{place}: was begun without {words}, by another version of p4sgd: {restart}")
        ours = begun["options"][name]
        if ours != theirs:
            raise UserError(f"{place}: was begun with {words} {ours}, not {theirs}: use that, or {restart}")
    if begun["config"] != asked["config"]:
        raise UserError(f"{place}: was begun with another configuration of the workers: use that, or {restart}")


def check_unchanged(request: Mapping[str, Any], source: Source) -> None:
    """Check that a file has not changed since the request.

    Raises
    ------
    UserError
        If it has.
    """
    if _file(source) != request["file"]:
        raise UserError(f"{source.name}: has changed while it was read: start again when no program writes to it")


def _file(source: Source) -> dict[str, Any]:
    if not source.path.exists():  # built in
        return {"path": source.name}
    status = source.path.stat()
    return {"path": str(source.path.resolve()), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


STATE = "state"
"""Name of the state file in the unfinished folder."""

_KIND = TensorFileKind(
    "p4sgd-preparation",
    4,
    "state of a preparation",
    "delete the folder and start again",
    "delete the folder to begin anew",
)


@dataclass(frozen=True)
class FirstPass:
    """What the first pass over the data finds, except for the labels.

    Parameters
    ----------
    samples
        Number of samples.
    space
        Their features.
    label_names
        See `p4sgd.host.data.Dataset`.
    stored
        Number of stored values.
    sparse
        Whether the samples are sparse.
    dtype
        Type of the values: ``<f8`` or ``<f4``.
    sha256
        Checksum of the file; see `p4sgd.host.streaming.manifest.SourceFacts`.
    table
        What the columns hold if these are not the features yet, as with texts and gaps.
    remarks
        What the user should know about the file.
    """

    samples: int
    space: FeatureSpace
    label_names: tuple[str, ...]
    stored: int
    sparse: bool
    dtype: str
    sha256: str
    table: Table | None = None
    remarks: tuple[str, ...] = ()

    def widest(self, missing: str) -> "FirstPass":
        """The same with the most features, and stored values, that the columns of a table may become."""
        if self.table is None:
            return self
        most = TableEncoding.widest(self.table, missing)
        sparse = is_sparse(most.stored, most.count // 2)
        stored = self.samples * (most.stored if sparse else most.count)
        return dataclasses.replace(self, space=FeatureSpace(most.count), stored=stored, sparse=sparse, table=None)


@dataclass(eq=False)
class State:
    """State of a preparation.

    Parameters
    ----------
    first_pass
        Findings of the first pass, once it is done; the labels have a file of their own.
    placed
        Number of samples in buckets.
    sizes
        Number and file size of each bucket at that point.
    extremes
        Extremes of the training samples in buckets.
    held_out
        Number of stored values of the held-out samples in buckets.
    encoding
        What features are made of the columns of a table; ``None`` until it is known. Then ``extremes`` and ``held_out``
        are of features.
    stored
        Number of stored values of all samples as features of an encoding.
    column_sums
        See `p4sgd.host.data.statistics.Statistics.sums`, of the buckets that were summed; ``None`` before the first.
    summed
        Number of these buckets.
    scaling
        Scaling of the features; ``None`` until it is known.
    moments
        Moments of the buckets that were added up, for whitening; ``None`` before the first.
    correlated
        Number of these buckets.
    packed
        Number of buckets that have been packed into the images or written as held-out samples.
    written
        `p4sgd.host.image.file.ImageWriter.written` of each image at that point.
    sums
        See `p4sgd.host.training.hardware_features.feature_sums`; of the packed samples.
    mean_square
        See `p4sgd.host.training.prepared.Prepared`; ``None`` until it is known.
    validation
        Number of stored values of the held-out samples that have been written.
    skips_zeros
        Whether images leave out lines of zeros, and if so, lines have been counted; ``None`` until it is known.
    """

    first_pass: FirstPass | None = None
    placed: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    extremes: Extremes | None = None
    held_out: int = 0
    encoding: TableEncoding | None = None
    stored: int = 0
    column_sums: IntArray | None = None
    summed: int = 0
    scaling: Scaling | None = None
    moments: Moments | None = None
    correlated: int = 0
    packed: int = 0
    written: list[dict[str, tuple[int, int]]] = field(default_factory=list)
    sums: IntArray | None = None
    mean_square: float | None = None
    validation: int = 0
    skips_zeros: bool | None = None

    def save(self, folder: Path) -> None:
        """Write the state file of a folder.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        tensors: dict[str, npt.NDArray[Any]] = {} if self.sums is None else {"sums": self.sums}
        if self.column_sums is not None:
            tensors["column_sums"] = self.column_sums
        if self.extremes is not None:
            tensors |= {name: getattr(self.extremes, name) for name in ("low", "high", "nonzero")}
        if self.moments is not None:
            tensors |= {f"moments.{name}": np.asarray(getattr(self.moments, name)) for name in ("samples", *_MOMENTS)}
        scalars = {name: getattr(self, name) for name in _SCALARS}
        scalars["extremes_samples"] = 0 if self.extremes is None else self.extremes.samples
        if self.scaling is not None:
            tensors |= {"offset": self.scaling.offset, "scale": self.scaling.scale}
            if self.scaling.heat is not None:
                tensors["heat"] = self.scaling.heat
            scalars["scaling"] = {name: getattr(self.scaling, name) for name in _SCALING}
        found = self.first_pass
        first_pass = None
        if found is not None:
            table = None if found.table is None else found.table.to_json()
            first_pass = {**vars(found), "space": space_to_json(found.space), "table": table}
        encoding = None if self.encoding is None else self.encoding.to_json()
        texts = {"survey": first_pass, "scalars": scalars, "encoding": encoding}
        _KIND.save(folder / STATE, tensors, {name: json.dumps(value) for name, value in texts.items()})


@dataclass(frozen=True, eq=False)
class Attempt:
    """An attempt to prepare data.

    Parameters
    ----------
    source, options, config, memory, on_progress
        See `p4sgd.host.streaming.make.make_folder`.
    work
        The folder, which is locked and unfinished.
    request
        Result of `describe_request`.
    state
        What is done.
    """

    source: Source
    options: TrainingOptions
    config: WorkerConfig | None
    work: Path
    memory: int
    request: dict[str, Any]
    state: State
    on_progress: OnProgress

    def save(self) -> None:
        """Write the state file.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        self.state.save(self.work)


_SCALARS = (
    "placed",
    "sizes",
    "held_out",
    "stored",
    "summed",
    "correlated",
    "packed",
    "written",
    "mean_square",
    "validation",
    "skips_zeros",
)

_SCALING = ("kind", "signed", "reason", "crowded")

_MOMENTS = ("sums", "products", "low", "high")


def load_state(folder: Path) -> State:
    """Read the state file of a folder.

    Raises
    ------
    UserError
        If it cannot be read or is damaged.
    """
    tensors, texts = _KIND.load(folder / STATE)
    try:
        scalars = json.loads(texts["scalars"])
        samples, scaling = scalars.pop("extremes_samples"), scalars.pop("scaling", None)
        state = State(**scalars)
        state.sizes = [(bucket, size) for bucket, size in scalars["sizes"]]
        if first_pass := json.loads(texts["survey"]):
            table, space = first_pass.get("table"), space_from_json(first_pass["space"])
            state.first_pass = FirstPass(
                **{
                    **first_pass,
                    "space": space,
                    "label_names": tuple(first_pass["label_names"]),
                    "table": None if table is None else Table.from_json(table),
                    "remarks": tuple(first_pass.get("remarks", ())),
                }
            )
        encoding = json.loads(texts.get("encoding", "null"))
        state.encoding = None if encoding is None else TableEncoding.from_json(encoding)
        if "low" in tensors:
            state.extremes = Extremes(tensors["low"].size)
            state.extremes.samples = samples
            for name in ("low", "high", "nonzero"):
                setattr(state.extremes, name, tensors[name].copy())
        for name in ("sums", "column_sums"):
            setattr(state, name, tensors[name].copy() if name in tensors else None)
        if scaling is not None:
            scaling["crowded"] = tuple(scaling["crowded"])
            heat = tensors["heat"].copy() if "heat" in tensors else None
            offset, scale = tensors["offset"].copy(), tensors["scale"].copy()
            state.scaling = Scaling(offset=offset, scale=scale, heat=heat, **scaling)
        if state.correlated:
            arrays: dict[str, Any] = {name: tensors[f"moments.{name}"].copy() for name in _MOMENTS}
            state.moments = Moments(int(tensors["moments.samples"].item()), **arrays)
        return state
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / STATE}: is damaged: delete {folder} and start again") from error
