"""Labels: from the texts or numbers of a file to the y of a loss, to `LABEL` integers, and back to predictions."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Labelled
from p4sgd.host.errors import UserError, listed
from p4sgd.host.losses.loss import FloatArray, Task
from p4sgd.hw.spec.fixed import LABEL, IntArray

__all__ = ["MISSING", "LabelCoding", "RawLabels", "check_exact", "number"]

MISSING = frozenset(
    {"", "#N/A", "#NA", "-NaN", "-nan", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "na", "nan", "null"}
)
"""Texts that stand for a missing value."""

_EXACT = 1 << 53
"""From here on float64 does not have every whole number."""

_SHOWN = 5
"""Labels that a message lists."""


def number(text: str) -> float | None:
    """The number that a text is, or ``None``. Underscores, which Python would take, make no number."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def check_exact(text: str, name: str) -> None:
    """Refuse a whole number that float64 may not tell from others; ``text`` is a number.

    Raises
    ------
    UserError
        If it is that large.
    """
    if re.fullmatch(r"[+-]?\d+", text) and abs(float(text)) >= _EXACT:
        raise UserError(f"{name}: the label {text} is too large to be told from others: use labels below 2^53")


# -- the labels of a file ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RawLabels:
    """Labels of some samples, as a file has them.

    Parameters
    ----------
    values
        (samples,): the labels if they are numbers, of any type; if they are texts, indices into ``texts``, intp.
    texts
        The distinct texts, in the order in which they appear; ``None`` if the labels are numbers.
    """

    values: npt.NDArray[Any]
    texts: Sequence[str] | None = None

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Self:
        """Labels that are texts, one a sample."""
        places: dict[str, int] = {}
        which = np.array([places.setdefault(text, len(places)) for text in texts], np.intp)
        return cls(which, list(places))

    @classmethod
    def of_column(cls, column: Any) -> Self:
        """Labels in an array of texts of pyarrow."""
        encoded = column.dictionary_encode()
        return cls(encoded.indices.to_numpy().astype(np.intp), encoded.dictionary.to_pylist())

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """The labels of all samples from those of parts of them, in order; all are numbers or all are texts."""
        parts = [part for part in parts if part.values.size]
        if not parts:
            return cls(np.empty(0))
        if parts[0].texts is None:
            return cls(np.concatenate([part.values for part in parts]))
        places: dict[str, int] = {}
        joined = []
        for part in parts:
            assert part.texts is not None
            joined.append(np.array([places.setdefault(text, len(places)) for text in part.texts], np.intp)[part.values])
        return cls(np.concatenate(joined), list(places))

    def encode(self, name: str, first: int = 0) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
        """Labels as numbers.

        Texts that all are numbers are taken as numbers. Texts of which none is a number are names of classes: they
        become their place, from 0, in the alphabetical order of all names.

        Parameters
        ----------
        name
            Where the labels come from, for messages.
        first
            Samples of the source that come before these, for messages.

        Returns
        -------
        float64 (samples,), and the names of the classes, empty if the labels are numbers.

        Raises
        ------
        UserError
            If a label is missing or too large a whole number, or if some are numbers and others are not.
        """
        if self.texts is None:
            if self.values.dtype.kind in "iu" and self.values.size:
                check_exact(str(self.values.min()), name)
                check_exact(str(self.values.max()), name)
            return self.values.astype(np.float64), ()
        texts = [text.strip() for text in self.texts]
        missing = [place for place, text in enumerate(texts) if text in MISSING]
        if missing:
            sample = int(np.flatnonzero(np.isin(self.values, missing))[0])
            raise UserError(f"{name}: the label of sample {first + sample + 1} is missing: leave that sample out")
        numbers = [number(text) for text in texts]
        words = [text for text, value in zip(texts, numbers, strict=True) if value is None]
        if not words:
            for text in texts:
                check_exact(text, name)
            return np.array(numbers, dtype=np.float64)[self.values], ()
        if len(words) < len(texts):
            raise UserError(
                f"{name}: the label {words[0]!r} is not a number, unlike others: put it right or leave it out"
            )
        known = sorted(set(words))
        places = {text: place for place, text in enumerate(known)}
        return np.array([places[text] for text in texts], dtype=np.float64)[self.values], tuple(known)


# -- the labels of a model ---------------------------------------------------------------------------------------------


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
                    f"{data.name}: the labels are texts ({listed(names, _SHOWN)}), regression needs numbers: "
                    f"choose --loss logistic or --loss hinge"
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
            chosen = _find_label(positive, names)
            if chosen is None or chosen not in found:
                raise UserError(f"{data.name}: no sample has the label {positive}; there are {shown}")
            return cls(task, (0.0, 1.0), chosen, names)
        if found.size > 2:
            # Texts cannot be fitted as numbers: do not send the user from one refusal to the next.
            otherwise = "" if names else ", or fit them as numbers with --loss squared"
            raise UserError(
                f"{data.name}: the labels have {found.size} values ({shown}), a classifier needs two: set one "
                f"against the rest with --positive LABEL{otherwise}"
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


def _find_label(label: str | float, names: tuple[str, ...]) -> float | None:
    """The number of a label in a data set, ``None`` if it cannot have one."""
    if names:
        return float(names.index(label)) if label in names else None
    return number(label) if isinstance(label, str) else float(label)


def _name(label: float, names: tuple[str, ...]) -> str | int | float:
    """A label as its source has it; whole numbers without a point."""
    if names:
        return names[int(label)]
    return int(label) if abs(label) < _EXACT and float(label).is_integer() else float(label)
