"""Numba kernels that compute the golden model on packed lines.

One call handles all engines of a worker, because with few features per engine the calls would outweigh the arithmetic.

Sums use float64 where it is exact, that is, where every partial sum is an integer below 2^53 in magnitude:

- gradients always: a sum of 8 products of a 32-bit δ and an 8-bit feature stays below 2^43;
- updates always: the largest intermediate is weight · shrink, below 2^49;
- dot products of units always: a sum of 64 products of a 32-bit weight and an 8-bit feature stays below 2^46.

Exact sums do not depend on the order of addition, so the compiler may vectorise them.
Numba caches the compiled code beside this file or in the user's cache folder. The first use on a machine takes some
seconds longer, as does every use if neither place is writable.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import MAX_UNIT

__all__ = ["activations", "backward", "dots", "forward", "regularize"]

FloatArray = npt.NDArray[np.float64]
ByteArray = npt.NDArray[np.uint8]

_SUMS = {"reassoc", "contract", "nsz"}
_SPREAD = np.array([sum((byte >> bit & 1) << 8 * bit for bit in range(8)) for byte in range(256)], dtype=np.uint64)
"""Look-up table from a byte to a 64-bit word: bit i becomes byte i."""


def _compiled(**options: Any) -> Callable[[Any], Any]:
    """`numba.njit` with a cache, or without one where Numba finds no writable folder for it."""

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:
            return numba.njit(**options)(function)

    return compiled


@_compiled()
def _decode(lines: Any, micro_batch: int, precision: int, flip: Any, spread: Any, out: Any) -> None:
    """Decode one port's lines of a micro-batch to (banks, C · lanes / 8) words of 8 features; ``flip`` is XORed."""
    chunks, banks, lane_bytes = lines.shape[1], lines.shape[3], lines.shape[4]
    for bank in range(banks):
        for chunk in range(chunks):
            for byte in range(lane_bytes):
                word = np.uint64(0)
                for plane in range(precision):
                    word = (word << np.uint64(1)) | spread[lines[micro_batch, chunk, plane, bank, byte]]
                out[bank, chunk * lane_bytes + byte] = word ^ flip


@_compiled(fastmath=_SUMS)
def _dot(features: Any, weights: Any) -> float:
    total = 0.0
    for j in range(weights.shape[0]):
        total += np.float64(features[j]) * weights[j]
    return total


@_compiled()
def _dots(features: Any, offset: int, unit: int, shift: int, weights: Any, totals: Any) -> None:
    size = weights.shape[1]
    half = np.int64((1 << shift) >> 1)
    addends = np.empty(-(-size // unit), np.int64)  # of each unit: half a step, less what the offset adds
    for engine in range(weights.shape[0]):
        addends[:] = half
        for j in range(size):
            addends[j // unit] -= offset * np.int64(weights[engine, j])
        for row in range(totals.shape[0]):
            total = np.int64(0)
            for begin in range(0, size, unit):
                end = min(begin + unit, size)
                exact = np.int64(_dot(features[engine, row, begin:end], weights[engine, begin:end]))
                total += (exact + addends[begin // unit]) >> shift
            totals[row] += total


@_compiled()
def _forward(
    parts: Any,
    first: int,
    count: int,
    precision: int,
    offset: int,
    flip: Any,
    spread: Any,
    unit: int,
    shift: int,
    weights: Any,
    words: Any,
    features: Any,
    totals: Any,
) -> None:
    # First decode the lines of every port, then sum.
    ports = BANKS // parts[0].shape[3]
    for number, lines in enumerate(parts):
        bank = number % ports * lines.shape[3]
        for index in range(count):
            rows = slice(BANKS * index + bank, BANKS * index + bank + lines.shape[3])
            _decode(lines, first + index, precision, flip, spread, words[number // ports, rows])
    _dots(features, offset, unit, shift, weights, totals)


def _sign_flip(precision: int, signed: bool) -> tuple[np.uint64, int]:
    """XOR mask of a word and offset of a feature: signed q is decoded as q + 2^(P-1), by inverting its sign bit."""
    offset = 1 << (precision - 1) if signed else 0
    return np.uint64(offset * 0x0101010101010101), offset


def forward(
    parts: tuple[ByteArray, ...],
    first: int,
    count: int,
    precision: int,
    signed: bool,
    unit: int,
    shift: int,
    weights: FloatArray,
    features: ByteArray,
    totals: IntArray,
) -> None:
    """Decode some micro-batches of a worker and add the rounded dot products of its units to ``totals``.

    Parameters
    ----------
    parts
        Lines of each memory port of each engine: uint8 (T, C, S, 8/ports, lanes/8), contiguous.
    first, count
        First micro-batch, and number of micro-batches.
    precision, signed
        Format of the features.
    unit, shift
        Lanes of a unit, at most 64; its dot product is divided by ``2**shift``.
    weights
        float64 (E, C · lanes), integers.
    features
        uint8 (E, 8 · count, C · lanes), contiguous; receives the decoded features, for `backward`.
    totals
        int64 (8 · count,).
    """
    flip, offset = _sign_flip(precision, signed)
    words = features.view(np.uint64)
    _forward(parts, first, count, precision, offset, flip, _SPREAD, unit, shift, weights, words, features, totals)


def dots(
    features: ByteArray, precision: int, signed: bool, unit: int, shift: int, weights: FloatArray, totals: IntArray
) -> None:
    """Add the rounded dot products of units to ``totals``, from features that are decoded already.

    Parameters
    ----------
    features
        uint8 (E, samples, n), as `forward` decodes them: signed features as q + 2^(P-1). A unit is ``unit`` of the n
        features after each other; the last may have fewer.
    precision, signed, unit, shift, weights, totals
        See `forward`; ``weights`` is (E, n) and ``totals`` (samples,).
    """
    _dots(features, _sign_flip(precision, signed)[1], unit, shift, weights, totals)


@_compiled(fastmath=_SUMS)
def _backward_engine(
    features: Any, deltas: Any, offset: float, scale: float, low: float, high: float, weights: Any
) -> bool:
    saturated = False
    size = weights.shape[0]
    block = 1024  # stays in the first-level cache
    gradient = np.empty(block)
    for begin in range(0, size, block):
        end = min(begin + block, size)
        for micro_batch in range(deltas.shape[0] // BANKS):
            row = BANKS * micro_batch
            total = 0.0
            for bank in range(BANKS):
                total += deltas[row + bank]
            d0, d1, d2, d3 = deltas[row], deltas[row + 1], deltas[row + 2], deltas[row + 3]
            d4, d5, d6, d7 = deltas[row + 4], deltas[row + 5], deltas[row + 6], deltas[row + 7]
            start = -offset * total
            for j in range(begin, end):
                gradient[j - begin] = (
                    start
                    + d0 * np.float64(features[row, j])
                    + d1 * np.float64(features[row + 1, j])
                    + d2 * np.float64(features[row + 2, j])
                    + d3 * np.float64(features[row + 3, j])
                    + d4 * np.float64(features[row + 4, j])
                    + d5 * np.float64(features[row + 5, j])
                    + d6 * np.float64(features[row + 6, j])
                    + d7 * np.float64(features[row + 7, j])
                )
            for j in range(begin, end):
                moved = weights[j] - np.floor(gradient[j - begin] * scale + 0.5)
                # min and max would heed NaN, which keeps the compiler from using vectors.
                clipped = low if moved < low else moved
                clipped = high if clipped > high else clipped
                saturated |= clipped != moved
                weights[j] = clipped
    return saturated


@_compiled()
def _backward(features: Any, deltas: Any, offset: float, scale: float, low: float, high: float, weights: Any) -> bool:
    saturated = False
    for engine in range(weights.shape[0]):
        saturated |= _backward_engine(features[engine], deltas, offset, scale, low, high, weights[engine])
    return saturated


def backward(
    features: ByteArray,
    deltas: IntArray,
    precision: int,
    signed: bool,
    gradient_shift: int,
    limits: tuple[int, int],
    weights: FloatArray,
) -> bool:
    """Gradients and Round 3 of all micro-batches of a mini-batch, in order; returns whether any weight saturated.

    Parameters
    ----------
    features
        uint8 (E, 8 · M, C · lanes) from `forward`.
    deltas
        int64 (8 · M,).
    precision, signed
        Format of the features.
    gradient_shift
        Right shift of Round 3.
    limits
        Least and largest weight.
    weights
        float64 (E, C · lanes), integers; updated in place.
    """
    _, offset = _sign_flip(precision, signed)
    scale = 2.0**-gradient_shift
    low, high = float(limits[0]), float(limits[1])
    return bool(_backward(features, deltas.astype(np.float64), float(offset), scale, low, high, weights))


@_compiled()
def _regularize(weights: Any, shrink: float, scale: float, threshold: float) -> None:
    for engine in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            weight = weights[engine, j]
            shrunk = weight - np.floor(weight * shrink * scale + 0.5)
            if shrunk > 0.0:
                weights[engine, j] = max(shrunk - threshold, 0.0)
            else:
                weights[engine, j] = min(shrunk + threshold, 0.0)


def regularize(weights: FloatArray, shrink: int, fraction: int, threshold: int) -> None:
    """L2 shrinkage by ``shrink · 2^-fraction`` and L1 soft thresholding of weights, float64 (E, n), in place."""
    if shrink or threshold:
        _regularize(weights, float(shrink), 2.0**-fraction, float(threshold))


def activations(
    parts: tuple[ByteArray, ...], precision: int, signed: bool, weights: FloatArray, *, block: int = 64
) -> IntArray:
    """Exact dot products of all samples of a worker's image: int64 (8 · T,).

    ``block`` micro-batches are decoded at a time; the other parameters are those of `forward`.
    """
    micro_batches = parts[0].shape[0]
    totals = np.zeros(BANKS * micro_batches, np.int64)
    for first in range(0, micro_batches, block):
        count = min(block, micro_batches - first)
        features = np.empty((weights.shape[0], BANKS * count, weights.shape[1]), np.uint8)
        part = totals[BANKS * first : BANKS * (first + count)]
        forward(parts, first, count, precision, signed, MAX_UNIT, 0, weights, features, part)
    return totals
