"""Numba kernels over samples, with the bits of `p4sgd.host.data.statistics.scaled` and `Statistics`, and of
`p4sgd.host.data.quantization.quantize`, in one pass in place of one for each operation of NumPy."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.order import Order
from p4sgd.host.data.quantization import levels, steps
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.sim.compiled import compiled
from p4sgd.sim.intrinsics import prefetch

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int32]

_Number = TypeVar("_Number", bound=np.generic)

_compiled = compiled("the loops over data", nogil=True)

_AHEAD, _LINE = 16, 64
"""How many samples ahead one is fetched, because no processor foresees in which order samples are read, and how many
bytes of it a fetch brings. Dense samples take a fifth of the time of waiting for each."""


@_compiled
def _level(x: Any, half_offset: float, twice_scale: float, grid: Any) -> Any:
    one, low, high = grid
    level = np.floor((np.float64(x) * 0.5 - half_offset) * twice_scale * one + 0.5)
    # min and max would heed NaN, which keeps the compiler from using vectors.
    level = low if level < low else level
    return np.uint8(np.int32(high if level > high else level))


@_compiled
def _quantize(samples: Any, order: Any, half_offset: Any, twice_scale: Any, grid: Any, out: Any) -> None:
    for row in range(order.size):
        ahead = order[min(row + _AHEAD, order.size - 1)]
        for j in range(0, samples.shape[1], _LINE // samples.itemsize):
            prefetch(samples, ahead, j)
        x, q = samples[order[row]], out[row]
        for j in range(x.size):
            q[j] = _level(x[j], half_offset[j], twice_scale[j], grid)


@_compiled
def _quantize_stored(matrix: Any, order: Any, offset: Any, scale: Any, steps: Any, grid: Any, out: Any) -> None:
    begins, column_row, value_row = matrix  # of rows one, because `prefetch` takes those
    columns, values = column_row[0], value_row[0]
    offset_step, scale_step = np.uint32(steps[0]), np.uint32(steps[1])
    place = 0
    for row in range(order.size):
        ahead = order[min(row + _AHEAD, order.size - 1)]
        first, stop = np.uint64(begins[ahead]), np.uint64(begins[ahead + 1])
        for entry in range(first, stop, np.uint64(_LINE // values.itemsize)):
            prefetch(value_row, 0, entry)
        for entry in range(first, stop, np.uint64(_LINE // columns.itemsize)):
            prefetch(column_row, 0, entry)
        begin, end = begins[order[row]], begins[order[row] + 1]
        own, x, which = columns[begin:end], values[begin:end], slice(place, place + end - begin)
        row_of, column_of, q = out[0][which], out[1][which], out[2][which]
        for entry in range(x.size):
            row_of[entry], column_of[entry] = row, own[entry]
        if offset_step or scale_step:
            for entry in range(x.size):
                column = np.uint32(own[entry])
                q[entry] = _level(x[entry], offset[column * offset_step] * 0.5, scale[column * scale_step] * 2, grid)
        else:  # with vectors
            for entry in range(x.size):
                q[entry] = _level(x[entry], offset[0] * 0.5, scale[0] * 2, grid)
        place += x.size


@_compiled
def _add(rows: Any, half_offset: Any, twice_scale: Any, fraction: int, u: Any, sums: Any) -> None:
    unit, below = 2.0**fraction, (1 << fraction) - 1
    linear, high, low = sums[0], sums[1], sums[2]
    for row in range(rows.shape[0]):
        x = rows[row]
        for j in range(x.size):
            u[j] = np.int64(np.rint((np.float64(x[j]) * 0.5 - half_offset[j]) * twice_scale[j] * unit))
        for j in range(x.size):
            square = u[j] * u[j]
            linear[j] += u[j]
            high[j] += square >> fraction
            low[j] += square & below


@_compiled
def _add_dense_extremes(rows: Any, low: Any, high: Any, nonzero: Any) -> None:
    for row in range(rows.shape[0]):
        for j in range(low.size):
            x = np.float64(rows[row, j])
            # Without branches, so that the compiler uses vectors; NaN stays.
            low[j] = x if (x < low[j]) | (x != x) else low[j]
            high[j] = x if (x > high[j]) | (x != x) else high[j]
            nonzero[j] += x != 0


@_compiled
def _add_extremes(columns: Any, values: Any, low: Any, high: Any, nonzero: Any) -> None:
    for place in range(values.size):
        column, x = np.uint32(columns[place]), values[place]
        # Without branches, because no processor could predict them; NaN stays.
        lowest, highest = low[column], high[column]
        low[column] = x if (x < lowest) | (x != x) else lowest
        high[column] = x if (x > highest) | (x != x) else highest
        nonzero[column] += x != 0


def quantize_scaled(
    samples: npt.NDArray[np.floating[Any]],
    which: Order,
    offset: FloatArray,
    scale: FloatArray,
    stored: int,
    signed: bool,
    out: npt.NDArray[np.uint8],
) -> None:
    """Scale and quantise some of dense samples, finite float32 or float64 (samples, features).

    ``out``, uint8 (of these samples, features or more), C-contiguous, gets the integers, modulo 256, in its first
    columns.
    """
    if not samples.flags.c_contiguous:
        samples = samples[which]
        which = np.arange(samples.shape[0])
    _quantize(_plain(samples), which, offset * 0.5, scale * 2, _grid(stored, signed), out)


def quantize_stored(
    samples: "csr_array", which: Order, offset: FloatArray, scale: FloatArray, stored: int, signed: bool
) -> tuple[IndexArray, IndexArray, npt.NDArray[np.uint8]]:
    """Scale and quantise the stored values of some of sparse samples, finite float32 or float64.

    Returns the row of each value among these samples, its column, both int32, and the integers, modulo 256.
    """
    size = int((samples.indptr[which + 1] - samples.indptr[which]).sum())
    out = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.uint8)
    # A view of one number for all columns would be another type, for which the loop would be compiled again.
    steps = tuple(int(each.strides != (0,)) for each in (offset, scale))
    offsets, scales = (_plain(each if step else each[:1]) for each, step in zip((offset, scale), steps, strict=True))
    matrix = _plain(samples.indptr), *(_plain(each[np.newaxis]) for each in (samples.indices, samples.data))
    _quantize_stored(matrix, which, offsets, scales, steps, _grid(stored, signed), out)
    return out


def add_sums(
    rows: npt.NDArray[np.floating[Any]], offset: FloatArray, scale: FloatArray, fraction: int, sums: IntArray
) -> None:
    """Add dense samples, finite float32 or float64 (samples, features), that are scaled to 0 to 1 and rounded to
    integers u in steps of 2^-fraction, to ``sums``, int64 (3, features), C-contiguous: Σ u, Σ ⌊u² / 2^fraction⌋ and
    Σ (u² mod 2^fraction).
    """
    u = np.empty(rows.shape[1], np.int64)
    _add(_plain(rows), offset * 0.5, scale * 2, fraction, u, sums)


def add_extremes(
    rows: "npt.NDArray[np.floating[Any]] | csr_array",
    low: FloatArray,
    high: FloatArray,
    nonzero: npt.NDArray[np.integer[Any]],
) -> None:
    """Take the stored values of samples into account in `p4sgd.host.data.statistics.Statistics.add`."""
    if isinstance(rows, np.ndarray):
        _add_dense_extremes(_plain(rows), low, high, nonzero)
    else:
        _add_extremes(*_stored(rows), low, high, nonzero)


def _grid(stored: int, signed: bool) -> tuple[float, ...]:
    """The integer of a scaled feature of 1, and the least and the largest integer."""
    return tuple(map(float, (steps(stored, signed), *levels(stored, signed))))


def _plain(rows: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Numbers such that kernels are compiled for few types: of floats, for two."""
    plain = np.ascontiguousarray(rows).view()
    plain.flags.writeable = False  # as maps of files are
    return plain


def _stored(rows: "csr_array") -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Columns and values of sparse samples, such that kernels are compiled for one type only."""
    return _plain(rows.indices.astype(np.int32, copy=False)), _plain(rows.data.astype(np.float64, copy=False))
