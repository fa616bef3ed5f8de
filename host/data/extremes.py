"""Smallest and largest value of every column, of a matrix or of several that are one under the other."""

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Features

__all__ = ["Extremes"]


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
