"""How good activations are, and what they are measured on.

Activations as the hardware's features give them, without the rounding of activations.

The intercept for full-precision features.

Weights are fitted to features of a few bits. Rounded, and even more so floored (a run at fewer planes than are stored),
features are on average another than the real ones, and through the weights that adds up to a shift of all activations:
on breast cancer at one bit, predictions on full-precision features are right for 51 % of the samples as they are and
for 95 % after the shift is taken out. So the model's intercept is fitted on the training samples: one number, a convex
problem. A model trained without a bias gets no number fitted to the labels; the trainer takes the mean shift out.

If the full-precision samples are not at hand, as with data that were prepared before, the mean shift is taken out by
the means of the features, which are known, and the number is fitted to the activations of the quantised samples.

How good activations are: the loss and what people ask for beside it.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from p4sgd.host.data import Dataset
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.image import Image
from p4sgd.host.losses import Loss, Task, get_loss
from p4sgd.host.losses.labels import LabelCoding
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.model_file import Model
from p4sgd.hw.spec.fixed import WEIGHT, IntArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim import kernels

__all__ = ["evaluate", "fit_intercept", "measure", "quantised_activations"]


def quantised_activations(
    images: Sequence[Image],
    weights: Sequence[IntArray],
    features: FeatureFormat,
    samples: int,
    communicator: Communicator = SINGLE_PROCESS,
) -> FloatArray:
    """z of the first ``samples`` samples: the exact dot products of stored features and integer weights.

    Parameters
    ----------
    images
        Those of the workers of this process.
    weights
        For each worker of the job int64 `WEIGHT` integers in the order of its image's features.
    features
        Planes that are read.
    samples
        Samples without padding.
    communicator
        The ranks that have the other images.

    Returns
    -------
    float64 (samples,); rounded only where a dot product exceeds 53 bits.
    """
    total = np.zeros(samples, np.int64)
    for image in images:
        layout, values = image.layout, weights[image.worker]
        padded = np.zeros(layout.padded_features)
        padded[: layout.features] = values
        lines = tuple(image.lines(memory) for memory in range(layout.config.labels_memory))
        dealt = np.ascontiguousarray(layout.deal(padded), np.float64)
        total += kernels.activations(lines, features.precision, features.signed, dealt)[:samples]
    total = communicator.all_sum(total)
    result: FloatArray = np.ldexp(total.astype(np.float64), -(WEIGHT.fraction + features.fraction))
    return result


_TOLERANCE = 2.0**-16
"""Width at which the search ends: the resolution of an activation."""

_FARTHEST = 1024.0
"""Largest shift, the reach of the loss table."""


def fit_intercept(loss: Loss, z: FloatArray, y: FloatArray) -> float:
    """The constant c with the smallest mean loss of z + c; the middle of them if there are many (hinge).

    The mean residual is the derivative and never falls with c, because the losses are convex.

    Parameters
    ----------
    z
        Activations without the constant, float64 (samples,).
    y
        What the loss takes as labels, float64 (samples,).
    """

    @functools.cache  # the two searches begin at the same places
    def slope(c: float) -> float:
        return float(loss.residual(z + c, y).mean())

    return (_first(lambda c: slope(c) >= 0) + _first(lambda c: slope(c) > 0)) / 2


def _first(holds: Callable[[float], bool]) -> float:
    """Where a condition that holds for all large numbers begins to hold, within ±`_FARTHEST`.

    Brackets the place from [-1, 1] outwards and then bisects.
    """
    low, high = -1.0, 1.0
    while not holds(high) and high < _FARTHEST:
        low, high = high, 2 * high
    while holds(low) and low > -_FARTHEST:
        low, high = 2 * low, low
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return (low + high) / 2


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
