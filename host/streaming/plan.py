"""The first pass over a data set, which finds features and labels, and the memory that preparing the rest takes."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from p4sgd.host.data import FeatureSpace
from p4sgd.host.data.dataset import LabelledSamples
from p4sgd.host.data.encoding import TableEncoding
from p4sgd.host.data.formats.source import Source, scan
from p4sgd.host.data.scaling import CENTRED, centring_error
from p4sgd.host.data.statistics import is_sparse
from p4sgd.host.data.table import Table
from p4sgd.host.errors import UserError
from p4sgd.host.streaming import OnProgress, Step
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import whitening_error
from p4sgd.hw.spec.config import BANKS

__all__ = ["FirstPass", "bucket_rows", "check_density", "first_pass"]


@dataclass(frozen=True, eq=False)
class FirstPass:
    """Findings of the first pass over the data.

    Parameters
    ----------
    samples
        Labels of all samples, in the order of the data.
    space
        Their features.
    stored
        Number of stored values.
    sparse
        Whether the samples are sparse.
    dtype
        Type of the values: float64 or float32.
    table
        Contents of the columns if these are not the features yet, as with texts and gaps.
    remarks
        Remarks on the file for the user.
    """

    samples: LabelledSamples
    space: FeatureSpace
    stored: int
    sparse: bool
    dtype: np.dtype[np.floating]
    table: Table | None
    remarks: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.samples.labels.size

    def row_bytes(self, *, overhead: int) -> int:
        """Bytes of all samples in files."""
        return self.stored * (self.dtype.itemsize + 4 * self.sparse) + overhead * self.count

    def widest(self, missing: str) -> "FirstPass":
        """The same with the most features, and stored values, that the columns of a table may become."""
        if self.table is None:
            return self
        most = TableEncoding.widest(self.table, missing)
        sparse = is_sparse(most.stored, most.count // 2)
        stored = self.count * (most.stored if sparse else most.count)
        return dataclasses.replace(self, space=FeatureSpace(most.count), stored=stored, sparse=sparse, table=None)


def first_pass(source: Source, on_progress: OnProgress) -> FirstPass:
    """Read all samples once; `UserError` if there is an error in the data."""
    found = scan(source, lambda: on_progress(Step.READ, source.position, source.size))
    table = source.table
    if table is not None and table.plain and source.options.missing == "error":
        table = None
    assert source.space is not None, "it was read"
    return FirstPass(found.samples, source.space, found.stored, found.sparse, found.dtype, table, source.remarks)


_PROGRAM_BYTES = 320 << 20
"""Memory of the program, its libraries, and the current blocks or the samples whose lines are predicted, independent of
the data."""

_SAMPLE_BYTES = 120
"""Upper bound for the memory per sample without its features: label, weight, destination, and computing these."""

_FEATURE_BYTES = {False: 500, True: 150}
"""Memory per feature without the buckets: statistics, scaling, sums, and, unless all workers are sparse (the key),
blocks of at least 8 samples."""

_WHITENED_BYTES = 2600
"""Further memory per feature that is whitened: moments, matrix as integers and as float64."""

_LEAST_BUCKET = 8 << 20
"""Least size of a bucket in bytes: smaller ones would be too many files."""

_COPIES = {False: 1.25, True: 4.0}
"""Memory for putting a bucket in order, relative to the size of its file, by whether it is sparse (more copies)."""


def bucket_rows(found: FirstPass, memory: int, *, whitened: bool = False, sparse_workers: bool = False) -> int:
    """Samples per bucket for a memory peak of about ``memory`` bytes; a multiple of 8.

    ``sparse_workers`` says that no sample is ever filled up with zeros. Raises `UserError` if that is too little
    memory; the message says how much is needed.
    """
    sample = found.row_bytes(overhead=16) / found.count
    feature = _FEATURE_BYTES[found.sparse and sparse_workers] + (_WHITENED_BYTES if whitened else 0)
    fixed = _PROGRAM_BYTES + _SAMPLE_BYTES * found.count + feature * found.space.count
    copies = _COPIES[found.sparse]
    least = max(_LEAST_BUCKET, BANKS * sample) * copies
    if memory < fixed + least:
        needed = -(-int(fixed + least) // (1 << 20))
        raise UserError(
            f"{found.count:,} samples of {found.space.count:,} features cannot be prepared in {memory:,} "
            f"bytes of memory: allow at least {needed}M"
        )
    return int((memory - fixed) / copies / sample) // BANKS * BANKS


def check_density(found: FirstPass, samples: int, options: TrainingOptions) -> None:
    """Refuse to centre sparse data before they are sorted.

    Only the ``samples`` to train on count, and how many values they store is not known yet. So data near the limit of
    which some samples are held out may pass and be refused once they are sorted.
    """
    if found.sparse and is_sparse(found.stored, samples * found.space.count):
        if options.precondition != "none":
            raise whitening_error(found.samples.name)
        if options.scaling in CENTRED:
            raise centring_error(options.scaling, found.stored / (found.count * found.space.count))
