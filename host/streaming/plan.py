"""The memory and the disk that preparing a data set takes."""

import dataclasses

from p4sgd.host.data.encoding import FeatureSpace, TableEncoding
from p4sgd.host.data.formats.source import Scan
from p4sgd.host.data.scaling import CENTRED, centring_error
from p4sgd.host.data.statistics import is_sparse
from p4sgd.host.errors import UserError
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import whitening_error
from p4sgd.hw.spec.config import BANKS


def row_bytes(found: Scan, *, overhead: int) -> int:
    """Bytes of all samples in files, with so many beside the values of each."""
    return found.stored * (found.dtype.itemsize + 4 * found.sparse) + overhead * found.count


def widest(found: Scan, missing: str) -> Scan:
    """The same with the most features, and stored values, that the columns of a table may become."""
    if found.table is None:
        return found
    most = TableEncoding.widest(found.table, missing)
    sparse = is_sparse(most.stored, most.count // 2)
    stored = found.count * (most.stored if sparse else most.count)
    return dataclasses.replace(found, space=FeatureSpace(most.count), stored=stored, sparse=sparse, table=None)


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


def bucket_rows(found: Scan, memory: int, *, whitened: bool = False, sparse_workers: bool = False) -> int:
    """Samples per bucket for a memory peak of about ``memory`` bytes; a multiple of 8.

    ``sparse_workers`` says that no sample is ever filled up with zeros. Raises `UserError` if that is too little
    memory; the message says how much is needed.
    """
    sample = row_bytes(found, overhead=16) / found.count
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


def check_density(found: Scan, samples: int, options: TrainingOptions) -> None:
    """Refuse to centre sparse data before they are sorted.

    Only the ``samples`` to train on count, and how many values they store is not known yet. So data near the limit of
    which some samples are held out may pass and be refused once they are sorted.
    """
    if found.sparse and is_sparse(found.stored, samples * found.space.count):
        if options.precondition != "none":
            raise whitening_error(found.samples.name)
        if options.scaling in CENTRED:
            raise centring_error(options.scaling, found.stored / (found.count * found.space.count))
