"""Progress of making a folder of prepared data, kept in a file so that an interrupted run can go on.

The state file replaces the one before in one step, after everything that it speaks of is on the disk. What lies on the
disk beyond that is written again. The job, a description of what is prepared, shows whether options or data have
changed since.
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
from p4sgd.host.data.read import Source
from p4sgd.host.data.scaling import Extremes
from p4sgd.host.errors import UserError
from p4sgd.host.streaming import OPTIONS
from p4sgd.host.tensor_file import TensorFileKind
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig

__all__ = [
    "STATE",
    "FirstPass",
    "OnProgress",
    "State",
    "Step",
    "check_same",
    "check_unchanged",
    "describe_job",
    "load_state",
]


class Step(Enum):
    """A step of the work, in their order, and what it counts."""

    IDENTIFY = ("identifying the data", "bytes")
    READ = ("reading labels", "bytes")
    SORT = ("sorting samples", "bytes")
    PACK = ("packing samples", "samples")
    CHECK = ("checking files", "bytes")

    def __init__(self, title: str, unit: str) -> None:
        self.title = title
        self.unit = unit


OnProgress: TypeAlias = Callable[[Step, int, int], None]
"""Called with a step, how much of it is done, and how much there is."""


def describe_job(source: Source, options: TrainingOptions, config: WorkerConfig | None, memory: int) -> dict[str, Any]:
    """What is to be done. A file is known again by its place, its size and the time of its last change."""
    reading = dataclasses.asdict(source.options)
    del reading["communicator"]  # not how, but who
    reading["ignore_columns"] = list(reading["ignore_columns"])  # as JSON gives it back
    return {
        "file": _file(source),
        "reading": reading,
        "options": {name: getattr(options, name) for name in OPTIONS},
        "config": None if config is None else dataclasses.asdict(config),
        "memory": memory,
    }


def check_same(begun: Mapping[str, Any], asked: Mapping[str, Any], place: str, *, only_data: bool = False) -> None:
    """Refuse to go on with something else.

    Parameters
    ----------
    begun, asked
        Of `describe_job`.
    place
        The folder, for messages.
    only_data
        So far nothing was done but to read the data, so that the rest may change.

    Raises
    ------
    UserError
        If they differ; the message says in what.
    """
    anew = f"delete {place} to begin anew"
    if begun["file"] != asked["file"]:
        if begun["file"].get("path") != asked["file"].get("path"):
            raise UserError(f"{place}: was begun with {begun['file']['path']}: name that file, or {anew}")
        raise UserError(f"{place}: {asked['file']['path']} has changed since this was begun: {anew}")
    if begun["reading"] != asked["reading"]:
        raise UserError(f"{place}: was begun with another way to read the file: take that, or {anew}")
    if only_data:
        return
    for name, ours in begun["options"].items():
        theirs = asked["options"][name]
        if ours != theirs:
            raise UserError(
                f"{place}: was begun with {name.replace('_', '-')} {ours}, not {theirs}: take that, or {anew}"
            )
    if begun["config"] != asked["config"]:
        raise UserError(f"{place}: was begun with another configuration of the workers: take that, or {anew}")
    if begun["memory"] != asked["memory"]:
        raise UserError(f"{place}: was begun with a memory of {begun['memory']:,} bytes: take that, or {anew}")


def check_unchanged(job: Mapping[str, Any], source: Source) -> None:
    """Refuse a file that was changed while it was read.

    Raises
    ------
    UserError
        Then.
    """
    if _file(source) != job["file"]:
        raise UserError(f"{source.name}: has changed while it was read: let nobody write it, and begin anew")


def _file(source: Source) -> dict[str, Any]:
    if not source.path.exists():  # built in
        return {"path": source.name}
    status = source.path.stat()
    return {"path": str(source.path.resolve()), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


STATE = "state"
"""Name of the file in the unfinished folder."""

_KIND = TensorFileKind("p4sgd-preparation", 1, "state of a preparation", "delete the folder and begin anew")


@dataclass(frozen=True)
class FirstPass:
    """What reading all samples once says, beside the labels.

    Parameters
    ----------
    samples
        How many.
    space
        Their features.
    label_names
        See `p4sgd.host.data.Dataset`.
    stored
        Values that are stored.
    sparse
        Whether they are those of sparse rows.
    dtype
        Their type: ``<f8`` or ``<f4``.
    sha256
        Of the file, see `p4sgd.host.streaming.manifest.SourceFacts`.
    """

    samples: int
    space: FeatureSpace
    label_names: tuple[str, ...]
    stored: int
    sparse: bool
    dtype: str
    sha256: str


@dataclass(eq=False)
class State:
    """What is done.

    Parameters
    ----------
    survey
        The first reading, once it is done; the labels are in a file of their own.
    placed
        Samples that lie in buckets.
    sizes
        Number and bytes of each bucket's file then.
    extremes
        Of the samples to train on among them.
    held_out
        Values that are stored of the others among them.
    packed
        Buckets that are in the images, or among the samples that were held out.
    written
        For each image `p4sgd.host.image.file.ImageWriter.written` then.
    sums
        float64 (features,): sum of the scaled features of the packed samples.
    mean_square
        See `p4sgd.host.training.preparation.Prepared`; ``None`` as long as it is not known.
    validation
        Values of held out samples that were written.
    """

    first_pass: FirstPass | None = None
    placed: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    extremes: Extremes | None = None
    held_out: int = 0
    packed: int = 0
    written: list[dict[str, tuple[int, int]]] = field(default_factory=list)
    sums: npt.NDArray[np.float64] | None = None
    mean_square: float | None = None
    validation: int = 0

    def save(self, folder: Path) -> None:
        """Write the file.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        tensors = {} if self.sums is None else {"sums": self.sums}
        if self.extremes is not None:
            tensors |= {name: getattr(self.extremes, name) for name in ("low", "high", "stored")}
        scalars = {name: getattr(self, name) for name in _SCALARS}
        scalars["extremes_samples"] = 0 if self.extremes is None else self.extremes.samples
        first_pass = None if self.first_pass is None else dataclasses.asdict(self.first_pass)
        texts = {"survey": first_pass, "scalars": scalars}
        _KIND.save(folder / STATE, tensors, {name: json.dumps(value) for name, value in texts.items()})


_SCALARS = ("placed", "sizes", "held_out", "packed", "written", "mean_square", "validation")


def load_state(folder: Path) -> State:
    """Read the file.

    Raises
    ------
    UserError
        If it cannot be read or is damaged.
    """
    tensors, texts = _KIND.load(folder / STATE)
    try:
        scalars = json.loads(texts["scalars"])
        samples = scalars.pop("extremes_samples")
        state = State(**scalars)
        state.sizes = [(bucket, size) for bucket, size in scalars["sizes"]]
        if first_pass := json.loads(texts["survey"]):
            space = FeatureSpace(**{**first_pass["space"], "names": tuple(first_pass["space"]["names"])})
            state.first_pass = FirstPass(
                **{**first_pass, "space": space, "label_names": tuple(first_pass["label_names"])}
            )
        if "low" in tensors:
            state.extremes = Extremes(tensors["low"].size)
            state.extremes.samples = samples
            for name in ("low", "high", "stored"):
                setattr(state.extremes, name, tensors[name].copy())
        state.sums = tensors["sums"].copy() if "sums" in tensors else None
        return state
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / STATE}: is damaged: delete {folder} and begin anew") from error
