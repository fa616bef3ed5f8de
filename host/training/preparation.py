"""Preparation of a training set: its samples become the workers' memory images.

    labels ─▶ shuffle, split ─▶ statistics ─▶ scaling ─▶ columns of workers ─▶ images

A data set in memory is one block of samples. `p4sgd.host.streaming` prepares one that is larger, in several.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset, FeatureSpace, Scaling
from p4sgd.host.data.dataset import Labelled, LabelledSamples, TrainingRows
from p4sgd.host.data.encoding import fit_encoding
from p4sgd.host.data.labels import LabelCoding, TargetCoding, fit_coding
from p4sgd.host.data.matrix import Features, each_block
from p4sgd.host.data.order import Order, shuffle, split
from p4sgd.host.data.scaling import CENTRED
from p4sgd.host.data.statistics import QUANTILE_SAMPLES, FloatArray, Statistics, find_extremes, quantile_rows
from p4sgd.host.data.table import TextColumn
from p4sgd.host.devices.worker_image import bank_bytes
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast, share_of
from p4sgd.host.errors import UserError, option
from p4sgd.host.image import Shard, prepare_images
from p4sgd.host.image.contents import Values
from p4sgd.host.image.packing import count_values, quantized_values
from p4sgd.host.losses import Task, get_loss
from p4sgd.host.precondition import Moments, Whitening
from p4sgd.host.training.class_weights import BALANCED, check_class_weight, weigh
from p4sgd.host.training.dealing.columns import deal_columns
from p4sgd.host.training.events import ScalingRemark
from p4sgd.host.training.hardware_features import feature_sums, hardware_values, mean_square, square_norms
from p4sgd.host.training.offsets import check_offsets, without_offsets
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Placement, Prepared, PreparedData, Targets
from p4sgd.host.training.start import Start
from p4sgd.hw.spec.fixed import MAX_PRECISION, IntArray
from p4sgd.hw.spec.run import FeatureFormat

if TYPE_CHECKING:
    from p4sgd.host.precondition.stage import StageTimes

_SAMPLED_VALUES = 1 << 22
"""Most values, of the first samples in random order, at most as many as quantiles are taken from, from which the mean
norm of a sample is computed."""

_CLEARLY_SPARSE = 0.04
"""Data that store less than this part of their values are sparse (`is_sparse`) whichever samples are held out."""


def encode_table(data: Dataset, options: TrainingOptions) -> Dataset:
    """A data set with features, made of the columns of a table if it has those, as the samples call for that `prepare`
    will train on, which are those that count. Raises `UserError` if options are for tables and this is none, or if no
    samples are left."""
    data = data.counted()
    if data.table is None:
        if options.missing != "error" and data.space.encoding is None:
            raise missing_error(data.name, options)
        return data
    trained = np.ones(data.samples, np.bool_)
    if options.validation_fraction > 0:
        trained[_split(data, options)[1]] = False
    return encode(data, trained, options.missing)


def encode(data: Dataset, trained: npt.NDArray[np.bool_], missing: str) -> Dataset:
    """A data set with features, made of the columns of a table as the samples call for that are ``trained`` on, bool
    (samples,), with one of the fillings as ``missing``."""
    table = data.table
    if table is None or (table.plain and missing == "error"):
        return dataclasses.replace(data, table=None)
    encoding = fit_encoding(table, (data.features if trained.all() else data.features[trained],), missing)
    remarks = (*data.remarks, *encoding.remarks(int(trained.sum())))
    return dataclasses.replace(data.encoded(encoding), remarks=remarks)


def missing_error(name: str, options: TrainingOptions) -> UserError:
    """The error of filling gaps in data that have none."""
    return UserError(f"{name}: {option('missing', options.missing)} is for CSV and Parquet files: leave it out")


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
    Therefore samples are always shuffled once, with the options' seed. ``test`` tells that models will be measured on
    other samples. Raises `UserError` if data and options do not fit together.
    """
    if data.table is not None and any(isinstance(column, TextColumn) for column in data.table.columns):
        raise ValueError(f"{data.name} has texts: encode_table makes features of them")
    start, data = start or Start(), data.counted()
    targets, rest, held_out = split_targets(data, options, start, data.communicator)
    validation = data.take(held_out, f"held-out samples of {data.name}") if held_out.size else None
    data = data.reordered(rest) if validation is None else data.take(rest)
    times = None
    if start.scaling is None:
        # No name keeps the ranges of millions of columns while these are packed.
        scaling, times = fit_scaling(
            data, find_extremes((data.features,), data.feature_count, data.samples), targets, options
        )
    else:
        scaling = start.scaling.for_samples(data.features)
    sums = not (options.bias and start.refit) or validation is not None or test
    # A scaling that was made before is of other samples.
    on_scaling = map(ScalingRemark, scaling.remarks(data.space.names) if start.scaling is None else ())
    return dataclasses.replace(
        prepare_rows(data, data.space, scaling, targets, options, placement, sums=sums),
        train=data,
        validation=validation,
        remarks=(*data.remarks, *targets.remarks, *on_scaling),
        whitening_times=times,
    )


# -- the steps, for samples in memory or not ---------------------------------------------------------------------------


def split_targets(
    data: Labelled, options: TrainingOptions, start: Start, ranks: Communicator = SINGLE_PROCESS
) -> tuple[Targets, Order, Order]:
    """Labels and weights, and the indices of training and of held-out samples, both in random order."""
    power = options.tweedie_power
    loss = get_loss(options.loss, None if power is None else {"tweedie_power": power})
    loss, task = loss if data.offsets is None else loss.with_offsets, loss.task
    check_offsets(data, loss, bias=options.bias)
    # Before the split, so that messages are about all samples.
    net = without_offsets(data, loss)
    coding = start.coding or fit_coding(task, net, options.positive, guess=start.guess, most=loss.largest_label)
    if data.offsets is not None and isinstance(coding, LabelCoding) and len(coding.rows) > 1:
        remedy = f"choose one against the rest with {option('positive', 'LABEL')}"
        raise UserError(f"{data.name}: offsets are for two classes, here are {len(coding.rows)}: {remedy}")
    remarks = check_class_weight(options.class_weight, data, coding)
    if options.validation_fraction > 0:
        rest, held_out = _split(data, options)
        parts = [LabelledSamples.of(data, held_out, f"held-out samples of {data.name}")]
    else:
        rest, held_out, parts = shuffle(len(data.labels), options.seed), np.empty(0, np.intp), []
    train = LabelledSamples.of(data, rest)
    if start.coding is None and held_out.size:
        net = without_offsets(train, loss)
        coding = fit_coding(task, net, options.positive, whole=coding, guess=start.guess, most=loss.largest_label)
    coding = broadcast(ranks, coding)

    def weights_of(row: int) -> tuple[FloatArray | None, FloatArray | None]:
        columns = [train, *parts]
        if isinstance(coding, TargetCoding):
            columns = [coding.columns(part)[row] for part in columns]
        weights, *others = broadcast(ranks, weigh(columns, coding.rows[row], options.class_weight))
        return weights, others[0] if others else None

    by_row = options.class_weight == BALANCED or isinstance(coding, TargetCoding)
    own = weights_of if options.class_weight is not None and len(coding.rows) > 1 and by_row else None
    return Targets(coding, coding.labels_of(train), *weights_of(0), own, train.offsets, remarks), rest, held_out


def _split(data: Labelled, options: TrainingOptions) -> tuple[Order, Order]:
    stratified = get_loss(options.loss).task is Task.CLASSIFICATION and not data.target_names
    return split(data.labels, options.validation_fraction, seed=options.seed, stratified=stratified, name=data.name)


def fit_scaling(
    rows: TrainingRows, extremes: Statistics, targets: Targets, options: TrainingOptions
) -> "tuple[Scaling | Whitening, StageTimes | None]":
    """The scaling of a training set, whose ranges are known, with its preconditioning and the times of that;
    `UserError` if the data are sparse and would have to be centred."""
    whitened = options.precondition != "none"

    def sample(columns: IntArray | None) -> Features:
        count = rows.feature_count if columns is None else columns.size
        return rows.local_features(slice(quantile_rows(rows.samples, count)), columns)

    scaling = Scaling.fit_blocks(
        extremes,
        rows.feature_blocks,
        sample,
        options.scaling,
        planes=MAX_PRECISION if whitened else options.stored,  # whitened features are scaled only to a grid
        farthest=get_loss(options.loss).farthest(broadcast(rows.communicator, targets.rarer_share)),
        centred=whitened,
    )
    if not whitened:
        return scaling, None
    if scaling.kind not in CENTRED:
        raise whitening_error(rows.name)
    if isinstance(rows, Dataset) and rows.communicator.size > 1:
        from p4sgd.host.precondition.stage import whiten

        own = share_of(rows.communicator, rows.samples)
        how = options.damping, options.stored, rows.communicator
        return whiten(rows.features[own.start : own.stop], rows.samples, scaling, *how)
    moments = Moments.empty(rows.feature_count)
    each_block(partial(moments.add, scaling=scaling), rows.feature_blocks())
    return Whitening.fit(moments, scaling, options.damping, options.stored), None


def prepare_rows(
    rows: TrainingRows,
    space: FeatureSpace,
    scaling: Scaling | Whitening,
    targets: Targets,
    options: TrainingOptions,
    placement: Placement,
    *,
    sums: bool = True,
) -> Prepared:
    """Deal the columns to the workers, and scale, quantise and pack the samples."""
    values = partial(quantized_rows, rows, scaling, options)
    dealt = deal_columns(
        placement.shards, scaling, options, samples=rows.samples, values=values, network=placement.network
    )
    first = slice(max(1, min(rows.samples, QUANTILE_SAMPLES, _SAMPLED_VALUES // rows.feature_count)))
    squares = square_norms(rows.local_features(first), scaling)  # before images take memory
    row = targets.of_row(0)
    made = *row.integers(options, rows.name), row.deviance(options, rows.name)
    integers, importances, deviance = broadcast(rows.communicator, made)
    total = np.zeros(rows.feature_count if sums else 0, np.int64)

    def parts() -> Iterable[Dataset]:
        total[:] = 0  # if zeros are skipped, samples are packed twice
        for part in rows.parts():
            if sums:
                np.add(total, feature_sums(part.features, scaling), out=total)
            yield part
            del part  # before the next one is read

    images = prepare_images(
        rows,
        integers,
        scaling,
        dealt.shards,
        stored=options.stored,
        batch=options.batch,
        directory=placement.directory,
        sample_ranks=placement.sample_ranks,
        importances=importances,
        parts=parts,
    )
    heat, nonzeros = None, 0
    if isinstance(scaling, Scaling) and scaling.heat is not None:
        nonzeros, scaling = int(scaling.heat.sum()), scaling.without_heat()
        heat = partial(count_values, rows, scaling)
    return Prepared(
        name=rows.name,
        space=space,
        targets=targets,
        features=FeatureFormat(options.stored, options.precision, scaling.signed),
        scaling=scaling,
        map=hardware_values(scaling, options),
        images=images,
        dealt=dealt,
        mean_square=mean_square(squares, bias=options.bias, weights=row.terms(row.loss(options, rows.name)).weights),
        deviance=deviance,
        squares=None if targets.weigh_row is None else squares,
        sums=total.__getitem__ if sums else None,
        communicator=rows.communicator,
        heat=heat,
        nonzeros=nonzeros,
    )


def quantized_rows(rows: TrainingRows, scaling: Scaling | Whitening, options: TrainingOptions, count: int) -> Values:
    """What is not 0 in the first training samples, in the order of training; of whitened ones all is."""
    assert isinstance(scaling, Scaling)
    features = rows.local_features(slice(0, count))
    which = np.arange(features.shape[0])
    return Values.join(quantized_values(features, which, scaling, options.stored, bias=options.bias))


def whitening_error(name: str) -> UserError:
    """The error of whitening data whose zeros must stay zeros."""
    return UserError(
        f"{name}: the data are sparse, and whitening would make their zeros other numbers: leave "
        f"{option('precondition')} out"
    )


def suits_sparse_workers(stored: int, samples: int, features: int, options: TrainingOptions) -> bool:
    """Whether data in a sparse format have so few stored values that sparse workers suit, and zeros stay zeros."""
    if options.scaling in (*CENTRED, "minmax") or options.precondition != "none":
        return False
    return stored < _CLEARLY_SPARSE * samples * features


def check_memory(
    data: Dataset | PreparedData, options: TrainingOptions, shards: Sequence[Shard], available: int
) -> None:
    """Refuse more data than workers with banks of ``available`` bytes can hold, before any work is done."""
    samples, weighted = data.samples, options.class_weight is not None or get_loss(options.loss).weighs
    if isinstance(data, Dataset):
        samples -= data.held_out(options.validation_fraction) if options.validation_fraction else 0
        weighted |= data.sample_weights is not None or data.offsets is not None
    else:
        weighted |= data.weighted
    samples = -(-samples // options.batch) * options.batch
    needed = max(bank_bytes(shard.layout(samples, options.stored), weighted=weighted) for shard in shards)
    if needed > available:
        raise UserError(
            f"{data.name} needs {needed:,} bytes of a worker's memory, there are {available:,}: use fewer samples, "
            f"fewer planes or more workers, or another device"
        )
