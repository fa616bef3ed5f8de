"""From the labels of a data set to the y of a loss, to `LABEL` integers, and back to predictions."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
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

    Parameters
    ----------
    task
        What the model predicts.
    classes
        The two labels, ascending; empty for regression.
    positive
        The label that counts as class 1, if the others are class 0.
    mean, scale
        Regression: mean and standard deviation of the training labels (a deviation of 0 counts as 1).
    """

    task: Task
    classes: tuple[float, ...] = ()
    positive: float | None = None
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def fit(cls, task: Task, labels: FloatArray, positive: float | None = None) -> Self:
        """The coding for the labels of a training set, float64 (samples,).

        Raises
        ------
        UserError
            If the labels do not suit the task: one class, more than two without ``positive``, or ``positive`` unknown.
        """
        if task is Task.REGRESSION:
            if positive is not None:
                raise UserError("a positive class makes no sense for regression: choose another loss or leave it out")
            scale = float(labels.std())
            return cls(task, mean=float(labels.mean()), scale=scale if scale > 0 else 1.0)
        known = np.unique(labels)
        if positive is not None:
            if positive not in known:
                raise UserError(f"no sample has the label {positive:g}; there are {_listed(known)}")
            if known.size == 1:
                raise UserError(f"all labels are {known[0]:g}: a classifier needs samples of two classes")
            return cls(task, (0.0, 1.0), positive)
        if known.size == 1:
            raise UserError(f"all labels are {known[0]:g}: a classifier needs samples of two classes")
        if known.size > 2:
            raise UserError(
                f"the labels have {known.size} values ({_listed(known)}), a classifier needs two: name one of them as "
                f"the positive class to set it against the rest, or use the loss squared for regression"
            )
        return cls(task, (float(known[0]), float(known[1])))

    def known(self, labels: FloatArray) -> FloatArray:
        """Labels as predictions have them: 0 and 1 if one class stands against the rest, else unchanged.

        Raises
        ------
        UserError
            If a label is none of the classes.
        """
        if self.task is Task.REGRESSION:
            return labels
        if self.positive is not None:
            return np.where(labels == self.positive, 1.0, 0.0)
        strange = np.setdiff1d(labels, self.classes)
        if strange.size:
            first, second = self.classes
            raise UserError(f"the label {strange[0]:g} is neither {first:g} nor {second:g}, the classes of the model")
        return labels

    def real(self, labels: FloatArray) -> FloatArray:
        """y of each label as the loss takes it: ±1, or the scaled target; float64, same shape.

        Raises
        ------
        UserError
            If a label is none of the classes.
        """
        if self.task is Task.REGRESSION:
            return (labels - self.mean) / self.scale
        return np.where(self.known(labels) == self.classes[1], 1.0, -1.0)

    def integers(self, labels: FloatArray) -> IntArray:
        """y of each label as `LABEL` integers, saturated; int64, same shape.

        Raises
        ------
        UserError
            If a label is none of the classes.
        """
        return LABEL.from_real(self.real(labels))

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
            float(data["mean"]),
            float(data["scale"]),
        )


def _listed(labels: npt.NDArray[np.float64]) -> str:
    shown = ", ".join(f"{label:g}" for label in labels[:_SHOWN])
    return f"{shown}, …" if labels.size > _SHOWN else shown
