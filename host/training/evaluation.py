"""All metrics of a model on a data set, computed by scikit-learn.

They are apart from the metrics of each epoch, because to import scikit-learn's takes longer than to train on a small
data set.
"""

import warnings
from typing import Any

import numpy as np

from p4sgd.host.data import Dataset
from p4sgd.host.data.weights import relative
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Probabilistic, Task, get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.metrics import measure
from p4sgd.host.training.model_file import Model

__all__ = ["score"]


def score(model: Model, data: Dataset) -> dict[str, Any]:
    """All metrics of a model on a data set with labels, as plain data; samples count by their weights, if any.

    Returns
    -------
    ``loss`` as `measure` of `p4sgd.host.training.metrics` has it, and the functions of scikit-learn on the predictions:

    - for classification ``accuracy``, ``balanced_accuracy``, ``log_loss`` if the loss gives probabilities, ``auc``,
      ``average_precision``, ``f1``, ``classes``, the names of the two classes as in predictions, and
      ``confusion_matrix``, a list of two lists: how many samples of each class are
      predicted as each class, whatever they weigh. ``auc``,
      ``average_precision`` and ``f1`` are of the second class; ``auc`` is NaN if all samples are of one class.
    - for regression ``r2``, NaN or −∞ if all targets are equal, ``rmse``, ``mae`` in the unit of the target, and
      ``mse`` in its square; if predictions are e^z also ``deviance`` and ``d2`` as `measure` has them.

    Raises
    ------
    UserError
        If features or labels are not the model's, or if features are so large that activations overflow.
    """
    z, labels = model.decision_function(data), model.labels.labels_of(data)
    overflows = np.flatnonzero(~np.isfinite(z))
    if overflows.size:
        raise UserError(
            f"{data.name}: sample {overflows[0] + 1} has features so large that its activation is no number: compare "
            f"their units with those of the training data"
        )
    loss, weights = get_loss(model.loss, model.loss_parameters), relative(data.sample_weights, data.name)
    result: dict[str, Any] = dict(measure(loss, model.labels, z, labels, weights))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metrics that are not defined for these samples: their values say it
        if model.labels.task is Task.CLASSIFICATION:
            return result | _of_classes(model, z, labels, weights)
        return result | _of_numbers(model.labels.predictions(z), labels, weights)


def _of_classes(model: Model, z: FloatArray, labels: FloatArray, weights: FloatArray | None) -> dict[str, Any]:
    from sklearn import metrics

    coding, loss = model.labels, get_loss(model.loss, model.loss_parameters)
    probabilities = loss.probabilities(z) if isinstance(loss, Probabilistic) else None
    # Which class, 0 or 1: scikit-learn takes labels such as 0.5 for numbers.
    truth = (labels == coding.classes[1]).astype(np.int64)
    counted = truth if weights is None else truth[weights > 0]
    predicted = (coding.predictions(z) == coding.classes[1]).astype(np.int64)
    result = {
        "accuracy": metrics.accuracy_score(truth, predicted, sample_weight=weights),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, predicted, sample_weight=weights),
        "log_loss": None
        if probabilities is None
        else metrics.log_loss(truth, probabilities, labels=[0, 1], sample_weight=weights),
        "auc": metrics.roc_auc_score(truth, z, sample_weight=weights) if np.unique(counted).size == 2 else np.nan,
        "average_precision": metrics.average_precision_score(truth, z, sample_weight=weights),
        "f1": metrics.f1_score(truth, predicted, sample_weight=weights),
    }
    numbers = {name: float(value) for name, value in result.items() if value is not None}
    return numbers | {
        "classes": [coding.name(label) for label in coding.classes],
        "confusion_matrix": metrics.confusion_matrix(truth, predicted, labels=[0, 1]).tolist(),
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
