"""Lines of memory images, and the features that are decoded from them."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import ByteArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.compiled import compiled

__all__ = ["TRANSPOSE", "Lines", "offset"]

TRANSPOSE = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
)
"""Shift and mask of the three steps of an 8×8 bit transpose in a 64-bit word (H. S. Warren, Hacker's Delight, §7–3)."""


@dataclass(frozen=True)
class Lines:
    """Lines of a worker.

    Parameters
    ----------
    parts
        For each port of each engine: uint8 (T, C, S, 8/ports, lanes/8), contiguous.
    form
        Format of the features, with the planes that are read.
    unit
        Features of a unit.
    """

    parts: tuple[ByteArray, ...]
    form: FeatureFormat
    unit: int

    @property
    def engines(self) -> int:
        """Engines of the worker (E)."""
        return len(self.parts) * int(self.parts[0].shape[3]) // BANKS

    @property
    def lanes(self) -> int:
        """Lanes of an engine."""
        return 8 * int(self.parts[0].shape[4])

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the samples (T)."""
        return int(self.parts[0].shape[0])

    @property
    def size(self) -> int:
        """Features of the worker, padding included."""
        return self.engines * int(self.parts[0].shape[1]) * self.lanes

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal if these are the same arrays, which nobody changes."""
        return (*((part.ctypes.data, part.shape) for part in self.parts), self.form, self.unit)

    def decode(self, first: int, count: int) -> ByteArray:
        """Features of ``count`` micro-batches from ``first`` on: uint8 (E, 8 · count, C · lanes), signed ones with
        their `offset`."""
        _, chunks, _, banks, lane_bytes = self.parts[0].shape
        ports = BANKS // banks
        features = np.empty((self.engines, BANKS * count, chunks * lane_bytes * 8), np.uint8)
        flip = np.uint64(offset(self.form) * 0x0101010101010101)
        words, matrices = features.view(np.uint64), np.empty(banks * lane_bytes, np.uint64)
        for number, part in enumerate(self.parts):
            bank = number % ports * banks
            lines = part.reshape(*part.shape[:3], matrices.size)
            lines.flags.writeable = False  # as images in files are, so that the loop is compiled for one type only
            _decode(lines, first, count, bank, self.form.precision, flip, matrices, words[number // ports])
        return features

    def used(self) -> npt.NDArray[np.bool_]:
        """Which places of each unit have a feature that is not 0 in some sample: (units, places of a unit)."""
        ports = BANKS // self.parts[0].shape[3]
        engines = []
        for engine in range(self.engines):
            parts = self.parts[engine * ports : (engine + 1) * ports]
            # First over the samples, which leaves long rows: numpy is slow at short ones.
            bits = [
                np.bitwise_or.reduce(np.bitwise_or.reduce(part, axis=0)[:, : self.form.precision], axis=(1, 2))
                for part in parts
            ]
            merged = np.bitwise_or.reduce(np.stack(bits))  # (C, lanes / 8)
            places = np.unpackbits(merged.reshape(-1), bitorder="little").astype(np.bool_)
            padded = np.zeros(-(-places.size // self.unit) * self.unit, np.bool_)
            padded[: places.size] = places
            engines.append(padded.reshape(-1, self.unit))
        return np.concatenate(engines)


def offset(form: FeatureFormat) -> int:
    """What is added to signed features: 2^(P-1), by inverting their sign bit."""
    return 1 << (form.precision - 1) if form.signed else 0


_compiled = functools.partial(compiled, "the emulator's loops")


@_compiled(nogil=True)
def _decode(
    lines: Any, first: int, count: int, bank: int, precision: int, flip: Any, matrices: Any, words: Any
) -> None:
    """Decode one port's lines of some micro-batches, to words of 8 features; ``flip`` is XORed.

    ``lines`` are (T, C, S, bytes), and ``words`` (8 · count, C · lanes / 8). The port has the samples from ``bank`` on
    of each micro-batch. ``matrices`` is scratch space, uint64 (bytes,).

    The bytes of 8 lanes in all planes are an 8×8 bit matrix in one 64-bit word; its transpose has one byte per lane.
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
