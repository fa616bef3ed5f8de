"""Decoded features of workers, for the emulator and for the evaluation of weights."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim import kernels

__all__ = ["KEPT_BYTES", "Features", "Lines"]

KEPT_BYTES = 1 << 28
"""Largest number of bytes of decoded features that are kept, for workers that run together. More are decoded again
whenever they are read."""

_BLOCK = 1 << 20
"""About as many features are decoded at a time."""

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
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes (`p4sgd.sim.emulator.worker.Memory`)."""
        return (*((part.ctypes.data, part.shape) for part in self.parts), self.form, self.unit)


class Features:
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
        self._samples = BANKS * lines[0].parts[0].shape[0]
        self._kept: ByteArray | None = None
        if self._samples * units[-1] <= KEPT_BYTES:
            self._kept = self._decode(0, self._samples)

    @classmethod
    def shared(cls, lines: Sequence[Lines]) -> "Features":
        """The features of these lines; those that someone still has, if any, so that they are decoded only once."""
        # While an object lives, so do its lines, and no other arrays have their addresses.
        identity = tuple(each.identity for each in lines)
        found = _shared.get(identity)
        if found is None:
            found = _shared[identity] = cls(lines)
        return found

    @property
    def count(self) -> int:
        """Number of columns."""
        return int(self.layout[0][-1])

    def rows(self, first: int, count: int) -> tuple[ByteArray, int]:
        """An array with some samples, a whole number of micro-batches, and the row of the first of them in it."""
        if self._kept is not None:
            return self._kept, first
        return self._decode(first, count), 0

    def activations(self, weights: Sequence[npt.NDArray[np.float64]]) -> IntArray:
        """Exact dot products of all samples, summed over the workers: int64 (samples,).

        Parameters
        ----------
        weights
            For each worker integers, float64 (E · C · lanes,).
        """
        own = np.concatenate([each[columns] for each, columns in zip(weights, self.columns, strict=True)])
        form, totals = self._lines[0].form, np.empty(self._samples, np.int64)
        no_limits = np.full(len(self._lines), np.iinfo(np.int64).max)

        def add(part: slice) -> None:
            size, unused = part.stop - part.start, np.zeros(len(self._lines), np.bool_)
            rows, first = self.rows(part.start, size)
            totals[part] = kernels.partials(rows, first, self.layout, form, 0, own, no_limits, unused, size)

        _for_each(add, self._blocks(0, self._samples))
        return totals

    def _blocks(self, first: int, count: int) -> list[slice]:
        """Some samples in blocks of whole micro-batches."""
        # A part has C chunks of `banks` samples with lanes / 8 bytes a plane.
        micro_batch = sum(8 * part[0, :, 0].size for each in self._lines for part in each.parts)
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


_shared: weakref.WeakValueDictionary[tuple[object, ...], Features] = weakref.WeakValueDictionary()


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
