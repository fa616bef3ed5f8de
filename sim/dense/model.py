"""Features of dense workers, decoded from lines of memory images to a byte each, and their weights during a run."""

import copy
import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import SHRINK, ByteArray, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim import parallel
from p4sgd.sim.compiled import compiled
from p4sgd.sim.dense import passes
from p4sgd.sim.dense.passes import DenseRun, DenseWeights, FloatArray, offset
from p4sgd.sim.model import Batches, Features, Model, Targets, Team

KEPT_BYTES = 1 << 28
"""Most bytes of decoded features that are kept; more are decoded again whenever they are read."""

_BLOCK, _PART = 1 << 20, 1 << 26
"""About as many features are decoded at a time, and trained on by a call of the loops: some hundredths of a second."""

_THREAD_FEATURES = 1 << 15
"""Fewest features of a mini-batch for a thread, some 10 µs of work: less would not make up for the waiting."""

TRANSPOSE = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
)
"""Shift and mask of the three steps of an 8×8 bit transpose in a 64-bit word (H. S. Warren, Hacker's Delight, §7–3)."""


@dataclass(frozen=True)
class Lines:
    """Lines of a worker."""

    parts: tuple[ByteArray, ...]  # for each port of each engine: uint8 (T, C, S, 8/ports, lanes/8), contiguous
    form: FeatureFormat  # with the planes that are read
    unit: int  # features of a unit

    @functools.cached_property
    def _shape(self) -> tuple[int, ...]:
        micro_batches, chunks, _, banks, lane_bytes = self.parts[0].shape
        return micro_batches, chunks, BANKS // banks, 8 * lane_bytes

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the samples (T)."""
        return self._shape[0]

    @property
    def ports(self) -> int:
        """Ports of an engine."""
        return self._shape[2]

    @property
    def lanes(self) -> int:
        """Lanes of an engine."""
        return self._shape[3]

    @property
    def engines(self) -> int:
        """Engines of the worker (E)."""
        return len(self.parts) // self.ports

    @property
    def size(self) -> int:
        """Features of the worker, padding included."""
        return self.engines * self._shape[1] * self.lanes

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes."""
        return (*((part.ctypes.data, part.shape) for part in self.parts), self.form, self.unit)

    def decode(self, first: int, count: int) -> ByteArray:
        """Features of ``count`` micro-batches from ``first`` on: uint8 (E, 8 · count, C · lanes), signed ones with
        their `offset`."""
        ports, banks = self.ports, BANKS // self.ports
        features = np.empty((self.engines, BANKS * count, self.size // self.engines), np.uint8)
        flip = np.uint64(offset(self.form) * 0x0101010101010101)
        words, matrices = features.view(np.uint64), np.empty(banks * self.lanes // 8, np.uint64)
        for number, part in enumerate(self.parts):
            bank = number % ports * banks
            lines = part.reshape(*part.shape[:3], matrices.size)
            lines.flags.writeable = False  # as images in files are, so that the loop is compiled for one type only
            _decode(lines, first, count, bank, self.form.precision, flip, matrices, words[number // ports])
        return features

    def used(self) -> npt.NDArray[np.bool_]:
        """Features of each unit that are not 0 in some sample: (units, features of a unit)."""
        # First over the samples, which leaves long rows: numpy is slow at short ones.
        bits = [
            np.bitwise_or.reduce(np.bitwise_or.reduce(part, axis=0)[:, : self.form.precision], axis=(1, 2))
            for part in self.parts
        ]
        merged = np.bitwise_or.reduce(np.stack(bits).reshape(self.engines, self.ports, -1), axis=1)
        used = np.unpackbits(merged, axis=1, bitorder="little").astype(np.bool_)
        return np.pad(used, ((0, 0), (0, -used.shape[1] % self.unit))).reshape(-1, self.unit)


class DenseFeatures(Features):
    """Decoded features of workers side by side, without the last ones of units that are 0 in all samples.

    ``layout`` is ``units`` and ``workers`` of `p4sgd.sim.dense.passes`; ``columns`` are for each worker the indices of
    its columns in weights of shape (E · C · lanes,), ascending.
    """

    def __init__(self, lines: Sequence[Lines]) -> None:
        self._lines, self.form = lines, lines[0].form
        self.columns: list[IntArray] = []
        units, workers = [0], [0]
        for each in lines:
            used = each.used()
            lengths = used.shape[1] - np.argmax(used[:, ::-1], axis=1)  # up to the last used feature of a unit
            lengths[~used.any(axis=1)] = 0
            indices = np.arange(used.size).reshape(used.shape)
            self.columns.append(indices[np.arange(used.shape[1]) < lengths[:, np.newaxis]])
            units += (units[-1] + np.cumsum(lengths[lengths > 0])).tolist()
            workers.append(len(units) - 1)
        self.layout = np.array(units), np.array(workers)
        self.count = units[-1]
        self.samples = BANKS * lines[0].micro_batches
        self._kept: ByteArray | None = None
        if self.samples * units[-1] <= KEPT_BYTES:
            self._kept = self._decode(0, self.samples)

    def rows(self, samples: slice) -> tuple[ByteArray, int]:
        """An array with some samples, whole micro-batches, and the row of the first."""
        if self._kept is not None:
            return self._kept, samples.start
        return self._decode(samples.start, samples.stop - samples.start), 0

    def part(self, samples: int) -> "DenseFeatures":
        """See `Features`."""
        if self._kept is not None:
            return self
        result = copy.copy(self)
        result.samples, result._kept = samples, self._decode(0, samples)
        return result

    def flatten(self, weights: Sequence[EngineWeights]) -> FloatArray:
        """See `Features`: float64."""
        pairs = zip(weights, self.columns, strict=True)
        return np.concatenate([np.reshape(own, -1)[columns] for own, columns in pairs]).astype(np.float64)

    def dots(self, weights: FloatArray, samples: slice) -> IntArray:
        """See `Features`."""
        totals = np.empty(samples.stop - samples.start, np.int64)

        def add(part: slice) -> None:
            sums = np.empty((len(self._lines), part.stop - part.start), np.int64)
            passes.totals(*self.rows(part), self.layout, self.form, 0, weights, sums)
            totals[part.start - samples.start : part.stop - samples.start] = sums.sum(axis=0)

        _for_each(add, self._blocks(samples.start, totals.size))
        return totals

    def _blocks(self, first: int, count: int) -> list[slice]:
        """Some samples in blocks of whole micro-batches."""
        step = BANKS * max(1, _BLOCK // (BANKS * sum(each.size for each in self._lines)))
        return [slice(begin, min(begin + step, first + count)) for begin in range(first, first + count, step)]

    def _decode(self, first: int, count: int) -> ByteArray:
        result = np.empty((count, self.count), np.uint8)

        def decode(part: slice) -> None:
            right, rows = 0, slice(part.start - first, part.stop - first)
            for lines, columns in zip(self._lines, self.columns, strict=True):
                decoded = lines.decode(part.start // BANKS, (part.stop - part.start) // BANKS)
                size = decoded.shape[2]
                edges = np.searchsorted(columns, np.arange(len(decoded) + 1) * size)
                for engine, features in enumerate(decoded):
                    own = columns[edges[engine] : edges[engine + 1]] - engine * size
                    left, right = right, right + own.size
                    if own.size and own[-1] - own[0] == own.size - 1:
                        result[rows, left:right] = features[:, own[0] : own[-1] + 1]
                    else:
                        result[rows, left:right] = features[:, own]

        _for_each(decode, self._blocks(first, count))
        return result


class DenseModel(Model):
    """Weights of dense workers during a run; see `p4sgd.sim.features.new_model`."""

    _delta_type = np.float64

    def __init__(
        self,
        features: DenseFeatures,
        weights: Sequence[EngineWeights],
        settings: RunSettings,
        targets: Targets,
        limits: IntArray,
        exempt: Sequence[int | None],
    ) -> None:
        super().__init__(settings, targets, limits)
        units, workers = features.layout
        self._features, self._exempt = features, exempt
        self._given = [np.asarray(each) for each in weights]
        self._rest = [np.delete(own, columns) for own, columns in zip(self._given, features.columns, strict=True)]
        others = np.concatenate([part if part.any() else part[:0] for part in self._rest]).astype(np.float64)
        flat = features.flatten(weights)
        self._state = DenseWeights(flat, flat.copy() if settings.stale else flat, others)
        exempt_columns = [np.flatnonzero(own == index) for own, index in zip(features.columns, exempt, strict=True)]
        begins = np.cumsum([0, *(columns.size for columns in features.columns)])[:-1]
        self._run = DenseRun(
            units,
            workers if limits.size == workers.size - 1 else workers[[0, -1]],
            offset(settings.features),
            settings.features.forward_shift,
            2.0**-settings.gradient_shift,
            settings.shrink * 2.0**-SHRINK.fraction,
            float(settings.threshold),
            np.concatenate([begin + own for begin, own in zip(begins, exempt_columns, strict=True)]),
            settings.stale,
        )
        self._rows: deque[tuple[ByteArray, int]] = deque()
        """Those of each forward pass whose backward pass is still to come."""

    def dots(self, samples: slice) -> IntArray:
        """See `Model`."""
        return self._features.dots(self._state.weights, samples)

    def values(self, *, last: bool = False) -> list[WeightArray]:
        """See `Model`."""
        begin = other = 0
        result = []
        for given, columns, rest, exempt in zip(
            self._given, self._features.columns, self._rest, self._exempt, strict=True
        ):
            result.append(given.copy())
            own = result[-1].reshape(-1)
            if rest.any():
                own[np.delete(np.arange(own.size), columns)] = self._state.others[other : other + rest.size]
                other += rest.size
            if exempt is not None:
                own[exempt] = given.reshape(-1)[exempt]  # if it is one of the others, nothing has changed it
            own[columns] = self._state.weights[begin : begin + columns.size]
            begin += columns.size
        return result

    def _forward(self, samples: slice, totals: IntArray) -> None:
        self._rows.append(rows := self._features.rows(samples))
        # Ahead of the updates of the mini-batch before, these are the weights that it will leave to be read.
        read, run = self._state.read if self._under_way == 1 else self._state.weights, self._run
        passes.totals(*rows, (run.units, run.workers), self._features.form, run.shift, read, totals)

    def _backward(self, samples: slice, deltas: IntArray) -> None:
        rows, run, weights = self._rows.popleft(), self._run, self._state.weights
        if run.stale and samples.start % self._settings.batch == 0:
            self._state.read[:] = weights
        edges = run.units[run.workers].tolist()
        for worker in range(self.saturated.size):
            columns = slice(edges[worker], edges[worker + 1])
            self.saturated[worker] |= passes.backward(*rows, columns, deltas, run, weights)

    def _regularize(self) -> None:
        passes.regularize(self._state.weights, self._run, self._run.exempt)
        passes.regularize(self._state.others, self._run)

    def _mini_batches_at_once(self) -> int:
        return max(1, _PART // max(1, self._settings.batch * self._features.count))

    def _most_threads(self, samples: slice) -> int:
        return min(self._run.units.size - 1, self._settings.batch * self._features.count // _THREAD_FEATURES)

    def _share(self, samples: slice, batches: Batches, threads: int) -> Callable[[Team], bool]:
        rows, first = self._features.rows(samples)
        features, run = rows[first : first + samples.stop - samples.start], self._run

        def share(team: Team) -> bool:
            addends, kept = np.empty(run.units.size - 1, np.int64), np.empty(run.exempt.size)
            return bool(passes.train(team, batches, run, features, self._state, addends, kept))

        return share


def _for_each(function: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Call a function for each part, in threads."""
    threads = max(1, min(len(parts), parallel.THREADS))

    def share(thread: int) -> None:
        for part in parts[thread::threads]:
            function(part)

    parallel.in_threads(share, threads)


@compiled("the emulator's loops", nogil=True)
def _decode(
    lines: Any, first: int, count: int, bank: int, precision: int, flip: Any, matrices: Any, words: Any
) -> None:
    """Decode one port's lines of some micro-batches, (T, C, S, bytes), to words of 8 features; ``flip`` is XORed.

    ``words`` are (8 · count, C · lanes / 8). The port has the samples from ``bank`` on of each micro-batch. The bytes
    of 8 lanes in all planes are an 8×8 bit matrix in one 64-bit word; its transpose has one byte per lane.
    """
    chunks = lines.shape[1]
    lane_bytes = words.shape[1] // chunks
    for index in range(count):
        for chunk in range(chunks):
            # Loops over neighbours, so that the compiler uses vectors.
            matrices[:] = np.uint64(0)
            for plane in range(precision):
                line = lines[first + index, chunk, plane]
                for place in range(matrices.size):
                    matrices[place] = (matrices[place] << np.uint64(8)) | np.uint64(line[place])
            for place in range(matrices.size):
                word = matrices[place]
                for shift, mask in TRANSPOSE:
                    swapped = (word ^ (word >> shift)) & mask
                    word ^= swapped ^ (swapped << shift)
                matrices[place] = word ^ flip
            for own in range(matrices.size // lane_bytes):
                row = BANKS * index + bank + own
                for byte in range(lane_bytes):
                    words[row, chunk * lane_bytes + byte] = matrices[own * lane_bytes + byte]
