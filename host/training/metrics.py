"""Metrics: those of epochs, which are quick, and with scikit-learn all of a model on a data set."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.data.sample_numbers import average, relative
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Loss, Task, get_loss
from p4sgd.host.losses.log_link import LogLink
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.model_file import Model, ModelSet

_BLOCK = 1 << 14
"""Samples that are measured at once: what is allocated for them then stays in the cache."""


def named(name: str, metrics: dict[str, float]) -> dict[str, float]:
    """Metrics with the name of their data before their own."""
    return {f"{name}_{metric}": value for metric, value in metrics.items()}


def block_average(function: Callable[..., npt.NDArray[Any]], weights: FloatArray | None, *arrays: FloatArray) -> float:
    """`average` of a function of arrays, (samples,), block by block."""
    size, total = arrays[0].size, 0.0
    for first in range(0, size, _BLOCK):
        block = slice(first, first + _BLOCK)
        values = function(*(array[block] for array in arrays))
        if weights is not None:
            values = np.where(weights[block] > 0, values, 0.0) * weights[block]
        total += float(values.sum())
    return total / (size if weights is None else float(weights.sum()))


def measure(
    loss: Loss,
    coding: LabelCoding,
    z: FloatArray,
    labels: FloatArray,
    weights: FloatArray | None = None,
    offsets: FloatArray | None = None,
) -> dict[str, float]:
    """Metrics of activations against labels as `LabelCoding.labels_of` gives them, float64 (samples,); means are
    weighted if samples have weights, not all 0. If there are offsets, activations include them.

    These are the mean ``loss`` (without penalties; in regression of scaled targets); for classification ``accuracy``;
    for regression ``mse`` in the square of the target's unit and ``r2``, NaN if all targets are equal; for predictions
    of e^z instead of ``r2`` the mean ``deviance``, and ``d2``, which is to it what R² is to mse.
    """
    net = z, labels, weights
    if offsets is not None and coding.task is not Task.CLASSIFICATION:  # as in training
        net = (z - coding.shift(offsets), *loss.without(labels, weights, offsets))
    y = coding.real(net[1])
    result = {"loss": block_average(loss.value, net[2], net[0], y)}
    if coding.task is Task.CLASSIFICATION:
        result["accuracy"] = block_average(lambda z, y: (z > 0) == (y > 0), weights, z, y)
        return result
    predicted, centre = coding.predictions(z), average(labels, weights)
    result["mse"] = squares = average((predicted - labels) ** 2, weights)
    counted = labels if weights is None else labels[weights > 0]
    # Of labels that are all the same the mean may be rounded, and differ from them.
    spread = average((labels - centre) ** 2, weights) if counted.min() < counted.max() else 0.0
    if not isinstance(loss, LogLink):
        return result | {"r2": 1 - squares / spread if spread > 0 else float("nan")}
    result["deviance"] = deviance = average(loss.deviance(labels, predicted), weights)
    of_mean = average(loss.deviance(labels, np.full_like(labels, centre)), weights) if spread > 0 else 0.0
    return result | {"d2": 1 - deviance / of_mean if spread > 0 else float("nan")}


def measure_model(
    model: Model | ModelSet,
    z: FloatArray,
    labels: FloatArray,
    weights: FloatArray | None = None,
    offsets: FloatArray | None = None,
) -> dict[str, float]:
    """Metrics of a model by its activations, float64 (samples,) or (samples, rows), as `measure`.

    Of several rows they are the means over rows; but ``accuracy`` is the part of the samples whose class, or whose
    every target, is predicted."""
    coding = model.labels
    each = []
    for row, part in enumerate(model.rows):
        own = z if z.ndim == 1 else np.ascontiguousarray(z[:, row])
        loss = get_loss(part.loss, part.loss_parameters)
        each.append(measure(loss, part.labels, own, coding.of_row(labels, row), weights, offsets))
    if len(each) == 1:
        return each[0]
    result = {name: float(np.mean([metrics[name] for metrics in each])) for name in each[0]}
    if coding.task is Task.CLASSIFICATION:
        right = (model.predictions(z) == labels).reshape(len(labels), -1).all(axis=1)
        result["accuracy"] = average(right, weights)
    return result


def score(model: Model | ModelSet, data: Dataset) -> dict[str, Any]:
    """All metrics of a model on a data set with labels, as plain data; samples count by their weights, if any.

    These are ``loss`` as `measure` has it, and the functions of scikit-learn on the predictions:

    - for classification ``accuracy``, ``balanced_accuracy``, ``log_loss`` if the loss gives probabilities, ``auc``,
      ``average_precision``, ``f1``, ``classes``, the names of the classes as in predictions, and
      ``confusion_matrix``, a list of lists: how many samples of each class are predicted as each class, whatever they
      weigh. ``auc``, ``average_precision`` and ``f1`` are of the second of two classes, of more the means over each
      class against the rest; ``auc`` is NaN if there are no samples of a class.
    - for regression ``r2``, NaN or −∞ if all targets are equal, ``rmse``, ``mae`` in the unit of the target, and
      ``mse`` in its square; if predictions are e^z also ``deviance`` and ``d2`` as `measure` has them.

    Of several targets they are the means over targets, but ``accuracy`` is the part of the samples of which all are
    predicted; ``targets`` has those of each by name.

    Raises `UserError` if features or labels are not the model's, or if features are so large that activations overflow.
    """
    z, labels = model.decision_function(data), model.labels.labels_of(data)
    overflows = np.flatnonzero(~np.isfinite(z.reshape(len(z), -1)).all(axis=1))
    if overflows.size:
        raise UserError(
            f"{data.name}: sample {overflows[0] + 1} has features so large that its activation is no number: compare "
            f"their units with those of the training data"
        )
    return score_activations(model, z, labels, relative(data.sample_weights, data.name), data.offsets)


def score_activations(
    model: Model | ModelSet,
    z: FloatArray,
    labels: FloatArray,
    weights: FloatArray | None = None,
    offsets: FloatArray | None = None,
) -> dict[str, Any]:
    """`score` by the activations and labels of a data set, the weights of its samples relative to the largest, and the
    offsets that the activations include."""
    coding = model.labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metrics that are not defined for these samples: their values say it
        together = measure_model(model, z, labels, weights, offsets)
        if not isinstance(coding, TargetCoding):
            return together | _of_column(model, coding, z, labels, weights)
        targets = {
            name: measure_model(row, z[:, column], labels[:, column], weights, offsets)
            | _of_column(row, row.labels, z[:, column], labels[:, column], weights)
            for column, (name, row) in enumerate(zip(coding.row_names, model.rows, strict=True))
        }
    columns = list(targets.values())
    names = [name for name, value in columns[0].items() if isinstance(value, float)]
    means = {name: float(np.mean([each[name] for each in columns])) for name in names}
    return means | together | {"targets": targets}


def _of_column(
    model: Model | ModelSet, coding: LabelCoding, z: FloatArray, labels: FloatArray, weights: FloatArray | None
) -> dict[str, Any]:
    from sklearn import metrics  # takes longer to import than training on a small data set

    predicted, how = model.predictions(z), {"sample_weight": weights}
    if coding.task is not Task.CLASSIFICATION:
        result = {
            "r2": metrics.r2_score(labels, predicted, force_finite=False, **how),
            "rmse": metrics.root_mean_squared_error(labels, predicted, **how),
            "mae": metrics.mean_absolute_error(labels, predicted, **how),
            "mse": metrics.mean_squared_error(labels, predicted, **how),
        }
        return {name: float(value) for name, value in result.items()}
    # Numbers of classes, from 0: scikit-learn takes labels such as 0.5 for numbers.
    truth, chosen = np.searchsorted(coding.classes, labels), np.searchsorted(coding.classes, predicted)
    count, p = len(coding.classes), model.probabilities(z)
    if count == 2:
        scores, members, kind = z[:, np.newaxis], (truth == 1)[:, np.newaxis], "binary"
    else:
        scores, members, kind = z if p is None else p, truth[:, np.newaxis] == np.arange(count), "macro"
    every = np.unique(truth if weights is None else truth[weights > 0]).size == count
    columns, known = list(zip(members.T, scores.T, strict=True)), range(count)
    result = {
        "accuracy": metrics.accuracy_score(truth, chosen, **how),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, chosen, **how),
        "log_loss": None if p is None else metrics.log_loss(truth, p, labels=known, **how),
        "auc": np.mean([metrics.roc_auc_score(*each, **how) for each in columns]) if every else np.nan,
        "average_precision": np.mean([metrics.average_precision_score(*each, **how) for each in columns]),
        "f1": metrics.f1_score(truth, chosen, average=kind, labels=known if count > 2 else None, **how),
    }
    numbers = {name: float(value) for name, value in result.items() if value is not None}
    return numbers | {
        "classes": [coding.name(label) for label in coding.classes],
        "confusion_matrix": metrics.confusion_matrix(truth, chosen, labels=known).tolist(),
    }
