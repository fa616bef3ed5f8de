"""NumPy matrices (.npy) whose columns are features and a label."""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import Columns, choose_columns
from p4sgd.host.data.dataset import Dataset, Features, FeatureSpace
from p4sgd.host.data.formats.source import BLOCK_VALUES, RowSource, check_finite
from p4sgd.host.data.raw_labels import RawLabels
from p4sgd.host.distributed.communicator import share_of
from p4sgd.host.errors import UserError

__all__ = ["NpySource", "check_numbers", "load_numpy"]


class NpySource(RowSource):
    """A matrix of samples and columns, of which the last is the label by default.

    To read it as a whole it is memory-mapped, which copies nothing if its type is float64 or float32. Blocks are read
    from the file instead, because the pages of a map would count as memory of the process.
    """

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        matrix = _find_matrix(self.path)
        columns = choose_columns(matrix.columns, None, self.options, self.name)
        step = max(1, BLOCK_VALUES // matrix.columns)
        for first in range(0, matrix.rows, step):
            part = matrix.read(first, min(step, matrix.rows - first))
            features, labels, weights = _split(part, columns)
            yield check_finite(self._block(features, labels, first, weights), first)
            self._done = (first + part.shape[0]) / matrix.rows
        if matrix.rows == 0:
            raise UserError(f"{self.name}: there are no samples")
        self._space = FeatureSpace(len(columns.features))

    def _read(self) -> Dataset:
        matrix = _map_matrix(self.path)
        columns = choose_columns(matrix.shape[1], None, self.options, self.name)
        share = share_of(self.options.communicator, matrix.shape[0])
        features, labels, weights = _split(matrix[share.start : share.stop], columns)
        targets = None
        if columns.targets:
            targets = np.asarray(features[:, -columns.targets :], np.float64)
            features = features[:, : -columns.targets]
        return check_finite(self._join(features, labels, weights, targets), share.start)


def _split(
    rows: npt.NDArray[Any], columns: Columns
) -> tuple[Features, RawLabels | None, npt.NDArray[np.float64] | None]:
    """Features of some rows, a view if their columns are contiguous, and the labels and weights if these are needed."""
    weights = None if columns.weight is None else rows[:, columns.weight].astype(np.float64)
    labels = None if columns.label is None else RawLabels(rows[:, columns.label])
    first, end = columns.features[0], columns.features[-1] + 1
    side_by_side = end - first == len(columns.features)
    return rows[:, first:end] if side_by_side else rows[:, columns.features], labels, weights


@dataclass(frozen=True)
class _Matrix:
    """Location of a matrix in its file."""

    path: Path
    dtype: np.dtype[Any]
    rows: int
    columns: int
    offset: int
    by_rows: bool

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        """Some rows, of shape (count, columns)."""
        with open(self.path, "rb") as file:
            if self.by_rows:
                values = self._read(file, first * self.columns, count * self.columns)
                return values.reshape(count, self.columns)
            columns = [self._read(file, place * self.rows + first, count) for place in range(self.columns)]
            return np.stack(columns, axis=1)

    def _read(self, file: BinaryIO, first: int, count: int) -> npt.NDArray[Any]:
        file.seek(self.offset + first * self.dtype.itemsize)
        values = np.fromfile(file, self.dtype, count)
        if values.size < count:
            raise UserError(f"{self.path}: has changed while it was read")
        return values


def _find_matrix(path: Path) -> _Matrix:
    mapped = _map_matrix(path)
    assert isinstance(mapped, np.memmap)
    rows, columns = mapped.shape
    return _Matrix(path, mapped.dtype, rows, columns, mapped.offset, mapped.flags.c_contiguous)


def _map_matrix(path: Path) -> npt.NDArray[Any]:
    """The matrix of a file, memory-mapped.

    Raises
    ------
    UserError
        If it cannot be read, or is not a matrix of numbers.
    """
    matrix = load_numpy(path, mmap=True)
    if not isinstance(matrix, np.ndarray):
        raise UserError(f"{path}: is an .npz file by its contents: name it so")
    if matrix.ndim != 2:
        raise UserError(f"{path}: must hold a matrix of samples and columns, not an array of shape {matrix.shape}")
    check_numbers(matrix.dtype, str(path))
    return matrix


def load_numpy(path: Path, *, mmap: bool) -> Any:
    """The array in a file, memory-mapped if ``mmap``, or the open archive.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    try:
        return np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        pickled = any(words in str(error) for words in ("Object arrays", "Python objects"))
        why = "it holds Python objects, not numbers" if pickled else "damaged, or no NumPy file"
        raise UserError(f"{path}: cannot be read as NumPy arrays: {why}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from error


def check_numbers(dtype: np.dtype[Any], place: str) -> None:
    """Check that a type is numeric.

    Raises
    ------
    UserError
        If it is not boolean, integer or floating-point.
    """
    if dtype.kind not in "buif":
        raise UserError(f"{place}: must hold numbers, not {dtype}")
