"""Quantisation of scaled features to the integers of an image."""

import numpy as np
import numpy.typing as npt


def steps(stored: int, signed: bool) -> int:
    """The integer of a scaled feature of 1: 2^S − 1, or 2^(S−1) − 1 when signed, but at least 1.

    A signed feature of one plane is −1 or 0, because one bit of two's complement has no +1.
    """
    return max(1, (1 << (stored - 1)) - 1) if signed else (1 << stored) - 1


def full_value(stored: int, signed: bool) -> float:
    """A scaled feature of 1 as the hardware reads it from all planes, a little less than 1."""
    return steps(stored, signed) / 2.0 ** (stored - int(signed))


def levels(stored: int, signed: bool) -> tuple[int, int]:
    """The least and the largest integer of S bits."""
    return (-(1 << (stored - 1)), (1 << (stored - 1)) - 1) if signed else (0, (1 << stored) - 1)


def quantize(a: npt.NDArray[np.float64], stored: int, signed: bool) -> npt.NDArray[np.int32]:
    """Scaled features to S-bit integers: q = ⌊a · steps + 1/2⌋, clamped to what S bits hold.

    ``a`` is float64 of any shape, nominally in [0, 1] or [−1, 1]. Returns int32 of the same shape, a view of one number
    if ``a`` is.
    """
    if a.strides == (0,):  # of millions of columns
        return np.broadcast_to(quantize(a[:1].copy(), stored, signed), a.shape)
    scaled = a * steps(stored, signed)
    scaled += 0.5
    np.floor(scaled, out=scaled)
    np.clip(scaled, *levels(stored, signed), out=scaled)
    return scaled.astype(np.int32)  # which processors convert in vectors, unlike int64


def feature_values(
    scale: npt.NDArray[np.float64], offset: npt.NDArray[np.float64], stored: int, signed: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Slope and constant of what the hardware reads of raw features x, but for rounding: slope · x + constant.

    It reads q / 2^S, or q / 2^(S−1) when signed: slope = scale · `full_value`, constant = −offset · slope, with
    ``scale`` and ``offset`` of `p4sgd.host.data.Scaling`. Both are float64, of the shape of ``scale``.
    """
    one = full_value(stored, signed)
    # Of one number for all columns, the result is one number, too.
    slope = np.broadcast_to(scale[:1] * one, scale.shape) if scale.strides == (0,) else scale * one
    return slope, -offset * slope if offset.any() else np.broadcast_to(0.0, scale.shape)
