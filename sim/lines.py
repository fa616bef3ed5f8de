"""Lines of bit planes of dense workers, and how they are decoded to a byte a feature."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import ByteArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim.compiled import compiled

TRANSPOSE = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
)
"""Shift and mask of the three steps of an 8×8 bit transpose in a 64-bit word (H. S. Warren, Hacker's Delight, §7–3)."""


def offset(form: FeatureFormat) -> int:
    """What is added to signed features q: 2^(P-1), by inverting their sign bit."""
    return 1 << (form.precision - 1) if form.signed else 0


@dataclass(frozen=True)
class Lines:
    """Lines of a worker."""

    parts: tuple[ByteArray, ...]  # for each port of each engine: uint8 (T, C, S, 8/ports, lanes/8), contiguous
    form: FeatureFormat  # with the planes that are read
    unit: int  # features of a unit

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the samples (T)."""
        return int(self.parts[0].shape[0])

    @property
    def ports(self) -> int:
        """Ports of an engine."""
        return BANKS // int(self.parts[0].shape[3])

    @property
    def lanes(self) -> int:
        """Lanes of an engine."""
        return 8 * int(self.parts[0].shape[4])

    @property
    def engines(self) -> int:
        """Engines of the worker (E)."""
        return len(self.parts) // self.ports

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
        return used.reshape(-1, self.unit)


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
