"""Activations, the intercept, and metrics of epochs.

Weights are fitted to features of a few bits. Rounding shifts the mean of a feature, and through the weights all
activations: on breast cancer at one bit, predictions on full-precision features are right for 51 % of the samples
without a correction and for 95 % with one. Therefore the model's intercept is fitted on the training samples, clamped
as in training, so that outliers do not count for more than they did there: one number, a convex problem. For a model
without a bias only the mean shift is removed. If the full-precision samples are not available (prepared data), the mean
shift is removed, and the intercept is fitted to the activations of the quantised samples.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.sample_weights import average
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.image import Image
from p4sgd.host.image.entries import directories_of, lists_of
from p4sgd.host.losses import Loss, Task, get_loss
from p4sgd.host.losses.log_link import LogLink
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.model_file import Model, ModelSet
from p4sgd.hw.spec.fixed import WEIGHT, EngineWeights, WeightArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.dense.model import Lines
from p4sgd.sim.features import Source, shared_features
from p4sgd.sim.model import Features
from p4sgd.sim.sparse.entries import Entries


def decoded_features(images: Sequence[Image], form: FeatureFormat) -> list[tuple[list[int], Features]]:
    """The features of this process's workers: for each kind of image the indices of these images, and their features.
    While they are kept, `quantised_activations` need not decode them."""
    sources = [_source(image, form) for image in images]
    groups = []
    for kind in dict.fromkeys(map(type, sources)):
        places = [place for place, source in enumerate(sources) if isinstance(source, kind)]
        groups.append((places, shared_features([sources[place] for place in places])))
    return groups


def _source(image: Image, form: FeatureFormat) -> Source:
    if image.shard.directory:
        return directories_of(image)
    layout = image.layout
    if not layout.config.sparse:
        return Lines(image.port_lines, form, layout.unit_lanes)  # as the emulator has them
    shape = layout.config.engines, layout.model_bytes // 4
    return Entries(*lists_of(image), form, layout.unit_lanes, shape)


def quantised_activations(
    images: Sequence[Image],
    weights: Sequence[EngineWeights],
    features: FeatureFormat,
    samples: int,
    communicator: Communicator = SINGLE_PROCESS,
) -> FloatArray:
    """z of the first ``samples`` samples as the hardware has them: exact dot products of stored features and weights,
    float64 (samples,), rounded only where one exceeds 53 bits.

    ``images`` are those of this process's workers, the ranks of ``communicator`` have the others; ``weights``, `WEIGHT`
    integers, are those of each worker of the job.
    """
    own = [weights[image.shard.worker] for image in images]
    groups = decoded_features(images, features)
    sums = [group.activations([own[place] for place in places])[:samples] for places, group in groups]
    z: FloatArray = communicator.all_sum(functools.reduce(operator.add, sums)).astype(np.float64)
    z *= 2.0 ** -(WEIGHT.fraction + features.fraction)  # a fraction of the time of np.ldexp
    return z


_STEPS = 1 << 16
"""Places for an intercept in a unit: the resolution of an activation."""

_FARTHEST = 1024 * _STEPS
"""Places from 0 to the largest intercept, the range of the loss table."""


_NEAR = _STEPS // 4
"""Places from 0 to where the search begins. By experiment on sparse data a quarter of a unit takes the fewest steps."""

_BLOCK = 1 << 14
"""Samples or weights that are measured at once: what is allocated for them then stays in the cache."""

_HALF = 32
"""Bits of a square that are added up by themselves, so that sums fit 64 bits."""

_INTERPOLATIONS = 5
"""Steps of false position. For logistic and squared losses 2 to 4 are usually enough."""


def fit_intercept(loss: Loss, z: FloatArray, y: FloatArray, weights: FloatArray | None = None) -> float:
    """The constant c with the smallest (weighted) mean loss of z + c, of activations and labels as the loss takes them;
    the middle of the interval if there are many (hinge).

    The mean residual is the derivative of the mean loss. The losses are convex, so it never falls with c.
    """
    if weights is not None:
        counted = weights > 0
        z, y, weights = z[counted], y[counted], weights[counted]

    @functools.cache
    def slope(place: int) -> float:
        return _average(lambda z, y: loss.residual(z + place / _STEPS, y), weights, z, y)

    least = _first(slope, -_NEAR, _NEAR, lambda value: value >= 0)
    greatest = least
    if slope(least) == 0:  # of many
        greatest = _first(slope, least, least + 1, lambda value: value > 0)
    return (least + greatest - 1) / (2 * _STEPS)


def _first(slope: Callable[[int], float], low: int, high: int, holds: Callable[[float], bool]) -> int:
    """The least place, within ±`_FARTHEST`, from which on a condition on a rising function holds.

    The search widens the interval until it brackets that place, and narrows it by false position with the Illinois rule
    (Dowell and Jarratt, A modified regula falsi method, 1971). If that has not found the place in a few steps, as for
    derivatives that jump, it goes on by halves.
    """
    while not holds(slope(high)) and high < _FARTHEST:
        low, high = high, min(high + 2 * (high - low), _FARTHEST)
    while holds(slope(low)) and low > -_FARTHEST:
        low, high = max(low - 2 * (high - low), -_FARTHEST), low
    below, above, last, steps = slope(low), slope(high), None, 0
    while high - low > 1:
        rise, steps = above - below, steps + 1
        share = -below / rise if rise > 0 and steps <= _INTERPOLATIONS else 0.5
        middle = min(max(low + round((high - low) * share), low + 1), high - 1)
        value = slope(middle)
        upper = holds(value)
        if upper:
            high, above = middle, value
            below /= 2 if last is upper else 1
        else:
            low, below = middle, value
            above /= 2 if last is upper else 1
        last = upper
    return high


def _average(function: Callable[..., npt.NDArray[Any]], weights: FloatArray | None, *arrays: FloatArray) -> float:
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
    loss: Loss, coding: LabelCoding, z: FloatArray, labels: FloatArray, weights: FloatArray | None = None
) -> dict[str, float]:
    """Metrics of activations against labels as `LabelCoding.labels_of` gives them, float64 (samples,); means are
    weighted if samples have weights, not all 0.

    Returns
    -------
    The mean ``loss`` (without penalties; in regression of scaled targets); for classification ``accuracy``, 0 to 1; for
    regression ``mse`` in the square of the target's unit and ``r2``, NaN if all targets are equal; for predictions of
    e^z instead of ``r2`` the mean ``deviance`` in the unit of the target, and ``d2``, which is to it what R² is to mse.
    """
    result = {"loss": _average(lambda z, labels: loss.value(z, coding.real(labels)), weights, z, labels)}
    if coding.task is Task.CLASSIFICATION:
        result["accuracy"] = _average(lambda z, labels: (z > 0) == (coding.real(labels) > 0), weights, z, labels)
    else:
        predicted, centre = coding.predictions(z), average(labels, weights)
        result["mse"] = squares = average((predicted - labels) ** 2, weights)
        counted = labels if weights is None else labels[weights > 0]
        # Of labels that are all the same the mean may be rounded, and differ from them.
        spread = average((labels - centre) ** 2, weights) if counted.min() < counted.max() else 0.0
        if isinstance(loss, LogLink):
            result["deviance"] = deviance = average(loss.deviance(labels, predicted), weights)
            mean = np.full_like(labels, centre)
            known = spread > 0
            result["d2"] = 1 - deviance / average(loss.deviance(labels, mean), weights) if known else float("nan")
        else:
            result["r2"] = 1 - squares / spread if spread > 0 else float("nan")
    return result


def measure_model(
    model: Model | ModelSet, z: FloatArray, labels: FloatArray, weights: FloatArray | None = None
) -> dict[str, float]:
    """Metrics of a model by its activations, float64 (samples,) or (samples, rows), as `measure`.

    Of several rows they are the means over rows; but ``accuracy`` is the part of the samples whose class, or whose
    every target, is predicted."""
    coding = model.labels
    each = [
        measure(
            get_loss(row.loss, row.loss_parameters),
            row.labels,
            z if z.ndim == 1 else np.ascontiguousarray(z[:, place]),
            coding.of_row(labels, place),
            weights,
        )
        for place, row in enumerate(model.rows)
    ]
    if len(each) == 1:
        return each[0]
    result = {name: float(np.mean([metrics[name] for metrics in each])) for name in each[0]}
    if coding.task is Task.CLASSIFICATION:
        right = (coding.predictions(z) == labels).reshape(len(labels), -1).all(axis=1)
        result["accuracy"] = average(right, weights)
    return result


def penalty(weights: Iterable[WeightArray], l2: float, l1: float) -> float:
    """The penalties of the objective, l2/2·‖w‖² + l1·‖w‖₁.

    Weights are `WEIGHT` integers of the features, in parts and in any order: sums of integers are exact. The weight of
    the bias is left out: the model has a fitted intercept instead, which is not penalised."""
    if not (l2 or l1):
        return 0.0
    squares = magnitudes = 0
    for part in weights:
        for first in range(0, part.size, _BLOCK):
            w = part[first : first + _BLOCK].astype(np.int64)
            magnitudes += int(np.abs(w).sum()) if l1 else 0
            if l2:
                w *= w
                squares += (int((w >> _HALF).sum()) << _HALF) + int((w & ((1 << _HALF) - 1)).sum())
    return l2 / 2 * (squares * WEIGHT.ulp**2) + l1 * (magnitudes * WEIGHT.ulp)
