"""Preparation of a data set in memory: the workers' memory images, and the way from weights back to a model.

A data set larger than memory is prepared by `p4sgd.host.streaming`, block by block.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset, FeatureSpace, Scaling
from p4sgd.host.data.dataset import Features
from p4sgd.host.data.encoding import encode
from p4sgd.host.data.identity import DataIdentity
from p4sgd.host.data.labels import LabelCoding, TargetCoding, fit_coding
from p4sgd.host.data.order import shuffle, split
from p4sgd.host.data.quantization import feature_values, full_value
from p4sgd.host.data.scaling import CENTRED, bias_integer, deviation
from p4sgd.host.data.statistics import HeatArray, quantile_rows
from p4sgd.host.data.weights import average
from p4sgd.host.devices.session import bank_bytes
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast
from p4sgd.host.errors import UserError
from p4sgd.host.image import Image, Shard, pad_samples, prepare_images
from p4sgd.host.image.packing import count_values
from p4sgd.host.losses import Loss, Task, get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import StageTimes, Whitening, fold_weights, whiten
from p4sgd.host.training.model_file import Model
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.skipping import Dealt, deal_columns, sample_values
from p4sgd.host.training.start import Start
from p4sgd.host.training.weights import check_class_weight, hardware_labels, own_weights, weigh
from p4sgd.hw.spec.fixed import IMPORTANCE, MAX_PRECISION, WEIGHT, IntArray, WeightArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.sparse.data_parallel import SampleRanks

__all__ = [
    "Prepared",
    "PreparedData",
    "check_centred",
    "check_memory",
    "encode_table",
    "feature_sums",
    "grid_planes",
    "hardware_means",
    "hardware_values",
    "join",
    "mean_square",
    "missing_error",
    "prepare",
    "sampled",
    "square_norms",
    "suits_sparse_workers",
    "whitening_error",
]

_SAMPLED_VALUES = 1 << 22
"""Number of values from which the mean norm of a sample is computed."""

_BLOCK_VALUES = 1 << 18
"""Number of values that are scaled at once."""

_CLEARLY_SPARSE = 0.04
"""Data that store less than this part of their values are sparse (`is_sparse`) whichever samples are held out."""

_SUM_FRACTION = 31
"""Fraction bits of a value in `feature_sums`: the sums of 2^32 samples fit int64."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A training set, ready for the workers.

    Parameters
    ----------
    name
        Where the training samples come from.
    samples
        Number of training samples.
    space
        Their features.
    train
        The samples at full precision, in the order of the images; ``None`` if they are not available.
    train_labels
        Their labels, as `LabelCoding.labels_of` gives them.
    validation
        The held-out samples, if any.
    coding
        Meaning of the labels.
    features
        Format of the features.
    images
        The images of this process's workers, with the labels of the first row of the model.
    dealt
        The units of all workers, and how that was chosen.
    slope, offset
        float64 (features,), and (features,) or (features + 1,) with the bias last: the hardware reads slope · raw
        feature + offset, rounded. With ``mixing`` these numbers are mixed first.
    scaling
        The scaling of the features: one of `p4sgd.host.data.scaling.KINDS`, as it was chosen.
    mean_square
        Mean squared norm of a sample's scaled features, bias included.
    means
        float64, as ``offset``: mean over the samples of what the hardware reads, without rounding; ``None`` if
        ``train`` is there, the intercept is fitted to it, and no other samples are measured.
    reason
        Why the scaling was chosen; empty if the user chose it.
    mixing
        float64 (features, BLOCK + 1), see `p4sgd.host.precondition.Whitening.mixing`; ``None`` without preconditioning.
    remarks
        What the user should know about the scaling and the preconditioning.
    communicator
        The processes that train together.
    whitening_times
        How long ranks took to whiten the features by their plan; ``None`` if there was no plan.
    nonzeros
        Number of values that are not 0, if the data are sparse; else ``None``.
    count_heat
        If the data are sparse: counts the training samples that have each feature (`p4sgd.host.data.Scaling.heat`).
        They may be millions, and few runs need them again.
    fitted
        Scaling and preconditioning, from which other samples may be prepared alike; ``None`` if they are not available.
    train_weights, validation_weights
        What training and held-out samples weigh, those of a class included, relative to the largest: float64; ``None``
        if all weigh the same.
    weigh_row
        If they weigh something else for each row of the model: what they weigh for a row, and ``mean_square`` with
        these weights.
    """

    name: str
    samples: int
    space: FeatureSpace
    train: Dataset | None
    train_labels: FloatArray
    validation: Dataset | None
    coding: LabelCoding | TargetCoding
    features: FeatureFormat
    images: Sequence[Image]
    dealt: Dealt
    slope: npt.NDArray[np.float64]
    offset: npt.NDArray[np.float64]
    scaling: str
    mean_square: float
    means: npt.NDArray[np.float64] | None = None
    reason: str = ""
    mixing: npt.NDArray[np.float64] | None = None
    remarks: tuple[str, ...] = ()
    communicator: Communicator = SINGLE_PROCESS
    whitening_times: StageTimes | None = None
    nonzeros: int | None = None
    count_heat: Callable[[], HeatArray] | None = None
    fitted: Scaling | Whitening | None = None
    train_weights: FloatArray | None = None
    validation_weights: FloatArray | None = None
    weigh_row: Callable[[int], tuple[FloatArray | None, FloatArray | None, float]] | None = None

    @property
    def shards(self) -> Sequence[Shard]:
        """The units of all workers."""
        return self.dealt.shards

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
        return self.space.count if self.nonzeros is None else max(1, -(-self.nonzeros // self.samples))

    @property
    def unit(self) -> int:
        """Features of a unit."""
        return self.shards[0].unit

    @property
    def penalty_unit(self) -> float:
        """What a penalty acts on, for a weight of 1: the coefficient of a raw feature with the scaling ``none``, of one
        with a deviation of 1 with those that centre, and of a scaled one otherwise.
        """
        if self.scaling == "none" and self.slope[0]:
            return float(self.slope[0])
        form = self.features
        if self.scaling in CENTRED:
            return full_value(form.stored, form.signed) * deviation(form.stored, form.signed)
        return full_value(form.stored, form.signed)

    def split(self, weights: WeightArray) -> list[WeightArray]:
        """Deal the job's weights to its workers: int32 (features,) to one array a worker."""
        return [shard.take(weights) for shard in self.shards]

    def row(self, row: int, options: TrainingOptions) -> "Prepared":
        """For one row of the model: with its labels alone, also in the images, for a run of these options."""
        if len(self.coding.rows) == 1:
            return self
        coding = self.coding.rows[row]
        labels = self.coding.of_row(self.train_labels, row)
        weights: dict[str, Any] = {"train_weights": self.train_weights}
        if self.weigh_row is not None:
            train, validation, square = self.weigh_row(row)
            weights = {"train_weights": train, "validation_weights": validation, "mean_square": square}
        loss, samples = options.loss_for(coding.scale, self.name), self.images[0].layout.samples
        coded = hardware_labels(loss, coding, labels, weights["train_weights"], self.name)
        integers, rounded = broadcast(self.communicator, coded)
        own: dict[str, Any] = {
            "labels": pad_samples(integers, samples),
            "importances": None if rounded is None else pad_samples(rounded, samples),
        }
        images = [replace(image, **own) for image in self.images]
        return replace(self, coding=coding, train_labels=labels, images=images, weigh_row=None, **weights)

    def penalties(self, options: TrainingOptions) -> tuple[float, float]:
        """Strengths of the L2 and L1 penalties of the hardware's weights."""
        unit = self.penalty_unit  # its square may be infinite
        l2, l1 = options.penalties
        return l2 * unit * unit if l2 else 0.0, l1 * unit if l1 else 0.0

    def fold(self, weights: WeightArray, loss: Loss) -> Model:
        """The model on raw features for weights of the hardware.

        Parameters
        ----------
        weights
            int32 (features,) or (features + 1,), `WEIGHT` integers.
        loss
            The loss.
        """
        real = WEIGHT.to_real(weights)
        known, constant = self.space.count, 0.0
        if self.mixing is not None:
            real[:known], constant = fold_weights(self.mixing, real[:known])
        # The bits of real @ offset would depend on threads. Most memory is taken here, so sparse data skip the product.
        whole = real * self.offset if self.offset[:known].any() else real[known:] * self.offset[known:]
        return Model(
            coefficients=np.multiply(real[:known], self.slope, out=real[:known]),
            intercept=float(whole.sum()) + constant,
            weights=weights,
            slope=self.slope,
            offset=self.offset,
            mixing=self.mixing,
            loss=loss.name,
            loss_parameters=loss.parameters,
            labels=self.coding.rows[0],
            features=self.features,
            feature_names=self.space.names,
            zero_based=self.space.zero_based,
            hash_bits=self.space.hash_bits,
            scaling=self.fitted,
            encoding=self.space.encoding,
        )


class PreparedData(Protocol):
    """A training set that was prepared in advance, such as a folder of `p4sgd.host.streaming`."""

    @property
    def name(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples, without those held out."""
        ...

    @property
    def space(self) -> FeatureSpace:
        """Its features."""
        ...

    @property
    def identity(self) -> DataIdentity:
        """Its identity, for checkpoints."""
        ...

    @property
    def weighted(self) -> bool:
        """Whether its samples have weights."""
        ...

    @property
    def communicator(self) -> Communicator:
        """The processes that train together."""
        ...

    def load(
        self,
        options: TrainingOptions,
        shards: Sequence[Shard],
        *,
        directory: Path | None = None,
        network: bool = False,
        sample_ranks: SampleRanks | None = None,
    ) -> Prepared:
        """The result of `prepare`, without the samples; ``directory`` is for images that have to be made for it.

        Raises
        ------
        UserError
            If it was prepared for other options.
        """
        ...


def join(shards: Sequence[Shard], weights: Sequence[WeightArray]) -> WeightArray:
    """Undo `Prepared.split` between these shards."""
    joined = np.empty(shards[0].total, np.int32)
    for shard, values in zip(shards, weights, strict=True):
        shard.put(values, joined)
    return joined


def encode_table(data: Dataset, options: TrainingOptions) -> Dataset:
    """A data set with features, made of the columns of a table if it has those.

    What a model makes of texts and gaps depends on the samples that `prepare` will train on, not on those held out.

    Raises
    ------
    UserError
        If options are for tables and this is none, or if no samples are left to train on.
    """
    if data.table is None:
        if options.missing != "error" and data.encoding is None:
            raise missing_error(data.name, options)
        return data
    trained = np.ones(data.samples, np.bool_)
    if options.validation_fraction > 0:
        stratified = get_loss(options.loss).task is Task.CLASSIFICATION and not data.target_names
        _, held_out = split(
            data.labels, options.validation_fraction, seed=options.seed, stratified=stratified, name=data.name
        )
        trained[held_out] = False
    return encode(data, trained, options.missing)


def missing_error(name: str, options: TrainingOptions) -> UserError:
    """The error of filling gaps in what is no table."""
    return UserError(f"{name}: --missing {options.missing} is for CSV and Parquet files: leave it out")


def prepare(
    data: Dataset,
    options: TrainingOptions,
    shards: Sequence[Shard],
    *,
    directory: Path | None = None,
    test: bool = False,
    network: bool = False,
    sample_ranks: SampleRanks | None = None,
    start: Start | None = None,
) -> Prepared:
    """Shuffle, split, scale, quantise and pack a training set.

    In every epoch the hardware takes mini-batches in the order of the samples, and a file may be sorted by label.
    Therefore samples are always shuffled once, with the options' seed.

    Parameters
    ----------
    data
        The samples.
    options
        Options of the training run.
    shards
        The workers, as `p4sgd.host.training.shares.deal` gives them.
    directory
        Folder for the images as files; ``None`` keeps them in memory.
    test
        Whether models will be measured on other samples.
    network
        Whether workers exchange packets; see `deal_by_heat`.
    sample_ranks
        Ranks that divide the samples of the only worker, a sparse one, among themselves; None if they have workers.
    start
        What training starts from.

    Raises
    ------
    UserError
        If data and options do not fit together.
    """
    if data.table is not None and any(column.values is not None for column in data.table.columns):
        raise ValueError(f"{data.name} has texts: encode_table makes features of them")
    task, start = get_loss(options.loss).task, start or Start()
    # Before the split, so that messages are about all samples.
    coding = start.coding or fit_coding(task, data, options.positive)
    check_class_weight(options.class_weight, data, coding)
    validation = None
    if options.validation_fraction > 0:
        stratified = task is Task.CLASSIFICATION and not data.target_names
        data, validation = data.split(options.validation_fraction, seed=options.seed, stratified=stratified)
        coding = start.coding or fit_coding(task, data, options.positive, whole=coding)
    else:
        data = data.reordered(shuffle(data.samples, options.seed))
    coding = broadcast(data.communicator, coding)
    parts = [data] if validation is None else [data, validation]
    weights, held_out = _weights_of(parts, coding, options, 0)
    whitening_times = None
    if start.scaling is None:
        scaling, whitening_times = _fit_scaling(data, options)
    else:
        scaling = start.scaling.for_samples(data.features, data.communicator)
    values = sample_values(data, scaling, options)
    dealt = deal_columns(shards, scaling, options, samples=data.samples, values=values, network=network)
    labels, first_row = coding.labels_of(data), coding.rows[0]
    loss = options.loss_for(first_row.scale, data.name)
    coded = hardware_labels(loss, first_row, coding.of_row(labels, 0), weights, data.name)
    integers, importances = broadcast(data.communicator, coded)
    first = slice(sampled(data.samples, data.feature_count))
    squares = data.gather(square_norms(data.local_features(first), scaling), first)  # before images take memory
    images = prepare_images(
        data,
        integers,
        scaling,
        dealt.shards,
        stored=options.stored,
        batch=options.batch,
        directory=directory,
        sample_ranks=sample_ranks,
        importances=importances,
    )
    slope, offset, mixing = hardware_values(scaling, options)
    means = None
    if not (options.bias and start.refit) or validation is not None or test:
        sums = data.communicator.all_sum(feature_sums(data.features, scaling))
        means = hardware_means(sums, data.samples, scaling, options)

    def weigh_row(row: int) -> tuple[FloatArray | None, FloatArray | None, float]:
        own, others = _weights_of(parts, coding, options, row)
        return own, others, mean_square(squares, bias=options.bias, weights=own)

    heat = scaling.heat if isinstance(scaling, Scaling) else None
    return Prepared(
        name=data.name,
        samples=data.samples,
        space=data.space,
        train=data,
        train_labels=labels,
        validation=validation,
        coding=coding,
        features=FeatureFormat(options.stored, options.precision, scaling.signed),
        images=images,
        dealt=dealt,
        slope=slope,
        offset=offset,
        scaling=scaling.kind,
        mean_square=mean_square(squares, bias=options.bias, weights=weights),
        means=means,
        reason=scaling.reason,
        mixing=mixing,
        remarks=(*data.remarks, *scaling.remarks(data.feature_names)),
        communicator=data.communicator,
        whitening_times=whitening_times,
        nonzeros=None if heat is None else int(heat.sum()),
        count_heat=None if heat is None else partial(count_values, data),
        fitted=scaling.without_heat() if isinstance(scaling, Scaling) else scaling,
        train_weights=weights,
        validation_weights=held_out,
        weigh_row=weigh_row if own_weights(coding, options.class_weight) else None,
    )


def _weights_of(
    parts: Sequence[Dataset], coding: LabelCoding | TargetCoding, options: TrainingOptions, row: int
) -> tuple[FloatArray | None, FloatArray | None]:
    """What training and held-out samples weigh for a row."""
    columns = [coding.columns(part)[row] for part in parts] if isinstance(coding, TargetCoding) else parts
    weights, *held_out = broadcast(parts[0].communicator, weigh(columns, coding.rows[row], options.class_weight))
    return weights, held_out[0] if held_out else None


def _fit_scaling(data: Dataset, options: TrainingOptions) -> tuple[Scaling | Whitening, StageTimes | None]:
    """The scaling of a training set, with its preconditioning and the times of that."""
    sample = data.local_features(slice(quantile_rows(data.samples, data.feature_count)))
    whitened = options.precondition != "none"
    scaling = Scaling.fit(
        data.features,
        options.scaling,
        data.communicator,
        planes=grid_planes(options),
        sample=sample,
        whitened=whitened,
    )
    if not whitened:
        return scaling, None
    check_centred(scaling, data.name)
    return whiten(data, scaling, options.damping, options.stored)


def grid_planes(options: TrainingOptions) -> int:
    """Planes that features are scaled for: those that are stored, or the most, if the scaling is only to a grid."""
    return options.stored if options.precondition == "none" else MAX_PRECISION


def check_centred(scaling: Scaling, name: str) -> None:
    """Check that features may be whitened after this scaling, which `auto` may have chosen.

    Raises
    ------
    UserError
        If the data are sparse.
    """
    if scaling.kind not in CENTRED:
        raise whitening_error(name)


def whitening_error(name: str) -> UserError:
    """The error of whitening for sparse data."""
    return UserError(
        f"{name}: the data are sparse, and whitening would make their zeros other numbers: leave --precondition out"
    )


def suits_sparse_workers(stored: int, samples: int, features: int, options: TrainingOptions) -> bool:
    """Whether data in a sparse format are so sparse that sparse workers suit, and their zeros will stay zeros.

    Parameters
    ----------
    stored, samples, features
        Number of stored values, of samples, and of features.
    options
        Options of the training run.
    """
    if options.scaling in (*CENTRED, "minmax") or options.precondition != "none":
        return False
    return stored < _CLEARLY_SPARSE * samples * features


def hardware_values(
    scaling: Scaling | Whitening, options: TrainingOptions
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64] | None]:
    """``slope``, ``offset`` and ``mixing`` of `Prepared`."""
    slope, offset = feature_values(scaling.scale, scaling.offset, options.stored, scaling.signed)
    mixing = None
    if isinstance(scaling, Whitening):
        one = full_value(options.stored, scaling.signed)
        offset = offset - one * scaling.middle
        mixing = scaling.mixing
        mixing[:, -1] *= one
    if options.bias:
        # Zeros that take memory only where others are written; `numpy.zeros` may write those of millions of columns.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        extended = np.frombuffer(mmap.mmap(-1, (offset.size + 1) * offset.itemsize, flags=private))
        if offset.any():
            extended[:-1] = offset
        extended[-1] = _bias_value(options.stored, scaling.signed)
        offset = extended
    return slope, offset, mixing


def check_memory(
    data: Dataset | PreparedData, options: TrainingOptions, shards: Sequence[Shard], available: int
) -> None:
    """Refuse more data than workers with banks of ``available`` bytes can hold, before any work is done.

    Raises
    ------
    UserError
        If there are too many samples.
    """
    held_out = 0
    if options.validation_fraction and isinstance(data, Dataset):
        held_out = data.held_out(options.validation_fraction)
    samples = -(-(data.samples - held_out) // options.batch) * options.batch
    own_weights = data.sample_weights is not None if isinstance(data, Dataset) else data.weighted
    weighted = options.class_weight is not None or own_weights or get_loss(options.loss).weighs
    needed = max(bank_bytes(shard.layout(samples, options.stored), weighted=weighted) for shard in shards)
    if needed > available:
        raise UserError(
            f"{data.name} needs {needed:,} bytes of a worker's memory, there are {available:,}: use fewer samples, "
            f"fewer planes or more workers, or another device"
        )


def _bias_value(stored: int, signed: bool) -> float:
    """The bias as the hardware reads it from all planes."""
    return bias_integer(stored, signed) / 2.0 ** (stored - int(signed))


def sampled(samples: int, features: int) -> int:
    """Number of samples, the first ones in random order, from which `mean_square` is computed."""
    return max(1, min(samples, _SAMPLED_VALUES // features))


def square_norms(features: Features, scaling: Scaling | Whitening) -> FloatArray:
    """Squared norms of scaled samples, with values beyond the range clamped as in training: float64 (samples,).

    The bits of a norm do not depend on the samples beside it, so that every division of the samples gives the same.
    """
    squares = np.empty(features.shape[0])
    step = max(1, _BLOCK_VALUES // features.shape[1])
    for first, scaled in zip(range(0, squares.size, step), _scaled(features, scaling, step), strict=True):
        squares[first : first + step] = np.einsum("ij,ij->i", scaled, scaled)
    return squares


def _scaled(features: Features, scaling: Scaling | Whitening, step: int) -> Iterator[npt.NDArray[np.float64]]:
    """Scaled samples, (step, features), clamped as in training; of sparse ones only stored values are scaled."""

    def clip(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.clip(values, -float(scaling.signed), 1.0, out=values)

    parts: Iterator[Any] = (features[first : first + step] for first in range(0, features.shape[0], step))
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for part in parts:  # the order of a sum depends on that of the values in memory
            yield clip(np.ascontiguousarray(scaling.apply(part)))
        return
    # One array for all, because a single sample may have millions of features.
    dense = np.empty((min(step, features.shape[0]), features.shape[1]))
    dense[:] = scaling.zero
    clip(dense)
    for part in parts:
        places = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr)), part.indices
        zeros = dense[places]
        dense[places] = clip(scaling.apply_stored(part))
        yield dense[: part.shape[0]]
        dense[places] = zeros


def feature_sums(features: Features, scaling: Scaling | Whitening) -> IntArray:
    """Sums over samples of their scaled features, clamped as in training.

    Returns
    -------
    int64 (features,), in steps of 2^-31. Every value is rounded by itself and the sums are exact, so that every
    division of the samples gives the same.
    """

    def integers(scaled: npt.NDArray[np.float64]) -> IntArray:
        np.clip(scaled, -float(scaling.signed), 1.0, out=scaled)
        scaled *= 2.0**_SUM_FRACTION
        return np.rint(scaled, out=scaled).astype(np.int64)

    samples, count = features.shape
    sums = np.zeros(count, np.int64)
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        step = max(1, _BLOCK_VALUES // count)
        for first in range(0, samples, step):
            sums += integers(scaling.apply(features[first : first + step])).sum(axis=0)
        return sums
    zero = integers(scaling.zero.copy())
    step = max(1, _BLOCK_VALUES * samples // max(1, features.nnz))
    for first in range(0, samples, step):
        part = features[first : first + step]
        np.add.at(sums, part.indices, integers(scaling.apply_stored(part)) - zero[part.indices])
    sums += samples * zero
    return sums


def hardware_means(
    sums: IntArray, samples: int, scaling: Scaling | Whitening, options: TrainingOptions
) -> npt.NDArray[np.float64]:
    """``means`` of `Prepared`, from the `feature_sums` of all samples."""
    means = sums / (samples * 2.0**_SUM_FRACTION) * full_value(options.stored, scaling.signed)
    return np.append(means, _bias_value(options.stored, scaling.signed)) if options.bias else means


def mean_square(squares: FloatArray, *, bias: bool, weights: FloatArray | None = None) -> float:
    """Mean squared norm of a sample's scaled features and bias, from `square_norms` of the first samples.

    It is weighted if samples have weights, of which there may be more, unless these all weigh 0.
    """
    own = None if weights is None or not weights[: squares.size].any() else weights[: squares.size]
    return average(squares, own) + float(bias)
