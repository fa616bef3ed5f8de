"""Labels: conversion from texts or numbers in a file to the y of a loss and `LABEL` integers, and back."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Labelled
from p4sgd.host.data.weights import average, relative
from p4sgd.host.errors import UserError, listed
from p4sgd.host.losses.loss import FloatArray, Task
from p4sgd.hw.spec.fixed import LABEL, IntArray

__all__ = ["MISSING", "LabelCoding", "RawLabels", "check_exact", "find_label", "name_of_label", "number"]

MISSING = frozenset(
    {"", "#N/A", "#NA", "-NaN", "-nan", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "na", "nan", "null"}
)
"""Texts that mean a missing value."""

_EXACT = 1 << 53
"""From here on float64 does not represent every integer."""

_FARTHEST_TARGET = 32.0
"""Largest y of `Task.NON_NEGATIVE`: what a table with a limit of e^4 can predict, and a residual of ±128 can hold."""

_LARGEST_EXPONENT = 300.0
"""Predictions are at most e^±this times the scale, so that they and their squares are finite and not 0."""

_SHOWN = 5
"""Maximum number of labels in a message."""


def number(text: str) -> float | None:
    """Parse a number; ``None`` if the text is none. Underscores, which Python accepts, are not allowed."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def check_exact(text: str, name: str) -> None:
    """Check that float64 represents an integer exactly; ``text`` is any number.

    Raises
    ------
    UserError
        If it is an integer of 2^53 or more.
    """
    if re.fullmatch(r"[+-]?\d+", text) and abs(float(text)) >= _EXACT:
        raise UserError(f"{name}: the label {text} is too large to be told from others: use labels below 2^53")


# -- labels of a file --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RawLabels:
    """Labels of some samples, as in a file.

    Parameters
    ----------
    values
        (samples,): numeric labels of any type; if the labels are texts, indices into ``texts``, intp.
    texts
        The distinct texts in order of appearance; ``None`` if the labels are numbers.
    """

    values: npt.NDArray[Any]
    texts: Sequence[str] | None = None

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Self:
        """Labels from one text per sample."""
        places: dict[str, int] = {}
        which = np.array([places.setdefault(text, len(places)) for text in texts], np.intp)
        return cls(which, list(places))

    @classmethod
    def from_column(cls, column: Any) -> Self:
        """Labels from a pyarrow array of strings."""
        encoded = column.dictionary_encode()
        return cls(encoded.indices.to_numpy().astype(np.intp), encoded.dictionary.to_pylist())

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """Concatenate labels, which must be all numbers or all texts."""
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
        """Convert labels to numbers.

        If all texts are numbers, they are parsed. If none is, they are names of classes, and are numbered from 0 in
        alphabetical order.

        Parameters
        ----------
        name
            Source of the labels, for messages.
        first
            Number of samples of the source before these, for messages.

        Returns
        -------
        float64 (samples,), and the names of the classes, empty if the labels are numbers.

        Raises
        ------
        UserError
            If a label is missing or is too large an integer, or if some are numbers and others are not.
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
                f"{name}: the label {words[0]!r} is not a number, unlike others: correct it or leave it out"
            )
        known = sorted(set(words))
        places = {text: place for place, text in enumerate(known)}
        return np.array([places[text] for text in texts], dtype=np.float64)[self.values], tuple(known)


# -- labels of a model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelCoding:
    """How the labels of a data set become the y of a loss.

    Classification has two classes: y = −1 for the first and y = +1 for the second. With ``positive`` the classes, also
    in predictions, are 1 (that label) and 0 (all others). Regression standardises: y = (label − mean) / scale, so that
    one learning rate suits all units.

    Labels that are texts may be numbered differently in different data sets. `labels_of` matches them by name, and its
    result is what the other methods take.

    Parameters
    ----------
    task
        What the model predicts.
    classes
        The two labels, ascending; empty for regression.
    positive
        The label that is class 1 if all others are class 0.
    names
        If the labels are texts: text of label i.
    mean, scale
        Regression: mean and standard deviation of the training labels (1 instead of a deviation of 0). For the tasks
        that predict e^z: 0, and the mean, or a 32nd of the largest label if that is more and labels may be 0. They are
        weighted if samples have weights.
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
            The label of class 1 in one-against-rest classification, as in the source: a number or a text.

        Raises
        ------
        UserError
            If the labels do not suit the task: no labels, a single class, more than two classes without ``positive``,
            unknown ``positive``, texts for regression, numbers that the task cannot have, or numbers whose squares
            exceed float64.
        """
        if not data.labelled:
            raise UserError(f"{data.name} has no labels to train on")
        labels, names = data.labels, data.label_names
        if task is not Task.CLASSIFICATION:
            if positive is not None:
                raise UserError("a positive class makes no sense for regression: choose another loss or leave it out")
            if names:
                raise UserError(
                    f"{data.name}: the labels are texts ({listed(names, _SHOWN)}), regression needs numbers: "
                    f"choose --loss logistic or --loss hinge"
                )
            _check_range(task, data.name, labels)
            if task is not Task.REGRESSION:
                counted = _that_count(labels, relative(data.sample_weights, data.name))
                return cls(task, scale=_mean_scale(task, data.name, *counted))
            labels, weights = _that_count(labels, relative(data.sample_weights, data.name))
            with np.errstate(over="ignore", invalid="ignore"):
                mean = average(labels, weights)
                scale = float(labels.std()) if weights is None else math.sqrt(average((labels - mean) ** 2, weights))
            if not np.isfinite(scale) or (scale == 0 and labels.min() < labels.max()):
                largest = np.abs(labels).max()
                raise UserError(f"{data.name}: labels reach {largest:.3g}, their squares no float64: change their unit")
            return cls(task, mean=mean, scale=scale if scale > 0 else 1.0)
        found = np.unique(labels)
        shown = listed([str(name_of_label(label, names)) for label in found], _SHOWN)
        if found.size == 1:
            raise UserError(f"{data.name}: all labels are {shown}: a classifier needs samples of two classes")
        if positive is not None:
            chosen = find_label(positive, names)
            if chosen is None or chosen not in found:
                raise UserError(f"{data.name}: no sample has the label {positive}; there are {shown}")
            return cls(task, (0.0, 1.0), chosen, names)
        if found.size > 2:
            # Texts cannot be fitted as numbers, so --loss squared would be refused next.
            otherwise = "" if names else ", or fit them as numbers with --loss squared"
            raise UserError(
                f"{data.name}: the labels have {found.size} values ({shown}), a classifier needs two: set one "
                f"against the rest with --positive LABEL{otherwise}"
            )
        return cls(task, (float(found[0]), float(found[1])), None, names)

    def labels_of(self, data: Labelled) -> FloatArray:
        """Labels of a data set, numbered as in predictions; with ``positive``, 0 and 1.

        Raises
        ------
        UserError
            If there are no labels, or one is not among the model's classes.
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
            # Unknown names get a number that is not a class; it is refused below where that matters.
            strange = len(self.names)
            numbers = [self.names.index(name) if name in self.names else strange for name in data.label_names]
            labels = np.array(numbers, dtype=np.float64)[labels.astype(np.int64)]
        if self.task is not Task.CLASSIFICATION:
            _check_range(self.task, data.name, labels)
            return labels
        if self.positive is not None:
            return np.where(labels == self.positive, 1.0, 0.0)
        unknown = np.flatnonzero(~np.isin(labels, self.classes))
        if unknown.size:
            first, second = (name_of_label(label, self.names) for label in self.classes)
            label = name_of_label(data.labels[unknown[0]], data.label_names)
            raise UserError(f"{data.name}: the label {label} is neither {first} nor {second}, the model's classes")
        return labels

    def real(self, labels: FloatArray) -> FloatArray:
        """y of labels from `labels_of`, as `Task` says; float64 of the same shape."""
        if self.task is Task.NON_NEGATIVE:
            return labels / self.scale
        if self.task is Task.POSITIVE:
            return np.log(labels) - math.log(self.scale)
        if self.task is Task.REGRESSION:
            return (labels - self.mean) / self.scale
        return np.where(labels == self.classes[1], 1.0, -1.0)

    def integers(self, labels: FloatArray) -> IntArray:
        """y of labels from `labels_of` as saturated `LABEL` integers; int64 of the same shape."""
        return LABEL.from_real(self.real(labels))

    def name(self, label: float) -> str | int | float:
        """A predicted label as in the training data, a text or a number; with ``positive``, 0 or 1."""
        return name_of_label(label, self.names if self.positive is None else ())

    @property
    def meanings(self) -> tuple[str, ...]:
        """What the two classes are, as in the training data; with ``positive``, "other" and that class."""
        if self.positive is not None:
            return "other", str(name_of_label(self.positive, self.names))
        return tuple(str(name_of_label(label, self.names)) for label in self.classes)

    def predictions(self, z: FloatArray) -> FloatArray:
        """Predictions from activations: a class (the second where z > 0), or a target in its original unit."""
        if self.task in (Task.NON_NEGATIVE, Task.POSITIVE):
            return self.scale * np.exp(np.clip(z, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
        if self.task is Task.REGRESSION:
            return self.mean + self.scale * z
        first, second = self.classes
        return np.where(z > 0, second, first)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON data."""
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
            If something is missing or of the wrong type.
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


def _check_range(task: Task, name: str, labels: FloatArray) -> None:
    """Refuse labels that e^z cannot be."""
    least = float(labels.min(initial=np.inf))
    if task is Task.NON_NEGATIVE and least < 0:
        raise UserError(f"{name}: there is a label {least:g}, this loss needs labels of at least 0")
    if task is Task.POSITIVE and least <= 0:
        raise UserError(
            f"{name}: there is a label {least:g}, this loss needs labels above 0"
            + (": choose --loss poisson for labels of at least 0" if least == 0 else "")
        )


def _that_count(labels: FloatArray, weights: FloatArray | None) -> tuple[FloatArray, FloatArray | None]:
    """Labels of samples that do not weigh 0, and their weights."""
    return (labels, None) if weights is None else (labels[weights > 0], weights[weights > 0])


def _mean_scale(task: Task, name: str, labels: FloatArray, weights: FloatArray | None) -> float:
    """The scale of labels that are predicted by e^z."""
    largest = float(labels.max())
    if largest == 0:
        raise UserError(f"{name}: all labels are 0, which no e^z is: there is nothing to train")
    with np.errstate(over="ignore"):
        scale = average(labels, weights)
    if task is Task.NON_NEGATIVE:
        scale = max(scale, largest / _FARTHEST_TARGET)
    if scale * scale == 0 or not math.isfinite(largest * largest):
        raise UserError(f"{name}: labels reach {largest:.3g}, their squares no float64: change their unit")
    return scale


def find_label(label: str | float, names: tuple[str, ...]) -> float | None:
    """Number of a label in a data set; ``None`` if there is no such label."""
    if names:
        return float(names.index(label)) if label in names else None
    return number(label) if isinstance(label, str) else float(label)


def name_of_label(label: float, names: tuple[str, ...]) -> str | int | float:
    """A label as in its source; integers without a decimal point."""
    if names:
        return names[int(label)]
    return int(label) if abs(label) < _EXACT and float(label).is_integer() else float(label)
