"""Numba kernels that compute the golden model.

Lines are decoded to one byte a feature first. `train` then does many mini-batches of all workers of a process in one
call, because with few features the calls would outweigh the arithmetic. It takes the features of all workers side by
side: ``features`` is uint8 (samples, n), C-contiguous, with signed features q as q + 2^(P-1). Unit i of the job's units
in this process is the columns ``units[i]`` to ``units[i + 1]``, at most 64, and worker i has the units ``workers[i]``
to ``workers[i + 1]``; both are int64. Weights are float64 (n,), integers; those of the columns ``exempt``, int64, have
no penalties.

Sums use float64 where it is exact, that is, where every partial sum is an integer below 2^53 in magnitude:

- gradients always: a sum of 8 products of a 32-bit δ and an 8-bit feature stays below 2^43;
- updates always: the largest intermediate is weight · shrink, below 2^49;
- dot products of units always: a sum of 64 products of a 32-bit weight and an 8-bit feature stays below 2^46.

Exact sums do not depend on the order of addition, so the compiler may vectorise them.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import numba
import numba.core.cgutils
import numba.extending
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import FACTOR, IMPORTANCE, LABEL, MARGIN, RESIDUAL, SHRINK, SLOPE, WEIGHT, IntArray
from p4sgd.hw.spec.run import VALUE_FRACTION, FeatureFormat
from p4sgd.sim.compiled import compiled

__all__ = [
    "LANES",
    "SHRINK_SCALE",
    "THREADS",
    "add",
    "backward",
    "decode",
    "deltas_of",
    "in_threads",
    "meet",
    "meeting",
    "offset",
    "regularize",
    "shrink",
    "shrink_lanes",
    "totals",
    "train",
]

FloatArray = npt.NDArray[np.float64]
ByteArray = npt.NDArray[np.uint8]

# Constants for the compiler, from the formats.
_MARGIN_LOW, _MARGIN_HIGH = MARGIN.minimum, MARGIN.maximum
_RESIDUAL_LOW, _RESIDUAL_HIGH = RESIDUAL.minimum, RESIDUAL.maximum
_WEIGHT_LOW, _WEIGHT_HIGH = float(WEIGHT.minimum), float(WEIGHT.maximum)
_SLOPE_FRACTION = SLOPE.fraction
_LABEL_SHIFT = VALUE_FRACTION - LABEL.fraction
_RESIDUAL_SHIFT = VALUE_FRACTION - RESIDUAL.fraction
_RESIDUAL_HALF = (1 << _RESIDUAL_SHIFT) >> 1
_FACTOR_SHIFT, _DELTA_SHIFT = IMPORTANCE.fraction - FACTOR.fraction, FACTOR.fraction
_FACTOR_HALF, _DELTA_HALF = (1 << _FACTOR_SHIFT) >> 1, (1 << _DELTA_SHIFT) >> 1
SHRINK_SCALE = 2.0**-SHRINK.fraction
"""The scale of `shrink`."""

_SUMS = {"reassoc", "contract", "nsz"}
_SWAPS = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
)
"""Shift and mask of the three steps of an 8×8 bit transpose."""


THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
"""Number of threads: the environment variable NUMBA_NUM_THREADS, by default the number of processors."""

_PATIENCE = 300_000
"""After so many checks, some 300 µs, a waiting thread sleeps: another one must have lost its processor. Less patience
would make a chain of sleeps, because a thread that sleeps for 50 µs or more lets the others wait as long."""

_AHEAD = 8
"""How many rows ahead to prefetch. The processor itself looks no farther than the end of a row, and a thread reads only
a part of each."""

_APART = 8
"""Words of a cache line: what threads write is so far apart."""


LANES = 16
"""Weights that `shrink_lanes` changes: as many as the widest vectors hold."""

_NONE = np.empty(0, np.int64)

_intrinsic: Callable[[Any], Any] = numba.extending.intrinsic
_cgutils: Any = numba.core.cgutils
_types: Any = numba.types
_compiled = functools.partial(compiled, "the emulator's loops")


@_compiled(nogil=True)
def _decode(
    lines: Any, first: int, count: int, bank: int, precision: int, flip: Any, matrices: Any, words: Any
) -> None:
    """Decode one port's lines of some micro-batches, to words of 8 features; ``flip`` is XORed.

    ``lines`` are (T, C, S, bytes), and ``words`` (8 · count, C · lanes / 8). The port has the samples from ``bank`` on
    of each micro-batch. ``matrices`` is scratch space, uint64 (bytes,).

    The bytes of 8 lanes in all planes are an 8×8 bit matrix in one 64-bit word; its transpose has one byte per lane (H.
    S. Warren, Hacker's Delight, §7–3).
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
                for shift, mask in _SWAPS:
                    swapped = (word ^ (word >> shift)) & mask
                    word ^= swapped ^ (swapped << shift)
                matrices[place] = word ^ flip
            for own in range(matrices.size // lane_bytes):
                row = BANKS * index + bank + own
                for byte in range(lane_bytes):
                    words[row, chunk * lane_bytes + byte] = matrices[own * lane_bytes + byte]


@_compiled(nogil=True, fastmath=_SUMS)
def _dot(features: Any, weights: Any) -> float:
    total = 0.0
    for j in range(weights.shape[0]):
        total += np.float64(features[j]) * weights[j]
    return total


def offset(form: FeatureFormat) -> int:
    """What is added to signed features: 2^(P-1), by inverting their sign bit."""
    return 1 << (form.precision - 1) if form.signed else 0


def decode(parts: tuple[ByteArray, ...], first: int, count: int, form: FeatureFormat) -> ByteArray:
    """Features of some micro-batches of a worker: uint8 (E, 8 · count, C · lanes), signed ones as q + 2^(P-1).

    Parameters
    ----------
    parts
        Lines of each memory port of each engine: uint8 (T, C, S, 8/ports, lanes/8), contiguous.
    first, count
        First micro-batch, and number of micro-batches.
    form
        Format of the features.
    """
    _, chunks, _, banks, lane_bytes = parts[0].shape
    ports = BANKS // banks
    features = np.empty((len(parts) // ports, BANKS * count, chunks * lane_bytes * 8), np.uint8)
    flip = np.uint64(offset(form) * 0x0101010101010101)
    words, matrices = features.view(np.uint64), np.empty(banks * lane_bytes, np.uint64)
    for number, part in enumerate(parts):
        bank = number % ports * part.shape[3]
        lines = part.reshape(*part.shape[:3], matrices.size)
        lines.flags.writeable = False  # as images in files are, so that the kernel is compiled for one type only
        _decode(lines, first, count, bank, form.precision, flip, matrices, words[number // ports])
    return features


@_intrinsic
def _prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask the processor to read ``array[row, column]``, which will be needed soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(3), word(1)])  # read, into all levels of the cache, data
        return context.get_dummy_value()

    return _types.void(array, row, column), generate


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of an element of an array, which is the first argument; the next are its indices."""
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, arguments[0])
    return _cgutils.get_item_pointer(context, builder, kind, array, arguments[1 : 1 + kind.ndim])


def _scopes(builder: Any) -> Any:
    """The metadata by which LLVM knows that `_write` writes nothing that `_read` reads."""
    domain = builder.module.add_metadata(["p4sgd"])
    return builder.module.add_metadata([builder.module.add_metadata(["p4sgd: only read", domain])])


@_intrinsic
def _read(typing: Any, array: Any, index: Any) -> Any:
    """``array[index]`` of an array to which `_write` does not write.

    The compiler uses vectors for loops that read at any index and write, if all is read and written by these two.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_pointer(context, builder, signature, arguments))
        value.set_metadata("alias.scope", _scopes(builder))
        return value

    return array.dtype(array, index), generate


@_intrinsic
def _write(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value`` for an array that `_read` does not read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = context.cast(builder, arguments[2], signature.args[2], signature.args[0].dtype)
        builder.store(value, _pointer(context, builder, signature, arguments)).set_metadata("noalias", _scopes(builder))
        return context.get_dummy_value()

    return _types.void(array, index, value), generate


@_compiled(nogil=True)
def _totals(
    features: Any,
    first: int,
    units: Any,
    workers: Any,
    own: Any,
    offset: int,
    shift: int,
    weights: Any,
    addends: Any,
    totals: Any,
) -> None:
    """Forward pass of the units from ``own[0]`` to ``own[1]``: their part of each worker's sum, (workers, samples).

    ``addends`` is scratch space, int64 (units,).
    """
    half = np.int64((1 << shift) >> 1)  # an addend is half a step, less what the offset adds to its unit
    for unit in range(own[0], own[1]):
        addends[unit] = half
        if offset:
            for weight in weights[units[unit] : units[unit + 1]]:
                addends[unit] -= offset * np.int64(weight)
    for row in range(totals.shape[1]):
        for worker in range(totals.shape[0]):
            total = np.int64(0)
            for unit in range(max(own[0], workers[worker]), min(own[1], workers[worker + 1])):
                begin, end = units[unit], units[unit + 1]
                _prefetch(features, min(first + row + _AHEAD, features.shape[0] - 1), begin)
                exact = np.int64(_dot(features[first + row, begin:end], weights[begin:end]))
                total += (exact + addends[unit]) >> shift
            totals[worker, row] = total


@_compiled(nogil=True)
def add(totals: Any, limits: Any, clamped: Any, sums: Any) -> None:
    """Round 1 and clamp: sums of partial activations from ``totals``, (threads, workers, samples)."""
    for row in range(sums.size):
        sums[row] = 0
        for worker in range(limits.size):
            total, limit = np.int64(0), limits[worker]
            for thread in range(totals.shape[0]):
                total += totals[thread, worker, row]
            if total > limit or total < -limit:
                clamped[worker] = True
                total = limit if total > limit else -limit
            sums[row] += total


@_compiled(nogil=True)
def deltas_of(sums: Any, labels: Any, importances: Any, table: Any, mode: Any, mantissa: int, deltas: Any) -> bool:
    """Round 2, as `golden.residual` and `golden.delta`; returns whether a margin or a residual was saturated.

    ``deltas`` must share no memory with the other arrays.
    """
    shift, slope, intercept = table
    sign, offset, constant = mode
    saturated = False
    for row in range(np.uint64(sums.size)):  # an index that may be negative would keep the compiler from using vectors
        y = _read(labels, row)
        factor = -1 if sign and y < 0 else 1
        x = factor * _read(sums, row) - (y if offset else 0)
        margin = min(max(x, _MARGIN_LOW), _MARGIN_HIGH)
        segment = np.uint64(min(max((margin >> shift) + slope.size // 2, 0), slope.size - 1))
        value = factor * (_read(slope, segment) * margin + (_read(intercept, segment) << _SLOPE_FRACTION))
        value -= (y if constant else 0) << _LABEL_SHIFT
        rounded = (value + _RESIDUAL_HALF) >> _RESIDUAL_SHIFT
        residual = min(max(rounded, _RESIDUAL_LOW), _RESIDUAL_HIGH)
        saturated |= margin != x or residual != rounded
        if importances.size:
            factor = (_read(importances, row) * mantissa + _FACTOR_HALF) >> _FACTOR_SHIFT
            _write(deltas, row, (residual * factor + _DELTA_HALF) >> _DELTA_SHIFT)
        else:
            _write(deltas, row, residual * mantissa)
    return saturated


@_compiled(nogil=True, fastmath=_SUMS)
def _descend(
    features: Any, first: int, begin: int, end: int, deltas: Any, offset: float, scale: float, weights: Any
) -> bool:
    """Gradients and Round 3 of the micro-batches of a mini-batch, for the columns from ``begin`` to ``end``."""
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
                gradient = (
                    start
                    + d0 * np.float64(f0[j])
                    + d1 * np.float64(f1[j])
                    + d2 * np.float64(f2[j])
                    + d3 * np.float64(f3[j])
                    + d4 * np.float64(f4[j])
                    + d5 * np.float64(f5[j])
                    + d6 * np.float64(f6[j])
                    + d7 * np.float64(f7[j])
                )
                moved = part[j] - np.floor(gradient * scale + 0.5)
                # min and max would heed NaN, which keeps the compiler from using vectors.
                clipped = _WEIGHT_LOW if moved < _WEIGHT_LOW else moved
                clipped = _WEIGHT_HIGH if clipped > _WEIGHT_HIGH else clipped
                saturated |= clipped != moved
                part[j] = clipped
    return saturated


@_compiled(nogil=True)
def shrink(weights: Any, factor: float, scale: float, threshold: float) -> None:
    """L2 shrinkage by ``factor * scale`` and L1 soft thresholding of weights, float64 (n,), in place."""
    for j in range(weights.size):
        weight = weights[j]
        shrunk = weight - np.floor(weight * (factor * scale) + 0.5)
        # min and max would heed NaN, which keeps the compiler from using vectors.
        lower, upper = shrunk - threshold, shrunk + threshold
        weights[j] = lower if lower > 0.0 else (upper if upper < 0.0 else 0.0)


@_intrinsic
def shrink_lanes(typing: Any, weights: Any, first: Any, factor: Any) -> Any:
    """L2 shrinkage by ``factor``, int64, of the `LANES` weights from ``first`` on, int32, in place.

    Products have 64 bits. Here even and odd weights are multiplied apart, as they lie in words of 64 bits; the compiler
    would widen all weights first and narrow them afterwards, which takes one and a half times as long.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, pairs = ir.VectorType(ir.IntType(32), LANES), ir.VectorType(ir.IntType(64), LANES // 2)

        def all_of(number: int) -> Any:
            return ir.Constant(pairs, [number] * pairs.count)

        def signed_low(words: Any) -> Any:
            return builder.ashr(builder.shl(words, all_of(32)), all_of(32))

        def shrinkage(words: Any) -> Any:  # rounded, in the upper half of a word
            return builder.add(builder.mul(words, signed_low(factors)), all_of(1 << 31))

        factors: Any = ir.Constant(pairs, ir.Undefined)
        scaled = builder.shl(arguments[2], ir.Constant(ir.IntType(64), 32 - SHRINK.fraction))
        for lane in range(pairs.count):
            factors = builder.insert_element(factors, scaled, ir.Constant(ir.IntType(32), lane))
        address = builder.bitcast(_pointer(context, builder, signature, arguments), lanes.as_pointer())
        old = builder.load(address, align=4)
        words = builder.bitcast(old, pairs)
        low, high = shrinkage(signed_low(words)), shrinkage(builder.ashr(words, all_of(32)))
        both = builder.or_(builder.lshr(low, all_of(32)), builder.and_(high, all_of(-1 << 32)))
        builder.store(builder.sub(old, builder.bitcast(both, lanes)), address, align=4)
        return context.get_dummy_value()

    return _types.void(weights, first, factor), generate


@_intrinsic
def _publish(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value`` for other threads, which see all that was written before as soon as they see it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], _pointer(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return _types.void(array, index, _types.int64), generate


@_intrinsic
def _observe(typing: Any, array: Any, index: Any) -> Any:
    """``array[index]``, as another thread published it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, arguments), "acquire", 8)

    return _types.int64(array, index), generate


_sleep = _types.ExternalFunction("usleep", _types.int32(_types.uint32))
"""Sleep for some microseconds: usleep of the C library."""


@_compiled(nogil=True)
def meet(arrivals: Any, thread: int, number: int) -> None:
    """Wait until all threads have come to a meeting. Meetings are numbered, ascending."""
    _publish(arrivals, thread * _APART, number)
    for other in range(arrivals.size // _APART):
        tries = 0
        while _observe(arrivals, other * _APART) < number:
            tries += 1
            if tries > _PATIENCE:
                _sleep(np.uint32(50))


@_compiled(nogil=True)
def train(
    thread: int,
    arrivals: Any,
    totals: Any,
    scratch: Any,
    features: Any,
    labels: Any,
    importances: Any,
    layout: Any,
    form: Any,
    limits: Any,
    loss: Any,
    rate: Any,
    regularization: Any,
    stale: bool,
    weights: Any,
    read: Any,
    others: Any,
    clamped: Any,
    saturated: Any,
) -> bool:
    """Do mini-batches, as one of several threads, each with some of the units: they exchange sums, as workers do.

    ``scratch`` is space of this thread: sums, int64, and δ, float64, of a mini-batch, int64 (units,), and the weights
    of ``exempt`` columns.
    """
    sums, deltas, addends, kept = scratch
    units, workers = layout
    offset, shift = form
    table, mode = loss
    mantissa, scale = rate
    factor, shrink_scale, threshold, exempt = regularization
    threads, batch = totals.shape[1], totals.shape[3]
    count = units.size - 1
    own = count * thread // threads, count * (thread + 1) // threads
    left, right = units[own[0]], units[own[1]]
    residual_saturated = False
    for mini_batch in range(labels.size // batch):
        first = mini_batch * batch
        # A thread may begin the next mini-batch while others still read the sums of this one.
        parts = totals[mini_batch % 2]
        _totals(features, first, units, workers, own, offset, shift, read, addends, parts[thread])
        if threads > 1:
            meet(arrivals, thread, mini_batch + 1)
        add(parts, limits, clamped, sums)
        rows = slice(first, first + batch)
        residual_saturated |= deltas_of(sums, labels[rows], importances[rows], table, mode, mantissa, deltas)
        if stale:
            for j in range(left, right):  # an assignment of slices takes 2 seconds to compile, for its error's text
                read[j] = weights[j]
        for worker in range(limits.size):
            begin, end = max(own[0], workers[worker]), min(own[1], workers[worker + 1])
            if begin < end:
                full = _descend(features, first, units[begin], units[end], deltas, float(offset), scale, weights)
                if full:
                    saturated[worker] = True
        if factor or threshold:
            for number in range(exempt.size):
                kept[number] = weights[exempt[number]]
            shrink(weights[left:right], factor, shrink_scale, threshold)
            for number in range(exempt.size):
                if left <= exempt[number] < right:
                    weights[exempt[number]] = kept[number]
            if thread == 0:
                shrink(others, factor, shrink_scale, threshold)
    return residual_saturated


def meeting(threads: int) -> tuple[IntArray, Callable[[], None]]:
    """Where so many threads meet: ``arrivals`` of `meet`, and what lets all go on without the others."""
    arrivals = np.zeros(threads * _APART, np.int64)

    def release() -> None:
        arrivals[:] = np.iinfo(np.int64).max

    return arrivals, release


def _spread(thread: int) -> None:
    """Move the calling thread to a processor of its own, where it may be moved from again.

    Linux often leaves threads that wait for each other on the processor on which they were started.
    """
    with contextlib.suppress(OSError):
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {sorted(allowed)[(os.getpid() + thread) % len(allowed)]})
        os.sched_setaffinity(0, allowed)


def in_threads(part: Callable[[int], None], threads: int, release: Callable[[], None] = lambda: None) -> None:
    """Call ``part(0)`` to ``part(threads - 1)`` at the same time, each in a thread of its own, and wait for them.

    Ctrl-C interrupts the waiting: the threads then end by themselves, and what they write is of no use.

    Parameters
    ----------
    part
        Most of its time it should be in kernels, which release Python's lock.
    threads
        Number of threads; 1 is the calling one.
    release
        Called if one of them fails or cannot be started, so that the others do not wait for it.
    """
    if threads == 1:
        part(0)
        return
    errors: list[BaseException] = []

    def guarded(thread: int) -> None:
        try:
            _spread(thread)
            part(thread)
        except BaseException as error:
            errors.append(error)
            release()

    def lead() -> None:
        others = [threading.Thread(target=guarded, args=(thread,)) for thread in range(1, threads)]
        try:
            for other in others:
                other.start()
        except RuntimeError as error:
            errors.append(error)
            release()
        guarded(0)
        for other in others:
            if other.ident is not None:
                other.join()

    # Not in this thread, because an exception of Ctrl-C between two starts would leave the first one waiting for ever.
    leader = threading.Thread(target=lead)
    leader.start()
    leader.join()
    if errors:
        raise errors[0]


def totals(
    features: ByteArray,
    first: int,
    layout: tuple[IntArray, IntArray],
    form: FeatureFormat,
    shift: int,
    weights: FloatArray,
    sums: IntArray,
) -> None:
    """Forward pass of some samples, rounded: each worker's sums.

    Parameters
    ----------
    features, weights
        See the module.
    first
        First sample.
    layout
        ``units`` and ``workers``, see the module.
    form
        Format of the features.
    shift
        The dot product of a unit is divided by ``2**shift``.
    sums
        int64 (workers, samples), which get the sums.
    """
    (units, workers), count = layout, layout[0].size - 1
    addends = np.empty(count, np.int64)
    _totals(features, first, units, workers, (0, count), offset(form), shift, weights, addends, sums)


def backward(
    features: ByteArray,
    first: int,
    columns: tuple[int, int],
    deltas: IntArray,
    form: FeatureFormat,
    gradient_shift: int,
    weights: FloatArray,
) -> bool:
    """Gradients and Round 3 of all micro-batches of a mini-batch, in order; returns whether any weight saturated.

    Parameters
    ----------
    features, weights
        See the module; weights are updated in place.
    first
        First sample.
    columns
        First column, and the one after the last.
    deltas
        int64 (B,).
    form
        Format of the features.
    gradient_shift
        Right shift of Round 3.
    """
    scale = 2.0**-gradient_shift
    return bool(_descend(features, first, *columns, deltas.astype(np.float64), float(offset(form)), scale, weights))


def regularize(weights: FloatArray, factor: int, threshold: int, exempt: IntArray = _NONE) -> None:
    """L2 shrinkage and L1 soft thresholding (`RunSettings`) of weights, float64 (n,), in place.

    Those at the places ``exempt``, int64 (few,), stay as they are.
    """
    if factor or threshold:
        kept = weights[exempt]
        shrink(weights, float(factor), SHRINK_SCALE, float(threshold))
        weights[exempt] = kept
