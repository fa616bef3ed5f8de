"""Labels of a model: from those of a data set to the y of a loss and `LABEL` integers, and back."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec
import numpy as np

from p4sgd.host.data.cells import EXACT
from p4sgd.host.data.dataset import Labelled, LabelledSamples
from p4sgd.host.data.notation import number
from p4sgd.host.data.sample_numbers import average, relative
from p4sgd.host.errors import UserError, listed, on_command_line, option
from p4sgd.host.losses.loss import FloatArray, Task

_LARGEST_EXPONENT = 300.0
"""Predictions are at most e^±this times the scale, so that they and their squares are finite and not 0."""

_SHOWN = 5
"""Maximum number of labels in a message."""

_MANY_CLASSES, _FEW_SAMPLES = 32, 4
"""Numbers of more values than this, each with fewer samples than this on average, are taken for measurements."""


@dataclass(frozen=True)
class LabelCoding:
    """How the labels of a data set become the y of a loss.

    Of two ``classes``, labels in ascending order, y = −1 for the first and +1 for the second; with ``positive`` they
    are 1 (that label) and 0 (all others), also in predictions. More take a model of several rows, one for each against
    the rest: `rows` has their codings, and the largest activation wins. Without classes y = (label − mean) / scale:
    mean and deviation of the training labels (1 if all are the same); for the tasks that predict e^z 0, and the mean,
    or more if y would otherwise exceed the loss's largest one. Weights of samples count.

    ``names`` are those of labels 0, 1, …, if they are texts, which other data sets may number differently: `labels_of`
    matches them, and its result is what the other methods take.
    """

    task: Task
    classes: tuple[float, ...] = ()
    positive: float | None = None
    names: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    row_kind: ClassVar[str] = "class"
    """What a row of the model is for."""

    def __post_init__(self) -> None:
        numbers = (*self.classes, self.mean, self.scale, self.positive or 0.0)
        if not all(map(math.isfinite, numbers)) or self.scale <= 0:
            raise ValueError("labels must be finite and their scale positive")
        fits = len(self.classes) >= 2 if self.task is Task.CLASSIFICATION else not self.classes
        if not fits or list(self.classes) != sorted(set(self.classes)) or (self.positive is not None and self._several):
            raise ValueError(f"a {self.task.value} cannot have the classes {self.classes}")
        if self.names and not all(label in range(len(self.names)) for label in self.classes):
            raise ValueError(f"there are no names for the classes {self.classes}")

    @classmethod
    def fit(
        cls,
        task: Task,
        data: Labelled,
        positive: str | float | None = None,
        *,
        whole: "LabelCoding | None" = None,
        guess: bool = True,
        most: float = math.inf,
    ) -> Self:
        """The coding for a training set; `UserError` if its labels do not suit the task.

        ``positive`` is the label of class 1 in one-against-rest classification, as in the source: a number or a text.
        ``whole`` is the coding before some samples were held out, whose classes must be left. With ``guess``, numbers
        that seem to be measurements are refused as classes. ``most`` is `Loss.largest_label`.
        """
        if not data.labelled:
            raise UserError(f"{data.name} has no labels to train on")
        if task is Task.CLASSIFICATION:
            return cls._fit_classes(data, positive, whole, guess=guess)
        if positive is not None:
            raise UserError("a positive class makes no sense for regression: choose another loss or leave it out")
        if data.label_names:
            texts = f"the labels are texts ({listed(data.label_names, _SHOWN)})"
            raise UserError(f"{data.name}: {texts}, regression needs numbers: choose {option('loss', 'logistic')}")
        _check_range(task, data.name, data.labels)
        return cls._fit_numbers(task, data.name, data.labels, relative(data.sample_weights, data.name), most)

    @classmethod
    def _fit_numbers(cls, task: Task, name: str, labels: FloatArray, weights: FloatArray | None, most: float) -> Self:
        least, largest = float(labels.min()), float(labels.max())
        if task is Task.REGRESSION and least == largest:  # their mean may be rounded, and differ from them
            return cls(task, mean=least)
        if largest == 0 and task is not Task.REGRESSION:
            raise UserError(f"{name}: all labels are 0, which no e^z is: there is nothing to train")
        with np.errstate(over="ignore", invalid="ignore"):
            mean = average(labels, weights)
            if task is Task.REGRESSION:
                scale = float(labels.std()) if weights is None else math.sqrt(average((labels - mean) ** 2, weights))
                fits = math.isfinite(scale) and scale > 0
            else:
                mean, scale = 0.0, max(mean, largest / most)
                fits = scale * scale > 0 and math.isfinite(largest * largest)
        if not fits:
            largest = max(-least, largest)
            raise UserError(f"{name}: labels reach {largest:.3g}, their squares no float64: change their unit")
        return cls(task, mean=mean, scale=scale)

    @classmethod
    def _fit_classes(
        cls, data: Labelled, positive: str | float | None, whole: "LabelCoding | None", *, guess: bool
    ) -> Self:
        labels, names = data.labels, data.label_names
        found = np.unique(labels)
        shown = listed([str(name_of_label(label, names)) for label in found], _SHOWN)
        if found.size == 1:
            which = "" if data.sample_weights is None else ", but for samples of weight 0"
            raise UserError(f"{data.name}: all labels are {shown}{which}: a classifier needs samples of two classes")
        if positive is not None:
            chosen = find_label(positive, names)
            if chosen is None or chosen not in found:
                raise UserError(f"{data.name}: no sample has the label {positive}; there are {shown}")
            return cls(Task.CLASSIFICATION, (0.0, 1.0), chosen, names)
        if guess and found.size > 2 and not names:
            many = found.size > _MANY_CLASSES and labels.size < _FEW_SAMPLES * found.size
            if many or (found != np.floor(found)).any():
                raise UserError(
                    f"{data.name}: the labels have {found.size} values ({shown}), which seem to be no classes: fit "
                    f"them as numbers with {option('loss', 'squared')}"
                    + on_command_line(", or set one against the rest with --positive LABEL")
                )
        gone = np.setdiff1d([] if whole is None else whole.classes, found)
        if gone.size:
            lost = name_of_label(gone[0], names)
            raise UserError(f"{data.name}: all samples of class {lost} are held out: hold out fewer")
        return cls(Task.CLASSIFICATION, tuple(map(float, found)), None, names)

    @property
    def _several(self) -> bool:
        return len(self.classes) > 2

    @property
    def rows(self) -> "tuple[LabelCoding, ...]":
        """The coding for each row of a model: itself, or of more than two classes each against the rest."""
        one_by_one = (dataclasses.replace(self, classes=(0.0, 1.0), positive=label) for label in self.classes)
        return tuple(one_by_one) if self._several else (self,)

    @property
    def row_names(self) -> tuple[str, ...]:
        """What the rows are called: the classes; of a single row nothing."""
        return self.meanings if self._several else ("",)

    def name_rows(self, names: Sequence[str]) -> str:
        """Some of the rows in a message, by their names: ``class 3`` or ``classes 3, 8``."""
        return f"class{'es' if len(names) > 1 else ''} {listed(names, _SHOWN)}"

    def of_row(self, labels: FloatArray, row: int) -> FloatArray:
        """Labels from `labels_of` as those of a row's coding."""
        return np.where(labels == self.classes[row], 1.0, 0.0) if self._several else labels

    def labels_of(self, data: Labelled) -> FloatArray:
        """Labels of a data set, numbered as in predictions; with ``positive``, 0 and 1.

        Raises `UserError` if there are no labels, or one is not among the model's classes.
        """
        if not data.labelled:
            raise UserError(f"{data.name} has no labels to compare with")
        labels = data.labels
        if labels.ndim == 2:
            raise UserError(f"{data.name}: has {labels.shape[1]} label columns, the model has one: name that alone")
        if bool(self.names) != bool(data.label_names):
            ours, theirs = ("texts", "numbers") if self.names else ("numbers", "texts")
            raise UserError(
                f"{data.name}: the labels are {theirs}, those of the model are {ours}: name its classes alike"
            )
        if data.label_names != self.names:
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
            known = self.meanings
            those = f"none of {listed(known, _SHOWN)}" if self._several else f"neither {known[0]} nor {known[1]}"
            label = name_of_label(data.labels[unknown[0]], data.label_names)
            raise UserError(f"{data.name}: the label {label} is {those}, the model's classes")
        return labels

    def real(self, labels: FloatArray) -> FloatArray:
        """y of labels from `labels_of`, as `Task` says, for a single row; float64 of the same shape."""
        if self.task is Task.NON_NEGATIVE:
            return labels / self.scale
        if self.task is Task.POSITIVE:
            return np.log(labels) - math.log(self.scale)
        if self.task is Task.REGRESSION:
            return (labels - self.mean) / self.scale
        signs: FloatArray = 2.0 * (labels == self.classes[1]) - 1.0  # a third of the time of np.where
        return signs

    def shift(self, offsets: FloatArray) -> FloatArray:
        """What offsets (`p4sgd.host.data.sample_numbers`) add to activations; float64 of the same shape."""
        return offsets / self.scale if self.task is Task.REGRESSION else offsets

    def name(self, label: float) -> str | int | float:
        """A predicted label as in the training data, a text or a number; with ``positive``, 0 or 1."""
        return name_of_label(label, self.names if self.positive is None else ())

    def named(self, predictions: FloatArray) -> list[str | int | float]:
        """`name` of each prediction; of several targets a list for each sample."""
        return list(map(self.name, predictions.tolist()))

    @property
    def meanings(self) -> tuple[str, ...]:
        """What the classes are, as in the training data; with ``positive``, "other" and that class."""
        if self.positive is not None:
            return "other", str(name_of_label(self.positive, self.names))
        return tuple(str(name_of_label(label, self.names)) for label in self.classes)

    def predictions(self, z: FloatArray) -> FloatArray:
        """Predictions from activations z (samples,), of several classes (samples, classes): a class, or a target in its
        original unit; float64 (samples,)."""
        if self.task in (Task.NON_NEGATIVE, Task.POSITIVE):
            return self.scale * np.exp(np.clip(z, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
        if self.task is Task.REGRESSION:
            return self.mean + self.scale * z
        if self._several:
            best: FloatArray = np.array(self.classes)[z.argmax(axis=1)]
            return best
        first, second = self.classes
        return np.where(z > 0, second, first)

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"task": self.task.value, "classes": list(self.classes), "names": list(self.names)}


@dataclass(frozen=True)
class TargetCoding:
    """How several columns of labels become the y of a loss: each by a coding of its own, of at most two classes.

    It has the interface of a `LabelCoding` of several rows, with labels and predictions of shape (samples, targets).
    """

    rows: tuple[LabelCoding, ...]
    row_names: tuple[str, ...]

    row_kind: ClassVar[str] = "target"
    classes: ClassVar[tuple[float, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ()
    positive: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.row_names) or not self.rows:
            raise ValueError(f"{len(self.rows)} targets with {len(self.row_names)} names")

    @property
    def task(self) -> Task:
        return self.rows[0].task

    @property
    def meanings(self) -> tuple[str, ...]:
        return self.row_names

    def name_rows(self, names: Sequence[str]) -> str:
        return f"target{'s' if len(names) > 1 else ''} {listed(names, _SHOWN)}"

    def of_row(self, labels: FloatArray, row: int) -> FloatArray:
        return np.ascontiguousarray(labels[:, row])

    def labels_of(self, data: Labelled) -> FloatArray:
        """Labels of a data set, float64 (samples, targets), in the order of the rows; see `LabelCoding.labels_of`."""
        return np.column_stack([row.labels_of(each) for row, each in zip(self.rows, self.columns(data), strict=True)])

    def columns(self, data: Labelled) -> list[LabelledSamples]:
        """The samples with the labels of each row: by name if a data set has these names, else in order.

        Raises `UserError` if there are not as many.
        """
        given = data.labels.shape[1] if data.labels.ndim == 2 else 1
        if given != len(self.rows):
            raise UserError(
                f"{data.name}: has {given} label column{'s' * (given > 1)}, the model has the targets "
                f"{listed(self.row_names, _SHOWN)}{on_command_line(': name each with --label-column')}"
            )
        order: Sequence[int] = range(given)
        if set(data.target_names) == set(self.row_names):
            order = [data.target_names.index(name) for name in self.row_names]
        return [LabelledSamples.column(data, place) for place in order]

    def predictions(self, z: FloatArray) -> FloatArray:
        """Predictions of every target from activations: float64 (samples, targets)."""
        return np.column_stack([row.predictions(z[:, place]) for place, row in enumerate(self.rows)])

    def named(self, predictions: FloatArray) -> list[list[str | int | float]]:
        return [[row.name(label) for row, label in zip(self.rows, each, strict=True)] for each in predictions.tolist()]

    def to_json(self) -> dict[str, Any]:
        return {"targets": list(self.row_names), "rows": [row.to_json() for row in self.rows]}


def fit_coding(
    task: Task,
    data: Labelled,
    positive: str | float | None = None,
    *,
    whole: LabelCoding | TargetCoding | None = None,
    guess: bool = True,
    most: float = math.inf,
) -> LabelCoding | TargetCoding:
    """The coding for a training set with one column of labels or several; see `LabelCoding.fit`.

    Raises `UserError` if one of several targets has more than two classes.
    """
    if data.labels.ndim == 1:
        assert not isinstance(whole, TargetCoding)
        return LabelCoding.fit(task, data, positive, whole=whole, guess=guess, most=most)
    columns = [LabelledSamples.column(data, place) for place in range(len(data.target_names))]
    rows = tuple(LabelCoding.fit(task, column, positive, most=most) for column in columns)
    for column, coding in zip(columns, rows, strict=True):
        if len(coding.rows) > 1:
            raise UserError(f"{column.name}: has {len(coding.rows)} classes, one of several targets needs two")
    return TargetCoding(rows, data.target_names)


def coding_from_json(data: dict[str, Any]) -> LabelCoding | TargetCoding:
    """Undo `to_json` of either coding; `KeyError` or `ValueError` for anything else."""
    if "targets" not in data:
        return msgspec.convert(data, LabelCoding)
    return TargetCoding(msgspec.convert(data["rows"], tuple[LabelCoding, ...]), tuple(data["targets"]))


def _check_range(task: Task, name: str, labels: FloatArray) -> None:
    least = float(labels.min(initial=np.inf))
    if task is Task.NON_NEGATIVE and least < 0:
        raise UserError(f"{name}: there is a label {least:g}, this loss needs labels of at least 0")
    if task is Task.POSITIVE and least <= 0:
        remedy = f": choose {option('loss', 'poisson')}" if least == 0 else ""
        raise UserError(f"{name}: there is a label {least:g}, this loss needs labels above 0{remedy}")


def find_label(label: str | float, names: tuple[str, ...]) -> float | None:
    """Number of a label in a data set; ``None`` if there is no such label."""
    if names:
        return float(names.index(label)) if label in names else None
    return number(label) if isinstance(label, str) else float(label)


def name_of_label(label: float, names: tuple[str, ...]) -> str | int | float:
    """A label as in its source; integers without a decimal point."""
    if names:
        return names[int(label)]
    return int(label) if abs(label) < EXACT and float(label).is_integer() else float(label)
