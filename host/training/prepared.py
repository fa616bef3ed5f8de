"""A training set that is ready for the workers, prepared in memory or in a folder."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from p4sgd.host.data import Dataset, FeatureSpace, Scaling
from p4sgd.host.data.identity import DataIdentity
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.data.quantization import full_value
from p4sgd.host.data.sample_numbers import average, importances, relative
from p4sgd.host.data.scaling import CENTRED, deviation
from p4sgd.host.data.statistics import FloatArray, HeatArray
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast
from p4sgd.host.image import Image, Shard, pad_samples
from p4sgd.host.losses import Loss, Task
from p4sgd.host.precondition import Whitening, fold_weights
from p4sgd.host.training.dealing.split import Dealt
from p4sgd.host.training.hardware_features import HardwareMap, hardware_means, mean_square
from p4sgd.host.training.model_file import Model
from p4sgd.host.training.offsets import centred
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.rate import choose_penalties, choose_rate
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IMPORTANCE, LABEL, SHRINK, WEIGHT, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim.sparse.data_parallel import SampleRanks

if TYPE_CHECKING:
    from p4sgd.host.precondition.stage import StageTimes


@dataclass(frozen=True, eq=False)
class Placement:
    """The workers that a training set is for: their units, a folder for new images (``None`` keeps them in memory),
    whether they exchange packets, and the ranks that divide the samples of the only worker, a sparse one, if any do."""

    shards: Sequence[Shard]
    directory: Path | None = None
    network: bool = False
    sample_ranks: SampleRanks | None = None


class Terms(NamedTuple):
    """Samples as a loss has them: ``y``; ``weights`` relative to the largest, ``None`` if all are equal; and ``shift``,
    which is added to what the hardware computes to make z, if anything is. All are float64 (samples,)."""

    y: FloatArray
    weights: FloatArray | None
    shift: FloatArray | None = None

    def z(self, activations: FloatArray) -> FloatArray:
        return activations if self.shift is None else activations + self.shift

    def of(self, which: slice) -> "Terms":
        """Those of some samples, without weights if these are all 0."""
        y, weights, shift = (None if each is None else each[which] for each in self)
        assert y is not None
        return Terms(y, weights if weights is not None and weights.any() else None, shift)


@dataclass(frozen=True, eq=False)
class Targets:
    """Labels of the training samples, as `LabelCoding.labels_of` gives them, and weights of training and of held-out
    samples, those of a class included, relative to the largest: float64, ``None`` if all weigh the same. ``weigh_row``
    gives both for a row of the model, if each has its own. ``offsets`` are those of training samples, if they have any.
    ``remarks`` are about weights of classes.
    """

    coding: LabelCoding | TargetCoding
    labels: FloatArray
    weights: FloatArray | None = None
    validation_weights: FloatArray | None = None
    weigh_row: Callable[[int], tuple[FloatArray | None, FloatArray | None]] | None = None
    offsets: FloatArray | None = None
    remarks: tuple[str, ...] = ()

    @property
    def rarer_share(self) -> float:
        """Part of the samples, those of weight 0 aside, that are of the rarer of two classes; 1/2 if there are not two.
        Like the statistics of columns it counts samples, whatever they weigh."""
        if len(self.coding.rows) > 1 or self.coding.task is not Task.CLASSIFICATION:
            return 0.5
        labels, (coding,) = self.coding.of_row(self.labels, 0), self.coding.rows
        counted = labels if self.weights is None else labels[self.weights > 0]
        share = np.count_nonzero(counted == coding.classes[1]) / counted.size
        return min(share, 1 - share)

    def of_row(self, row: int) -> "Targets":
        weights = (self.weights, self.validation_weights) if self.weigh_row is None else self.weigh_row(row)
        labels = self.coding.of_row(self.labels, row)
        return Targets(self.coding.rows[row], labels, *weights, offsets=self.offsets)

    def loss(self, options: TrainingOptions, name: str) -> Loss:
        """The loss of a single row, in the form that the hardware has."""
        loss = options.loss_for(self.coding.rows[0].scale, name)
        return loss if self.offsets is None else loss.with_offsets

    def terms(self, loss: Loss) -> Terms:
        """The samples of a single row as the loss has them."""
        (coding,), offsets = self.coding.rows, self.offsets
        if offsets is None:
            return Terms(coding.real(self.labels), self.weights)
        labels, weights = loss.without(self.labels, self.weights, offsets)
        shift = offsets if coding.task is Task.CLASSIFICATION else None
        return Terms(coding.real(labels), relative(weights, "training samples"), shift)

    def deviance(self, options: TrainingOptions, name: str) -> float:
        """Of a single row and a loss of e^z, the mean deviance of the targets, as they are scaled, from their mean, or
        with exposures of rates from theirs; of other losses 1."""
        loss = self.loss(options, name)
        if loss.power is None:
            return 1.0
        y, weights, _ = self.terms(loss)
        mean = average(np.exp(y) if loss.task is Task.POSITIVE else y, weights)
        return 2 * average(loss.value(np.full_like(y, math.log(mean)), y), weights) if mean else 0.0  # all are 0

    def integers(self, options: TrainingOptions, name: str) -> tuple[IntArray, IntArray | None]:
        """Of a single row, `LABEL` integers, and `IMPORTANCE` integers by which residuals are multiplied: the weights
        times those of the loss, ``None`` if all are equal. Both are int64 (samples,)."""
        loss = self.loss(options, name)
        y, weights, shift = self.terms(loss)
        if shift is not None and options.bias:
            shift = centred(shift, weights)
        labels = LABEL.from_real(loss.label(y, shift))
        if loss.weighs:
            own = loss.importance(y)
            weights = relative(own if weights is None else own * weights, name)
        rounded = importances(weights)
        if rounded is not None:  # no label of a sample that does not count should saturate its residual
            labels = np.where(rounded > 0, labels, 0)
        return labels, rounded


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """A training set, ready for the workers, in memory or in a folder.

    Parameters
    ----------
    train, validation
        The samples at full precision, in the order of the images, if they are available; those held out, if any.
    scaling
        Without heat: other samples may be prepared alike.
    images
        Those of this process's workers, with the labels of the first row of the model.
    mean_square, squares
        Mean squared norm of a sample's scaled features, bias included; `square_norms` of the first samples, if rows
        weigh them by their own weights.
    deviance
        `Targets.deviance` of the first row.
    sums
        Gives `feature_sums` of the training samples, of some columns; ``None`` if ``train`` is there, the intercept is
        fitted to it, and no other samples are measured.
    heat, nonzeros
        Of sparse data, counts the values that are not 0 by column (`p4sgd.host.data.Scaling`), and how many there are.
    whitening_times
        Times of the whitening by ranks that planned it.
    """

    name: str
    space: FeatureSpace
    train: Dataset | None = None
    validation: Dataset | None = None
    targets: Targets
    features: FeatureFormat
    scaling: Scaling | Whitening
    map: HardwareMap
    images: Sequence[Image]
    dealt: Dealt
    mean_square: float
    deviance: float
    squares: FloatArray | None = None
    sums: Callable[[slice], IntArray] | None = None
    remarks: tuple[str, ...] = ()
    communicator: Communicator = SINGLE_PROCESS
    heat: Callable[[], HeatArray] | None = None
    nonzeros: int = 0
    whitening_times: "StageTimes | None" = None

    @property
    def samples(self) -> int:
        return len(self.targets.labels)

    @property
    def shards(self) -> Sequence[Shard]:
        return self.dealt.shards

    @property
    def unit(self) -> int:
        return self.shards[0].unit

    @property
    def weighted(self) -> bool:
        return self.images[0].importances is not None

    @cached_property
    def mean_weight(self) -> float:
        """Mean weight of the training samples as the hardware has it: by so much larger its rate is per sample."""
        own = self.images[0].importances
        return 1.0 if own is None else float(IMPORTANCE.to_real(own[: self.samples].astype(np.int64)).mean())

    @property
    def width(self) -> int:
        """Features of a sample; if the data are sparse, those that are not 0, on average and rounded up."""
        return self.space.count if self.heat is None else max(1, -(-self.nonzeros // self.samples))

    @cached_property
    def penalty_unit(self) -> float:
        """Factor of a penalty for a weight of 1: the coefficient of a raw feature with the scaling ``none``, of one
        with a deviation of 1 with those that centre, and of a scaled one otherwise."""
        form = self.features
        one = full_value(form.stored, form.signed)
        if isinstance(self.scaling, Scaling) and self.scaling.common:
            return one * self.scaling.common
        return one * deviation(form.stored, form.signed) if self.scaling.kind in CENTRED else one

    def strengths(self, options: TrainingOptions) -> tuple[float, float]:
        """Strengths of the L2 and the L1 penalty in the user's terms.

        If the data decide, that of L2 is 1 / samples, like C = 1 of scikit-learn after its StandardScaler, or on raw
        features (scaling ``none``), of losses of e^z times the deviance, which grows with the noise. Columns that are
        scaled by extremes, which a single value may stretch, count as if their values had a mean square of 1, unless
        there are numbers that are centred, and raw ones below 1/16 as if the largest were about that.
        """
        l2, l1 = options.penalties
        if l2 is not None:
            return l2, l1
        weights, kind, size = self.targets.weights, self.scaling.kind, 1.0
        if kind == "none":
            size = min(1.0, 16 / self.penalty_unit)
        elif isinstance(self.scaling, Scaling) and kind not in CENTRED and not self.scaling.filled.size:
            size = math.sqrt(max(0.0, self.mean_square - options.bias) / self.width)
        samples = max(1, self.samples if weights is None else int(np.count_nonzero(weights)))
        return self.deviance * size * size / samples, l1

    def penalties(self, options: TrainingOptions) -> tuple[float, float]:
        """`strengths` for the weights of the hardware."""
        unit = self.penalty_unit  # its square may be infinite
        l2, l1 = self.strengths(options)
        return l2 * unit * unit if l2 else 0.0, l1 * unit if l1 else 0.0

    def settings(
        self,
        options: TrainingOptions,
        loss: Loss,
        learning_rate: float,
        batch: int,
        mini_batches: int,
        *,
        alone: bool = False,
    ) -> tuple[RunSettings, float, tuple[str, ...]]:
        """Settings of a run, its actual rate, and remarks on penalties; ``alone`` as for a single worker with all
        columns. Raises `UserError` as `choose_rate` and `choose_penalties`."""
        rate = choose_rate(learning_rate, batch * self.mean_weight, self.features)
        (l2, l1), chosen = self.penalties(options), options.penalties[0] is not None
        if not chosen:  # nothing that nobody has chosen is too large
            l2 = min(l2, float(SHRINK.to_real(SHRINK.maximum)) / rate.actual)
        penalties = choose_penalties(rate.actual, l2, l1)
        settings = RunSettings(
            features=self.features,
            chunks=1 if alone else max(image.layout.chunks for image in self.images),
            micro_batches=batch // BANKS,
            mini_batches=mini_batches,
            label_mode=loss.label_mode,
            rate_mantissa=rate.mantissa,
            rate_exponent=rate.exponent,
            shrink=penalties.shrink,
            threshold=penalties.threshold,
            workers=1 if alone else len(self.shards),
            unit=self.unit,
            stale=bool(options.staleness),
            weighted=self.weighted,
        )
        return settings, rate.actual, penalties.remarks if chosen else ()

    def penalised(self, weights: Sequence[EngineWeights]) -> Iterator[WeightArray]:
        """All weights of the workers but that of the bias, in parts; those of padding are 0."""
        last = self.shards[0].total - 1
        for shard, engines in zip(self.shards, weights, strict=True):
            layout, exempt = shard.layout(BANKS, 1), None
            if last >= self.space.count and last // shard.unit in shard.units[-1:]:
                exempt = layout.place(layout.features - 1)
            for engine, values in enumerate(engines):
                if exempt is not None and engine == exempt[0]:
                    bias = exempt[1] * layout.config.lanes + exempt[2]
                    yield from (values[:bias], values[bias + 1 :])
                else:
                    yield values

    def split(self, weights: WeightArray) -> list[EngineWeights]:
        layouts = [shard.layout(BANKS, 1) for shard in self.shards]
        return [
            layout.scatter(layout.pad(shard.take(weights))) for shard, layout in zip(self.shards, layouts, strict=True)
        ]

    def row(self, row: int, options: TrainingOptions) -> "Prepared":
        """For one row of the model: with its labels alone, also in the images, for a run of these options."""
        if len(self.targets.coding.rows) == 1:
            return self
        targets, samples, square = self.targets.of_row(row), self.images[0].layout.samples, self.mean_square
        if self.squares is not None:
            square = mean_square(self.squares, bias=options.bias, weights=targets.weights)  # they are classes
        made = *targets.integers(options, self.name), targets.deviance(options, self.name)
        integers, rounded, deviance = broadcast(self.communicator, made)
        padded = pad_samples(integers, samples)
        weights = None if rounded is None else pad_samples(rounded, samples)
        images = [replace(image, labels=padded, importances=weights) for image in self.images]
        return replace(self, targets=targets, images=images, mean_square=square, deviance=deviance)

    def means(self) -> FloatArray:
        """Mean over the samples of what the hardware reads, without rounding, as ``map.offset``; if there are sums."""
        assert self.sums is not None
        return hardware_means(self.sums, self.samples, self.features, self.space.count, self.shards[0].total)

    def fold(self, weights: WeightArray, loss: Loss) -> Model:
        """The model on raw features for `WEIGHT` integers of the hardware, int32 (features,) or (features + 1,)."""
        slope, offset, mixing = self.map
        real = WEIGHT.to_real(weights)
        known, constant = self.space.count, 0.0
        if mixing is not None:
            real[:known], constant = fold_weights(mixing, real[:known])
        # The bits of real @ offset would depend on threads. Most memory is taken here, so sparse data skip the product.
        products = real * offset if offset[:known].any() else real[known:] * offset[known:]
        return Model(
            coefficients=np.multiply(real[:known], slope, out=real[:known]),
            intercept=float(products.sum()) + constant,
            weights=weights,
            slope=slope,
            offset=offset,
            mixing=mixing,
            loss=loss.name,
            loss_parameters=loss.parameters,
            labels=self.targets.coding.rows[0],
            features=self.features,
            space=self.space,
            scaling=self.scaling,
        )


class PreparedData(ABC):
    """A training set that was prepared in advance: a folder of `p4sgd.host.streaming`. Its ``samples`` are those that
    are not held out; ``identity`` is for checkpoints."""

    name: str
    samples: int
    weighted: bool
    space: FeatureSpace
    identity: DataIdentity
    communicator: Communicator

    @abstractmethod
    def load(self, options: TrainingOptions, placement: Placement) -> Prepared:
        """The result of `p4sgd.host.training.preparation.prepare`, mostly without the samples; `UserError` if it was
        prepared for other options."""


def join(shards: Sequence[Shard], weights: Sequence[EngineWeights]) -> WeightArray:
    """Undo `Prepared.split` between these shards."""
    joined = np.empty(shards[0].total, np.int32)
    for shard, engines in zip(shards, weights, strict=True):
        layout = shard.layout(BANKS, 1)
        shard.put(layout.unpad(layout.gather(engines)), joined)
    return joined
