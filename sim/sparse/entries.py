"""Entries: lists of the nonzero features of sparse workers, and the index of each micro-batch in them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import ByteArray, IntArray, WeightArray
from p4sgd.hw.spec.image import BANK_BITS
from p4sgd.hw.spec.run import FeatureFormat

__all__ = ["Columns", "Entries", "MergedEntries", "blocks_of"]

_MOST = 1 << 24
"""Most entries of a sample: as with so many features of a dense worker, no sum overflows."""

Columns = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Entries:
    """Features of a worker that are not 0.

    Parameters
    ----------
    starts
        int64 (T + 1,): micro-batch t has the entries from ``starts[t]`` to ``starts[t + 1]``.
    keys
        uint32 (entries,): column << 3 | bank, ascending within a micro-batch. Columns are those of the worker, unit by
        unit.
    values
        uint8 (entries,): integers of S bits, two's complement if signed; the higher bits are ignored.
    form
        Format of the features, with the planes that are read.
    unit
        Features of a unit, padding included: whole chunks.
    shape
        Shape of the worker's weights, (engines, chunks · lanes): unit i is the (i // engines)-th of engine i % engines.
    """

    starts: IntArray
    keys: npt.NDArray[np.uint32]
    values: ByteArray
    form: FeatureFormat
    unit: int
    shape: tuple[int, int]

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes."""
        arrays = (self.starts, self.keys, self.values)
        return (*((each.ctypes.data, each.size) for each in arrays), self.form, self.unit, self.shape)

    @property
    def columns(self) -> int:
        """Columns of the worker, padding included."""
        return math.prod(self.shape)

    def check(self) -> None:
        """Check the keys, because whoever writes to a worker's memory may write anything.

        Raises
        ------
        ValueError
            If those of a micro-batch do not ascend, if the worker has no such columns, or if a sample has more than
            2^24 entries.
        """
        for micro_batch in np.flatnonzero(np.diff(self.starts) > _MOST):
            banks = self.keys[self.starts[micro_batch] : self.starts[micro_batch + 1]] & np.uint32(BANKS - 1)
            if np.bincount(banks).max() > _MOST:
                raise ValueError(f"a sample has more than {_MOST} features that are not 0: sums may be too large")
        ends = self.starts[1:]
        ascending = self.keys[1:] > self.keys[:-1]
        ascending[ends[(ends > 0) & (ends < self.keys.size)] - 1] = True  # from a micro-batch to the next
        last = self.keys[ends[np.diff(self.starts) > 0] - 1]
        if not ascending.all() or (last >> BANK_BITS >= self.columns).any():
            raise ValueError(f"the memory has no list of entries of {self.columns} features: write the image again")

    def column(self, place: int) -> int:
        """The column whose weight is at this place of the weights of all engines."""
        engine, own = divmod(place, self.shape[1])
        number, within = divmod(own, self.unit)
        return (number * self.shape[0] + engine) * self.unit + within

    def by_engine(self, weights: WeightArray) -> WeightArray:
        """The worker's weights as its engines have them, (engines, units of an engine, unit): a view of those unit by
        unit, (columns,)."""
        return weights.reshape(-1, self.shape[0], self.unit).swapaxes(0, 1)


class MergedEntries(NamedTuple):
    """Entries of all workers of a process as the loops take them, read-only, micro-batch by micro-batch.

    Parameters
    ----------
    keys
        uint32 (entries,): column << 3 | bank, ascending within a micro-batch. The columns of the workers follow each
        other, those of a worker unit by unit.
    values
        The integers that a run reads: int8 (entries,) if signed, else uint8.
    firsts
        uint8 (entries,): 1 if no entry of its sample before it has the same unit, else 0.
    """

    keys: Columns
    values: npt.NDArray[np.integer[Any]]
    firsts: ByteArray


def blocks_of(counts: IntArray, most: int) -> Iterator[slice]:
    """Blocks of consecutive micro-batches with at most so many entries, or of a single one that has more.

    Parameters
    ----------
    counts
        int64 (T,): entries of each micro-batch.
    most
        Most entries of a block.
    """
    ends, first = np.cumsum(counts), 0
    while first < ends.size:
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, "right")))
        yield slice(first, stop)
        first = stop
