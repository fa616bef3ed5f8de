"""Archives of NumPy arrays (.npz): a dense or sparse matrix of features, and labels.

The features are a matrix under one of `FEATURE_KEYS`, or a sparse matrix as `scipy.sparse.save_npz` writes it. Labels
are under one of `LABEL_KEYS`, as numbers or texts; weights of samples, if there are any, under one of `WEIGHT_KEYS`.
Dense matrices in C order and sparse ones in CSR form are stored by rows, and can be decompressed in blocks.
"""

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.npy import check_numbers, load_numpy
from p4sgd.host.data.formats.source import BLOCK_VALUES, Gather, Rows, Source, check_finite, label_number
from p4sgd.host.data.matrix import Features, checked
from p4sgd.host.data.raw_labels import RawLabels
from p4sgd.host.errors import UserError

FEATURE_KEYS = ("features", "X", "x", "data")
"""Keys of the matrix of features; the first that exists is used."""

LABEL_KEYS = ("labels", "y", "Y", "target")
"""Keys of the labels; the first that exists is used."""

WEIGHT_KEYS = ("weights", "sample_weight")
"""Keys of the weights of samples; the first that exists is used."""

_CHUNK_BYTES = 1 << 18
"""Size of the parts that are decompressed; larger ones are slower."""


class NpzSource(Source):
    """An .npz file. Labels, and the row pointers of a sparse matrix, are read as a whole.

    A single process that reads everything accepts matrices of any memory order and sparse format, and converts sparse
    ones to CSR. To be read in blocks or by several ranks, a matrix must be stored by rows.
    """

    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        """See `Source.blocks`."""
        alone, needed = whole and self.share.size == 1, self.options.labels_needed
        with _open_archive(self.path) as archive, _open_rows(self.path, archive, whole=alone) as stored:
            self._shape = samples, _ = stored.shape
            share = self.share.of(samples)
            labels = _labels(self.path, archive, samples, several=whole) if needed else None
            weights = _weights(self.path, archive, samples) if needed else None
            first = share.start
            while True:
                end = share.stop if whole else stored.end(first)
                features = checked(stored.rows(range(first, end)), self.name)
                check_finite(features, self.name, first)
                yield Rows(
                    features,
                    None if labels is None else RawLabels(labels.values[first:end], labels.texts),
                    None if weights is None else weights[first:end],
                )
                first, self._done = end, end / max(1, samples)
                if first >= share.stop:
                    return

    def settle(self, gather: Gather) -> FeatureSpace:
        """See `Source.settle`."""
        (samples, count), like = self._shape, self.options.like
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if like is not None and count != like.count:
            raise UserError(f"{self.path}: there are {count} features, {like.count} are needed")
        return FeatureSpace(count, label_column=label_number(self.options))


@contextmanager
def _open_archive(path: Path) -> Iterator[Any]:
    """Open an archive of arrays; `UserError` if it cannot be read or, also within the ``with`` block, is damaged."""
    archive = load_numpy(path, mmap=False)
    if isinstance(archive, np.ndarray):
        raise UserError(f"{path}: is an .npy file by its contents: name it so")
    try:
        with archive:
            yield archive
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: is damaged or holds something else than numbers: {error}") from error


# -- labels ------------------------------------------------------------------------------------------------------------


def _array(path: Path, archive: Mapping[str, Any], key: str) -> npt.NDArray[Any]:
    found = archive[key]
    if not isinstance(found, np.ndarray):
        raise _no_array(path, key)
    return found


def _labels(path: Path, archive: Mapping[str, Any], samples: int, *, several: bool) -> RawLabels:
    """The labels of all samples; (samples, targets) only if there may be ``several`` targets."""
    key = _find(archive, LABEL_KEYS)
    if key is None:
        raise UserError(f"{path}: has no labels: an array {_named(LABEL_KEYS)} is needed")
    labels = _array(path, archive, key)
    if labels.ndim == 2 and 1 in labels.shape:
        labels = labels.reshape(-1)
    shape: tuple[int, ...] = labels.shape
    targets = len(shape) == 2 and shape[0] == samples
    if targets and not several:
        raise UserError(f"{path}: has {shape[1]} targets, here one is needed: train from the file as a whole")
    if labels.shape != (samples,) and not targets:
        raise UserError(f"{path}: there are {samples} samples, but labels of shape {labels.shape}")
    if labels.dtype.kind not in "US":
        check_numbers(labels.dtype, f"{path}, labels")
        return RawLabels(labels)
    if targets:
        raise UserError(f"{path}: the labels of several targets must be numbers, not {labels.dtype}")
    distinct, which = np.unique(labels, return_inverse=True)
    try:
        return RawLabels(which, [text.decode() if isinstance(text, bytes) else text for text in distinct.tolist()])
    except UnicodeDecodeError:
        raise UserError(f"{path}, labels: hold bytes that are not UTF-8 text") from None


def _weights(path: Path, archive: Mapping[str, npt.NDArray[Any]], samples: int) -> npt.NDArray[np.float64] | None:
    """The weights of all samples, if there are any."""
    key = _find(archive, WEIGHT_KEYS)
    if key is None:
        return None
    weights = _array(path, archive, key)
    check_numbers(weights.dtype, f"{path}, {key}")
    if weights.size != samples or weights.ndim > 2:
        raise UserError(f"{path}: there are {samples} samples, but {key} of shape {weights.shape}")
    return weights.reshape(-1).astype(np.float64)


def _find(archive: Mapping[str, npt.NDArray[Any]], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if key in archive), None)


def _named(keys: tuple[str, ...]) -> str:
    return " or ".join(repr(key) for key in keys[:2])


def _no_array(path: Path, key: str) -> UserError:
    return UserError(f"{path}: holds {key}, but not as a NumPy array")


# -- features ----------------------------------------------------------------------------------------------------------


class _StoredRows(NamedTuple):
    """Rows of a matrix in an open archive.

    ``rows`` gives those of a range, fastest in order; `EOFError` if the array is too short. ``end`` is that of a block
    of about `BLOCK_VALUES` values, but at least one row, that begins at a row.
    """

    shape: tuple[int, int]
    rows: Callable[[range], Features]
    end: Callable[[int], int]


def _member(path: Path, archive: Any, name: str, kinds: str) -> npt.NDArray[Any]:
    """An array of a sparse matrix, whose ``dtype.kind`` must be one of ``kinds``."""
    found = archive[name]
    if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds:
        raise UserError(f"{path}: the sparse matrix is damaged: {name} is not what SciPy saves")
    return found


def _sparse_form(path: Path, archive: Any) -> tuple[str | bytes, tuple[int, int]]:
    """Format and shape of a sparse matrix."""
    kind, shape = _member(path, archive, "format", "SU"), _member(path, archive, "shape", "iu")
    if kind.shape != ():
        raise UserError(f"{path}: the sparse matrix is damaged: format is not what SciPy saves")
    if shape.shape != (2,):
        raise _no_matrix(path, tuple(np.atleast_1d(shape).tolist()))
    return kind.item(), (int(shape[0]), int(shape[1]))


@contextmanager
def _open_rows(path: Path, archive: Any, *, whole: bool) -> Iterator[_StoredRows]:
    """Open the features of an archive, without reading them if they are stored by rows.

    ``whole`` says that all rows will be read at once, which is possible for any matrix.
    """
    with ExitStack() as files:
        if not ("format" in archive and "shape" in archive):
            key = _find(archive, FEATURE_KEYS)
            if key is None:
                there = ", ".join(archive) or "none"
                raise UserError(
                    f"{path}: has no features: an array {_named(FEATURE_KEYS)} is needed; there are {there}"
                )
            yield _dense_rows(path, files.enter_context(_StoredArray(path, archive, key)), key, whole=whole)
            return
        kind, shape = _sparse_form(path, archive)
        if kind in (b"csr", "csr"):
            arrays = [files.enter_context(_StoredArray(path, archive, part)) for part in ("data", "indices")]
            yield _sparse_rows(path, archive, arrays, shape)
        elif whole:
            yield _loaded_rows(path)
        else:
            shown = kind.decode() if isinstance(kind, bytes) else kind
            raise UserError(
                f"{path}: the sparse matrix is {shown}, which cannot be read by rows: save it anew in the format csr"
            )


def _no_matrix(path: Path, shape: tuple[int, ...]) -> UserError:
    return UserError(f"{path}: features must be a matrix of samples and features, not of shape {shape}")


class _StoredArray:
    """An array in an archive, which is decompressed from front to back."""

    def __init__(self, path: Path, archive: Any, key: str) -> None:
        if f"{key}.npy" not in archive.zip.namelist():
            raise _no_array(path, key) if key in archive else KeyError(f"{key} is not a file in the archive")
        self._file = archive.zip.open(f"{key}.npy")
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self.columns_first, self.dtype = read(self._file)
        if self.dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded")
        self._start = self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def part(self, which: range) -> npt.NDArray[Any]:
        """Consecutive items along the first axis, which are contiguous in C order."""
        each = math.prod(self.shape[1:])
        begin = self._start + which.start * each * self.dtype.itemsize
        if self._file.tell() != begin:
            self._file.seek(begin)
        values = np.empty(len(which) * each, self.dtype)
        left = values.view(np.uint8).data
        while left:
            count = self._file.readinto(left[:_CHUNK_BYTES])
            if not count:
                raise EOFError("an array is cut off")
            left = left[count:]
        return values.reshape(len(which), *self.shape[1:], order="F" if self.columns_first else "C")


def _dense_rows(path: Path, array: _StoredArray, key: str, *, whole: bool) -> _StoredRows:
    if len(array.shape) != 2:
        raise _no_matrix(path, array.shape)
    check_numbers(array.dtype, f"{path}, array {key}")
    samples, columns = array.shape
    if array.columns_first and columns > 1 and not whole:
        raise UserError(
            f"{path}: array {key} is stored column by column, which cannot be read by rows: save it anew from "
            f"numpy.ascontiguousarray({key}), or as an .npy file"
        )
    step = max(1, BLOCK_VALUES // max(1, columns))
    return _StoredRows(array.shape, array.part, lambda first: min(first + step, samples))


def _sparse_rows(path: Path, archive: Any, arrays: list[_StoredArray], shape: tuple[int, int]) -> _StoredRows:
    pointers, (data, indices) = _member(path, archive, "indptr", "iu"), arrays
    if pointers.shape != (shape[0] + 1,) or pointers[0] != 0 or (pointers[1:] < pointers[:-1]).any():
        raise UserError(f"{path}: the sparse matrix is damaged: its row pointers are invalid")
    if len(data.shape) != 1 or data.shape != indices.shape:
        raise UserError(f"{path}: the sparse matrix is damaged: it does not have one index per value")
    # As in `scipy.sparse.load_npz`. Only csr_matrix reduces its indices to the smallest possible type.
    form: Any = scipy.sparse.csr_array if "_is_array" in archive else scipy.sparse.csr_matrix

    def rows(which: range) -> Features:
        own = pointers[which.start : which.stop + 1]
        stored = range(int(own[0]), int(own[-1]))
        parts = (data.part(stored), indices.part(stored), own - own[0])
        return cast("Features", form(parts, shape=(len(which), shape[1])))

    def end(first: int) -> int:
        last = int(np.searchsorted(pointers, int(pointers[first]) + BLOCK_VALUES, side="right")) - 1
        return min(max(last, first + 1), shape[0], first + BLOCK_VALUES)

    return _StoredRows(shape, rows, end)


def _loaded_rows(path: Path) -> _StoredRows:
    """A sparse matrix of another format than CSR, whose rows are all read at once."""
    try:
        matrix = cast("Features", scipy.sparse.load_npz(path))
    except (NotImplementedError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: holds no sparse matrix that SciPy could read: {error}") from error
    return _StoredRows(matrix.shape, lambda which: matrix, lambda first: matrix.shape[0])
