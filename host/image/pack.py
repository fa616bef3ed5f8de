"""Packing feature integers into lines, at the speed of memory."""

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.image import ImageLayout

__all__ = ["pack_lines"]

_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
"""Shift and mask of the three steps of an 8×8 bit transpose in a 64-bit word (H. S. Warren, Hacker's Delight, §7–3)."""


def pack_lines(q: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """The lines of some micro-batches, as `ImageLayout.pack_lines` defines them.

    The 8 bits of 8 neighbouring lanes are an 8×8 bit matrix in one 64-bit word; its transpose has one byte a plane.

    Parameters
    ----------
    q
        uint8 (samples, padded features), C-contiguous, samples a multiple of 8: S-bit features in the low bits; what
        is above does not matter. It is destroyed.
    layout
        Layout of the image; its number of samples does not matter.

    Returns
    -------
    uint8 (engines · ports, T, C, S, 8/ports, lanes/8), C-contiguous, T the micro-batches of ``q``.
    """
    config = layout.config
    words = q.view(np.uint64)
    swapped = np.empty_like(words)
    for shift, mask in _SWAPS:
        np.right_shift(words, np.uint64(shift), out=swapped)
        swapped ^= words
        swapped &= np.uint64(mask)
        words ^= swapped
        swapped <<= np.uint64(shift)
        words ^= swapped
    # bytes: (T, port, bank of the port, chunk, engine, group of 8 lanes, bit of the feature)
    shape = (config.ports, BANKS // config.ports, layout.chunks, config.engines, config.lanes // 8, 8)
    planes = words.view(np.uint8).reshape(-1, *shape)
    most_significant_first = planes[..., layout.stored - 1 :: -1]
    lines = np.ascontiguousarray(most_significant_first.transpose(4, 1, 0, 3, 6, 2, 5))
    return lines.reshape(-1, *lines.shape[2:])
