"""The trained model and its file, which predicts in floating point on raw features.

**From integers to coefficients.** A feature x is scaled to a = (x − x₀) · scale, with x₀ and scale of its column by the
kind of scaling (`p4sgd.host.data.Scaling`), and stored as the S-bit integer q = round(a · steps), clamped, with steps =
2^S − 1 unsigned and 2^(S−1) − 1 signed (at least 1). The hardware reads q as the number q / 2^S (or q / 2^(S−1)). Apart
from rounding and clamping, a weight w is therefore multiplied by the *feature value*

    v = slope · x + offset,   slope = scale · steps / 2^S,   offset = −x₀ · slope

and z = Σ w_j · v_j = Σ coefficient_j · x_j + intercept, with coefficient = w · slope and intercept = Σ w · offset +
w_bias · b / 2^S, where b is `p4sgd.host.data.scaling.bias_integer` (b / 2^(S−1) if signed). So a prediction is one dot
product, for sparse rows too, which are never made dense.

**Preconditioning.** With --precondition block the scaled features are centred and mixed within blocks of 64 columns
before they are stored. Then offset = −x₀ · slope − middle · steps / 2^S, with the mean of a as middle, and a weight w_r
is multiplied by Σ_k mixing_rk · v_k + mixing_r,64 with k over the columns of the block.

**Rounding.** A run at P < S planes reads q *rounded down* to its first P bits, features that are lower by
(2^-P − 2^-S) / 2 on average. Training corrects what this does to the mean activation by fitting the intercept on
full-precision samples (`p4sgd.host.training.epoch_metrics`), but for one bit of a signed feature, which is −1 or 0.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from p4sgd.host.data import Dataset, FeatureSpace, Scaling
from p4sgd.host.data.encoding import TableEncoding, space_from_json, space_to_json
from p4sgd.host.data.labels import LabelCoding, TargetCoding, coding_from_json
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.sample_numbers import EXPOSURE
from p4sgd.host.data.scaling import KINDS
from p4sgd.host.errors import UserError, on_command_line
from p4sgd.host.losses import LOSSES, Probabilistic, Task, get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.tensor_file import Arrays, FileKind
from p4sgd.host.training.softmax import Softmax
from p4sgd.hw.spec.fixed import WeightArray
from p4sgd.hw.spec.registry import PLUGINS
from p4sgd.hw.spec.run import FeatureFormat

if TYPE_CHECKING:
    from p4sgd.host.precondition import Whitening

FORMAT_VERSION = 3
"""To be changed whenever a reader of the old version would misread a file of the new one."""

_HINT = "p4sgd train --out writes one, which p4sgd predict takes before the data"

_KIND = FileKind("p4sgd-model", FORMAT_VERSION, "model file", _HINT)

_WHITENING = {"matrix": np.int32, "exponent": np.int64, "centre": np.int64}

_BLOCK_VALUES = 1 << 17
"""Values that are converted to float64 at once: 1 MB, which fits the cache (10 MB take five times as long)."""

is_model_file = _KIND.is_of
"""Whether a file is a model file of any version."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model.

    ``coefficients`` of the raw features, which ``space`` describes, and ``slope`` are float64 (features,); ``weights``,
    the workers' `WEIGHT` integers, are int32 (features,) or (features + 1,) with the bias last, as ``offset``, float64;
    ``mixing`` is `p4sgd.host.precondition.Whitening.mixing`, float64 (features, 65), the last column in units of
    feature values. ``features`` is their format in training, ``training`` has facts about that as plain data, and
    ``scaling`` is what training on other samples goes on from; ``None`` in files of p4sgd 0.1.
    """

    coefficients: FloatArray
    intercept: float
    weights: WeightArray
    slope: FloatArray
    offset: FloatArray
    loss: str
    labels: LabelCoding
    features: FeatureFormat
    space: FeatureSpace
    mixing: FloatArray | None = None
    loss_parameters: dict[str, float] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    scaling: "Scaling | Whitening | None" = None

    @property
    def rows(self) -> "tuple[Model, ...]":
        return (self,)

    def linear(self) -> tuple[FloatArray, float]:
        """Coefficients, float64 (features,), and intercept of the activation of a class, or of the prediction in the
        target's unit, or of its logarithm if predictions are e^z."""
        mean, scale = self.labels.mean, self.labels.scale
        if self.labels.task is Task.REGRESSION:
            return scale * self.coefficients, mean + scale * self.intercept
        if self.labels.task is not Task.CLASSIFICATION:
            return self.coefficients, math.log(scale) + self.intercept
        return self.coefficients, self.intercept

    def decision_function(self, data: Dataset) -> FloatArray:
        """The activation z of every sample, with its offset if the model was trained with offsets: float64 (samples,).

        Raises `UserError` as `products`, and if the samples have no such offsets.
        """
        _check_offsets(self, data)
        z = self.products(data)
        return z if data.offsets is None else z + self.labels.shift(data.offsets)

    def products(self, data: Dataset) -> FloatArray:
        """`decision_function` without offsets.

        A sparse data set may have another number of features: missing ones are zeros, and those that the model does not
        know are ignored. Raises `UserError` if a dense one has another number of features, or other names.
        """
        data = _with_features(self.space.encoding, data)
        known, given = self.coefficients.size, data.feature_count
        features, coefficients = data.features, self.coefficients
        if data.space.names and self.space.names and data.space.names != self.space.names:
            raise UserError(f"{data.name}: the features are not those that the model was trained on, in that order")
        if given != known:
            if isinstance(features, np.ndarray):
                raise UserError(f"{data.name} has {given} features, the model was trained with {known}")
            coefficients = np.zeros(given)
            coefficients[:known] = self.coefficients[:given]
        return data.in_order(_products(features, coefficients)) + self.intercept

    def probabilities(self, z: FloatArray) -> FloatArray | None:
        """Probabilities of the classes at each activation, float64 (samples, 2); ``None`` if the loss gives none."""
        loss = get_loss(self.loss, self.loss_parameters)
        if not isinstance(loss, Probabilistic):
            return None
        second = loss.probabilities(z)
        return np.column_stack([1 - second, second])

    def logits(self, z: FloatArray) -> FloatArray:
        """The activations, which predictions and probabilities follow from; see `ModelSet.logits`."""
        return z

    def predictions(self, z: FloatArray) -> FloatArray:
        return self.labels.predictions(z)

    def predict(self, data: Dataset) -> FloatArray:
        """The predicted class, or the target in its original unit, of every sample: float64 (samples,)."""
        return self.labels.predictions(self.decision_function(data))


@dataclass(frozen=True, eq=False)
class ModelSet:
    """A model of several rows, each a model by itself of the same features, for several classes or several targets.

    Its arrays have a row for each, ``labels.rows`` are those of the rows, ``training`` has what is true of all, and the
    rest is that of every row. ``softmax`` makes probabilities of several classes if it was fitted.
    """

    rows: tuple[Model, ...]
    labels: LabelCoding | TargetCoding
    training: dict[str, Any] = field(default_factory=dict)
    softmax: Softmax | None = None

    @property
    def coefficients(self) -> FloatArray:
        return np.stack([row.coefficients for row in self.rows])

    @property
    def intercept(self) -> FloatArray:
        return np.array([row.intercept for row in self.rows])

    @property
    def weights(self) -> WeightArray:
        return np.stack([row.weights for row in self.rows])

    @property
    def loss(self) -> str:
        return self.rows[0].loss

    @property
    def features(self) -> FeatureFormat:
        return self.rows[0].features

    @property
    def scaling(self) -> "Scaling | Whitening | None":
        return self.rows[0].scaling

    @property
    def space(self) -> FeatureSpace:
        return self.rows[0].space

    def linear(self) -> tuple[FloatArray, FloatArray]:
        """`Model.linear` of all rows, float64 (rows, features) and (rows,); of classes with a softmax, of `logits`."""
        coefficients, intercepts = zip(*(row.linear() for row in self.rows), strict=True)
        factors = np.array([1.0 if self.softmax is None else self.softmax.factors])
        return factors.T * np.stack(coefficients), self.logits(np.array(intercepts))

    def decision_function(self, data: Dataset) -> FloatArray:
        """`Model.decision_function` of all rows: float64 (samples, rows)."""
        data = _with_features(self.space.encoding, data)
        return np.column_stack([row.decision_function(data) for row in self.rows])

    def probabilities(self, z: FloatArray) -> FloatArray | None:
        """Probabilities of the classes, float64 (samples, rows); ``None`` if the loss gives none.

        They are the softmax of `logits` if one was fitted. Otherwise those of each class against the rest are divided
        by their sum; where all are 0, classes are equally probable. Of several targets they are those of the second
        class of each.
        """
        if self.softmax is not None:
            return self.softmax.probabilities(z)
        pairs = [row.probabilities(z[:, column]) for column, row in enumerate(self.rows)]
        columns = [pair[:, 1] for pair in pairs if pair is not None]
        if not columns:
            return None
        each = np.column_stack(columns)
        if isinstance(self.labels, TargetCoding):
            return each
        sums = each.sum(axis=1, keepdims=True)
        return np.where(sums > 0, each / np.where(sums > 0, sums, 1.0), 1 / len(columns))

    def logits(self, z: FloatArray) -> FloatArray:
        """What is compared to predict a class, of activations, both float64 (samples, rows); the same without a
        softmax."""
        return z if self.softmax is None else self.softmax.logits(z)

    def predictions(self, z: FloatArray) -> FloatArray:
        return self.labels.predictions(self.logits(z))

    def predict(self, data: Dataset) -> FloatArray:
        """The predictions of `LabelCoding.predictions` for every sample; see `Model.predict`."""
        return self.predictions(self.decision_function(data))


def _with_features(encoding: TableEncoding | None, data: Dataset) -> Dataset:
    """The data, with the features that a model has made of the columns of a table, if they are columns still."""
    return data if encoding is None or data.table is None else data.encoded(encoding)


def _check_offsets(model: Model, data: Dataset) -> None:
    trained, given = model.space.offset, data.offset_kind
    if given is not None and trained is None:
        raise UserError(f"{data.name}: the model was trained without {given}s: leave them out")
    if trained is not None and given is None:
        what = on_command_line(f"--{trained}-column names its column, if it is a table", f"give {trained}")
        raise UserError(f"{data.name}: the model was trained with an {trained} of every sample: {what}")
    if given == EXPOSURE and model.labels.task in (Task.CLASSIFICATION, Task.REGRESSION):
        raise UserError(f"{data.name}: exposures are for predictions of e^z: give an offset")


def _products(features: Features, coefficients: FloatArray) -> FloatArray:
    """The dot product of every sample with the coefficients: float64 (samples,). Unlike with BLAS, its bits do not
    depend on the samples beside it, and so not on their division among processes."""
    if not isinstance(features, np.ndarray):
        return np.asarray(features @ coefficients, dtype=np.float64)
    z = np.empty(features.shape[0])
    step = max(1, _BLOCK_VALUES // coefficients.size)  # in blocks, because each may have to be converted
    for first in range(0, z.size, step):
        block = features[first : first + step]
        z[first : first + step] = np.einsum("ij,j->i", np.ascontiguousarray(block, np.float64), coefficients)
    return z


@dataclass(frozen=True)
class _ScalingFacts:
    kind: str
    signed: bool
    keeps_zeros: bool
    common: float | None = None  # which files of earlier versions lack


def save_model(model: Model | ModelSet, path: Path) -> None:
    """Write a model file (`p4sgd.host.tensor_file`), whole or not at all; `UserError` if it cannot be written.

    That of a `ModelSet` has coefficients, intercept and weights of all rows, and ``training`` has ``rows``. Of a
    scaling, which is kept to the bit, columns that are all the same are one number.
    """
    first, fitted = model.rows[0], model.scaling
    arrays: Arrays = {
        "coefficients": model.coefficients,
        "intercept": np.atleast_1d(model.intercept),
        "weights": model.weights,
        "slope": np.append(first.slope, np.zeros(first.offset.size - first.slope.size)),  # of the bias it is 0
        "offset": first.offset,
    }
    if first.mixing is not None:
        arrays["mixing"] = first.mixing
    facts = None
    if fitted is not None:
        grid = fitted if isinstance(fitted, Scaling) else fitted.scaling
        for name, values in (("offset", grid.offset), ("scale", grid.scale)):
            arrays[f"scaling_{name}"] = values[:1] if (values == values[0]).all() else values
        facts = _ScalingFacts(grid.kind, fitted.signed, grid.heat is not None, grid.common)
        if grid is not fitted:
            arrays |= {f"whitening_{name}": getattr(fitted, name) for name in _WHITENING}
    training, more = model.training, dict[str, Any]()
    parameters: Any = first.loss_parameters
    if isinstance(model, ModelSet):
        own = [{key: row.training[key] for key in row.training if key != "labels"} for row in model.rows]
        rows = [{key: each[key] for key in each if key not in training or training[key] != each[key]} for each in own]
        training = training | {"rows": rows}
        parameters = [row.loss_parameters for row in model.rows]
        if model.softmax is not None:
            more["softmax"] = vars(model.softmax)
    header = {
        "loss": model.loss,
        "loss_source": LOSSES.sources.get(model.loss),
        "loss_parameters": parameters,
        "labels": model.labels.to_json(),
        "features": vars(model.features),
        "space": space_to_json(model.space),
        "scaling": None if facts is None else vars(facts),
        "training": training,
        **more,
    }
    _KIND.save(path, arrays, header)


def load_model(path: Path) -> Model | ModelSet:
    """Read a model file; `UserError` if it cannot be read, is no model file, is damaged, or is of another version."""
    arrays, header = _KIND.load(path)
    if header.get("loss_source") and header.get("loss") not in LOSSES:
        raise UserError(
            f"{path}: its loss {header['loss']} is of the {header['loss_source']}, which is not here: install the "
            f"package, or name the file in {PLUGINS}{LOSSES.trouble}"
        )
    with _KIND.decoding(path):
        labels, training = coding_from_json(header["labels"]), msgspec.convert(header["training"], dict[str, Any])
        rows = _rows(arrays, header, labels, training)
        softmax = None if header.get("softmax") is None else msgspec.convert(header["softmax"], Softmax)
        if softmax is not None and len(softmax.addends) != len(rows):
            raise ValueError(f"{len(softmax.addends)} addends of a softmax for {len(rows)} classes")
    return ModelSet(rows, labels, training, softmax) if len(rows) > 1 else rows[0]


def _numbers(arrays: Arrays, name: str, *shape: int) -> FloatArray:
    """An array of finite float64 of a shape."""
    values = arrays[name].astype(np.float64, copy=False)
    if values.shape != shape:
        raise ValueError(f"{name} of shape {values.shape}, not {shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite")
    return values


def _rows(
    arrays: Arrays, header: dict[str, Any], labels: LabelCoding | TargetCoding, training: dict[str, Any]
) -> tuple[Model, ...]:
    """The rows of a model; takes what is their own out of the facts about the training."""
    space, weights, count = space_from_json(header["space"]), arrays["weights"], len(labels.rows)
    features, width, each = space.count, weights.shape[-1], (count,) if count > 1 else ()
    if not 0 < features <= width <= features + 1 or weights.shape != (*each, width):
        raise ValueError(f"weights of shape {weights.shape} for {features} features")
    if (
        (space.names and len(space.names) != features)
        or space.zero_based not in (None, False, True)
        or (space.hash_bits is not None and features != 1 << space.hash_bits)
        or (space.encoding is not None and space.encoding.names != space.names)
    ):
        raise ValueError(f"the description of the features contradicts itself or the {features} coefficients")
    facts, parameters = [training], header["loss_parameters"]
    if each:
        own = training.pop("rows")
        facts = [training | own[row] | {"labels": coding.to_json()} for row, coding in enumerate(labels.rows)]
    shared: dict[str, Any] = {
        "slope": _numbers(arrays, "slope", width)[:features],
        "offset": _numbers(arrays, "offset", width),
        "loss": header["loss"],
        "features": msgspec.convert(header["features"], FeatureFormat),
        "space": space,
        "scaling": _scaling(arrays, header.get("scaling"), features),
    }
    if "mixing" in arrays:
        from p4sgd.host.precondition import BLOCK

        shared["mixing"] = _numbers(arrays, "mixing", features, BLOCK + 1)
    coefficients = _numbers(arrays, "coefficients", *each, features).reshape(count, features)
    intercept = _numbers(arrays, "intercept", count).tolist()
    weights = weights.astype(np.int32, copy=False).reshape(count, width)
    models = tuple(
        Model(
            coefficients=coefficients[row],
            intercept=intercept[row],
            weights=weights[row],
            labels=coding,
            loss_parameters=dict(parameters[row] if each else parameters),
            training=facts[row],
            **shared,
        )
        for row, coding in enumerate(labels.rows)
    )
    for row in models:
        if get_loss(row.loss, row.loss_parameters).task is not row.labels.task:
            raise ValueError(f"the loss {row.loss} is not for {row.labels.task.value}")
    return models


def _scaling(arrays: Arrays, header: Any, features: int) -> "Scaling | Whitening | None":
    """The scaling that `save_model` has written; its heat is not known."""
    if header is None:
        return None
    facts = msgspec.convert(header, _ScalingFacts)
    if facts.kind not in KINDS:
        raise ValueError(f"there is no scaling {facts.kind}")
    offset, scale = (
        np.broadcast_to(_numbers(arrays, name, *arrays[name].shape), features)
        for name in ("scaling_offset", "scaling_scale")
    )
    if "whitening_matrix" not in arrays:
        heat = np.broadcast_to(np.int32(0), features) if facts.keeps_zeros else None
        alike = float(scale[0]) if facts.kind == "none" else 0.0
        common = alike if facts.common is None else facts.common
        return Scaling(facts.kind, offset, scale, facts.signed, heat=heat, common=common)
    from p4sgd.host.precondition import BLOCK, Whitening

    matrix, exponent, centre = (arrays[f"whitening_{name}"].astype(kind) for name, kind in _WHITENING.items())
    if (matrix.shape, exponent.shape, centre.shape) != ((features, BLOCK), (features,), (features,)):
        raise ValueError(f"a whitening of shape {matrix.shape} for {features} features")
    return Whitening(Scaling(facts.kind, offset, scale, signed=True), centre, matrix, exponent, facts.signed)
