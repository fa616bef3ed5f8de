"""The trained model: one file that predicts in plain float on raw features.

**From integers to coefficients.** A feature x is scaled to a = (x − lowest) · scale and stored as the S-bit integer
q = round(a · steps), with steps = 2^S − 1 unsigned and 2^(S−1) − 1 signed (at least 1). The hardware reads q as the
number q / 2^S (or q / 2^(S−1)), so a weight w sees, but for rounding, the *feature value*

    v = slope · x + offset,   slope = scale · steps / 2^S,   offset = −lowest · slope

and z = Σ w_j · v_j = Σ coefficient_j · x_j + intercept, with coefficient = w · slope and intercept = Σ w · offset +
w_bias · steps / 2^S. The fold makes prediction one product, for sparse rows too, which are never made dense.

**Roundings it leaves out.** The hardware saw q, not a · steps; predictions use the whole precision of x. And a run at
P < S planes reads q *floored* to its first P bits, so it saw features that were lower, by (2^-P − 2^-S) / 2 on average,
and fitted its weights to those. Training makes up for both in the intercept, which it fits anew on full-precision
samples (see `p4sgd.host.training.metrics`). For one thing it does not: one bit of a signed feature is −1 or 0, so the
weights were fitted without positive features.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset, FeatureSpace
from p4sgd.host.data.dataset import Features
from p4sgd.host.errors import UserError
from p4sgd.host.losses import get_loss
from p4sgd.host.losses.labels import LabelCoding
from p4sgd.host.tensor_file import TensorFileKind
from p4sgd.hw.spec.run import FeatureFormat

__all__ = ["FORMAT_VERSION", "Model", "is_model_file", "load_model", "save_model"]


FORMAT_VERSION = 2
"""Changes whenever a reader of the old version would misread the new."""

_KIND = TensorFileKind("p4sgd-model", FORMAT_VERSION, "model file", "the model comes before the data")

_BLOCK_VALUES = 1 << 17
"""Values that are converted to float64 at once: 1 MB, which stays in the cache (10 MB take five times as long)."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model.

    Parameters
    ----------
    coefficients
        float64 (features,): weight of each raw feature.
    intercept
        Constant of the activation.
    weights
        int32 (features,) or (features + 1,) with the bias last: the `WEIGHT` integers that the workers ended with.
    slope, offset
        float64, as ``weights``: feature value of the hardware = slope · raw feature + offset; the bias has slope 0.
    loss
        Name of the loss.
    labels
        What the activation says about labels.
    features
        Planes and sign with which it was trained.
    feature_names, zero_based
        Which features the coefficients are for: see `p4sgd.host.data.FeatureSpace`.
    training
        How it was trained: options, epochs, metrics, versions; plain data.
    """

    coefficients: npt.NDArray[np.float64]
    intercept: float
    weights: npt.NDArray[np.int32]
    slope: npt.NDArray[np.float64]
    offset: npt.NDArray[np.float64]
    loss: str
    labels: LabelCoding
    features: FeatureFormat
    feature_names: tuple[str, ...] = ()
    zero_based: bool | None = None
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def space(self) -> FeatureSpace:
        """The features of the training data, for reading others to match."""
        return FeatureSpace(self.coefficients.size, self.feature_names, self.zero_based)

    def decision_function(self, data: Dataset) -> npt.NDArray[np.float64]:
        """The activation z of every sample: float64 (samples,).

        A sparse data set may have another number of features: those it lacks are zeros, as in its rows, and those the
        model does not know weigh nothing.

        Raises
        ------
        UserError
            If a dense data set has another number of features, or names other features than the training data did.
        """
        known, given = self.coefficients.size, data.feature_count
        features, coefficients = data.features, self.coefficients
        if data.feature_names and self.feature_names and data.feature_names != self.feature_names:
            raise UserError(f"{data.name}: the features are not those that the model was trained on, in that order")
        if given != known:
            if isinstance(features, np.ndarray):
                raise UserError(f"{data.name} has {given} features, the model was trained with {known}")
            coefficients = np.zeros(given)
            coefficients[:known] = self.coefficients[:given]
        return data.in_order(_products(features, coefficients)) + self.intercept

    def predict(self, data: Dataset) -> npt.NDArray[np.float64]:
        """The predicted class, or the target in its own unit, of every sample: float64 (samples,).

        Raises
        ------
        UserError
            As `decision_function`.
        """
        return self.labels.predictions(self.decision_function(data))


def _products(features: Features, coefficients: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The dot product of every sample: float64 (samples,). Its bits do not depend on the samples beside it, as those of
    a BLAS do, so that it does not matter which process has which samples."""
    if not isinstance(features, np.ndarray):
        return np.asarray(features @ coefficients, dtype=np.float64)
    z = np.empty(features.shape[0])
    step = max(1, _BLOCK_VALUES // coefficients.size)  # because the whole matrix may have to be converted
    for first in range(0, z.size, step):
        block = features[first : first + step]
        z[first : first + step] = np.einsum("ij,j->i", block.astype(np.float64, copy=False), coefficients)
    return z


def save_model(model: Model, path: Path) -> None:
    """Write a model file (safetensors). The file appears whole or not at all.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    tensors = {
        "coefficients": model.coefficients,
        "intercept": np.array([model.intercept]),
        "weights": model.weights,
        "slope": model.slope,
        "offset": model.offset,
    }
    form = model.features
    metadata = {
        "loss": json.dumps(model.loss),
        "labels": json.dumps(model.labels.to_json()),
        "features": json.dumps({"stored": form.stored, "precision": form.precision, "signed": form.signed}),
        "feature_names": json.dumps(model.feature_names),
        "zero_based": json.dumps(model.zero_based),
        "training": json.dumps(model.training),
    }
    _KIND.save(path, tensors, metadata)


def is_model_file(path: Path) -> bool:
    """Whether a file is a model file of p4sgd, of whatever version; only its beginning is read.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    return _KIND.is_of(path)


def load_model(path: Path) -> Model:
    """Read a model file.

    Raises
    ------
    UserError
        If it cannot be read, is no model file, is damaged or of another version.
    """
    tensors, metadata = _KIND.load(path)
    try:
        model = Model(
            coefficients=tensors["coefficients"].astype(np.float64, copy=False),
            intercept=tensors["intercept"].item(),
            weights=tensors["weights"].astype(np.int32, copy=False),
            slope=tensors["slope"].astype(np.float64, copy=False),
            offset=tensors["offset"].astype(np.float64, copy=False),
            loss=json.loads(metadata["loss"]),
            labels=LabelCoding.from_json(json.loads(metadata["labels"])),
            features=FeatureFormat(**json.loads(metadata["features"])),
            feature_names=tuple(json.loads(metadata["feature_names"])),
            zero_based=json.loads(metadata["zero_based"]),
            training=json.loads(metadata["training"]),
        )
        _check(model)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(f"{path}: a damaged model file: {error}") from error
    return model


def _check(model: Model) -> None:
    """Raise a `ValueError` if the parts of a model do not go together."""
    features = model.coefficients.size
    shape = model.weights.shape
    if model.coefficients.shape != (features,) or features == 0 or shape not in ((features,), (features + 1,)):
        raise ValueError(f"coefficients of shape {model.coefficients.shape} and weights of shape {shape}")
    if model.slope.shape != shape or model.offset.shape != shape:
        raise ValueError("slope and offset must have the shape of the weights")
    for name, numbers in (("coefficients", model.coefficients), ("slope", model.slope), ("offset", model.offset)):
        if not np.isfinite(numbers).all():
            raise ValueError(f"{name} must be finite")
    if not np.isfinite(model.intercept):
        raise ValueError("the intercept must be finite")
    if get_loss(model.loss).task is not model.labels.task:
        raise ValueError(f"the loss {model.loss} is not for {model.labels.task.value}")
    if model.feature_names and len(model.feature_names) != features:
        raise ValueError(f"{len(model.feature_names)} names for {features} features")
    if model.zero_based not in (None, False, True):
        raise ValueError(f"zero_based is {model.zero_based}")
