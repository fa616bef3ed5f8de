"""Matrices of features, dense or sparse."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.errors import UserError
from p4sgd.hw.spec.fixed import IntArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Features: TypeAlias = "npt.NDArray[np.float64] | npt.NDArray[np.float32] | csr_array"
"""A matrix (samples, features): dense, or sparse in CSR form, which is never made dense as a whole."""

_BLOCK_VALUES = 1 << 18
"""Values that are checked at once (2 MB of float64, which stay in the processor's cache)."""

_FEW_COLUMNS, _FEW_VALUES = 1 << 16, 1 << 26
"""Most columns for which two transpositions sort the rows of texts in less time than SciPy does: as many places as stay
in the processor's cache. Most stored values for which they may take the memory of another copy."""


def checked(features: Any, name: str) -> Features:
    """Any matrix of numbers as `Features`: sparse with sorted indices and without duplicates, as float64 or float32.

    Raises `UserError` if it is no matrix, holds no numbers, or is damaged.
    """
    if features.ndim != 2:
        raise UserError(f"{name}: features must be a matrix of samples and features, not of shape {features.shape}")
    if features.dtype.kind not in "buif":
        raise UserError(f"{name}: features must be numbers, not {features.dtype}")
    if not isinstance(features, np.ndarray) and scipy.sparse.issparse(features):
        given: Any = features
        try:
            if hasattr(given, "check_format"):
                given.check_format(full_check=True)  # SciPy's products do not check indices
        except ValueError as error:
            raise UserError(f"{name}: the sparse matrix is damaged: {error}") from error
        made: Any = scipy.sparse.csr_array(given)
        if made.dtype not in (np.float32, np.float64):
            made = made.astype(np.float64)
        if not made.has_canonical_format:
            made = _sorted_rows(made)
            made.sum_duplicates()
        return cast("csr_array", made)
    array = np.asarray(features)
    if array.dtype not in (np.float32, np.float64):
        # exact in float32 up to 16 bits, at half the memory
        array = array.astype(np.float32 if array.dtype.itemsize <= 2 else np.float64)
    return cast("npt.NDArray[np.float64]", array)


def _sorted_rows(matrix: Any) -> Any:
    """A copy of a CSR matrix with sorted indices. Values of the same column keep their order, in which they are added:
    their sum is not to depend on the size of the matrix."""
    if matrix.shape[1] > _FEW_COLUMNS or matrix.nnz > _FEW_VALUES:
        ordered = matrix.sorted_indices()
        if ordered.has_canonical_format:
            return ordered
        del ordered  # SciPy's sort keeps no order
    return matrix.tocsc().tocsr()


def find_not_finite(features: Features) -> tuple[int, int] | None:
    """Row and column (from 0) of the first NaN or infinity in a matrix; ``None`` if there is none."""
    if not isinstance(features, np.ndarray):
        strange = np.flatnonzero(~np.isfinite(features.data))
        if not strange.size:
            return None
        row = int(np.searchsorted(features.indptr, strange[0], side="right")) - 1
        return row, int(features.indices[strange[0]])
    step = max(1, _BLOCK_VALUES // max(1, features.shape[1]))
    for first in range(0, features.shape[0], step):
        finite = np.isfinite(features[first : first + step])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            return first + int(row), int(column)
    return None


def each_block(take: Callable[[Features], None], blocks: Iterable[Features]) -> None:
    """Have each block of samples taken, of which none is kept while the next one is read."""
    for _ in map(take, blocks):
        pass


def to_dense(rows: Features) -> npt.NDArray[np.floating[Any]]:
    """Samples as an array, which is not copied."""
    return rows if isinstance(rows, np.ndarray) else rows.toarray()


def pick_columns(features: Features, columns: IntArray | None) -> Features:
    """Some columns of a matrix; with ``None`` all, without a copy."""
    return features if columns is None else features[:, columns]


def join_rows(parts: list[Features]) -> Features:
    """The rows of some matrices of one kind, one below the other."""
    if len(parts) == 1:
        return parts[0]
    joined: Any = np.concatenate if isinstance(parts[0], np.ndarray) else scipy.sparse.vstack
    return cast("Features", joined(parts))
