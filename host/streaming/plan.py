"""The first reading of a data set to prepare, and the place of every sample.

The first reading counts samples and finds features and labels. Labels alone then decide about the places: the shuffle
and the split are those of `p4sgd.host.training.preparation.prepare`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.labels import LabelCoding, RawLabels
from p4sgd.host.data.order import Order, shuffle, split
from p4sgd.host.data.read import Source
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task, get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.streaming.manifest import hash_files
from p4sgd.host.streaming.state import FirstPass, OnProgress, Step
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS

__all__ = ["PROGRAM_BYTES", "SAMPLE_BYTES", "Plan", "bucket_rows", "first_pass", "make_plan"]


def first_pass(source: Source, on_progress: OnProgress) -> tuple[FirstPass, npt.NDArray[np.float64]]:
    """Read all samples once.

    Returns
    -------
    What they say, and their labels: float64 (samples,).

    Raises
    ------
    UserError
        If there is a mistake in the data.
    """
    sha256 = ""
    if source.path.exists():
        name = source.path.name
        sha256 = hash_files(source.path.parent, [name], on_progress, Step.IDENTIFY)[name].sha256
    labels: list[tuple[tuple[str, ...], npt.NDArray[np.float64]]] = []
    samples, stored = 0, 0
    block = None
    for block in source.blocks():
        samples += block.samples
        stored += block.features.size if isinstance(block.features, np.ndarray) else int(block.features.nnz)
        labels.append((block.label_names, block.labels))
        on_progress(Step.READ, source.position, source.size)
    assert block is not None, "a source refuses to be empty"
    values, names = _join_labels(labels, source.name)
    dtype = block.features.dtype.newbyteorder("<").str
    return FirstPass(samples, source.space, names, stored, block.sparse, dtype, sha256), values


def _join_labels(
    parts: list[tuple[tuple[str, ...], npt.NDArray[np.float64]]], name: str
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Labels of all samples and their names, from those of many blocks, each of which numbers its texts by itself."""
    if len({bool(names) for names, _ in parts}) > 1:
        raise UserError(f"{name}: some labels are numbers and others are not: put them right")
    return RawLabels.join(
        RawLabels(labels.astype(np.intp), names) if names else RawLabels(labels) for names, labels in parts
    ).encode(name)


PROGRAM_BYTES = 320 << 20
"""Memory of the program, its libraries and the blocks under way, whatever the data."""

SAMPLE_BYTES = 80
"""Memory of a sample beyond its features, at the most: label, place in the order and what it takes to find that."""

_FEATURE_BYTES = 200
"""Memory of a feature beyond the samples': extremes, scaling, sums, and blocks of at least 8 samples."""

_LEAST_BUCKET = 8 << 20
"""Smaller buckets would be too many files."""

_COPIES = {False: 1.25, True: 4.0}
"""What a bucket takes in memory while it is put in order, in parts of its file; of sparse rows there are copies."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Where every sample goes.

    The samples to train on come first, then those that are held out, which begin with a bucket of their own.

    Parameters
    ----------
    coding
        Meaning of the labels.
    train_labels
        Labels of the samples to train on, in their order, as `LabelCoding.labels_of` gives them.
    validation_labels
        Labels of the others, in their order, as the data have them.
    rows
        Samples of a bucket, a multiple of 8.
    destinations
        Place of each sample of the file.
    """

    coding: LabelCoding
    train_labels: FloatArray
    validation_labels: FloatArray
    rows: int
    destinations: Order

    @property
    def train_buckets(self) -> int:
        """Buckets of the samples to train on."""
        return -(-self.train_labels.size // self.rows)

    @property
    def buckets(self) -> int:
        """All buckets."""
        return self.train_buckets + -(-self.validation_labels.size // self.rows)

    def samples_of(self, bucket: int) -> int:
        """How many samples a bucket has."""
        if bucket < self.train_buckets:
            return min(self.rows, self.train_labels.size - bucket * self.rows)
        return min(self.rows, self.validation_labels.size - (bucket - self.train_buckets) * self.rows)


@dataclass(frozen=True, eq=False)
class _Labels:
    """Labels without features."""

    name: str
    labels: npt.NDArray[np.float64]
    label_names: tuple[str, ...]
    labelled: bool = True


def make_plan(
    first_pass: FirstPass, labels: npt.NDArray[np.float64], options: TrainingOptions, rows: int, name: str
) -> Plan:
    """Shuffle and split.

    Parameters
    ----------
    first_pass
        What the first reading said.
    labels
        Labels of all samples, float64 (samples,).
    options
        Options of the training to be.
    rows
        Samples of a bucket, a multiple of 8.
    name
        Name of the data, for messages.

    Raises
    ------
    UserError
        If labels and options do not suit each other.
    """
    task = get_loss(options.loss).task
    coding = LabelCoding.fit(task, _Labels(name, labels, first_pass.label_names), options.positive)
    if options.validation_fraction > 0:
        stratified = task is Task.CLASSIFICATION
        rest, held_out = split(labels, options.validation_fraction, seed=options.seed, stratified=stratified, name=name)
        coding = LabelCoding.fit(task, _Labels(name, labels[rest], first_pass.label_names), options.positive)
    else:
        rest, held_out = shuffle(labels.size, options.seed), np.empty(0, np.intp)
    destinations = np.empty(labels.size, np.intp)
    destinations[rest] = np.arange(rest.size)
    destinations[held_out] = -(-rest.size // rows) * rows + np.arange(held_out.size)
    train_labels = coding.labels_of(_Labels(name, labels[rest], first_pass.label_names))
    return Plan(coding, train_labels, labels[held_out], rows, destinations)


def bucket_rows(first_pass: FirstPass, memory: int) -> int:
    """Samples of a bucket for a peak of about ``memory`` bytes; a multiple of 8.

    Raises
    ------
    UserError
        If that is too little.
    """
    value = np.dtype(first_pass.dtype).itemsize
    sample = first_pass.stored * (value + 4 * first_pass.sparse) / first_pass.samples + 16
    fixed = PROGRAM_BYTES + SAMPLE_BYTES * first_pass.samples + _FEATURE_BYTES * first_pass.space.count
    copies = _COPIES[first_pass.sparse]
    least = max(_LEAST_BUCKET, BANKS * sample) * copies
    if memory < fixed + least:
        needed = -(-int(fixed + least) // (1 << 20))
        raise UserError(
            f"{first_pass.samples:,} samples of {first_pass.space.count:,} features cannot be prepared in {memory:,} "
            f"bytes of memory: allow at least {needed}M"
        )
    return int((memory - fixed) / copies / sample) // BANKS * BANKS
