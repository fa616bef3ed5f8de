"""Decoded features of dense workers: one byte each."""

import copy
from collections.abc import Callable, Sequence

import numpy as np

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import ByteArray, EngineWeights, IntArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim import parallel
from p4sgd.sim.dense import passes
from p4sgd.sim.dense.lines import Lines
from p4sgd.sim.dense.passes import FloatArray
from p4sgd.sim.model import Features

__all__ = ["KEPT_BYTES", "DenseFeatures"]

KEPT_BYTES = 1 << 28
"""Largest number of bytes of decoded features that are kept, for workers that run together. More are decoded again
whenever they are read."""

_BLOCK = 1 << 20
"""About as many features are decoded at a time."""


class DenseFeatures(Features):
    """Decoded features of workers side by side, without those that are 0 in all samples.

    Padding of the image is left out thereby, so that it costs no time. A feature of 0 adds nothing to activations and
    gradients.

    Parameters
    ----------
    lines
        Lines of each worker.

    Attributes
    ----------
    layout
        ``units`` and ``workers`` of `p4sgd.sim.dense.passes`.
    columns
        For each worker the places of its columns in weights of shape (E · C · lanes,), in ascending order.
    """

    def __init__(self, lines: Sequence[Lines]) -> None:
        self._lines = lines
        self.columns: list[IntArray] = []
        units, workers = [0], [0]
        for each in lines:
            used = each.used()
            lengths = used.shape[1] - np.argmax(used[:, ::-1], axis=1)  # up to the last used place of a unit
            lengths[~used.any(axis=1)] = 0
            places = np.arange(used.size).reshape(used.shape)
            self.columns.append(places[np.arange(used.shape[1]) < lengths[:, np.newaxis]])
            units += (units[-1] + np.cumsum(lengths[lengths > 0])).tolist()
            workers.append(len(units) - 1)
        self.layout = np.array(units), np.array(workers)
        self.samples = BANKS * lines[0].micro_batches
        self._kept: ByteArray | None = None
        if self.samples * units[-1] <= KEPT_BYTES:
            self._kept = self._decode(0, self.samples)

    @property
    def form(self) -> FeatureFormat:
        """Format of the features."""
        return self._lines[0].form

    @property
    def count(self) -> int:
        """Number of columns."""
        return int(self.layout[0][-1])

    def rows(self, first: int, count: int) -> tuple[ByteArray, int]:
        """An array with some samples, a whole number of micro-batches, and the row of the first of them in it."""
        if self._kept is not None:
            return self._kept, first
        return self._decode(first, count), 0

    def part(self, samples: int) -> "DenseFeatures":
        """See `Features`."""
        if self._kept is not None:
            return self
        result = copy.copy(self)
        result.samples, result._kept = samples, self._decode(0, samples)
        return result

    def activations(self, weights: Sequence[EngineWeights]) -> IntArray:
        """See `Features`."""
        return self.dots(self.gather(weights), slice(0, self.samples))

    def gather(self, weights: Sequence[EngineWeights]) -> FloatArray:
        """Weights of the columns, float64 (columns,), from those of each worker."""
        pairs = zip(weights, self.columns, strict=True)
        return np.concatenate([np.reshape(own, -1)[columns] for own, columns in pairs]).astype(np.float64)

    def dots(self, weights: FloatArray, samples: slice) -> IntArray:
        """Exact dot products of some whole micro-batches, summed over the workers: int64 (samples,)."""
        totals = np.empty(samples.stop - samples.start, np.int64)

        def add(part: slice) -> None:
            sums = np.empty((len(self._lines), part.stop - part.start), np.int64)
            rows, first = self.rows(part.start, sums.shape[1])
            passes.totals(rows, first, self.layout, self.form, 0, weights, sums)
            totals[part.start - samples.start : part.stop - samples.start] = sums.sum(axis=0)

        _for_each(add, self._blocks(samples.start, totals.size))
        return totals

    def _blocks(self, first: int, count: int) -> list[slice]:
        """Some samples in blocks of whole micro-batches."""
        micro_batch = BANKS * sum(each.size for each in self._lines)
        step = BANKS * max(1, _BLOCK // micro_batch)
        return [slice(begin, min(begin + step, first + count)) for begin in range(first, first + count, step)]

    def _decode(self, first: int, count: int) -> ByteArray:
        result = np.empty((count, self.count), np.uint8)

        def decode(part: slice) -> None:
            right, rows = 0, slice(part.start - first, part.stop - first)
            for lines, columns in zip(self._lines, self.columns, strict=True):
                decoded = lines.decode(part.start // BANKS, (part.stop - part.start) // BANKS)
                for engine, places in enumerate(_by_engine(columns, decoded.shape)):
                    left, right = right, right + places.size
                    if places.size and places[-1] - places[0] == places.size - 1:
                        result[rows, left:right] = decoded[engine, :, places[0] : places[-1] + 1]
                    else:
                        result[rows, left:right] = decoded[engine][:, places]

        _for_each(decode, self._blocks(first, count))
        return result


def _for_each(function: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Call a function for each part, in threads."""
    threads = max(1, min(len(parts), parallel.THREADS))

    def share(thread: int) -> None:
        for part in parts[thread::threads]:
            function(part)

    parallel.in_threads(share, threads)


def _by_engine(columns: IntArray, shape: tuple[int, ...]) -> list[IntArray]:
    """The columns of each engine, as places in it."""
    engines, _, size = shape
    edges = np.searchsorted(columns, np.arange(engines + 1) * size)
    return [columns[edges[e] : edges[e + 1]] - e * size for e in range(engines)]
