"""How far the making of a folder is, in a file of its own, so that it can go on from there.

The file takes the place of the one before in one step, after everything that it speaks of is on the disk. What lies on
the disk beyond that is written again.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import FeatureSpace
from p4sgd.host.data.extremes import Extremes
from p4sgd.host.errors import UserError
from p4sgd.host.tensor_file import TensorFileKind

__all__ = ["STATE", "State", "Survey", "load_state"]

STATE = "state"
"""Name of the file in the unfinished folder."""

_KIND = TensorFileKind("p4sgd-preparation", 1, "state of a preparation", "delete the folder and begin anew")


@dataclass(frozen=True)
class Survey:
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
        Of the file, see `p4sgd.host.prepared.manifest.SourceFacts`.
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

    survey: Survey | None = None
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
        survey = None if self.survey is None else dataclasses.asdict(self.survey)
        texts = {"survey": survey, "scalars": scalars}
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
        if survey := json.loads(texts["survey"]):
            space = FeatureSpace(**{**survey["space"], "names": tuple(survey["space"]["names"])})
            state.survey = Survey(**{**survey, "space": space, "label_names": tuple(survey["label_names"])})
        if "low" in tensors:
            state.extremes = Extremes(tensors["low"].size)
            state.extremes.samples = samples
            for name in ("low", "high", "stored"):
                setattr(state.extremes, name, tensors[name].copy())
        state.sums = tensors["sums"].copy() if "sums" in tensors else None
        return state
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / STATE}: is damaged: delete {folder} and begin anew") from error
