"""Numba kernels that scale dense samples: one pass over them in place of one for each operation.

`p4sgd.host.data.statistics.scaled` and `p4sgd.host.data.quantization.quantize` say what they compute, and have the same
bits. They are used for `p4sgd.host.data.statistics.COMPILED_VALUES` values or more.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.quantization import levels, steps
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.sim.compiled import compiled

__all__ = ["add_sums", "quantize_scaled"]

_compiled = compiled("the loops over dense data", nogil=True)


@_compiled
def _quantize(rows: Any, half_offset: Any, twice_scale: Any, one: float, low: float, high: float, out: Any) -> None:
    for row in range(rows.shape[0]):
        x, q = rows[row], out[row]
        for j in range(x.size):
            level = np.floor((np.float64(x[j]) * 0.5 - half_offset[j]) * twice_scale[j] * one + 0.5)
            # min and max would heed NaN, which keeps the compiler from using vectors.
            level = low if level < low else level
            level = high if level > high else level
            q[j] = np.uint8(np.int32(level))


@_compiled
def _add(rows: Any, half_offset: Any, twice_scale: Any, fraction: int, sums: Any) -> None:
    unit, below = 2.0**fraction, (1 << fraction) - 1
    linear, high, low = sums[0], sums[1], sums[2]
    u = np.empty(rows.shape[1], np.int64)
    for row in range(rows.shape[0]):
        x = rows[row]
        for j in range(x.size):
            u[j] = np.int64(np.rint((np.float64(x[j]) * 0.5 - half_offset[j]) * twice_scale[j] * unit))
        for j in range(x.size):
            square = u[j] * u[j]
            linear[j] += u[j]
            high[j] += square >> fraction
            low[j] += square & below


def quantize_scaled(
    rows: npt.NDArray[np.floating[Any]],
    offset: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    stored: int,
    signed: bool,
    out: npt.NDArray[np.uint8],
) -> None:
    """Scale and quantise dense samples.

    Parameters
    ----------
    rows
        float32 or float64 (samples, features), finite.
    offset, scale
        float64 (features,), see `p4sgd.host.data.Scaling`.
    stored, signed
        Format of the integers, see `p4sgd.host.data.quantization.quantize`.
    out
        uint8 (samples, features or more), C-contiguous: gets the integers, modulo 256, in its first columns.
    """
    low, high = levels(stored, signed)
    _quantize(_plain(rows), offset * 0.5, scale * 2, float(steps(stored, signed)), float(low), float(high), out)


def add_sums(
    rows: npt.NDArray[np.floating[Any]],
    offset: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    fraction: int,
    sums: IntArray,
) -> None:
    """Add dense samples to sums of scaled features and of their squares.

    Parameters
    ----------
    rows
        float32 or float64 (samples, features), finite.
    offset, scale
        float64 (features,), such that scaled features are 0 to 1.
    fraction
        Scaled features are rounded to integers u in steps of 2^-fraction.
    sums
        int64 (3, features), C-contiguous, updated: Σ u, Σ ⌊u² / 2^fraction⌋ and Σ (u² mod 2^fraction).
    """
    _add(_plain(rows), offset * 0.5, scale * 2, fraction, sums)


def _plain(rows: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    """Rows such that kernels are compiled for two types only."""
    plain = np.ascontiguousarray(rows).view()
    plain.flags.writeable = False  # as maps of files are
    return plain
