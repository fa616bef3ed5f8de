"""The first pass over a data set, and the bucket of every sample.

The first pass counts samples and finds features and labels. Labels alone decide where the samples go: shuffle and split
are those of `p4sgd.host.training.preparation.prepare`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Features
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.order import Order, shuffle, split
from p4sgd.host.data.raw_labels import RawLabels
from p4sgd.host.data.read import Source
from p4sgd.host.data.scaling import CENTRED, centring_error
from p4sgd.host.data.statistics import is_sparse
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task, get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.streaming.buckets import Buckets
from p4sgd.host.streaming.manifest import hash_files
from p4sgd.host.streaming.state import FirstPass, OnProgress, Step
from p4sgd.host.training.class_weights import check_class_weight, own_weights, weigh
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import whitening_error
from p4sgd.hw.spec.config import BANKS

__all__ = ["BucketPlan", "bucket_rows", "check_density", "first_pass", "plan_buckets"]


def first_pass(source: Source, on_progress: OnProgress) -> tuple[FirstPass, npt.NDArray[np.float64], FloatArray | None]:
    """Read all samples once.

    Returns
    -------
    The findings, the labels, float64 (samples,), and the weights of the samples, if they have any, the same.

    Raises
    ------
    UserError
        If there is an error in the data.
    """
    sha256 = ""
    if source.path.exists():
        name = source.path.name
        sha256 = hash_files(source.path.parent, [name], on_progress, Step.IDENTIFY)[name].sha256
    labels: list[tuple[tuple[str, ...], npt.NDArray[np.float64]]] = []
    weights: list[FloatArray | None] = []
    samples, stored = 0, 0
    block = None
    for block in source.blocks():
        samples += block.samples
        stored += block.stored
        labels.append((block.label_names, block.labels))
        weights.append(block.sample_weights)
        on_progress(Step.READ, source.position, source.size)
    assert block is not None, "a source refuses to be empty"
    values, names = _join_labels(labels, source.name)
    dtype = block.features.dtype.newbyteorder("<").str
    table = source.table
    if table is not None and table.plain and source.options.missing == "error":
        table = None
    found = FirstPass(samples, source.space, names, stored, block.sparse, dtype, sha256, table, source.remarks)
    return found, values, _join_weights(weights, labels)


def _join_weights(
    parts: list[FloatArray | None], labels: list[tuple[tuple[str, ...], npt.NDArray[np.float64]]]
) -> FloatArray | None:
    """Weights of all samples; blocks without weights weigh 1."""
    if all(part is None for part in parts):
        return None
    ones = (np.ones(values.size) for _, values in labels)
    return np.concatenate([one if part is None else part for part, one in zip(parts, ones, strict=True)])


def _join_labels(
    parts: list[tuple[tuple[str, ...], npt.NDArray[np.float64]]], name: str
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Labels of all samples, and their names. Every block numbers the labels that are texts by itself."""
    if len({bool(names) for names, _ in parts}) > 1:
        raise UserError(f"{name}: some labels are numbers and others are not: use numbers or names for all")
    return RawLabels.join(
        RawLabels(labels.astype(np.intp), names) if names else RawLabels(labels) for names, labels in parts
    ).encode(name)


_PROGRAM_BYTES = 320 << 20
"""Memory of the program, its libraries, and the current blocks or the samples whose lines are predicted, independent of
the data."""

_SAMPLE_BYTES = 120
"""Upper bound for the memory per sample without its features: label, weight, destination, and computing these."""

_FEATURE_BYTES = {False: 500, True: 150}
"""Memory per feature without the buckets: statistics, scaling, sums, and, unless all workers are sparse (the key),
blocks of at least 8 samples."""

_WHITENED_BYTES = 2600
"""Further memory per feature that is whitened: moments (of two states), matrix as integers and as float64."""

_LEAST_BUCKET = 8 << 20
"""Least size of a bucket in bytes: smaller ones would be too many files."""

_COPIES = {False: 1.25, True: 4.0}
"""Memory for putting a bucket in order, relative to the size of its file, by whether it is sparse (more copies)."""


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """The destination of every sample in the buckets.

    Training samples come first. Held-out samples follow, beginning with a bucket of their own.

    Parameters
    ----------
    coding
        Meaning of the labels.
    train_labels
        Labels of the training samples, in shuffled order, as returned by `LabelCoding.labels_of`.
    validation_labels
        Labels of the held-out samples, in shuffled order, as in the data.
    rows
        Samples per bucket, a multiple of 8.
    destinations
        Destination of each sample, in the order of the file.
    train_weights, validation_weights
        What training and held-out samples weigh; see `p4sgd.host.training.prepared.Prepared`.
    """

    coding: LabelCoding
    train_labels: FloatArray
    validation_labels: FloatArray
    rows: int
    destinations: Order
    train_weights: FloatArray | None = None
    validation_weights: FloatArray | None = None

    @property
    def train_buckets(self) -> int:
        """Number of buckets of training samples."""
        return -(-self.train_labels.size // self.rows)

    @property
    def buckets(self) -> int:
        """Number of all buckets."""
        return self.train_buckets + -(-self.validation_labels.size // self.rows)

    def samples_of(self, bucket: int) -> int:
        """Number of samples in a bucket."""
        if bucket < self.train_buckets:
            return min(self.rows, self.train_labels.size - bucket * self.rows)
        return min(self.rows, self.validation_labels.size - (bucket - self.train_buckets) * self.rows)

    def first_samples(self, buckets: Buckets, count: int) -> Iterator[Features]:
        """The first ``count`` training samples, bucket by bucket."""
        for bucket in range(-(-count // self.rows)):
            yield buckets.load(bucket, self.samples_of(bucket))[: count - bucket * self.rows]


@dataclass(frozen=True, eq=False)
class _LabelsOnly:
    """Labels without features."""

    name: str
    labels: npt.NDArray[np.float64]
    label_names: tuple[str, ...]
    sample_weights: FloatArray | None = None
    target_names: tuple[str, ...] = ()
    labelled: bool = True

    def take(self, rows: Order, what: str = "") -> "_LabelsOnly":
        """Those of some samples."""
        weights = None if self.sample_weights is None else self.sample_weights[rows]
        return _LabelsOnly(what + self.name, self.labels[rows], self.label_names, weights)


def plan_buckets(
    first_pass: FirstPass,
    labels: npt.NDArray[np.float64],
    options: TrainingOptions,
    rows: int,
    name: str,
    weights: FloatArray | None = None,
) -> BucketPlan:
    """Shuffle and split the samples, and assign them to buckets.

    Parameters
    ----------
    first_pass
        Findings of the first pass.
    labels
        Labels of all samples, float64 (samples,).
    options
        Training options.
    rows
        Samples per bucket, a multiple of 8.
    name
        Name of the data, for messages.
    weights
        Weights of all samples, float64 (samples,), if they have any.

    Raises
    ------
    UserError
        If labels and options do not suit each other.
    """
    task = get_loss(options.loss).task
    data = _LabelsOnly(name, labels, first_pass.label_names, weights)
    coding = LabelCoding.fit(task, data, options.positive)
    check_class_weight(options.class_weight, data, coding)
    if options.validation_fraction > 0:
        stratified = task is Task.CLASSIFICATION
        rest, held_out = split(labels, options.validation_fraction, seed=options.seed, stratified=stratified, name=name)
        coding = LabelCoding.fit(task, data.take(rest), options.positive, whole=coding)
    else:
        rest, held_out = shuffle(labels.size, options.seed), np.empty(0, np.intp)
    destinations = np.empty(labels.size, np.intp)
    destinations[rest] = np.arange(rest.size)
    destinations[held_out] = -(-rest.size // rows) * rows + np.arange(held_out.size)
    parts = [data.take(rest), *([data.take(held_out, "held-out samples of ")] if held_out.size else [])]
    if own_weights(coding, options.class_weight):
        raise UserError(
            f"{name}: classes are balanced for each of {len(coding.rows)} by itself, and prepared data have one weight "
            f"a sample: train from the file, or choose one class with --positive LABEL"
        )
    weighed = [*weigh(parts, coding.rows[0], options.class_weight), None]
    return BucketPlan(coding, coding.labels_of(parts[0]), labels[held_out], rows, destinations, *weighed[:2])


def check_density(first_pass: FirstPass, samples: int, options: TrainingOptions, name: str) -> None:
    """Refuse to centre sparse data before they are sorted.

    Only training samples count, and how many values they store is not known yet. So data near the limit of which some
    samples are held out may pass and be refused once they are sorted.

    Parameters
    ----------
    first_pass
        Findings of the first pass.
    samples
        Number of training samples.
    options
        Training options.
    name
        Name of the data, for messages.

    Raises
    ------
    UserError
        If the data are sparse, and the options ask for whitening or for a scaling that centres.
    """
    if first_pass.sparse and is_sparse(first_pass.stored, samples * first_pass.space.count):
        if options.precondition != "none":
            raise whitening_error(name)
        if options.scaling in CENTRED:
            raise centring_error(options.scaling, first_pass.stored / (first_pass.samples * first_pass.space.count))


def bucket_rows(first_pass: FirstPass, memory: int, *, whitened: bool = False, sparse_workers: bool = False) -> int:
    """Samples per bucket for a memory peak of about ``memory`` bytes; a multiple of 8.

    Parameters
    ----------
    first_pass
        Findings of the first pass.
    memory
        The limit.
    whitened
        Whether features are whitened, which takes memory per feature.
    sparse_workers
        Whether the workers are sparse, so that no sample is ever filled up with zeros.

    Raises
    ------
    UserError
        If that is too little memory; the message says how much is needed.
    """
    value = np.dtype(first_pass.dtype).itemsize
    sample = first_pass.stored * (value + 4 * first_pass.sparse) / first_pass.samples + 16
    feature = _FEATURE_BYTES[first_pass.sparse and sparse_workers] + (_WHITENED_BYTES if whitened else 0)
    fixed = _PROGRAM_BYTES + _SAMPLE_BYTES * first_pass.samples + feature * first_pass.space.count
    copies = _COPIES[first_pass.sparse]
    least = max(_LEAST_BUCKET, BANKS * sample) * copies
    if memory < fixed + least:
        needed = -(-int(fixed + least) // (1 << 20))
        raise UserError(
            f"{first_pass.samples:,} samples of {first_pass.space.count:,} features cannot be prepared in {memory:,} "
            f"bytes of memory: allow at least {needed}M"
        )
    return int((memory - fixed) / copies / sample) // BANKS * BANKS
