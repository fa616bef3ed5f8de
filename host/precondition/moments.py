"""Exact second moments of scaled features, within blocks of columns.

Scaled features are rounded to integers from −2^15 to 2^15, the grid. Sums of products of such integers are exact in
float64 up to 2^22 samples, so BLAS may add them in any order, and int64 adds up the rest. Therefore the moments are the
same bits however samples are divided into blocks, buckets and ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.matrix import Features
from p4sgd.host.data.scaling import Scaling
from p4sgd.hw.spec.fixed import IntArray

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


def to_grid(scaling: Scaling, rows: Features) -> npt.NDArray[np.float64]:
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

    def covariance(self, columns: slice) -> tuple[IntArray, npt.NDArray[np.float64]]:
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
