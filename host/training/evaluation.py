"""All metrics of a model on a data set, computed by scikit-learn, which takes longer to import than training on a small
data set: those of epochs are in `metrics.py`."""

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
    weights, coding = relative(data.sample_weights, data.name), model.labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metrics that are not defined for these samples: their values say it
        together = measure_model(model, z, labels, weights)
        if not isinstance(coding, TargetCoding):
            return together | _of_column(model, coding, z, labels, weights)
        targets = {
            name: measure_model(row, z[:, column], labels[:, column], weights)
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
    """scikit-learn's metrics of a single column of labels."""
    from sklearn import metrics

    predicted, how = coding.predictions(z), {"sample_weight": weights}
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
        scores, members, average = z[:, np.newaxis], (truth == 1)[:, np.newaxis], "binary"
    else:
        scores, members, average = z if p is None else p, truth[:, np.newaxis] == np.arange(count), "macro"
    every = np.unique(truth if weights is None else truth[weights > 0]).size == count
    columns, known = list(zip(members.T, scores.T, strict=True)), range(count)
    result = {
        "accuracy": metrics.accuracy_score(truth, chosen, **how),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, chosen, **how),
        "log_loss": None if p is None else metrics.log_loss(truth, p, labels=known, **how),
        "auc": np.mean([metrics.roc_auc_score(*each, **how) for each in columns]) if every else np.nan,
        "average_precision": np.mean([metrics.average_precision_score(*each, **how) for each in columns]),
        "f1": metrics.f1_score(truth, chosen, average=average, labels=known if count > 2 else None, **how),
    }
    numbers = {name: float(value) for name, value in result.items() if value is not None}
    return numbers | {
        "classes": [coding.name(label) for label in coding.classes],
        "confusion_matrix": metrics.confusion_matrix(truth, chosen, labels=known).tolist(),
    }
