"""Features as one byte each, decoded from the lines of memory images, and the golden model's arithmetic on them."""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray, WeightArray
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim import kernels
from p4sgd.sim.model import Features, Model

__all__ = ["KEPT_BYTES", "DenseFeatures", "DenseModel", "Lines"]

KEPT_BYTES = 1 << 28
"""Largest number of bytes of decoded features that are kept, for workers that run together. More are decoded again
whenever they are read."""

_BLOCK = 1 << 20
"""About as many features are decoded at a time."""

_THREAD_FEATURES = 1 << 15
"""Fewest features of a mini-batch for a thread, some 10 µs of work: less would not make up for the waiting."""

_PART = 1 << 26
"""Number of features that a call of the kernels trains on, a few hundredths of a second: between calls Ctrl-C acts."""

FloatArray = npt.NDArray[np.float64]
ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Lines:
    """Lines of a worker.

    Parameters
    ----------
    parts
        For each port of each engine: uint8 (T, C, S, 8/ports, lanes/8).
    form
        Format of the features, with the planes that are read.
    unit
        Features of a unit.
    """

    parts: tuple[ByteArray, ...]
    form: FeatureFormat
    unit: int

    @property
    def engines(self) -> int:
        """Engines of the worker."""
        return len(self.parts) * int(self.parts[0].shape[3]) // BANKS

    @property
    def lanes(self) -> int:
        """Lanes of an engine."""
        return 8 * int(self.parts[0].shape[4])

    @property
    def size(self) -> int:
        """Features of the worker, padding included."""
        return self.engines * int(self.parts[0].shape[1]) * self.lanes

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes."""
        return (*((part.ctypes.data, part.shape) for part in self.parts), self.form, self.unit)


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
        ``units`` and ``workers`` of `p4sgd.sim.kernels`.
    columns
        For each worker the places of its columns in weights of shape (E · C · lanes,), in ascending order.
    """

    def __init__(self, lines: Sequence[Lines]) -> None:
        self._lines = lines
        self.columns: list[IntArray] = []
        units, workers = [0], [0]
        for each in lines:
            used = _used(each)
            lengths = used.shape[1] - np.argmax(used[:, ::-1], axis=1)  # up to the last used place of a unit
            lengths[~used.any(axis=1)] = 0
            places = np.arange(used.size).reshape(used.shape)
            self.columns.append(places[np.arange(used.shape[1]) < lengths[:, np.newaxis]])
            units += (units[-1] + np.cumsum(lengths[lengths > 0])).tolist()
            workers.append(len(units) - 1)
        self.layout = np.array(units), np.array(workers)
        self.samples = BANKS * lines[0].parts[0].shape[0]
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

    def model(
        self,
        weights: Sequence[WeightArray],
        settings: RunSettings,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> "DenseModel":
        """See `Features`."""
        return DenseModel(self, weights, settings, limits, exempt)

    def activations(self, weights: Sequence[WeightArray]) -> IntArray:
        """See `Features`."""
        scattered = [
            own.reshape(-1, each.engines, max(each.unit, each.lanes)).swapaxes(0, 1).reshape(-1)
            for each, own in zip(self._lines, weights, strict=True)
        ]
        return self.dots(self.gather(scattered), slice(0, self.samples))

    def gather(self, weights: Sequence[WeightArray]) -> FloatArray:
        """Weights of the columns, float64 (columns,), from those of each worker, int32 (E · C · lanes,)."""
        pairs = zip(weights, self.columns, strict=True)
        return np.concatenate([own[columns] for own, columns in pairs]).astype(np.float64)

    def dots(self, weights: FloatArray, samples: slice) -> IntArray:
        """Exact dot products of some whole micro-batches, summed over the workers: int64 (samples,)."""
        totals = np.empty(samples.stop - samples.start, np.int64)

        def add(part: slice) -> None:
            sums = np.empty((len(self._lines), part.stop - part.start), np.int64)
            rows, first = self.rows(part.start, sums.shape[1])
            kernels.totals(rows, first, self.layout, self.form, 0, weights, sums)
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
                decoded = kernels.decode(
                    lines.parts, part.start // BANKS, (part.stop - part.start) // BANKS, lines.form
                )
                for engine, places in enumerate(_by_engine(columns, decoded.shape)):
                    left, right = right, right + places.size
                    if places.size and places[-1] - places[0] == places.size - 1:
                        result[rows, left:right] = decoded[engine, :, places[0] : places[-1] + 1]
                    else:
                        result[rows, left:right] = decoded[engine][:, places]

        _for_each(decode, self._blocks(first, count))
        return result


class DenseModel(Model):
    """Weights of dense workers during a run.

    Parameters
    ----------
    features
        The features.
    weights
        Initial weights of each worker: int32 (E · C · lanes,).
    settings, limits
        See `Model`.
    exempt
        See `DenseFeatures.model`.
    """

    def __init__(
        self,
        features: DenseFeatures,
        weights: Sequence[WeightArray],
        settings: RunSettings,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> None:
        super().__init__(settings, limits)
        units, workers = features.layout
        self._features = features
        self._layout = units, workers if limits.size == workers.size - 1 else workers[[0, -1]]
        self._given = weights
        self._weights = features.gather(weights)
        self._rest = [np.delete(own, columns) for own, columns in zip(weights, features.columns, strict=True)]
        self._others = np.concatenate([part if part.any() else part[:0] for part in self._rest]).astype(np.float64)
        # Weights of forward passes; with staleness those before the last update.
        self._read = self._weights.copy() if settings.stale else self._weights
        self._rows: deque[tuple[ByteArray, int]] = deque()
        """Those of each call of `partials` whose `update` is still to come."""
        self._exempt_places, begin, exempt_columns = exempt, 0, []
        for columns, place in zip(features.columns, exempt, strict=True):
            exempt_columns += (begin + np.flatnonzero(columns == place)).tolist()
            begin += columns.size
        self._exempt = np.array(exempt_columns, np.int64)

    def update(self, first: int, deltas: IntArray) -> None:
        """See `Model`."""
        rows, row = self._rows.popleft()
        settings, (units, workers) = self._settings, self._layout
        if settings.stale and first % settings.batch == 0:
            self._read[:] = self._weights
        for worker in range(self.saturated.size):
            columns = int(units[workers[worker]]), int(units[workers[worker + 1]])
            self.saturated[worker] |= kernels.backward(
                rows, row, columns, deltas, settings.features, settings.gradient_shift, self._weights
            )

    @property
    def mini_batches_at_once(self) -> int:
        """See `Model`."""
        return max(1, _PART // max(1, self._settings.batch * self._features.count))

    def dots(self, samples: slice) -> IntArray:
        """See `Model`."""
        return self._features.dots(self._weights, samples)

    def values(self) -> list[WeightArray]:
        """See `Model`."""
        begin = other = 0
        result = []
        for given, columns, rest, exempt in zip(
            self._given, self._features.columns, self._rest, self._exempt_places, strict=True
        ):
            own = given.copy()
            if rest.any():
                own[np.delete(np.arange(own.size), columns)] = self._others[other : other + rest.size]
                other += rest.size
            if exempt is not None:
                own[exempt] = given[exempt]  # if it is one of the others, nothing has changed it
            own[columns] = self._weights[begin : begin + columns.size]
            begin += columns.size
            result.append(own)
        return result

    def _add_up(self, first: int, shift: int, totals: IntArray) -> None:
        features = self._features
        rows, row = features.rows(first, totals.shape[1])
        self._rows.append((rows, row))
        # Ahead of the updates of the mini-batch before, these are the weights that it will leave to be read.
        read = self._read if self._under_way == 1 else self._weights
        kernels.totals(rows, row, self._layout, features.form, shift, read, totals)

    def _regularize(self) -> None:
        settings = self._settings
        kernels.regularize(self._weights, settings.shrink, settings.threshold, self._exempt)
        kernels.regularize(self._others, settings.shrink, settings.threshold)

    def _most_threads(self, first: int, samples: int) -> int:
        return min(self._layout[0].size - 1, self._settings.batch * self._features.count // _THREAD_FEATURES)

    def _share(
        self, first: int, labels: IntArray, importances: IntArray, loss: Any, threads: int
    ) -> Callable[[int, IntArray, IntArray], bool]:
        rows, row = self._features.rows(first, labels.size)
        settings, features = self._settings, rows[row : row + labels.size]

        def share(thread: int, arrivals: IntArray, totals: IntArray) -> bool:
            batch, units = settings.batch, self._layout[0].size - 1
            saturated: bool = kernels.train(
                thread,
                arrivals,
                totals,
                (np.empty(batch, np.int64), np.empty(batch), np.empty(units, np.int64), np.empty(self._exempt.size)),
                features,
                labels,
                importances,
                self._layout,
                (kernels.offset(settings.features), settings.features.forward_shift),
                self._limits,
                loss,
                (settings.rate_mantissa, 2.0**-settings.gradient_shift),
                (float(settings.shrink), kernels.SHRINK_SCALE, float(settings.threshold), self._exempt),
                settings.stale,
                self._weights,
                self._read,
                self._others,
                self.clamped,
                self.saturated,
            )
            return saturated

        return share


def _for_each(function: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Call a function for each part, in threads."""
    threads = max(1, min(len(parts), kernels.THREADS))

    def share(thread: int) -> None:
        for part in parts[thread::threads]:
            function(part)

    kernels.in_threads(share, threads)


def _used(lines: Lines) -> npt.NDArray[np.bool_]:
    """Which places of each unit have a feature that is not 0 in some sample: (units, places of a unit)."""
    banks = lines.parts[0].shape[3]
    ports = BANKS // banks
    engines = []
    for engine in range(len(lines.parts) // ports):
        parts = lines.parts[engine * ports : (engine + 1) * ports]
        # First over the samples, which leaves long rows: numpy is slow at short ones.
        bits = [
            np.bitwise_or.reduce(np.bitwise_or.reduce(part, axis=0)[:, : lines.form.precision], axis=(1, 2))
            for part in parts
        ]
        merged = np.bitwise_or.reduce(np.stack(bits))  # (C, lanes / 8)
        places = np.unpackbits(merged.reshape(-1), bitorder="little").astype(np.bool_)
        padded = np.zeros(-(-places.size // lines.unit) * lines.unit, np.bool_)
        padded[: places.size] = places
        engines.append(padded.reshape(-1, lines.unit))
    return np.concatenate(engines)


def _by_engine(columns: IntArray, shape: tuple[int, ...]) -> list[IntArray]:
    """The columns of each engine, as places in it."""
    engines, _, size = shape
    edges = np.searchsorted(columns, np.arange(engines + 1) * size)
    return [columns[edges[e] : edges[e + 1]] - e * size for e in range(engines)]
