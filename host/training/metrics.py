"""How good activations are: the loss and what people ask for beside it."""

import numpy as np

from p4sgd.host.data import Dataset
from p4sgd.host.losses import Loss, Task, get_loss
from p4sgd.host.losses.labels import LabelCoding
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.model_file import Model

__all__ = ["evaluate", "measure"]


def measure(loss: Loss, coding: LabelCoding, z: FloatArray, labels: FloatArray) -> dict[str, float]:
    """Metrics of activations against labels.

    Parameters
    ----------
    loss
        The loss.
    coding
        Meaning of the labels.
    z
        Activations, float64 (samples,).
    labels
        Labels from ``coding.labels_of``, float64 (samples,).

    Returns
    -------
    Mean ``loss`` (of scaled targets in regression, without penalties); for classification ``accuracy`` (0 to 1); for
    regression ``mse`` in the square of the target's unit and ``r2``, which is NaN if all targets are equal.
    """
    result = {"loss": float(loss.value(z, coding.real(labels)).mean())}
    predicted = coding.predictions(z)
    if coding.task is Task.CLASSIFICATION:
        result["accuracy"] = float(np.mean(predicted == labels))
    else:
        squares = float(((predicted - labels) ** 2).sum())
        spread = float(((labels - labels.mean()) ** 2).sum())
        result["mse"] = squares / labels.size
        result["r2"] = 1 - squares / spread if spread > 0 else float("nan")
    return result


def evaluate(model: Model, data: Dataset) -> dict[str, float]:
    """Metrics of a model on a data set with labels; see `measure`.

    Raises
    ------
    UserError
        If features or labels are not the model's.
    """
    return measure(get_loss(model.loss), model.labels, model.decision_function(data), model.labels.labels_of(data))
