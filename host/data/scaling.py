"""Scaling of features to [0, 1] or [−1, 1], and quantisation to the integers of an image.

It begins with the smallest and largest value of every column, which may be collected block by block.
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
    """What samples say about the columns.

    Parameters
    ----------
    features
        How many columns there are.

    Attributes
    ----------
    low, high
        float64 (features,): smallest and largest value that is stored, NaN if one is; ±∞ if none is stored.
    stored
        int64 (features,): how many values are stored. A sparse matrix does not store zeros.
    samples
        How many samples were seen.
    """

    def __init__(self, features: int) -> None:
        self.low: npt.NDArray[np.float64] = np.full(features, np.inf)
        self.high: npt.NDArray[np.float64] = np.full(features, -np.inf)
        self.stored: npt.NDArray[np.int64] = np.zeros(features, np.int64)
        self.samples = 0

    def add(self, features: Features) -> None:
        """Look at some samples."""
        if features.shape[0] == 0:
            return
        self.samples += features.shape[0]
        if isinstance(features, np.ndarray):
            np.minimum(self.low, features.min(axis=0), out=self.low)
            np.maximum(self.high, features.max(axis=0), out=self.high)
            self.stored += features.shape[0]
            return
        # In place: scipy's own column minimum makes a copy of the matrix.
        with np.errstate(invalid="ignore"):  # NaN
            np.minimum.at(self.low, features.indices, features.data)
            np.maximum.at(self.high, features.indices, features.data)
        np.add.at(self.stored, features.indices, 1)

    def range(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Smallest and largest value of each column, zeros that are not stored included; NaN if it has one."""
        holes = self.stored < self.samples
        low, high = self.low.copy(), self.high.copy()
        low[holes] = np.minimum(low[holes], 0.0)
        high[holes] = np.maximum(high[holes], 0.0)
        return low, high


KINDS = ("auto", "minmax", "maxabs")
"""Ways to scale; see `Scaling.fit`."""

_SMALLEST_SPAN = 2.0**-1012
"""A column that spans no more counts as constant. A coefficient of the model is at most 256, the largest weight, times
the reciprocal of a span, which must be a float64."""

_SMALLEST_PART = 2.0**-40
"""A column whose span is no larger a part of its largest magnitude counts as constant: it may well be rounding noise.
Predictions of the model are a product with the raw column and an intercept, which cancel each other but for this part:
of the 52 bits of a float64 at least 12 are left, more than a feature has in training."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """How raw features become scaled ones: a = (x − offset) · scale, column by column.

    Parameters
    ----------
    kind
        ``minmax`` or ``maxabs``.
    offset
        float64 (features,), subtracted first; zeros for ``maxabs``.
    scale
        float64 (features,); 0 where a is always 0.
    signed
        Whether a lies in [−1, 1] on the data of `fit`, else in [0, 1].
    """

    kind: str
    offset: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    signed: bool

    @classmethod
    def fit(cls, features: Features, kind: str = "auto", communicator: Communicator = SINGLE_PROCESS) -> Self:
        """Choose offset and scale for the columns of a training set, of whose samples every rank has some.

        - ``minmax`` maps the smallest value of a column to 0 and the largest to 1: unsigned. A constant column becomes
          0 everywhere. Zeros that a sparse matrix does not store count. It is allowed for sparse matrices: a zero then
          becomes a constant of its column, but the image holds every feature anyway, and predictions fold it into the
          intercept. Rounding noise does not count: a column is constant if its values agree in 40 bits.
        - ``maxabs`` divides a column by its largest magnitude, so that 0 stays 0: signed, unless no value is negative.
          A constant column becomes ±1, as with scikit-learn's ``MaxAbsScaler``, unless it is 0.
        - ``auto`` takes ``maxabs`` for sparse matrices and ``minmax`` for others.

        Works on any finite float64; nothing overflows. A column whose span (``minmax``) or magnitude (``maxabs``) is at
        most 2^-1012 becomes 0.

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
        return cls.of_range(low, -negated, kind, sparse=not isinstance(features, np.ndarray))

    @classmethod
    def of_range(
        cls, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], kind: str = "auto", *, sparse: bool
    ) -> Self:
        """As `fit`, from the smallest and largest value of each column, which are finite.

        Parameters
        ----------
        low, high
            float64 (features,).
        kind
            One of `KINDS`.
        sparse
            Whether the training set is.

        Raises
        ------
        UserError
            If there is no such kind.
        """
        if kind not in KINDS:
            raise UserError(f"there is no scaling {kind!r}; there are {', '.join(KINDS)}")
        if kind == "auto":
            kind = "maxabs" if sparse else "minmax"
        low = low + 0.0  # of 0 and −0 either may be called the smallest
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
        """Scale a block of samples: (rows, features) to a dense float64 array of the same shape.

        On other data than those of `fit` the result may leave the range; quantisation clamps it.
        """
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        return _scaled(dense, self.offset, self.scale)

    def apply_stored(self, rows: Any) -> npt.NDArray[np.float64]:
        """Scale only the stored values of a `csr_array`, in the order of its ``data``: float64 (stored values,).

        All others are zeros, which `zero` scales.
        """
        return _scaled(rows.data, self.offset[rows.indices], self.scale[rows.indices])

    @property
    def zero(self) -> npt.NDArray[np.float64]:
        """What the raw value 0 of each column becomes: float64 (features,)."""
        return _scaled(np.zeros_like(self.offset), self.offset, self.scale)


def _scaled(
    x: npt.NDArray[np.floating[Any]], offset: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """(x − offset) · scale without overflow of the difference: half the difference, twice the scale."""
    scaled: npt.NDArray[np.float64] = np.multiply(x, 0.5, dtype=np.float64)
    scaled -= offset * 0.5
    with np.errstate(over="ignore"):  # only far outside the range of the training data
        scaled *= scale * 2
    return scaled


def steps(stored: int, signed: bool) -> int:
    """The integer of a scaled feature of 1: 2^S − 1, or 2^(S−1) − 1 when signed, but at least 1.

    A signed feature of one plane is −1 or 0: two's complement of one bit has no +1, so positive features become 0.
    Training remarks on it.
    """
    return max(1, (1 << (stored - 1)) - 1) if signed else (1 << stored) - 1


def quantize(a: npt.NDArray[np.float64], stored: int, signed: bool) -> IntArray:
    """Scaled features to S-bit integers: q = ⌊a · steps + 1/2⌋, clamped to what S bits hold.

    Parameters
    ----------
    a
        float64, any shape; nominally in [0, 1] or [−1, 1].
    stored
        Planes (S), 1 to 8.
    signed
        Two's complement.

    Returns
    -------
    int64 of the same shape. Within the nominal range q / steps is within half a step of a, except for the missing +1
    of a signed single plane.
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
    """Slope and constant of what the hardware reads, in terms of the raw feature and but for rounding.

    The hardware reads q / 2^S (or q / 2^(S−1) when signed) ≈ slope · x + constant, with slope = scale · steps / 2^S and
    constant = −offset · slope.

    Parameters
    ----------
    scale, offset
        Of a `p4sgd.host.data.Scaling`: a = (x − offset) · scale.
    stored
        Planes (S).
    signed
        Two's complement.

    Returns
    -------
    Slopes and constants, float64, of the shape of ``scale``.
    """
    slope = scale * (steps(stored, signed) / 2.0 ** (stored - int(signed)))
    return slope, -offset * slope
