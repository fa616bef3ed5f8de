"""From the labels of a data set to the y of a loss, to `LABEL` integers, and back to predictions."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from p4sgd.host.data.dataset import Labelled
from p4sgd.host.data.labels import EXACT
from p4sgd.host.errors import UserError, listed
from p4sgd.host.losses.loss import FloatArray, Task
from p4sgd.hw.spec.fixed import LABEL, IntArray

__all__ = ["LabelCoding"]

_SHOWN = 5
"""Labels that a message lists."""


@dataclass(frozen=True)
class LabelCoding:
    """How the labels of a data set become the y of a loss.

    Classification has two classes, y = −1 for the first and y = +1 for the second. With ``positive`` one label stands
    against the rest: the classes are then 0 (the rest) and 1 (that label), also in predictions. Regression centres and
    scales: y = (label − mean) / scale, so that one learning rate suits all units.

    Labels that are texts are numbers in a data set, and another data set may number them otherwise; they are matched
    by name. So labels go through `labels_of` first.

    Parameters
    ----------
    task
        What the model predicts.
    classes
        The two labels, ascending; empty for regression.
    positive
        The label that counts as class 1, if the others are class 0.
    names
        If the labels are texts: label i stands for ``names[i]``.
    mean, scale
        Regression: mean and standard deviation of the training labels (a deviation of 0 counts as 1).
    """

    task: Task
    classes: tuple[float, ...] = ()
    positive: float | None = None
    names: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        numbers = (*self.classes, self.mean, self.scale, 0.0 if self.positive is None else self.positive)
        if not all(map(math.isfinite, numbers)) or self.scale <= 0:
            raise ValueError("labels must be finite and their scale positive")
        count = 2 if self.task is Task.CLASSIFICATION else 0
        if len(self.classes) != count or list(self.classes) != sorted(set(self.classes)):
            raise ValueError(f"a {self.task.value} cannot have the classes {self.classes}")
        if self.names and not all(label in range(len(self.names)) for label in self.classes):
            raise ValueError(f"there are no names for the classes {self.classes}")

    @classmethod
    def fit(cls, task: Task, data: Labelled, positive: str | float | None = None) -> Self:
        """The coding for a training set.

        Parameters
        ----------
        task
            What the model is to predict.
        data
            The training set.
        positive
            The label to set against the rest, as its source has it: a number or a text.

        Raises
        ------
        UserError
            If the labels do not suit the task: none at all, one class, more than two without ``positive``,
            ``positive`` unknown, texts for regression, numbers whose squares are beyond float64.
        """
        if not data.labelled:
            raise UserError(f"{data.name} has no labels to train on")
        labels, names = data.labels, data.label_names
        if task is Task.REGRESSION:
            if positive is not None:
                raise UserError("a positive class makes no sense for regression: choose another loss or leave it out")
            if names:
                raise UserError(
                    f"{data.name}: the labels are texts ({listed(names, _SHOWN)}), regression needs numbers"
                )
            with np.errstate(over="ignore", invalid="ignore"):
                scale = float(labels.std())
            if not np.isfinite(scale) or (scale == 0 and labels.min() < labels.max()):
                largest = np.abs(labels).max()
                raise UserError(f"{data.name}: labels reach {largest:.3g}, their squares no float64: change their unit")
            return cls(task, mean=float(labels.mean()), scale=scale if scale > 0 else 1.0)
        found = np.unique(labels)
        shown = listed([str(_name(label, names)) for label in found], _SHOWN)
        if found.size == 1:
            raise UserError(f"{data.name}: all labels are {shown}: a classifier needs samples of two classes")
        if positive is not None:
            number = _number(positive, names)
            if number is None or number not in found:
                raise UserError(f"{data.name}: no sample has the label {positive}; there are {shown}")
            return cls(task, (0.0, 1.0), number, names)
        if found.size > 2:
            raise UserError(
                f"{data.name}: the labels have {found.size} values ({shown}), a classifier needs two: set one "
                f"against the rest with --positive LABEL, or fit them as numbers with --loss squared"
            )
        return cls(task, (float(found[0]), float(found[1])), None, names)

    def labels_of(self, data: Labelled) -> FloatArray:
        """Labels of a data set as predictions have them: its own numbers, or 0 and 1 with ``positive``.

        Raises
        ------
        UserError
            If there are none, or one is not of the model's classes.
        """
        if not data.labelled:
            raise UserError(f"{data.name} has no labels to compare with")
        labels = data.labels
        if bool(self.names) != bool(data.label_names):
            ours, theirs = ("texts", "numbers") if self.names else ("numbers", "texts")
            raise UserError(
                f"{data.name}: the labels are {theirs}, those of the model are {ours}: name its classes alike"
            )
        if data.label_names and data.label_names != self.names:
            # A name that the model does not know gets a number of its own, which is refused below if it matters.
            strange = len(self.names)
            numbers = [self.names.index(name) if name in self.names else strange for name in data.label_names]
            labels = np.array(numbers, dtype=np.float64)[labels.astype(np.int64)]
        if self.task is Task.REGRESSION:
            return labels
        if self.positive is not None:
            return np.where(labels == self.positive, 1.0, 0.0)
        unknown = np.flatnonzero(~np.isin(labels, self.classes))
        if unknown.size:
            first, second = (_name(label, self.names) for label in self.classes)
            label = _name(data.labels[unknown[0]], data.label_names)
            raise UserError(f"{data.name}: the label {label} is neither {first} nor {second}, the model's classes")
        return labels

    def real(self, labels: FloatArray) -> FloatArray:
        """y of each label of `labels_of` as the loss takes it: ±1, or the scaled target; float64, same shape."""
        if self.task is Task.REGRESSION:
            return (labels - self.mean) / self.scale
        return np.where(labels == self.classes[1], 1.0, -1.0)

    def integers(self, labels: FloatArray) -> IntArray:
        """y of each label of `labels_of` as `LABEL` integers, saturated; int64, same shape."""
        return LABEL.from_real(self.real(labels))

    def name(self, label: float) -> str | int | float:
        """A prediction as the training data have it: a text or a number; with ``positive``, the number 0 or 1."""
        return _name(label, self.names if self.positive is None else ())

    def predictions(self, z: FloatArray) -> FloatArray:
        """What an activation predicts: a class (the second where z > 0), or a target in its own unit."""
        if self.task is Task.REGRESSION:
            return self.mean + self.scale * z
        first, second = self.classes
        return np.where(z > 0, second, first)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "task": self.task.value,
            "classes": list(self.classes),
            "positive": self.positive,
            "names": list(self.names),
            "mean": self.mean,
            "scale": self.scale,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Undo `to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If something is missing or of the wrong kind.
        """
        positive = data["positive"]
        return cls(
            Task(data["task"]),
            tuple(float(label) for label in data["classes"]),
            None if positive is None else float(positive),
            tuple(str(name) for name in data["names"]),
            float(data["mean"]),
            float(data["scale"]),
        )


def _number(label: str | float, names: tuple[str, ...]) -> float | None:
    """The number of a label in a data set, ``None`` if it cannot have one."""
    if names:
        return float(names.index(label)) if label in names else None
    try:
        return float(label)
    except ValueError:
        return None


def _name(label: float, names: tuple[str, ...]) -> str | int | float:
    """A label as its source has it; whole numbers without a point."""
    if names:
        return names[int(label)]
    return int(label) if abs(label) < EXACT and float(label).is_integer() else float(label)
