"""A training set that is ready for the workers, prepared in memory or in a folder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from p4sgd.host.data import Dataset, FeatureSpace, Scaling
from p4sgd.host.data.identity import DataIdentity
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.data.quantization import full_value
from p4sgd.host.data.scaling import CENTRED, deviation
from p4sgd.host.data.statistics import FloatArray, HeatArray
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast
from p4sgd.host.image import Image, Shard, pad_samples
from p4sgd.host.losses import Loss
from p4sgd.host.precondition import StageTimes, Whitening, fold_weights
from p4sgd.host.training.class_weights import hardware_labels
from p4sgd.host.training.dealing.columns import Dealt
from p4sgd.host.training.hardware_features import HardwareMap
from p4sgd.host.training.model_file import Model
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.rate import choose_penalties, choose_rate
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IMPORTANCE, WEIGHT, EngineWeights, WeightArray
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim.sparse.data_parallel import SampleRanks


@dataclass(frozen=True, eq=False)
class Placement:
    """The workers that a training set is for: their units, a folder for images that are made (``None`` keeps them in
    memory), whether they exchange packets, and the ranks that divide the samples of the only worker, a sparse one, if
    any do."""

    shards: Sequence[Shard]
    directory: Path | None = None
    network: bool = False
    sample_ranks: SampleRanks | None = None


@dataclass(frozen=True, eq=False)
class Targets:
    """Labels and weights of the samples.

    Parameters
    ----------
    coding, labels
        Meaning of the labels, and those of the training samples, as `LabelCoding.labels_of` gives them.
    weights, validation_weights
        Weights of training and held-out samples, those of a class included, relative to the largest: float64; ``None``
        if all weigh the same.
    weigh_row
        If they weigh something else for each row of the model: both for a row, and `Prepared.mean_square` with these.
    """

    coding: LabelCoding | TargetCoding
    labels: FloatArray
    weights: FloatArray | None = None
    validation_weights: FloatArray | None = None
    weigh_row: Callable[[int], tuple[FloatArray | None, FloatArray | None, float]] | None = None


@dataclass(frozen=True, eq=False)
class Heat:
    """Number of values of sparse data that are not 0: in all, and by column, counted when they are asked for, because
    few runs need them (`p4sgd.host.data.Scaling.heat`)."""

    total: int
    count: Callable[[], HeatArray]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A training set, ready for the workers.

    Parameters
    ----------
    train
        The samples at full precision, in the order of the images; ``None`` if they are not available.
    validation
        The held-out samples, if any.
    scaling
        Without heat: other samples may be prepared alike.
    map
        Linear map of raw features to what the hardware reads.
    images
        The images of this process's workers, with the labels of the first row of the model.
    dealt
        The units of all workers, and how that was chosen.
    mean_square
        Mean squared norm of a sample's scaled features, bias included.
    means
        Returns the mean over the samples of what the hardware reads, without rounding, as ``map.offset``: float64;
        ``None`` if ``train`` is there, the intercept is fitted to it, and no other samples are measured.
    heat
        If the data are sparse.
    whitening_times
        Times of the whitening by ranks that planned it.
    """

    name: str
    space: FeatureSpace
    train: Dataset | None
    validation: Dataset | None
    targets: Targets
    features: FeatureFormat
    scaling: Scaling | Whitening
    map: HardwareMap
    images: Sequence[Image]
    dealt: Dealt
    mean_square: float
    means: Callable[[], FloatArray] | None = None
    remarks: tuple[str, ...] = ()
    communicator: Communicator = SINGLE_PROCESS
    heat: Heat | None = None
    whitening_times: StageTimes | None = None

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(self.targets.labels)

    @property
    def shards(self) -> Sequence[Shard]:
        """The units of all workers."""
        return self.dealt.shards

    @property
    def unit(self) -> int:
        """Features of a unit."""
        return self.shards[0].unit

    @property
    def weighted(self) -> bool:
        """Whether the hardware has weights of the samples."""
        return self.images[0].importances is not None

    @property
    def mean_weight(self) -> float:
        """Mean weight of the training samples as the hardware has it: by so much larger its rate is per sample."""
        own = self.images[0].importances
        return 1.0 if own is None else float(IMPORTANCE.to_real(own[: self.samples].astype(np.int64)).mean())

    @property
    def width(self) -> int:
        """Features of a sample; if the data are sparse, those that are not 0, on average and rounded up."""
        return self.space.count if self.heat is None else max(1, -(-self.heat.total // self.samples))

    @property
    def penalty_unit(self) -> float:
        """Factor of a penalty for a weight of 1: the coefficient of a raw feature with the scaling ``none``, of one
        with a deviation of 1 with those that centre, and of a scaled one otherwise."""
        if self.scaling.kind == "none" and self.map.slope[0]:
            return float(self.map.slope[0])
        form = self.features
        one = full_value(form.stored, form.signed)
        return one * deviation(form.stored, form.signed) if self.scaling.kind in CENTRED else one

    def penalties(self, options: TrainingOptions) -> tuple[float, float]:
        """Strengths of the L2 and L1 penalties of the hardware's weights."""
        unit = self.penalty_unit  # its square may be infinite
        l2, l1 = options.penalties
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
        """Settings of a run with a learning rate, its actual rate, and remarks on penalties; ``alone`` as for a single
        worker with all columns. Raises `UserError` as `choose_rate` and `choose_penalties`."""
        rate = choose_rate(learning_rate, batch * self.mean_weight, self.features)
        penalties = choose_penalties(rate.actual, *self.penalties(options))
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
        return settings, rate.actual, penalties.remarks

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
        """Deal the job's weights, int32 (features,), to its workers."""
        layouts = [shard.layout(BANKS, 1) for shard in self.shards]
        return [
            layout.scatter(layout.pad(shard.take(weights))) for shard, layout in zip(self.shards, layouts, strict=True)
        ]

    def row(self, row: int, options: TrainingOptions) -> "Prepared":
        """For one row of the model: with its labels alone, also in the images, for a run of these options."""
        targets, square = self.targets, self.mean_square
        if len(targets.coding.rows) == 1:
            return self
        coding, labels = targets.coding.rows[row], targets.coding.of_row(targets.labels, row)
        weights, held_out = targets.weights, targets.validation_weights
        if targets.weigh_row is not None:
            weights, held_out, square = targets.weigh_row(row)
        loss, samples = options.loss_for(coding.scale, self.name), self.images[0].layout.samples
        integers, rounded = broadcast(self.communicator, hardware_labels(loss, coding, labels, weights, self.name))
        padded = pad_samples(integers, samples)
        importances = None if rounded is None else pad_samples(rounded, samples)
        images = [replace(image, labels=padded, importances=importances) for image in self.images]
        return replace(self, targets=Targets(coding, labels, weights, held_out), images=images, mean_square=square)

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


class PreparedData(Protocol):
    """A training set that was prepared in advance, such as a folder of `p4sgd.host.streaming`."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def samples(self) -> int:
        """Number of samples, without those held out."""

    @property
    def space(self) -> FeatureSpace:
        """Its features."""

    @property
    def identity(self) -> DataIdentity:
        """Its identity, for checkpoints."""

    @property
    def weighted(self) -> bool:
        """Whether its samples have weights."""

    @property
    def communicator(self) -> Communicator:
        """The processes that train together."""

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
