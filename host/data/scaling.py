"""Scaling of features to [0, 1] or [−1, 1], and quantisation to the integers of an image.

Scaling depends on the smallest and largest value of every column, which can be collected block by block.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Features, find_not_finite
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.fixed import IntArray

__all__ = ["KINDS", "Extremes", "Scaling", "feature_values", "quantize", "steps"]


class Extremes:
    """Ranges of the columns of a data set.

    Parameters
    ----------
    features
        Number of columns.

    Attributes
    ----------
    low, high
        float64 (features,): smallest and largest stored value; NaN if any is NaN, ±∞ if none is stored.
    stored
        int64 (features,): number of stored values. A sparse matrix does not store zeros.
    samples
        Number of samples seen.
    """

    def __init__(self, features: int) -> None:
        self.low: npt.NDArray[np.float64] = np.full(features, np.inf)
        self.high: npt.NDArray[np.float64] = np.full(features, -np.inf)
        self.stored: npt.NDArray[np.int64] = np.zeros(features, np.int64)
        self.samples = 0

    def add(self, features: Features) -> None:
        """Take some samples into account."""
        if features.shape[0] == 0:
            return
        self.samples += features.shape[0]
        if isinstance(features, np.ndarray):
            np.minimum(self.low, features.min(axis=0), out=self.low)
            np.maximum(self.high, features.max(axis=0), out=self.high)
            self.stored += features.shape[0]
            return
        # In place, because SciPy's minimum of columns copies the matrix.
        with np.errstate(invalid="ignore"):  # NaN
            np.minimum.at(self.low, features.indices, features.data)
            np.maximum.at(self.high, features.indices, features.data)
        np.add.at(self.stored, features.indices, 1)

    def range(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Smallest and largest value of each column, including zeros that are not stored; NaN if it has one."""
        holes = self.stored < self.samples
        low, high = self.low.copy(), self.high.copy()
        low[holes] = np.minimum(low[holes], 0.0)
        high[holes] = np.maximum(high[holes], 0.0)
        return low, high


KINDS = ("auto", "minmax", "maxabs")
"""Kinds of scaling; see `Scaling.fit`."""

_SMALLEST_SPAN = 2.0**-1012
"""A column with a span of at most this counts as constant. Coefficients of the model, which must fit float64, are at
most 256, the largest weight, times the reciprocal of a span."""

_SMALLEST_PART = 2.0**-40
"""A column whose span is at most this fraction of its largest magnitude counts as constant, because it may be rounding
noise. In predictions the products with such a column and the intercept cancel except for this fraction. At least 12 of
the 52 bits of a float64 are left, more than a feature has in training."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling of raw features: a = (x − offset) · scale, column by column.

    Parameters
    ----------
    kind
        ``minmax`` or ``maxabs``.
    offset
        float64 (features,), zeros for ``maxabs``.
    scale
        float64 (features,); 0 for columns that become 0.
    signed
        Whether a is in [−1, 1] on the training data; if not, it is in [0, 1].
    """

    kind: str
    offset: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    signed: bool

    @classmethod
    def fit(cls, features: Features, kind: str = "auto", communicator: Communicator = SINGLE_PROCESS) -> Self:
        """Choose offset and scale for the columns of a training set, which may be distributed over ranks.

        - ``minmax`` maps the smallest value of a column to 0 and the largest to 1 (unsigned). A constant column becomes
          0. Zeros that a sparse matrix does not store count as values; they may become another constant, because the
          image holds all features anyway and predictions fold the constant into the intercept. A column whose values
          agree in 40 bits is constant: the rest may be rounding noise.
        - ``maxabs`` divides a column by its largest magnitude, so that 0 stays 0 (signed, unless no value is negative).
          A constant column becomes ±1, as with scikit-learn's ``MaxAbsScaler``, unless it is 0.
        - ``auto`` selects ``maxabs`` for sparse matrices and ``minmax`` for dense ones.

        All finite float64 values are allowed; nothing overflows. A column whose span (``minmax``) or magnitude
        (``maxabs``) is at most 2^-1012 becomes 0.

        Raises
        ------
        UserError
            If a value is NaN or infinite, or there is no such kind.
        """
        extremes = Extremes(features.shape[1])
        extremes.add(features)
        low, high = extremes.range()
        if features.shape[0] and not (np.isfinite(low).all() and np.isfinite(high).all()):
            place = find_not_finite(features)
            assert place is not None
            row, column = place
            raise UserError(
                f"sample {row + 1}, feature {column + 1} is {features[row, column]}: "
                f"features must be finite numbers; fill it in or leave the sample out"
            )
        low, negated = np.split(communicator.all_min(np.concatenate((low, -high))), 2)
        return cls.from_range(low, -negated, kind, sparse=not isinstance(features, np.ndarray))

    @classmethod
    def from_range(
        cls, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], kind: str = "auto", *, sparse: bool
    ) -> Self:
        """Same as `fit`, from the smallest and largest value of each column, which must be finite.

        Parameters
        ----------
        low, high
            float64 (features,).
        kind
            One of `KINDS`.
        sparse
            Whether the training set is sparse.

        Raises
        ------
        UserError
            If there is no such kind.
        """
        if kind not in KINDS:
            raise UserError(f"there is no scaling {kind!r}; there are {', '.join(KINDS)}")
        if kind == "auto":
            kind = "maxabs" if sparse else "minmax"
        low = low + 0.0  # −0, which a minimum may return for 0, becomes 0
        magnitude = np.maximum(np.abs(low), np.abs(high))
        if kind == "maxabs":
            offset, half_span = np.zeros_like(low), magnitude / 2
        else:
            # Halves, because high − low may exceed the largest float64.
            offset, half_span = low, high / 2 - low / 2
        constant = half_span <= np.maximum(_SMALLEST_SPAN, _SMALLEST_PART * magnitude) / 2
        scale = np.where(constant, 0.0, 0.5 / np.where(constant, 1.0, half_span))
        return cls(kind, offset, scale, signed=kind == "maxabs" and bool((low < 0).any()))

    def apply(self, rows: Features) -> npt.NDArray[np.float64]:
        """Scale a block of samples, (rows, features), to a dense float64 array of the same shape.

        Data other than the training set may exceed the range; quantisation clamps them.
        """
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        return _scaled(dense, self.offset, self.scale)

    def apply_stored(self, rows: Any) -> npt.NDArray[np.float64]:
        """Scale only the stored values of a `csr_array`, in the order of its ``data``: float64 (stored values,).

        All others are zeros and become `zero`.
        """
        return _scaled(rows.data, self.offset[rows.indices], self.scale[rows.indices])

    @property
    def zero(self) -> npt.NDArray[np.float64]:
        """The scaled value of a raw 0 in each column: float64 (features,)."""
        return _scaled(np.zeros_like(self.offset), self.offset, self.scale)


def _scaled(
    x: npt.NDArray[np.floating[Any]], offset: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """(x − offset) · scale, with half the difference and twice the scale so that the difference cannot overflow."""
    scaled: npt.NDArray[np.float64] = np.multiply(x, 0.5, dtype=np.float64)
    scaled -= offset * 0.5
    with np.errstate(over="ignore"):  # only far outside the range of the training data
        scaled *= scale * 2
    return scaled


def steps(stored: int, signed: bool) -> int:
    """The integer of a scaled feature of 1: 2^S − 1, or 2^(S−1) − 1 when signed, but at least 1.

    A signed feature of one plane is −1 or 0: one bit of two's complement has no +1, so positive features become 0.
    Training warns about this.
    """
    return max(1, (1 << (stored - 1)) - 1) if signed else (1 << stored) - 1


def quantize(a: npt.NDArray[np.float64], stored: int, signed: bool) -> IntArray:
    """Scaled features to S-bit integers: q = ⌊a · steps + 1/2⌋, clamped to what S bits hold.

    Parameters
    ----------
    a
        float64 of any shape, nominally in [0, 1] or [−1, 1].
    stored
        Planes (S), 1 to 8.
    signed
        Two's complement.

    Returns
    -------
    int64 of the same shape. For a in the nominal range q / steps differs from a by at most half a step, except where a
    signed single plane lacks +1.
    """
    low, high = (-(1 << (stored - 1)), (1 << (stored - 1)) - 1) if signed else (0, (1 << stored) - 1)
    scaled = a * steps(stored, signed)
    scaled += 0.5
    np.floor(scaled, out=scaled)
    np.clip(scaled, low, high, out=scaled)
    return scaled.astype(np.int64)


def feature_values(
    scale: npt.NDArray[np.float64], offset: npt.NDArray[np.float64], stored: int, signed: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Slope and constant of the values that the hardware reads, as functions of raw features, without rounding.

    The hardware reads q / 2^S (or q / 2^(S−1) when signed) ≈ slope · x + constant, with slope = scale · steps / 2^S and
    constant = −offset · slope.

    Parameters
    ----------
    scale, offset
        As in `p4sgd.host.data.Scaling`: a = (x − offset) · scale.
    stored
        Planes (S).
    signed
        Two's complement.

    Returns
    -------
    Slopes and constants: float64, of the shape of ``scale``.
    """
    slope = scale * (steps(stored, signed) / 2.0 ** (stored - int(signed)))
    return slope, -offset * slope
