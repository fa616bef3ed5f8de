"""Dense workers: features, lines decoded to a byte each, and the golden model's arithmetic on them.

Sums use float64, because all are integers below 2^53 in magnitude and so exact in any order: of a gradient, 8 products
of a 32-bit δ and an 8-bit feature, 2^43; of a unit's dot product, 64 products of a 32-bit weight and such a feature,
2^46; the largest intermediate of an update is weight · shrink, 2^49.
"""

import copy
import functools
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT, ByteArray, EngineWeights, IntArray, WeightArray
from p4sgd.hw.spec.run import RunSettings
from p4sgd.sim import parallel
from p4sgd.sim.compiled import compiled
from p4sgd.sim.intrinsics import DOT_LANES, add_dots, prefetch
from p4sgd.sim.lines import Lines, offset
from p4sgd.sim.model import Batches, Features, Model, Targets, Team, next_deltas, sizes_of

FloatArray = npt.NDArray[np.float64]

KEPT_BYTES = 1 << 28
"""Most bytes of decoded features that are kept; more are decoded again whenever they are read."""

_BLOCK, _PART = 1 << 20, 1 << 26
"""About as many features are decoded at a time, and trained on by a call of the loops: some hundredths of a second."""

_THREAD_FEATURES = 1 << 15
"""Fewest features of a mini-batch for a thread, some 10 µs of work: less would not make up for the waiting."""

_EXACT = 512
"""Columns of a dot product that is not rounded, so that units do not matter: longer sums take less time. 2^14 would
still be exact."""

_CACHE_LINE = 64
"""Bytes that a prefetch reads, for the next micro-batch: the processor itself looks no farther than the end of a row,
and a thread reads only a part of each."""

_WEIGHT_LOW, _WEIGHT_HIGH = float(WEIGHT.minimum), float(WEIGHT.maximum)

_SUMS = {"reassoc", "contract", "nsz"}

_compiled = functools.partial(compiled, "the emulator's loops")


class Layout(NamedTuple):
    """Columns of decoded features, those of all workers of a process side by side."""

    units: IntArray  # unit i is the columns ``units[i]`` to ``units[i + 1]``, at most 64
    workers: IntArray  # worker i has the units ``workers[i]`` to ``workers[i + 1]``
    offset: int


class DenseFeatures(Features):
    """Decoded features of workers, without most of the last ones of units that are 0 in all samples.

    ``columns`` are for each worker the indices of its columns in weights of shape (E · C · lanes,), ascending, and
    ``others`` all other indices.
    """

    def __init__(self, lines: Sequence[Lines]) -> None:
        self._lines, self.form = lines, lines[0].form
        self.columns, self.others = list[IntArray](), list[IntArray]()
        units, workers = [0], [0]
        for each in lines:
            used = each.used()
            lengths = used.shape[1] - np.argmax(used[:, ::-1], axis=1)  # up to the last used feature of a unit
            lengths[~used.any(axis=1)] = 0
            lengths = np.minimum(-(-lengths // DOT_LANES) * DOT_LANES, used.shape[1])
            indices, taken = np.arange(used.size), (np.arange(used.shape[1]) < lengths[:, np.newaxis]).reshape(-1)
            self.columns.append(indices[taken])
            self.others.append(indices[~taken])
            units += (units[-1] + np.cumsum(lengths[lengths > 0])).tolist()
            workers.append(len(units) - 1)
        self.layout = Layout(np.array(units), np.array(workers), offset(self.form))
        self.count = units[-1]
        longer = np.unique([*range(0, self.count, _EXACT), self.count])
        self._exact = Layout(longer, np.array([0, longer.size - 1]), self.layout.offset)
        self.samples = BANKS * lines[0].micro_batches
        self._kept: ByteArray | None = None
        if self.samples * units[-1] <= KEPT_BYTES:
            self._kept = self._decode(0, self.samples)

    def rows(self, samples: slice) -> tuple[ByteArray, int]:
        """An array with some samples, whole micro-batches, uint8 (rows, columns), and the row of the first."""
        if self._kept is not None:
            return self._kept, samples.start
        return self._decode(samples.start, samples.stop - samples.start), 0

    def part(self, samples: int, times: int = 1) -> "DenseFeatures":
        """See `Features`."""
        if self._kept is not None and times == 1:
            return self
        result, (rows, _) = copy.copy(self), self.rows(slice(0, samples))
        result.samples = samples * times
        result._kept = rows if times == 1 else np.tile(rows[:samples], (times, 1))
        return result

    def flatten(self, weights: Sequence[EngineWeights]) -> FloatArray:
        """See `Features`: float64."""
        pairs = zip(weights, self.columns, strict=True)
        return np.concatenate([np.reshape(own, -1)[columns] for own, columns in pairs]).astype(np.float64)

    def dots(self, weights: FloatArray, samples: slice) -> IntArray:
        """See `Features`."""
        totals = np.empty(samples.stop - samples.start, np.int64)

        def add(part: slice) -> None:
            sums = np.empty((1, part.stop - part.start), np.int64)
            addends = np.empty(self._exact.units.size - 1, np.int64)
            _totals(*self.rows(part), self._exact, 0, (0, addends.size), weights, addends, sums)
            totals[part.start - samples.start : part.stop - samples.start] = sums[0]

        # Where features are kept, a sample is its columns, not its lines: less than a thread is worth, mostly.
        size = sum(each.size for each in self._lines) if self._kept is None else self.count
        _for_each(add, _blocks(samples.start, totals.size, size))
        return totals

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

        _for_each(decode, _blocks(first, count, sum(each.size for each in self._lines)))
        return result


def _blocks(first: int, count: int, size: int) -> list[slice]:
    """Some samples of such a size in blocks of whole micro-batches."""
    step = BANKS * max(1, _BLOCK // (BANKS * max(1, size)))
    return [slice(begin, min(begin + step, first + count)) for begin in range(first, first + count, step)]


def _for_each(function: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Call a function for each part, in threads."""
    threads = max(1, min(len(parts), parallel.THREADS))

    def share(thread: int) -> None:
        for part in parts[thread::threads]:
            function(part)

    parallel.in_threads(share, threads)


class DenseRun(NamedTuple):
    """Numbers of a run for the loops."""

    layout: Layout  # of one worker if all count as one
    shift: int  # right shift of Round 1
    scale: float  # 2^-shift of Round 3
    shrink: float  # fraction that L2 takes of a weight
    threshold: float  # integer that L1 takes of a weight
    exempt: IntArray  # columns without penalties
    stale: bool


class DenseWeights(NamedTuple):
    """Weights during a run, integers; each thread changes its own columns."""

    weights: FloatArray
    read: FloatArray
    """Those that forward passes read: the same array, or with staleness the weights before the last update."""
    others: FloatArray  # weights that no sample has a feature for, which penalties change


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
        self._features, self._exempt, layout = features, exempt, features.layout
        self._given = [np.asarray(each) for each in weights]
        self._rest = [own.reshape(-1)[others] for own, others in zip(self._given, features.others, strict=True)]
        others = np.concatenate([part if part.any() else part[:0] for part in self._rest]).astype(np.float64)
        flat = features.flatten(weights)
        self._state = DenseWeights(flat, flat.copy() if settings.stale else flat, others)
        exempt_columns = [np.flatnonzero(own == index) for own, index in zip(features.columns, exempt, strict=True)]
        begins = np.cumsum([0, *(columns.size for columns in features.columns)])[:-1]
        if limits.size != layout.workers.size - 1:
            layout = layout._replace(workers=layout.workers[[0, -1]])
        self._run = DenseRun(
            layout,
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
        features = self._features
        for given, columns, others, rest, exempt in zip(
            self._given, features.columns, features.others, self._rest, self._exempt, strict=True
        ):
            result.append(given.copy())
            own = result[-1].reshape(-1)
            if rest.any():
                own[others] = self._state.others[other : other + rest.size]
                other += rest.size
            if exempt is not None:
                own[exempt] = given.reshape(-1)[exempt]  # if it is one of the others, nothing has changed it
            own[columns] = self._state.weights[begin : begin + columns.size]
            begin += columns.size
        return result

    def sizes(self) -> IntArray:
        """See `Model`."""
        return sizes_of(self._state.weights, self._run.exempt)

    def _begin(self, samples: slice) -> None:
        self._rows.append(self._features.rows(samples))

    def _forward(self, samples: slice, totals: IntArray) -> None:
        rows = self._rows[-1]
        # Ahead of the updates of the mini-batch before, these are the weights that it will leave to be read.
        read, run = self._state.read if self._under_way == 1 else self._state.weights, self._run
        addends = np.empty(run.layout.units.size - 1, np.int64)
        _totals(*rows, run.layout, run.shift, (0, addends.size), read, addends, totals)

    def _backward(self, samples: slice, deltas: IntArray) -> None:
        rows, run, weights = self._rows.popleft(), self._run, self._state.weights
        if run.stale and samples.start % self._settings.batch == 0:
            self._state.read[:] = weights
        edges, floats = run.layout.units[run.layout.workers].tolist(), deltas.astype(np.float64)
        for worker, columns in enumerate(itertools.pairwise(edges)):
            self.saturated[worker] |= _descend(*rows, *columns, floats, float(run.layout.offset), run.scale, weights)

    def _regularize(self) -> None:
        run, state = self._run, self._state
        if run.shrink or run.threshold:
            kept = state.weights[run.exempt]
            for weights in (state.weights, state.others):
                _penalise(weights, run.shrink, run.threshold)
            state.weights[run.exempt] = kept

    def _mini_batches_at_once(self) -> int:
        return max(1, _PART // max(1, self._settings.batch * self._features.count))

    def _most_threads(self, samples: slice) -> int:
        units = self._run.layout.units.size - 1
        return min(units, self._settings.batch * self._features.count // _THREAD_FEATURES)

    def _share(self, samples: slice, batches: Batches, threads: int) -> Callable[[Team], bool]:
        rows, first = self._features.rows(samples)
        features, run = rows[first : first + samples.stop - samples.start], self._run

        def share(team: Team) -> bool:
            addends, kept = np.empty(run.layout.units.size - 1, np.int64), np.empty(run.exempt.size)
            return bool(train(team, batches, run, features, self._state, addends, kept))

        return share


# -- loops -------------------------------------------------------------------------------------------------------------


@_compiled(nogil=True, fastmath=_SUMS, forceinline=True)
def _totals(
    features: Any, first: int, layout: Any, shift: int, own: Any, weights: Any, addends: Any, totals: Any
) -> None:
    """Forward pass, from row ``first`` on, of the units from ``own[0]`` to ``own[1]``: their part of each worker's sum,
    int64 (workers, samples), rounded by ``shift`` (Round 1).

    ``addends`` is scratch space, int64 (units,).
    """
    units, workers, offset = layout.units, layout.workers, layout.offset
    half = np.int64((1 << shift) >> 1)  # an addend is half a step, less what the offset adds to its unit
    for unit in range(own[0], own[1]):
        added = 0.0
        for place in range(np.uint64(units[unit]), np.uint64(units[unit + 1])):
            added += weights[place]
        addends[unit] = half - offset * np.int64(added)
    for place in range(0, totals.shape[1], BANKS):  # micro-batches are whole
        row = first + place
        ahead = min(row + BANKS, features.shape[0] - BANKS)
        for worker in range(totals.shape[0]):
            for bank in range(BANKS):
                totals[worker, place + bank] = 0
            fetched = 0
            for unit in range(max(own[0], workers[worker]), min(own[1], workers[worker + 1])):
                begin = units[unit]
                if begin >= fetched:
                    fetched = begin + _CACHE_LINE
                    for next_row in range(ahead, ahead + BANKS):
                        prefetch(features, next_row, begin)
                add_dots(features, row, weights, begin, units[unit + 1], addends[unit], shift, totals, worker, place)


@_compiled(nogil=True, fastmath=_SUMS, forceinline=True)
def _descend(
    features: Any, first: int, begin: int, end: int, deltas: Any, offset: float, scale: float, weights: Any
) -> bool:
    """Gradients and Round 3 of micro-batches from row ``first`` on, in order, for the columns from ``begin`` to
    ``end``; returns whether a weight saturated."""
    saturated = False
    block = 2048  # weights that stay in the first-level cache
    for left in range(begin, end, block):
        right = min(left + block, end)
        part = weights[left:right]
        for micro_batch in range(deltas.size // BANKS):
            row = BANKS * micro_batch
            d0, d1, d2, d3 = deltas[row], deltas[row + 1], deltas[row + 2], deltas[row + 3]
            d4, d5, d6, d7 = deltas[row + 4], deltas[row + 5], deltas[row + 6], deltas[row + 7]
            start = -offset * (d0 + d1 + d2 + d3 + d4 + d5 + d6 + d7)
            row += first
            # Slices of rows, because with an index that may be negative the compiler uses no vectors.
            f0, f1, f2 = features[row, left:right], features[row + 1, left:right], features[row + 2, left:right]
            f3, f4, f5 = features[row + 3, left:right], features[row + 4, left:right], features[row + 5, left:right]
            f6, f7 = features[row + 6, left:right], features[row + 7, left:right]
            for j in range(part.size):
                gradient = start + d0 * np.float64(f0[j]) + d1 * np.float64(f1[j]) + d2 * np.float64(f2[j])
                gradient += d3 * np.float64(f3[j]) + d4 * np.float64(f4[j]) + d5 * np.float64(f5[j])
                gradient += d6 * np.float64(f6[j]) + d7 * np.float64(f7[j])
                moved = part[j] - np.floor(gradient * scale + 0.5)
                # min and max would heed NaN, which keeps the compiler from using vectors.
                clipped = _WEIGHT_LOW if moved < _WEIGHT_LOW else moved
                clipped = _WEIGHT_HIGH if clipped > _WEIGHT_HIGH else clipped
                saturated |= clipped != moved
                part[j] = clipped
    return saturated


@_compiled(nogil=True)
def _penalise(weights: Any, shrink: float, threshold: float) -> None:
    """L2 shrinkage and L1 soft thresholding of weights, float64 (n,), in place."""
    for j in range(weights.size):
        weight = weights[j]
        shrunk = weight - np.floor(weight * shrink + 0.5)
        # min and max would heed NaN, which keeps the compiler from using vectors.
        lower, upper = shrunk - threshold, shrunk + threshold
        weights[j] = lower if lower > 0.0 else (upper if upper < 0.0 else 0.0)


@_compiled(nogil=True)
def train(team: Any, batches: Any, run: Any, features: Any, state: Any, addends: Any, kept: Any) -> bool:
    """Do mini-batches as one thread of a `Team`; returns whether a residual or its argument was saturated.

    ``features`` are those of `Batches`. Scratch space: ``addends``, int64 (units,), and ``kept``, float64 (exempt
    columns,).
    """
    units, workers, weights, read = run.layout.units, run.layout.workers, state.weights, state.read
    threads, batch, count = team.totals.shape[1], team.sums.size, units.size - 1
    own = count * team.thread // threads, count * (team.thread + 1) // threads
    left, right = units[own[0]], units[own[1]]
    residual_saturated = False
    for mini_batch in range(batches.labels.size // batch):
        first = mini_batch * batch
        # A thread may begin the next mini-batch while others still read the sums of this one.
        partials = team.totals[mini_batch % 2, team.thread]
        _totals(features, first, run.layout, run.shift, own, read, addends, partials)
        residual_saturated |= next_deltas(team, batches, mini_batch)
        if run.stale:
            for j in range(left, right):  # an assignment of slices takes 2 seconds to compile, for its error's text
                read[j] = weights[j]
        for worker in range(batches.limits.size):
            begin, end = units[max(own[0], workers[worker])], units[min(own[1], workers[worker + 1])]
            offset = float(run.layout.offset)
            if begin < end and _descend(features, first, begin, end, team.deltas, offset, run.scale, weights):
                batches.saturated[worker] = True
        if run.shrink or run.threshold:
            for number in range(run.exempt.size):
                kept[number] = weights[run.exempt[number]]
            _penalise(weights[left:right], run.shrink, run.threshold)
            for number in range(run.exempt.size):
                if left <= run.exempt[number] < right:
                    weights[run.exempt[number]] = kept[number]
            if team.thread == 0:
                _penalise(state.others, run.shrink, run.threshold)
    return residual_saturated
