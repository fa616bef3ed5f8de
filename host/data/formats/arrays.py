"""NumPy files: a matrix (.npy), or named arrays (.npz) with dense or sparse features."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse

from p4sgd.host.data.columns import ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, Features, find_not_finite, join_shares
from p4sgd.host.data.formats.archive import archive_array, archive_labels, check_numbers, find_features, open_rows
from p4sgd.host.data.labels import real_labels
from p4sgd.host.distributed.communicator import Communicator, share_of
from p4sgd.host.errors import UserError

__all__ = ["check_finite", "load_archive", "load_matrix", "read_npy", "read_npz"]


def read_npy(path: Path, options: ReadOptions) -> Dataset:
    """Read a matrix whose columns are features and a label, by default the last (see `choose_columns`).

    The file is mapped, not loaded, as far as its numbers are float64 or float32 already.

    Raises
    ------
    UserError
        If the file cannot be read or does not hold a matrix of finite numbers.
    """
    matrix = load_matrix(path)
    columns = choose_columns(matrix.shape[1], None, options, str(path))
    labelled, ranks = columns.label is not None, options.communicator
    labels = real_labels(matrix[:, columns.label], str(path)) if labelled else np.zeros(matrix.shape[0])
    share = share_of(ranks, matrix.shape[0])
    matrix = matrix[share.start : share.stop]
    first, end = columns.features[0], columns.features[-1] + 1
    side_by_side = end - first == len(columns.features)
    features = matrix[:, first:end] if side_by_side else matrix[:, columns.features]
    return check_finite(join_shares(features, labels, str(path), ranks, labelled=labelled), share.start)


def load_matrix(path: Path) -> npt.NDArray[Any]:
    """The matrix of an .npy file, mapped.

    Raises
    ------
    UserError
        If it cannot be read, or is no matrix of numbers.
    """
    matrix = _load(path, mmap=True)
    if not isinstance(matrix, np.ndarray):
        raise UserError(f"{path}: is an .npz file by its contents: name it so")
    if matrix.ndim != 2:
        raise UserError(f"{path}: must hold a matrix of samples and columns, not an array of shape {matrix.shape}")
    check_numbers(matrix.dtype, str(path))
    return matrix


def read_npz(path: Path, options: ReadOptions) -> Dataset:
    """Read named arrays.

    Either a dense matrix under one of `p4sgd.host.data.formats.archive.FEATURE_KEYS`, or a sparse one as
    `scipy.sparse.save_npz` writes it (CSR, CSC, COO and so on; it becomes CSR; several ranks read nothing else). Beside
    it labels under one of `p4sgd.host.data.formats.archive.LABEL_KEYS`, as numbers or texts.

    Raises
    ------
    UserError
        If the file cannot be read, if an array is missing, or if numbers are not finite.
    """
    ranks = options.communicator
    with load_archive(path) as archive:
        features, share = _features(path, archive, ranks)
        if options.labels_needed:
            labels, names = archive_labels(path, archive)
        else:
            labels, names = np.zeros(sum(ranks.all_gather(len(share)))), ()
    dataset = join_shares(features, labels, str(path), ranks, label_names=names, labelled=options.labels_needed)
    if options.like is not None and dataset.feature_count != options.like.count:
        raise UserError(f"{path}: there are {dataset.feature_count} features, {options.like.count} are needed")
    return check_finite(dataset, share.start)


@contextmanager
def load_archive(path: Path) -> Iterator[Any]:
    """Open an archive of arrays.

    Raises
    ------
    UserError
        If it cannot be read; also from within the ``with`` block, if it is damaged.
    """
    archive = _load(path, mmap=False)
    if isinstance(archive, np.ndarray):
        raise UserError(f"{path}: is an .npy file by its contents: name it so")
    try:
        with archive:
            yield archive
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: is damaged or holds something else than numbers: {error}") from error


def _load(path: Path, *, mmap: bool) -> Any:
    try:
        return np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        pickled = any(words in str(error) for words in ("Object arrays", "Python objects"))
        why = "it holds Python objects, not numbers" if pickled else "damaged, or no NumPy file"
        raise UserError(f"{path}: cannot be read as NumPy arrays: {why}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from error


def _features(path: Path, archive: Any, ranks: Communicator) -> tuple[Features, range]:
    """The features of this rank's share of the samples, and which these are."""
    if ranks.size > 1:
        with open_rows(path, archive) as stored:
            share = share_of(ranks, stored.shape[0])
            return stored.rows(share), share
    key = find_features(path, archive)
    if key is None:
        try:
            matrix = cast("Features", scipy.sparse.load_npz(path))
        except (NotImplementedError, TypeError, AttributeError, IndexError) as error:
            raise UserError(f"{path}: holds no sparse matrix that SciPy could read: {error}") from error
    else:
        matrix = archive_array(path, archive, key)
        check_numbers(matrix.dtype, f"{path}, array {key}")
    return matrix, range(next(iter(matrix.shape), 0))


def check_finite(dataset: Dataset, first: int = 0) -> Dataset:
    """A data set, refused if a feature is not finite; ``first`` rows came before those that are here.

    Raises
    ------
    UserError
        For the first one, with row and column.
    """
    strange = find_not_finite(dataset.features)
    if strange is not None:
        row, column = strange
        value, place = dataset.features[row, column], f"row {first + row + 1}, feature {column + 1}"
        raise UserError(f"{dataset.name}, {place}: the value is {value}: it must be finite")
    return dataset
