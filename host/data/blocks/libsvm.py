"""LIBSVM files, some megabytes of text at a time."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.blocks.source import TextSource
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.libsvm import parse_lines
from p4sgd.host.data.opening import open_data
from p4sgd.host.errors import UserError

__all__ = ["LibsvmSource"]

_BLOCK_BYTES = 1 << 22
"""Text that is read at once, and the rest of its last line."""


class LibsvmSource(TextSource):
    """A LIBSVM file, compressed or not; see `p4sgd.host.data.libsvm`."""

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        zero_based = self.options.zero_based
        least, most, found = 1, -1, False  # of the indices
        samples = 0
        for matrix, labels in self._parts(zero_based):
            samples += labels.size
            if matrix.nnz:
                found = True
                least, most = min(least, int(matrix.indices.min())), max(most, int(matrix.indices.max()))
            if space is not None:
                if zero_based is None and not space.zero_based:
                    matrix.indices -= 1
                if matrix.nnz and not 0 <= matrix.indices.min() <= matrix.indices.max() < space.count:
                    raise UserError(f"{self.name}: has changed while it was read")
                matrix.resize(labels.size, space.count)
            yield Dataset(matrix, labels, self.name, zero_based=zero_based)
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if not found:
            raise UserError(f"{self.name}: no sample has a feature")
        first = 0
        if zero_based is None:
            zero_based = least == 0
            first = 0 if zero_based else 1
        self._space = FeatureSpace(most + 1 - first, zero_based=zero_based)

    def _parts(self, zero_based: bool | None) -> Iterator[tuple[Any, npt.NDArray[np.float64]]]:
        """Matrices as scikit-learn reads them, numbered as in the file unless it is known that it begins with 1."""
        with open_data(self.path, self._watch) as file:
            while text := file.read(_BLOCK_BYTES) + file.readline():
                matrix, labels = parse_lines(io.BytesIO(text), self.path, zero_based, self.options)
                if labels.size:
                    yield matrix, labels
