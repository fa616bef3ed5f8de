"""Preparation of a data set in memory: samples become the workers' memory images.

A data set larger than memory is prepared by `p4sgd.host.streaming`, block by block.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.encoding import encode
from p4sgd.host.data.labels import LabelCoding, TargetCoding, fit_coding
from p4sgd.host.data.order import shuffle, split
from p4sgd.host.data.scaling import CENTRED
from p4sgd.host.data.statistics import quantile_rows
from p4sgd.host.devices.worker_image import bank_bytes
from p4sgd.host.distributed.communicator import broadcast
from p4sgd.host.errors import UserError
from p4sgd.host.image import Shard, prepare_images
from p4sgd.host.image.packing import count_values
from p4sgd.host.losses import Task, get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import StageTimes, Whitening, whiten
from p4sgd.host.training.class_weights import check_class_weight, hardware_labels, own_weights, weigh
from p4sgd.host.training.dealing.columns import deal_columns, sample_values
from p4sgd.host.training.hardware_features import (
    feature_sums,
    hardware_means,
    hardware_values,
    mean_square,
    sampled,
    square_norms,
)
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Placement, Prepared, PreparedData
from p4sgd.host.training.start import Start
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.run import FeatureFormat

__all__ = [
    "check_centred",
    "check_memory",
    "encode_table",
    "grid_planes",
    "missing_error",
    "prepare",
    "suits_sparse_workers",
    "whitening_error",
]

_CLEARLY_SPARSE = 0.04
"""Data that store less than this part of their values are sparse (`is_sparse`) whichever samples are held out."""


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
    placement: Placement,
    *,
    test: bool = False,
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
    placement
        The workers.
    test
        Whether models will be measured on other samples.
    start
        What training starts from.

    Raises
    ------
    UserError
        If data and options do not fit together.
    """
    if data.table is not None and any(column.values is not None for column in data.table.columns):
        raise ValueError(f"{data.name} has texts: encode_table makes features of them")
    start = start or Start()
    data, validation, coding = _split(data, options, start)
    parts = [data] if validation is None else [data, validation]
    weights, held_out = _weights_of(parts, coding, options, 0)
    whitening_times = None
    if start.scaling is None:
        scaling, whitening_times = _fit_scaling(data, options)
    else:
        scaling = start.scaling.for_samples(data.features, data.communicator)
    values = sample_values(data, scaling, options)
    dealt = deal_columns(
        placement.shards, scaling, options, samples=data.samples, values=values, network=placement.network
    )
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
        directory=placement.directory,
        sample_ranks=placement.sample_ranks,
        importances=importances,
    )
    slope, offset, mixing = hardware_values(scaling, options)
    means = None
    if not (options.bias and start.refit) or validation is not None or test:
        sums = data.communicator.all_sum(feature_sums(data.features, scaling))
        means = partial(hardware_means, sums.__getitem__, data.samples, scaling, options)

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


def _split(
    data: Dataset, options: TrainingOptions, start: Start
) -> tuple[Dataset, Dataset | None, LabelCoding | TargetCoding]:
    """Training samples in the order of training, those held out, and the meaning of the labels."""
    task = get_loss(options.loss).task
    # Before the split, so that messages are about all samples.
    coding = start.coding or fit_coding(task, data, options.positive, guess=start.guess)
    check_class_weight(options.class_weight, data, coding)
    validation = None
    if options.validation_fraction > 0:
        stratified = task is Task.CLASSIFICATION and not data.target_names
        data, validation = data.split(options.validation_fraction, seed=options.seed, stratified=stratified)
        coding = start.coding or fit_coding(task, data, options.positive, whole=coding, guess=start.guess)
    else:
        data = data.reordered(shuffle(data.samples, options.seed))
    return data, validation, broadcast(data.communicator, coding)


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
