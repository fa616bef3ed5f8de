"""Whitening of features within blocks of columns, from exact second moments.

SGD on whitened features x̃ = L⁻¹(x − μ), with L·Lᵀ = A + γ·I and A the correlations within a block, is SGD on x that is
preconditioned by (L·Lᵀ)⁻¹: the Kronecker factor of the inputs in K-FAC (J. Martens and R. Grosse, "Optimizing Neural
Networks with Kronecker-factored Approximate Curvature", ICML 2015), which with one output does not change with the
weights. L⁻¹ is rounded to integers, with a power of two for each row.

Scaled features are rounded to integers from −2^15 to 2^15, the grid. Sums of products of such integers are exact in
float64 up to 2^22 samples, so BLAS may add them in any order, and int64 adds up the rest; so are products with the
integers of L⁻¹. Therefore moments and whitened features are the same bits however samples are divided into blocks,
buckets, ranks and programs, and the fold is that of the map that was applied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.matrix import Features
from p4sgd.host.data.quantization import steps
from p4sgd.host.data.scaling import REACH, Scaling
from p4sgd.host.errors import UserError, listed, option
from p4sgd.hw.spec.fixed import MAX_PRECISION, IntArray

_FloatArray = npt.NDArray[np.float64]

BLOCK = 64
"""Columns of a block, a whole number of units of any size. Larger ones precondition better: on 5,000 samples of 256
columns with 8 common factors, SGD in float64 is within 1 % of the optimum's loss after 7 epochs, and not in 40 with
blocks of 32."""

GRID_FRACTION = 14

_EDGE = 1 << 15
"""Largest magnitude of an integer of the grid: twice the range of the scaling. With `standard` that is 10 deviations,
of 3,277 steps each."""

MAX_SAMPLES = 1 << 31
"""Most samples whose centred products, below 2^32 each, fit int64."""

_BLOCK_VALUES = 1 << 20
"""Number of values that are scaled at once. So many products, at most 2^30 each, add up to less than 2^53."""

_MATRIX_BITS = 29
"""The largest integer of a row is 2^28 to 2^29. A sum of 64 products with differences of the grid, which are at most
2^16, is then below 2^53."""

_SMALLEST_PIVOT = 2.0**-20
"""A block is singular if less than this part of a column's variance is not a linear combination of those before it. At
1/1024 of a deviation the rounding of the grid would begin to show."""

_FEW_PLANES = 4
"""With so few planes mixing would cost columns with two values more than it gains: their values are exact levels."""

_ALIKE = 0.85
"""A column of `standard` with less than this part of the usual deviation has been given a wider range."""

_NAMED = 5  # most blocks that a remark names

_PROBLEMS = {
    1: "a block has no more samples than features: more samples help",
    2: "some features are linear combinations of others: a larger damping than {damping:g} helps",
}
"""Reasons that a block is not whitened."""


def to_grid(scaling: Scaling, rows: Features) -> _FloatArray:
    """Raw features as integers of the grid, float64 of the same shape: clip(⌊a · 2^14 + 1/2⌋), with a the scaled
    feature, nominally in [−1, 1]."""
    v = scaling.apply(rows)
    v *= 2.0**GRID_FRACTION
    v += 0.5
    np.floor(v, out=v)
    return np.clip(v, -_EDGE, _EDGE, out=v)


def block_slices(features: int) -> Iterator[slice]:
    """The columns of each block; the last block may have fewer."""
    for first in range(0, features, BLOCK):
        yield slice(first, min(first + BLOCK, features))


@dataclass(eq=False)
class Moments:
    """Sums over samples from which blocks of columns are whitened, int64, with v the integers of `to_grid`.

    ``sums`` are Σ v, (features,); ``products`` Σ v_j · v_k for each column j and the k-th column of its block, 0 if
    there is none, (features, BLOCK); ``low`` and ``high`` the smallest and largest v, (features,).
    """

    samples: int
    sums: IntArray
    products: IntArray
    low: IntArray
    high: IntArray

    @classmethod
    def empty(cls, features: int) -> Self:
        """Moments of no samples."""
        low, high = np.full(features, _EDGE, np.int64), np.full(features, -_EDGE, np.int64)
        return cls(0, np.zeros(features, np.int64), np.zeros((features, BLOCK), np.int64), low, high)

    def add(self, features: Features, scaling: Scaling) -> None:
        """Add some raw samples, (samples, features); the scaling to the grid is the same for all samples."""
        step = max(1, _BLOCK_VALUES // features.shape[1])
        for first in range(0, features.shape[0], step):
            v = to_grid(scaling, features[first : first + step])
            self.samples += v.shape[0]
            self.sums += v.sum(axis=0).astype(np.int64)
            np.minimum(self.low, v.min(axis=0).astype(np.int64), out=self.low)
            np.maximum(self.high, v.max(axis=0).astype(np.int64), out=self.high)
            for columns in block_slices(v.shape[1]):
                part = v[:, columns]
                self.products[columns, : part.shape[1]] += (part.T @ part).astype(np.int64)

    def covariance(self, columns: slice) -> tuple[IntArray, _FloatArray]:
        """Means of the columns of a block, rounded to integers of the grid, int64 (columns,), and covariances about the
        exact means, float64 (columns, columns)."""
        samples, sums = self.samples, self.sums[columns]
        mean = (2 * sums + samples) // (2 * samples)
        rest = sums - samples * mean  # at most samples / 2
        # Σ (v_j − mean_j)(v_k − mean_k); nothing overflows with up to MAX_SAMPLES samples.
        centred = self.products[columns, : mean.size] - np.outer(mean, sums) - np.outer(sums, mean)
        centred += samples * np.outer(mean, mean)
        return mean, (centred - np.outer(rest, rest.astype(np.float64)) / samples) / samples

    def two_valued(self, columns: slice) -> npt.NDArray[np.bool_]:
        """Whether each column of a block has two values, (columns,): if and only if Σ (v − low)(high − v) is 0."""
        sums, low, high = self.sums[columns], self.low[columns], self.high[columns]
        inside = (low + high) * sums - np.diagonal(self.products[columns]) - self.samples * low * high
        result: npt.NDArray[np.bool_] = (inside == 0) & (low < high)
        return result

    @staticmethod
    def packed_size(columns: int) -> int:
        """Number of values that `pack` gives for a block."""
        return columns + columns * (columns + 1) // 2

    def pack(self) -> IntArray:
        """Of a block, Σ v and the upper triangle of Σ v·vᵀ, to be added up over ranks: int64 (values,)."""
        return np.concatenate((self.sums, self.products[np.triu_indices(self.sums.size)]))

    @classmethod
    def unpack(cls, values: IntArray, samples: int, low: IntArray, high: IntArray) -> Self:
        """The moments of a block, from the sum of what `pack` gives, and the samples and extremes of all ranks."""
        columns = low.size
        products = np.zeros((columns, BLOCK), np.int64)
        rows, others = np.triu_indices(columns)
        products[rows, others] = products[others, rows] = values[columns:]
        return cls(samples, values[:columns], products, low, high)


@dataclass(frozen=True, eq=False)
class WhitenedBlock:
    """A block's rows of `Whitening`, the number of columns that are left out, and why it is not whitened, if so."""

    centre: IntArray
    matrix: npt.NDArray[np.int32]
    exponent: IntArray
    left_out: int
    problem: int
    """A key of `_PROBLEMS`, or 0."""

    @staticmethod
    def packed_size(columns: int) -> int:
        """Number of values that `pack` gives for a block of so many columns."""
        return 2 * columns + columns * (columns + 1) // 2 + 2

    def pack(self) -> _FloatArray:
        """All of it, for other ranks: integers below 2^53 as float64 (values,)."""
        triangle = self.matrix[np.tril_indices(self.centre.size)]  # the rest is 0
        about = self.left_out, self.problem
        return np.concatenate((self.centre, self.exponent, triangle, about), dtype=np.float64)

    @classmethod
    def unpack(cls, values: _FloatArray, columns: int) -> Self:
        """Undo `pack` for a block of so many columns."""
        centre, exponent, triangle, about = np.split(values.astype(np.int64), (columns, 2 * columns, -2))
        matrix = np.zeros((columns, BLOCK), np.int32)
        matrix[np.tril_indices(columns)] = triangle
        return cls(centre, matrix, exponent, *map(int, about))


@dataclass(frozen=True, eq=False)
class Whitening:
    """A scaling of raw features that also mixes the columns of each block.

    A scaled feature is a_r = 2^-exponent_r · Σ_k matrix_rk · (v_k − centre_k) + shift_r, where v are the integers of
    the grid, to which ``scaling`` takes raw features (`to_grid`), and k runs over the
    columns of r's block. The sum is exact. Where features are ``signed``, a is nominally in [−1, 1], with shift 0; if
    not, in [0, 1], with shift 1/2, but 0 for constant columns, whose rows of the matrix are 0.

    ``centre`` and ``exponent`` are int64 (features,), ``matrix`` is int32 (features, BLOCK); ``told`` are remarks on
    blocks and columns that are not whitened.
    """

    scaling: Scaling
    centre: IntArray
    matrix: npt.NDArray[np.int32]
    exponent: IntArray
    signed: bool
    told: tuple[str, ...] = ()

    @classmethod
    def fit(cls, moments: Moments, scaling: Scaling, damping: float, planes: int) -> Self:
        """`whiten_block` for every block of columns, from the moments of all training samples.

        The range ends some deviations from 0, more for more ``planes`` that will be stored, 1 to 8. With a single one,
        which holds no sign, the two levels are below and above 0. ``damping`` is γ, at least 0.
        """
        check_samples(moments.samples)
        columns = block_slices(moments.sums.size)
        blocks = [whiten_block(moments, scaling, each, damping, planes) for each in columns]
        return cls.join(blocks, scaling, damping, planes)

    @classmethod
    def join(cls, blocks: Sequence[WhitenedBlock], scaling: Scaling, damping: float, planes: int) -> Self:
        """The whitening that consists of these blocks, in the order of the columns; see `fit` for the rest."""
        features, remarks = sum(block.centre.size for block in blocks), []
        columns = list(block_slices(features))
        for problem, reason in _PROBLEMS.items():
            left = [each for each, block in zip(columns, blocks, strict=True) if block.problem == problem]
            if left:
                names = listed([f"{each.start + 1}–{each.stop}" for each in left], _NAMED)
                remarks.append(f"features {names} are not whitened, because {reason.format(damping=damping)}")
        if left_out := sum(block.left_out for block in blocks):
            why = "with two values, mostly the same one, or some far outside"
            remarks.append(f"left out of the whitening: {left_out} of {features} features, {why}")
        return cls(
            scaling,
            np.concatenate([block.centre for block in blocks]),
            np.concatenate([block.matrix for block in blocks]),
            np.concatenate([block.exponent for block in blocks]),
            signed=planes > 1,
            told=tuple(remarks),
        )

    def for_samples(self, features: Features) -> Self:
        """See `p4sgd.host.data.Scaling.for_samples`; there is no heat."""
        self.scaling.for_samples(features)
        return self

    @property
    def kind(self) -> str:
        """Of the scaling to the grid, as the next ones."""
        return self.scaling.kind

    @property
    def reason(self) -> str:
        """Why ``auto`` chose that kind."""
        return self.scaling.reason

    @property
    def offset(self) -> _FloatArray:
        """float64 (features,)."""
        return self.scaling.offset

    @property
    def scale(self) -> _FloatArray:
        """float64 (features,)."""
        return self.scaling.scale

    def remarks(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Remarks on scaling and whitening; see `Scaling.remarks`."""
        return (*self.scaling.remarks(names), *self.told)

    @property
    def shift(self) -> _FloatArray:
        """float64 (features,): see `Whitening`."""
        return np.where(self.signed | ~self.matrix.any(axis=1), 0.0, 0.5)

    def apply(self, rows: Features) -> _FloatArray:
        """Scale and whiten a block of samples, (rows, features), to a dense float64 array of the same shape."""
        v = to_grid(self.scaling, rows)
        v -= self.centre
        a = np.empty_like(v)
        for columns in block_slices(v.shape[1]):
            a[:, columns] = v[:, columns] @ self._factors[columns, : columns.stop - columns.start].T
        a *= np.ldexp(1.0, -self.exponent)
        a += self.shift
        return a

    @property
    def zero(self) -> _FloatArray:
        """Scaled features of raw zeros: float64 (features,)."""
        result: _FloatArray = self.apply(np.zeros((1, self.scale.size)))[0]
        return result

    @cached_property
    def _factors(self) -> _FloatArray:
        return self.matrix.astype(np.float64)

    @property
    def mixing(self) -> _FloatArray:
        """The whitening without rounding as a map of scaled features b, float64 (features, BLOCK + 1): a_r = Σ_k
        mixing_rk · (b_k − `middle`_k) + mixing_r,BLOCK."""
        mixed = self._factors * np.ldexp(1.0, GRID_FRACTION - self.exponent)[:, np.newaxis]
        return np.hstack((mixed, self.shift[:, np.newaxis]))

    @property
    def middle(self) -> _FloatArray:
        """The centre of each column as a scaled feature: float64 (features,)."""
        return np.ldexp(self.centre.astype(np.float64), -GRID_FRACTION)


def check_samples(samples: int) -> None:
    """Refuse more samples than sums are exact of."""
    if samples > MAX_SAMPLES:
        raise UserError(
            f"whitening adds up at most {MAX_SAMPLES:,} samples exactly, there are {samples:,}: "
            f"leave {option('precondition')} out"
        )


def whiten_block(moments: Moments, scaling: Scaling, columns: slice, damping: float, planes: int) -> WhitenedBlock:
    """Whiten a block of columns, one of `block_slices`, by its damped correlations; see `Whitening.fit`.

    - Constant columns become 0.
    - A column with two values is left out if one of them is so rare that it would be clamped, or if there are at most
      4 planes: both become the levels nearest to their places, so that the model sees what training saw.
    - A column that for `standard` has a range of more deviations than others, because most of its values are the same
      or some far outside, is left out and keeps that range: what others explain of it would clamp and round them.
    - The block is only standardised if it is singular, or if there are no more samples than columns.
    """
    mean, covariance = moments.covariance(columns)
    deviation = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    low, high = moments.low[columns], moments.high[columns]
    signed, reach = planes > 1, REACH[planes]
    edge = 1 << GRID_FRACTION  # where the range of the scaling ends
    beyond = np.maximum(high - mean, mean - low) > reach * deviation
    binary = moments.two_valued(columns) & (beyond | (planes <= _FEW_PLANES))
    # `standard` gives other columns a range of exactly so many deviations.
    alike = (deviation * REACH[MAX_PRECISION] < _ALIKE * edge) & (scaling.kind == "standard")
    left_out = (low < high) & (binary | alike)
    rows = np.zeros((mean.size, BLOCK))
    one = steps(planes, signed)
    for column in np.flatnonzero(left_out):
        ends = np.clip([low[column], high[column]], -edge, edge).astype(np.float64)
        levels = np.array([-0.5, 0.5]) if not signed else ends * (one / edge)
        if binary[column] and signed:
            levels = np.floor((ends - mean[column]) * (one / (reach * deviation[column])) + 0.5).clip(-one, one)
        rows[column, column] = (levels[1] - levels[0]) / one / (ends[1] - ends[0])
        mean[column] = round(ends[0] - levels[0] / one / rows[column, column])
    mixed, problem = np.flatnonzero((low < high) & ~left_out), 0
    if mixed.size:
        d, inverse = deviation[mixed], None
        if moments.samples > mixed.size:
            inverse = factor(covariance[np.ix_(mixed, mixed)] / d[:, np.newaxis] / d, damping)
        if inverse is None:
            problem = 2 if moments.samples > mixed.size else 1
            inverse = np.eye(mixed.size)
        rows[np.ix_(mixed, mixed)] = inverse / (d * (reach if signed else 2 * reach))
    exponent = _MATRIX_BITS - np.frexp(np.abs(rows).max(axis=1))[1].astype(np.int64)
    matrix = np.rint(np.ldexp(rows, exponent[:, np.newaxis])).astype(np.int32)
    return WhitenedBlock(mean, matrix, exponent, int(left_out.sum()), problem)


def factor(correlation: _FloatArray, damping: float) -> _FloatArray | None:
    """The inverse L⁻¹ of the Cholesky factor of a correlation matrix, (n, n), with ``damping`` added to its diagonal,
    by operations on single elements, so that every machine gets the same bits; ``None`` if the matrix is singular."""
    rest = correlation + damping * np.eye(len(correlation))
    inverse = np.eye(len(correlation))
    for k in range(len(rest)):
        pivot = rest[k, k]
        if not pivot > _SMALLEST_PIVOT:
            return None
        below = slice(k + 1, None)
        multiplier = rest[below, k, np.newaxis] / pivot
        rest[below, below] -= multiplier * rest[k, below]
        inverse[below] -= multiplier * inverse[k]
        inverse[k] /= np.sqrt(pivot)
    return inverse


def fold_weights(mixing: _FloatArray, weights: _FloatArray) -> tuple[_FloatArray, float]:
    """Weights of the features before they were mixed, from those after, float64 (features,), and the constant that the
    ``mixing``, that of `Whitening`, adds to an activation."""
    folded = np.empty_like(weights)
    for columns in block_slices(weights.size):
        folded[columns] = np.einsum("rk,r->k", mixing[columns, : columns.stop - columns.start], weights[columns])
    # Not a product of vectors by BLAS, whose bits depend on the number of threads.
    return folded, float((weights * mixing[:, BLOCK]).sum())
