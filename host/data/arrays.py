"""NumPy files: a matrix (.npy), or named arrays (.npz) with dense or sparse features."""

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse

from p4sgd.host.data.columns import ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, Features, find_not_finite
from p4sgd.host.data.labels import encode_labels, real_labels
from p4sgd.host.data.spread import join_shares
from p4sgd.host.errors import UserError
from p4sgd.host.launch.communicator import Communicator, share_of

__all__ = ["FEATURE_KEYS", "LABEL_KEYS", "read_npy", "read_npz"]

FEATURE_KEYS = ("features", "X", "x", "data")
"""Names under which an .npz file may hold its matrix of features; the first that is there counts."""

LABEL_KEYS = ("labels", "y", "Y", "target")
"""Names under which it may hold its labels."""


def read_npy(path: Path, options: ReadOptions) -> Dataset:
    """Read a matrix whose columns are features and a label, by default the last (see `choose_columns`).

    The file is mapped, not loaded, as far as its numbers are float64 or float32 already.

    Raises
    ------
    UserError
        If the file cannot be read or does not hold a matrix of finite numbers.
    """
    matrix = _load(path, mmap=True)
    if not isinstance(matrix, np.ndarray):
        raise UserError(f"{path}: is an .npz file by its contents: name it so")
    if matrix.ndim != 2:
        raise UserError(f"{path}: must hold a matrix of samples and columns, not an array of shape {matrix.shape}")
    _check_numbers(matrix, str(path))
    columns = choose_columns(matrix.shape[1], None, options, str(path))
    labelled, ranks = columns.label is not None, options.communicator
    labels = real_labels(matrix[:, columns.label], str(path)) if labelled else np.zeros(matrix.shape[0])
    share = share_of(ranks, matrix.shape[0])
    matrix = matrix[share.start : share.stop]
    first, end = columns.features[0], columns.features[-1] + 1
    side_by_side = end - first == len(columns.features)
    features = matrix[:, first:end] if side_by_side else matrix[:, columns.features]
    return _checked(join_shares(features, labels, str(path), ranks, labelled=labelled), share)


def read_npz(path: Path, options: ReadOptions) -> Dataset:
    """Read named arrays.

    Either a dense matrix under one of `FEATURE_KEYS`, or a sparse one as `scipy.sparse.save_npz` writes it (CSR, CSC,
    COO and so on; it becomes CSR; several ranks read nothing else). Beside it labels under one of `LABEL_KEYS`, as
    numbers or texts.

    Raises
    ------
    UserError
        If the file cannot be read, if an array is missing, or if numbers are not finite.
    """
    ranks = options.communicator
    archive = _load(path, mmap=False)
    if isinstance(archive, np.ndarray):
        raise UserError(f"{path}: is an .npy file by its contents: name it so")
    try:
        with archive:
            features, share = _features(path, archive, ranks)
            labels, names = (
                _labels(path, archive) if options.labels_needed else (np.zeros(sum(ranks.all_gather(len(share)))), ())
            )
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: is damaged or holds something else than numbers: {error}") from error
    dataset = join_shares(features, labels, str(path), ranks, label_names=names, labelled=options.labels_needed)
    if options.like is not None and dataset.feature_count != options.like.count:
        raise UserError(f"{path}: there are {dataset.feature_count} features, {options.like.count} are needed")
    return _checked(dataset, share)


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
    if "format" in archive and "shape" in archive:
        return _sparse(path, archive, ranks)
    key = _find(archive, FEATURE_KEYS)
    if key is None:
        there = ", ".join(archive) or "none"
        raise UserError(f"{path}: has no features: an array {_named(FEATURE_KEYS)} is needed; there are {there}")
    if ranks.size == 1:
        matrix = _array(path, archive, key)
        share = range(next(iter(matrix.shape), 0))
    else:
        with _StoredArray(archive, key) as stored:
            share = share_of(ranks, next(iter(stored.shape), 0))
            matrix = stored.rows(share)
    _check_numbers(matrix, f"{path}, array {key}")
    return matrix, share


def _sparse(path: Path, archive: Any, ranks: Communicator) -> tuple[Features, range]:
    """Likewise, of a matrix as `scipy.sparse.save_npz` writes it."""
    try:
        if ranks.size == 1:
            matrix = scipy.sparse.load_npz(path)
            return cast("Features", matrix), range(matrix.shape[0])
    except (NotImplementedError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: holds no sparse matrix that SciPy could read: {error}") from error
    kind = archive["format"].item()
    if kind not in (b"csr", "csr"):
        raise UserError(
            f"{path}: holds a sparse matrix that is not CSR, of which no rank can read a part: save it as CSR"
        )
    samples, features = archive["shape"].tolist()
    share, ends = share_of(ranks, samples), archive["indptr"]
    stored = range(int(ends[share.start]), int(ends[share.stop]))
    parts = []
    for key in ("data", "indices"):
        with _StoredArray(archive, key) as array:
            parts.append(array.rows(stored))
    starts = ends[share.start : share.stop + 1] - ends[share.start]
    return scipy.sparse.csr_array((*parts, starts), shape=(len(share), features)), share


class _StoredArray:
    """An array of an archive, of which some rows are wanted. What comes before them is read over, not kept."""

    def __init__(self, archive: Any, key: str) -> None:
        self._file = archive.zip.open(f"{key}.npy")
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self._columns_first, self._kind = read(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def rows(self, which: range) -> npt.NDArray[Any]:
        """Some neighbours.

        Raises
        ------
        ValueError
            If they are not there, or not stored one after another.
        """
        if self._kind.hasobject or (self._columns_first and len(self.shape) > 1):
            raise ValueError("only arrays of numbers in row-major order can be read in parts")
        row = math.prod(self.shape[1:])
        self._file.seek(which.start * row * self._kind.itemsize, io.SEEK_CUR)
        data = self._file.read(len(which) * row * self._kind.itemsize)
        return np.frombuffer(data, self._kind).reshape(len(which), *self.shape[1:])


def _labels(path: Path, archive: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Labels as numbers, and the names of the classes if they are texts."""
    key = _find(archive, LABEL_KEYS)
    if key is None:
        raise UserError(f"{path}: has no labels: an array {_named(LABEL_KEYS)} is needed")
    labels = _array(path, archive, key)
    if labels.ndim == 2 and 1 in labels.shape:
        labels = labels.reshape(-1)
    if labels.dtype.kind not in "US":
        _check_numbers(labels, f"{path}, labels")
        return real_labels(labels, str(path)), ()
    distinct, which = np.unique(labels, return_inverse=True)
    try:
        texts = [text.decode() if isinstance(text, bytes) else text for text in distinct.tolist()]
    except UnicodeDecodeError:
        raise UserError(f"{path}, labels: hold bytes that are not UTF-8 text") from None
    return encode_labels(texts, which, str(path))


def _array(path: Path, archive: Mapping[str, npt.NDArray[Any]], key: str) -> npt.NDArray[Any]:
    """An array of an archive; what was packed without being one comes as bytes."""
    array: object = archive[key]
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path}: holds {key}, but not as a NumPy array")
    return array


def _find(archive: Mapping[str, npt.NDArray[Any]], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if key in archive), None)


def _named(keys: tuple[str, ...]) -> str:
    return " or ".join(repr(key) for key in keys[:2])


def _check_numbers(array: npt.NDArray[Any], place: str) -> None:
    if array.dtype.kind not in "buif":
        raise UserError(f"{place}: must hold numbers, not {array.dtype}")


def _checked(dataset: Dataset, share: range) -> Dataset:
    strange = find_not_finite(dataset.features)
    if strange is not None:
        row, column = strange
        value, place = dataset.features[row, column], f"row {share.start + row + 1}, feature {column + 1}"
        raise UserError(f"{dataset.name}, {place}: the value is {value}: it must be finite")
    return dataset
