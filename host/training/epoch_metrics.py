"""Metrics of the weights of an epoch, and the model made of the best ones.

Training samples are measured as the hardware reads them, held-out samples by a model on raw features (`model_file.py`).

Rounding features to a few bits shifts their means, and through the weights all activations: on breast cancer at one
bit, predictions on full-precision features are right for 51 % of the samples without a correction and for 95 % with
one. Therefore the model's intercept is fitted on the training samples as the model takes them, neither rounded nor
clamped: so predictions add up to the targets with the losses `squared`, `logistic` and `poisson`. If these samples are
not available (prepared data), the mean shift is removed, and the intercept is fitted to the activations of the
quantised samples. Without a bias only the mean shift is removed.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.quantization import full_value
from p4sgd.host.data.sample_numbers import average, relative
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast
from p4sgd.host.errors import option
from p4sgd.host.image import Image
from p4sgd.host.image.contents import directories_of, lists_of
from p4sgd.host.losses import Loss, Task
from p4sgd.host.losses.log_link import LogLink
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.checkpoint import Weights
from p4sgd.host.training.hardware_features import clamped_activations, reading_errors
from p4sgd.host.training.metrics import block_average, measure, named
from p4sgd.host.training.model_file import Model
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Prepared
from p4sgd.hw.spec.fixed import MAX_PRECISION, WEIGHT, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.features import Source, shared_features
from p4sgd.sim.lines import Lines
from p4sgd.sim.model import HALF, Features, sizes_of
from p4sgd.sim.sparse.entries import Entries

Measured: TypeAlias = tuple[Model, dict[str, float], dict[str, tuple[FloatArray, FloatArray]]]
"""A model, its metrics, and by data its activations and the labels: see `p4sgd.host.training.TrainingResult`."""


def decoded_features(images: Sequence[Image], form: FeatureFormat) -> list[tuple[list[int], Features]]:
    """The features of this process's workers: for each kind of image the indices of these images, and their features.
    While they are kept, `quantised_activations` need not decode them."""
    sources = [_source(image, form) for image in images]
    groups = []
    for kind in dict.fromkeys(map(type, sources)):
        indices = [index for index, source in enumerate(sources) if isinstance(source, kind)]
        groups.append((indices, shared_features([sources[index] for index in indices])))
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
    float64 (samples,), rounded only where one exceeds 53 bits. ``images`` are those of this process's workers,
    ``weights``, `WEIGHT` integers, those of each worker of the job."""
    own = [weights[image.shard.worker] for image in images]
    groups = decoded_features(images, features)
    sums = [group.activations([own[index] for index in indices])[:samples] for indices, group in groups]
    z: FloatArray = communicator.all_sum(functools.reduce(operator.add, sums)).astype(np.float64)
    z *= 2.0 ** -(WEIGHT.fraction + features.fraction)  # a fraction of the time of np.ldexp
    return z


_STEPS = 1 << 16
"""Steps of an intercept in a unit: the resolution of an activation."""

_FARTHEST = 1024 * _STEPS
"""Steps from 0 to the largest intercept, the range of the loss table."""

_REACH = _STEPS // 4
"""Steps of the first step of a search that knows no derivative. By experiment on sparse data a quarter of a unit takes
the fewest trials."""

_SECANTS = 6
"""Trials by secants before the interval is halved. For logistic and squared losses 3 or 4 are usually enough."""

_PARTED = 1.05
"""Loss of the model relative to that in training from which there is a remark."""

_APART = 1.25
"""How far the sum of predictions is from that of targets, either way, if there is a remark."""

_FAR = 4.0
"""By how much clamping moves an activation, in deviations of the target or in exponents, if the sample is wild. Where
residuals have no bound one such sample could move the intercept far away from what suits all others."""


@dataclasses.dataclass
class Near:
    """Where the last intercept was, and by what the derivative of the loss rose there in a step: the next one, of
    weights a little different, is found in fewer trials."""

    place: int = 0
    rise: float = 0.0


def fit_intercept(
    loss: Loss,
    z: FloatArray,
    y: FloatArray,
    weights: FloatArray | None = None,
    *,
    limited: bool = True,
    near: Near | None = None,
) -> float:
    """The constant c with the smallest (weighted) mean loss of z + c, of activations and labels as the loss takes them;
    the middle of the interval if there are many (hinge). The mean residual, its derivative, never falls with c. It is
    ``limited`` as in training, or the derivative of the whole loss. ``near``, which saves time, changes no bit."""
    residual = loss.residual if limited else loss.derivative
    if weights is not None:
        counted = weights > 0
        z, y, weights = z[counted], y[counted], weights[counted]

    @functools.cache
    def slope(steps: int) -> float:
        return block_average(lambda z, y: residual(z + steps / _STEPS, y), weights, z, y)

    near = near or Near()
    near.place = least = _first(slope, near.place, near.rise, _REACH, lambda value: value >= 0)
    if slope(least) == 0:  # of many
        return (least + _first(slope, least, 0.0, 1, lambda value: value > 0) - 1) / (2 * _STEPS)
    near.rise = rise = slope(least) - slope(least - 1)  # in a step the derivative is a line but for its jumps
    return (least - (min(max(slope(least) / rise, 0.0), 1.0) if rise > 0 else 0.5)) / _STEPS


def _first(slope: Callable[[int], float], place: int, rise: float, reach: int, holds: Callable[[float], bool]) -> int:
    """The least integer, within ±`_FARTHEST`, from which on a condition on a rising function holds: from ``place`` on
    by secants, the first one by what it rises by in a step, if that is known, and after a few trials, as for
    derivatives that jump, by halves. As long as one end is not known, a step is ``reach`` at most, then twice that."""
    low, high, trials, bounded = -_FARTHEST, _FARTHEST, 0, False
    while True:
        low, high = (low, place) if holds(slope(place)) else (place, high)
        if high - low <= 1:
            return high
        before, bounded = bounded, low > -_FARTHEST and high < _FARTHEST
        trials = trials + 1 if bounded == before else 1
        most, reach = (high - low, reach) if bounded else (reach, 2 * reach)
        if rise > 0 and trials <= _SECANTS:
            wanted = place - math.floor(max(-most, min(most, slope(place) / rise)))
        elif bounded:
            wanted = (low + high) // 2
        else:
            wanted = place - most if high == place else place + most
        last, place = place, min(max(wanted, low + 1), high - 1)
        rise = (slope(place) - slope(last)) / (place - last)


def penalty(sizes: IntArray, l2: float, l1: float) -> float:
    """The penalties of the objective, l2/2·‖w‖² + l1·‖w‖₁, of the `p4sgd.sim.model.sizes_of` of features' weights. The
    bias is left out: the model has a fitted intercept instead."""
    magnitudes, high, low = map(int, sizes)
    return l2 / 2 * (((high << HALF) + low) * WEIGHT.ulp**2) + l1 * (magnitudes * WEIGHT.ulp)


class EpochMetrics:
    """Measures the weights of a row: on training samples, and on those of ``held_out``, with their labels, by name.
    ``refit`` tells whether the intercept is fitted to the training samples.

    ``monitored`` is the metric that chooses the best epoch, ``constant_loss`` the training loss of the best constant
    model; ``weights`` are those of the samples by data, with those of classes except in samples of other data.
    """

    def __init__(
        self,
        prepared: Prepared,
        options: TrainingOptions,
        loss: Loss,
        held_out: Mapping[str, tuple[Dataset, FloatArray]],
        *,
        refit: bool,
    ) -> None:
        self._ranks = prepared.communicator
        self._loss, self._held_out, self._refit = loss, held_out, refit
        targets = prepared.targets
        (self._coding,) = targets.coding.rows
        self.weights = {"train": targets.weights, "validation": targets.validation_weights}
        if "test" in held_out:
            test, _ = held_out["test"]
            self.weights["test"] = relative(test.sample_weights, test.name)
        self._penalties = prepared.penalties(options)
        self.monitored = "objective" if any(self._penalties) else "train_loss"
        if prepared.validation is not None:
            self.monitored = "validation_loss"
        self._offsets = {"train": targets.offsets, **{name: data.offsets for name, (data, _) in held_out.items()}}
        self._terms = terms = targets.terms(loss)
        self._near = Near()
        y, own, shift = terms
        if loss.task is Task.CLASSIFICATION and shift is None:  # samples of a class are alike
            share = average(y > 0, own)
            y, own = np.array([-1.0, 1.0]), np.array([1 - share, share])
        constant = np.zeros_like(y) if shift is None else shift.copy()
        constant += fit_intercept(loss, constant, y, own, near=self._near) if refit else 0.0
        self.constant_loss = broadcast(self._ranks, average(loss.value(constant, y), own))
        self._prepared = prepared
        self._decoded = decoded_features(prepared.images, prepared.features)  # for the search and the emulator, too
        self._rounded: FloatArray | None = None

    def read_from(self, prepared: Prepared) -> None:
        """Go on with the same training set, whose images may be others if workers were lost or have come."""
        if prepared is not self._prepared:
            self._prepared = prepared
            self._decoded = []  # before there are others
            self._decoded = decoded_features(prepared.images, prepared.features)

    def of_epoch(self, weights: Weights, parts: Sequence[EngineWeights]) -> dict[str, float]:
        """Metrics of the weights of all features, which are those of each worker in ``parts``. A model, which may have
        millions of columns, is made only for held-out samples."""
        z = self._activations(parts)
        if self._held_out:
            return self._rounded_model(weights.values, z)[1]
        z += self._correction(z)
        train = {"train": (self._with_offsets(z), self._prepared.targets.labels)}
        return broadcast(self._ranks, self._metrics(train, self._prepared.penalised(parts)))

    def read_rounded(self, weights: Weights) -> None:
        """Do all of `finish` that needs images."""
        prepared = self._prepared
        if self._rounded is None and not (self._refit and prepared.train is not None):
            self._rounded = self._activations(weights.of(prepared.shards) or prepared.split(weights.values))

    def finish(self, weights: WeightArray) -> Measured:
        """The model to keep, measured, after `read_rounded`. Unrounded training samples are used if there are any."""
        train = self._prepared.train
        if train is not None and self._refit:
            model = self._prepared.fold(weights, self._loss)
            z = counted = model.products(train)
            if not self._loss.bounded:
                seen = self._clamped(weights, train)
                counted = np.where(np.abs(z - seen) <= _FAR, z, seen)
            correction = self._correction(counted, limited=False)
            model = dataclasses.replace(model, intercept=model.intercept + correction)
            return self._complete(model, self._with_offsets(z + correction))
        assert self._rounded is not None
        measured = self._rounded_model(weights, self._rounded)
        return measured if train is None else self._complete(measured[0], measured[0].decision_function(train))

    def loss_remark(self, model: Model, seen: float, loss: float) -> str | None:
        """A remark if the loss of a model is clearly above that which was ``seen`` in training, where features are
        clamped and rounded; it names the columns that account for most of what that changes."""
        prepared, scaling = self._prepared, self._prepared.scaling
        train, known = prepared.train, prepared.space.count
        if train is None or not self._refit or loss <= _PARTED * seen:
            return None
        what = f"the loss of the model is more than {_PARTED - 1:.0%} above that in training, where "
        if not isinstance(scaling, Scaling):
            return f"{what}whitened features are rounded and clamped: leave {option('precondition')} out"
        form, weights = prepared.features, WEIGHT.to_real(model.weights[:known]) ** 2
        errors = weights * reading_errors(train.features, scaling, form.stored)
        worst = [each for each in np.argsort(-errors, kind="stable")[:3] if errors[each] > errors.sum() / 10]
        if not errors.any():
            return None
        most = f", most of all {', '.join(map(prepared.space.name, worst))}" if worst else ""
        clamps = scaling.kind == "robust" and not self._loss.bounded  # to others they are noise
        remedy = "choose the scaling auto, or " if clamps else ""
        more = ", or more planes" if form.precision < MAX_PRECISION else ""
        # Without the figure, so that remarks on many classes are the same.
        return f"{what}features are rounded and clamped{most}: {remedy}try their logarithm{more}"

    def sum_remark(self, z: FloatArray, labels: FloatArray) -> str | None:
        """A remark if predictions of the training samples, from activations, add up to something else than targets."""
        if not (isinstance(self._loss, LogLink) and self._refit):
            return None
        weights = self.weights["train"]
        ratio = average(self._coding.predictions(z), weights) / average(labels, weights)
        if 1 / _APART < ratio < _APART:
            return None
        return (
            f"predictions of the training samples add up to {ratio:.3g} times their targets, because those far outside "
            f"get predictions far off: try the logarithm of features that spread over magnitudes"
        )

    def _rounded_model(self, weights: WeightArray, z: FloatArray) -> Measured:
        """The model of these weights, measured by its activations on what training reads, and on held-out samples."""
        prepared = self._prepared
        intercept = correction = self._correction(z)
        if prepared.sums is not None:  # what rounding to the planes that are read adds on average
            products = prepared.means()
            products *= weights  # integers, scaled after the sum: there may be millions
            intercept += float(z.mean()) - float(WEIGHT.to_real(products.sum()))
            del products
        model = prepared.fold(weights, self._loss)
        return self._complete(
            dataclasses.replace(model, intercept=model.intercept + intercept), self._with_offsets(z + correction)
        )

    def _complete(self, model: Model, z: FloatArray) -> Measured:
        """Add activations of held-out samples to those of the training samples, and measure all."""
        activations = {"train": (z, self._prepared.targets.labels)}
        for name, (data, labels) in self._held_out.items():
            activations[name] = model.decision_function(data), labels
        metrics = self._metrics(activations, [model.weights[: self._prepared.space.count]])
        # Processors may round these differently, the rest of the model they do not.
        intercept, metrics = broadcast(self._ranks, (model.intercept, metrics))
        return dataclasses.replace(model, intercept=intercept), metrics, activations

    def _metrics(
        self, activations: dict[str, tuple[FloatArray, FloatArray]], penalised: Iterable[WeightArray]
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, (values, labels) in activations.items():
            how = self.weights[name], self._offsets[name]
            metrics |= named(name, measure(self._loss, self._coding, values, labels, *how))
        if any(self._penalties):
            sizes = sum((sizes_of(part) for part in penalised), np.zeros(3, np.int64))
            metrics["objective"] = metrics["train_loss"] + penalty(sizes, *self._penalties)
        return metrics

    def _activations(self, parts: Sequence[EngineWeights]) -> FloatArray:
        prepared = self._prepared
        return quantised_activations(prepared.images, parts, prepared.features, prepared.samples, self._ranks)

    def _clamped(self, weights: WeightArray, train: Dataset) -> FloatArray:
        prepared = self._prepared
        form, known, real = prepared.features, prepared.space.count, WEIGHT.to_real(weights)
        bias = float((real[known:] * prepared.map.offset[known:]).sum())
        real *= full_value(form.stored, form.signed)
        own = clamped_activations(train.features, prepared.scaling, real[:known])
        return train.in_order(own) + bias

    def _correction(self, z: FloatArray, *, limited: bool = True) -> float:
        """What the intercept lacks by these activations, without offsets; see `fit_intercept`."""
        if not self._refit:
            return 0.0
        y, weights, _ = terms = self._terms
        return fit_intercept(self._loss, terms.z(z), y, weights, limited=limited, near=self._near)

    def _with_offsets(self, z: FloatArray) -> FloatArray:
        offsets = self._offsets["train"]
        return z if offsets is None else z + self._coding.shift(offsets)
