"""NumPy matrices, by rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import choose_columns
from p4sgd.host.data.dataset import Dataset, FeatureSpace, check_labels
from p4sgd.host.data.formats.arrays import check_finite, load_matrix
from p4sgd.host.data.formats.opening import BLOCK_VALUES
from p4sgd.host.data.formats.source import RowSource
from p4sgd.host.data.labels import real_labels
from p4sgd.host.errors import UserError

__all__ = ["NpySource"]


class NpySource(RowSource):
    """A matrix whose columns are features and a label; see `p4sgd.host.data.formats.arrays.read_npy`.

    It is read, not mapped: pages of a map would count as memory of the program.
    """

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        matrix = _find_matrix(self.path)
        columns = choose_columns(matrix.columns, None, self.options, self.name)
        assert columns.label is not None
        features = list(columns.features)
        step = max(1, BLOCK_VALUES // matrix.columns)
        for first in range(0, matrix.rows, step):
            part = matrix.read(first, min(step, matrix.rows - first))
            labels = real_labels(part[:, columns.label], self.name)
            check_labels(labels, self.name, first)
            yield check_finite(Dataset(part[:, features], labels, self.name), first)
            self._done = (first + part.shape[0]) / matrix.rows
        if matrix.rows == 0:
            raise UserError(f"{self.name}: there are no samples")
        self._space = FeatureSpace(len(features))


@dataclass(frozen=True)
class _Matrix:
    """Where the numbers of a matrix lie in its file."""

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
    mapped = load_matrix(path)
    assert isinstance(mapped, np.memmap)
    rows, columns = mapped.shape
    return _Matrix(path, mapped.dtype, rows, columns, mapped.offset, mapped.flags.c_contiguous)
