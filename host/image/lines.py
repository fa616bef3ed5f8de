"""Packing of bit planes into lines (:mod:`p4sgd.hw.spec.image`), for images that have all lines."""

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.sim.dense.model import TRANSPOSE


def pack_lines(q: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """Lines of some micro-batches, uint8 (engines · ports, T, C, S, 8/ports, lanes/8), as `ImageLayout.pack_lines`
    defines them.

    ``q`` are S-bit features in the low bits, uint8 (8·T, padded features), as `ImageLayout.pad` gives them; the array
    is overwritten. The 8 bits of 8 neighbouring lanes are an 8×8 bit matrix in one 64-bit word; its transpose has one
    byte per plane.
    """
    words = q.view(np.uint64)
    _transpose_bits(words)
    planes = words.view(np.uint8).reshape(-1, *_plane_shape(layout))
    most_significant_first = planes[..., layout.stored - 1 :: -1]
    lines = np.ascontiguousarray(most_significant_first.transpose(_LINE_ORDER))
    return lines.reshape(-1, planes.shape[0], layout.chunks, *lines.shape[5:])


def unpack_lines(lines: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """Undo `pack_lines`: the S-bit features in the low bits, 0 above them."""
    planes = np.zeros((lines.shape[1], *_plane_shape(layout)), np.uint8)
    most_significant_first = planes[..., layout.stored - 1 :: -1]
    in_line_order = lines.reshape([most_significant_first.shape[axis] for axis in _LINE_ORDER])
    most_significant_first[:] = in_line_order.transpose(np.argsort(_LINE_ORDER))
    words = planes.reshape(lines.shape[1] * BANKS, -1).view(np.uint64)
    _transpose_bits(words)
    return words.view(np.uint8)


_LINE_ORDER = (4, 1, 0, 3, 5, 7, 2, 6)
"""Axes of `_plane_shape`, after that of micro-batches, in the order in which lines have them."""


def _plane_shape(layout: ImageLayout) -> tuple[int, ...]:
    """Bytes of a micro-batch before they are put in order: port, bank of the port, unit of the engine, engine, chunk of
    the unit, group of 8 lanes, bit of the feature."""
    config = layout.config
    units = layout.chunks // layout.unit_chunks
    return (config.ports, BANKS // config.ports, units, config.engines, layout.unit_chunks, config.lanes // 8, 8)


def _transpose_bits(words: npt.NDArray[np.uint64]) -> None:
    """Transpose 64-bit words as 8×8 bits, in place."""
    swapped = np.empty_like(words)
    for shift, mask in TRANSPOSE:
        np.right_shift(words, shift, out=swapped)
        swapped ^= words
        swapped &= mask
        words ^= swapped
        swapped <<= shift
        words ^= swapped
