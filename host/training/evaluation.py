"""All metrics of a model on a data set, computed by scikit-learn.

Metrics of epochs are in `metrics.py`, without scikit-learn: importing it takes longer than training on a small data
set.
"""

import warnings
from typing import Any

import numpy as np

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.data.sample_weights import relative
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.metrics import measure_model
from p4sgd.host.training.model_file import Model, ModelSet


def score(model: Model | ModelSet, data: Dataset) -> dict[str, Any]:
    """All metrics of a model on a data set with labels, as plain data; samples count by their weights, if any.

    Returns
    -------
    ``loss`` as `measure` of `p4sgd.host.training.metrics` has it, and the functions of scikit-learn on the predictions:

    - for classification ``accuracy``, ``balanced_accuracy``, ``log_loss`` if the loss gives probabilities, ``auc``,
      ``average_precision``, ``f1``, ``classes``, the names of the classes as in predictions, and
      ``confusion_matrix``, a list of lists: how many samples of each class are predicted as each class, whatever they
      weigh. ``auc``, ``average_precision`` and ``f1`` are of the second of two classes, of more the means over each
      class against the rest; ``auc`` is NaN if there are no samples of a class.
    - for regression ``r2``, NaN or −∞ if all targets are equal, ``rmse``, ``mae`` in the unit of the target, and
      ``mse`` in its square; if predictions are e^z also ``deviance`` and ``d2`` as `measure` has them.

    Of several targets they are the means over targets, but ``accuracy`` is the part of the samples of which all are
    predicted; ``targets`` has those of each by name.

    Raises
    ------
    UserError
        If features or labels are not the model's, or if features are so large that activations overflow.
    """
    z, labels = model.decision_function(data), model.labels.labels_of(data)
    overflows = np.flatnonzero(~np.isfinite(z.reshape(len(z), -1)).all(axis=1))
    if overflows.size:
        raise UserError(
            f"{data.name}: sample {overflows[0] + 1} has features so large that its activation is no number: compare "
            f"their units with those of the training data"
        )
    weights = relative(data.sample_weights, data.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metrics that are not defined for these samples: their values say it
        coding = model.labels
        if not isinstance(coding, TargetCoding):
            return dict(measure_model(model, z, labels, weights)) | _of_column(model, coding, z, labels, weights)
        targets = {
            name: measure_model(row, z[:, place], labels[:, place], weights)
            | _of_column(row, row.labels, z[:, place], labels[:, place], weights)
            for place, (name, row) in enumerate(zip(coding.row_names, model.rows, strict=True))
        }
    columns = list(targets.values())
    names = [name for name, value in columns[0].items() if isinstance(value, float)]
    means = {name: float(np.mean([each[name] for each in columns])) for name in names}
    return means | measure_model(model, z, labels, weights) | {"targets": targets}


def _of_column(
    model: Model | ModelSet, coding: LabelCoding, z: FloatArray, labels: FloatArray, weights: FloatArray | None
) -> dict[str, Any]:
    """scikit-learn's metrics of a single column of labels."""
    if coding.task is Task.CLASSIFICATION:
        return _of_classes(coding, z, labels, model.probabilities(z), weights)
    return _of_numbers(coding.predictions(z), labels, weights)


def _of_classes(
    coding: LabelCoding,
    z: FloatArray,
    labels: FloatArray,
    probabilities: FloatArray | None,
    weights: FloatArray | None,
) -> dict[str, Any]:
    from sklearn import metrics

    # Which class, from 0: scikit-learn takes labels such as 0.5 for numbers.
    truth = np.searchsorted(coding.classes, labels)
    predicted = np.searchsorted(coding.classes, coding.predictions(z))
    count, how = len(coding.classes), {"sample_weight": weights}
    if count == 2:
        scores, average = z[:, np.newaxis], "binary"
        members = (truth == 1)[:, np.newaxis]
    else:
        scores, average = z if probabilities is None else probabilities, "macro"
        members = truth[:, np.newaxis] == np.arange(count)
    every = np.unique(truth if weights is None else truth[weights > 0]).size == count
    columns = list(zip(members.T, scores.T, strict=True))
    known = range(count)
    result = {
        "accuracy": metrics.accuracy_score(truth, predicted, **how),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, predicted, **how),
        "log_loss": None if probabilities is None else metrics.log_loss(truth, probabilities, labels=known, **how),
        "auc": np.mean([metrics.roc_auc_score(*each, **how) for each in columns]) if every else np.nan,
        "average_precision": np.mean([metrics.average_precision_score(*each, **how) for each in columns]),
        "f1": metrics.f1_score(truth, predicted, average=average, labels=known if count > 2 else None, **how),
    }
    numbers = {name: float(value) for name, value in result.items() if value is not None}
    return numbers | {
        "classes": [coding.name(label) for label in coding.classes],
        "confusion_matrix": metrics.confusion_matrix(truth, predicted, labels=range(count)).tolist(),
    }


def _of_numbers(predicted: FloatArray, targets: FloatArray, weights: FloatArray | None) -> dict[str, float]:
    from sklearn import metrics

    result = {
        "r2": metrics.r2_score(targets, predicted, force_finite=False, sample_weight=weights),
        "rmse": metrics.root_mean_squared_error(targets, predicted, sample_weight=weights),
        "mae": metrics.mean_absolute_error(targets, predicted, sample_weight=weights),
        "mse": metrics.mean_squared_error(targets, predicted, sample_weight=weights),
    }
    return {name: float(value) for name, value in result.items()}
