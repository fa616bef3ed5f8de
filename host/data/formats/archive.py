"""What an .npz archive holds: labels, and features of which some rows are wanted."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse

from p4sgd.host.data.dataset import Features
from p4sgd.host.data.labels import encode_labels, real_labels
from p4sgd.host.errors import UserError

__all__ = [
    "FEATURE_KEYS",
    "LABEL_KEYS",
    "StoredRows",
    "archive_array",
    "archive_labels",
    "check_numbers",
    "find_features",
    "open_rows",
]


FEATURE_KEYS = ("features", "X", "x", "data")
"""Names under which an .npz file may hold its matrix of features; the first that is there counts."""

LABEL_KEYS = ("labels", "y", "Y", "target")
"""Names under which it may hold its labels."""


class StoredRows(Protocol):
    """A matrix in an open archive."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    def rows(self, which: range) -> Features:
        """Some neighbours. What comes before them is read over, not kept; reading goes fast from front to back.

        Raises
        ------
        EOFError
            If they are not there.
        """
        ...

    def end(self, first: int, values: int) -> int:
        """Up to which row, from ``first``, there are about so many values: one row at least."""
        ...


@contextmanager
def open_rows(path: Path, archive: Any) -> Iterator[StoredRows]:
    """Find the features of an archive, without reading them.

    Raises
    ------
    UserError
        If there are none, if they are no numbers, or if they are not stored row by row.
    ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error
        If the archive is damaged.
    """
    key = find_features(path, archive)
    with ExitStack() as files:
        if key is not None:
            yield _DenseRows(path, files.enter_context(_StoredArray(archive, key)), key)
            return
        kind = archive["format"].item()
        if kind not in (b"csr", "csr"):
            shown = kind.decode() if isinstance(kind, bytes) else kind
            raise UserError(
                f"{path}: the sparse matrix is {shown}, which cannot be read by rows: save it anew in the format csr"
            )
        data, indices = (files.enter_context(_StoredArray(archive, part)) for part in ("data", "indices"))
        rows, columns = archive["shape"].tolist()
        yield _SparseRows(path, data, indices, archive["indptr"].astype(np.int64), (rows, columns))


def find_features(path: Path, archive: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """The name of the matrix of features, ``None`` if it is a sparse one as `scipy.sparse.save_npz` writes it.

    Raises
    ------
    UserError
        If there is none.
    """
    if "format" in archive and "shape" in archive:
        return None
    key = _find(archive, FEATURE_KEYS)
    if key is None:
        there = ", ".join(archive) or "none"
        raise UserError(f"{path}: has no features: an array {_named(FEATURE_KEYS)} is needed; there are {there}")
    return key


def archive_labels(
    path: Path, archive: Mapping[str, npt.NDArray[Any]]
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Labels as numbers, and the names of the classes if they are texts.

    Raises
    ------
    UserError
        If there are none, or if they are something else.
    """
    key = _find(archive, LABEL_KEYS)
    if key is None:
        raise UserError(f"{path}: has no labels: an array {_named(LABEL_KEYS)} is needed")
    labels = archive_array(path, archive, key)
    if labels.ndim == 2 and 1 in labels.shape:
        labels = labels.reshape(-1)
    if labels.dtype.kind not in "US":
        check_numbers(labels.dtype, f"{path}, labels")
        return real_labels(labels, str(path)), ()
    distinct, which = np.unique(labels, return_inverse=True)
    try:
        texts = [text.decode() if isinstance(text, bytes) else text for text in distinct.tolist()]
    except UnicodeDecodeError:
        raise UserError(f"{path}, labels: hold bytes that are not UTF-8 text") from None
    return encode_labels(texts, which, str(path))


def archive_array(path: Path, archive: Mapping[str, npt.NDArray[Any]], key: str) -> npt.NDArray[Any]:
    """An array of an archive; what was packed without being one comes as bytes.

    Raises
    ------
    UserError
        Then.
    """
    array: object = archive[key]
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path}: holds {key}, but not as a NumPy array")
    return array


def check_numbers(kind: np.dtype[Any], place: str) -> None:
    """Refuse what are no numbers.

    Raises
    ------
    UserError
        Then.
    """
    if kind.kind not in "buif":
        raise UserError(f"{place}: must hold numbers, not {kind}")


def _find(archive: Mapping[str, npt.NDArray[Any]], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if key in archive), None)


def _named(keys: tuple[str, ...]) -> str:
    return " or ".join(repr(key) for key in keys[:2])


class _StoredArray:
    """An array in an archive."""

    def __init__(self, archive: Any, key: str) -> None:
        self._file = archive.zip.open(f"{key}.npy")
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self.columns_first, self.dtype = read(self._file)
        self._start = self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def part(self, which: range) -> npt.NDArray[Any]:
        """Some of the things that it has along its first axis, which are stored one after another."""
        if self.dtype.hasobject:
            raise ValueError("Python objects")
        each = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._file.seek(self._start + which.start * each)
        data = self._file.read(len(which) * each)
        if len(data) < len(which) * each:
            raise EOFError("an array is cut off")
        return np.frombuffer(data, self.dtype).reshape(len(which), *self.shape[1:])


class _DenseRows:
    def __init__(self, path: Path, array: _StoredArray, key: str) -> None:
        if len(array.shape) != 2:
            raise UserError(f"{path}: features must be a matrix of samples and features, not of shape {array.shape}")
        check_numbers(array.dtype, f"{path}, array {key}")
        if array.columns_first and array.shape[1] > 1:
            raise UserError(
                f"{path}: array {key} is stored column by column, which cannot be read by rows: save it anew from "
                f"numpy.ascontiguousarray({key}), or as an .npy file"
            )
        self._array = array
        self.shape: tuple[int, int] = array.shape

    def rows(self, which: range) -> Features:
        return self._array.part(which)

    def end(self, first: int, values: int) -> int:
        return min(first + max(1, values // max(1, self.shape[1])), self.shape[0])


class _SparseRows:
    def __init__(
        self,
        path: Path,
        data: _StoredArray,
        indices: _StoredArray,
        pointers: npt.NDArray[np.int64],
        shape: tuple[int, int],
    ) -> None:
        if pointers.shape != (shape[0] + 1,) or (np.diff(pointers) < 0).any():
            raise UserError(f"{path}: the sparse matrix is damaged: its row pointers are no row pointers")
        self._data = data
        self._indices = indices
        self._pointers = pointers
        self.shape = shape

    def rows(self, which: range) -> Features:
        pointers = self._pointers[which.start : which.stop + 1]
        stored = range(int(pointers[0]), int(pointers[-1]))
        parts = (self._data.part(stored), self._indices.part(stored), pointers - pointers[0])
        return scipy.sparse.csr_array(parts, shape=(len(which), self.shape[1]))

    def end(self, first: int, values: int) -> int:
        end = int(np.searchsorted(self._pointers, self._pointers[first] + values, side="right")) - 1
        return min(max(end, first + 1), self.shape[0], first + values)
