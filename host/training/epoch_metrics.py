"""Metrics of the weights of an epoch, and the model made of the best ones.

Training samples are measured as the hardware reads them, held-out samples by a model on raw features (`model_file.py`).
At the end the intercept of the best model is fitted to the unrounded training samples, clamped as in training, and the
model is measured on them as they are.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from p4sgd.host.data import Dataset
from p4sgd.host.data.quantization import full_value
from p4sgd.host.data.sample_weights import average, relative
from p4sgd.host.distributed.communicator import broadcast
from p4sgd.host.losses import Loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.checkpoint import Weights
from p4sgd.host.training.hardware_features import clamped_activations
from p4sgd.host.training.metrics import decoded_features, fit_intercept, measure, penalty, quantised_activations
from p4sgd.host.training.model_file import Model
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Prepared
from p4sgd.hw.spec.fixed import WEIGHT, EngineWeights, WeightArray

Measured: TypeAlias = tuple[Model, dict[str, float], dict[str, tuple[FloatArray, FloatArray]]]
"""A model, its metrics, and by data its activations and the labels: see `p4sgd.host.training.TrainingResult`."""


def named(name: str, metrics: dict[str, float]) -> dict[str, float]:
    """Metrics with the name of their data before their own."""
    return {f"{name}_{metric}": value for metric, value in metrics.items()}


class EpochMetrics:
    """Measures the weights of a row: on training samples, and on those of ``held_out``, with their labels, by name.
    ``refit`` tells whether the intercept is fitted to the training samples.

    Attributes
    ----------
    monitored : str
        The metric that chooses the best epoch.
    constant_loss : float
        Training loss of the best constant model.
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
        self._weights = {"train": targets.weights, "validation": targets.validation_weights}
        """Weights of samples by data, with those of classes except in samples of other data."""
        if "test" in held_out:
            test, _ = held_out["test"]
            self._weights["test"] = relative(test.sample_weights, test.name)
        self._penalties = prepared.penalties(options)
        self._penalised = any(options.penalties)
        self.monitored = "objective" if self._penalised else "train_loss"
        if prepared.validation is not None:
            self.monitored = "validation_loss"
        self._y = self._coding.real(targets.labels)
        constant = np.zeros_like(self._y)
        constant += self._correction(constant)
        self.constant_loss = broadcast(self._ranks, average(loss.value(constant, self._y), targets.weights))
        self._prepared = prepared
        self._decoded = decoded_features(prepared.images, prepared.features)
        """Kept for the search, the emulator and the evaluation."""
        self._rounded: FloatArray | None = None
        """Activations of the model to keep on the training samples as the hardware reads them, if they are needed."""

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
        train = {"train": (z, self._prepared.targets.labels)}
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
            correction = self._correction(self._unrounded(weights, train))
            model = self._prepared.fold(weights, self._loss)
            model = dataclasses.replace(model, intercept=model.intercept + correction)
            return self._complete(model, model.decision_function(train))
        assert self._rounded is not None
        measured = self._rounded_model(weights, self._rounded)
        return measured if train is None else self._complete(measured[0], measured[0].decision_function(train))

    def _rounded_model(self, weights: WeightArray, z: FloatArray) -> Measured:
        """The model of these weights, measured by its activations on what training reads, and on held-out samples."""
        prepared = self._prepared
        intercept = correction = self._correction(z)
        if prepared.means is not None:  # what rounding to the planes that are read adds on average
            products = prepared.means()
            products *= weights  # integers, scaled after the sum: there may be millions
            intercept += float(z.mean()) - float(WEIGHT.to_real(products.sum()))
            del products
        model = prepared.fold(weights, self._loss)
        return self._complete(dataclasses.replace(model, intercept=model.intercept + intercept), z + correction)

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
            metrics |= named(name, measure(self._loss, self._coding, values, labels, self._weights[name]))
        if self._penalised:
            metrics["objective"] = metrics["train_loss"] + penalty(penalised, *self._penalties)
        return metrics

    def _activations(self, parts: Sequence[EngineWeights]) -> FloatArray:
        """Those of the training samples as the hardware reads them."""
        prepared = self._prepared
        return quantised_activations(prepared.images, parts, prepared.features, prepared.samples, self._ranks)

    def _unrounded(self, weights: WeightArray, train: Dataset) -> FloatArray:
        """Activations of the unrounded training samples, clamped as in training: the loss of a sample that is far
        outside the range may exceed that of all others."""
        prepared = self._prepared
        form, known, real = prepared.features, prepared.space.count, WEIGHT.to_real(weights)
        bias = float((real[known:] * prepared.map.offset[known:]).sum())
        real *= full_value(form.stored, form.signed)
        own = clamped_activations(train.features, prepared.scaling, real[:known])
        return train.gather(train.in_order(own)) + bias

    def _correction(self, z: FloatArray) -> float:
        """What the intercept lacks by these activations: noise in the weight of the bias would hide the progress of
        the others."""
        return fit_intercept(self._loss, z, self._y, self._weights["train"]) if self._refit else 0.0
