"""NumPy files: a matrix (.npy), or named arrays (.npz) with dense or sparse features."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse

from p4sgd.host.data.columns import ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, Features, find_not_finite
from p4sgd.host.data.labels import encode_labels, real_labels
from p4sgd.host.errors import UserError

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
    labelled = columns.label is not None
    labels = real_labels(matrix[:, columns.label], str(path)) if labelled else np.zeros(matrix.shape[0])
    first, end = columns.features[0], columns.features[-1] + 1
    side_by_side = end - first == len(columns.features)
    features = matrix[:, first:end] if side_by_side else matrix[:, columns.features]
    return _checked(Dataset(features, labels, str(path), labelled=labelled))


def read_npz(path: Path, options: ReadOptions) -> Dataset:
    """Read named arrays.

    Either a dense matrix under one of `FEATURE_KEYS`, or a sparse one as `scipy.sparse.save_npz` writes it (CSR, CSC,
    COO and so on; it becomes CSR). Beside it labels under one of `LABEL_KEYS`, as numbers or texts.

    Raises
    ------
    UserError
        If the file cannot be read, if an array is missing, or if numbers are not finite.
    """
    archive = _load(path, mmap=False)
    if isinstance(archive, np.ndarray):
        raise UserError(f"{path}: is an .npy file by its contents: name it so")
    try:
        with archive:
            features = _features(path, archive)
            labels, names = _labels(path, archive) if options.labels_needed else (np.zeros(features.shape[:1]), ())
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: is damaged or holds something else than numbers: {error}") from error
    dataset = Dataset(features, labels, str(path), names, labelled=options.labels_needed)
    if options.like is not None and dataset.feature_count != options.like.count:
        raise UserError(f"{path}: there are {dataset.feature_count} features, {options.like.count} are needed")
    return _checked(dataset)


def _load(path: Path, *, mmap: bool) -> Any:
    try:
        return np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        pickled = any(words in str(error) for words in ("Object arrays", "Python objects"))
        why = "it holds Python objects, not numbers" if pickled else "damaged, or no NumPy file"
        raise UserError(f"{path}: cannot be read as NumPy arrays: {why}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from error


def _features(path: Path, archive: Mapping[str, npt.NDArray[Any]]) -> Features:
    if "format" in archive and "shape" in archive:
        try:
            return cast("Features", scipy.sparse.load_npz(path))
        except (NotImplementedError, TypeError, AttributeError, IndexError) as error:
            raise UserError(f"{path}: holds no sparse matrix that SciPy could read: {error}") from error
    key = _find(archive, FEATURE_KEYS)
    if key is None:
        there = ", ".join(archive) or "none"
        raise UserError(f"{path}: has no features: an array {_named(FEATURE_KEYS)} is needed; there are {there}")
    matrix = _array(path, archive, key)
    _check_numbers(matrix, f"{path}, array {key}")
    return matrix


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


def _checked(dataset: Dataset) -> Dataset:
    strange = find_not_finite(dataset.features)
    if strange is not None:
        row, column = strange
        value = dataset.features[row, column]
        raise UserError(f"{dataset.name}, row {row + 1}, feature {column + 1}: the value is {value}: it must be finite")
    return dataset
