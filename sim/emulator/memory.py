"""Emulated memory."""

import numpy as np
import numpy.typing as npt

from p4sgd.sim.emulator.errors import EmulatorError

__all__ = ["Memory"]

_PAGE = 4096

ByteArray = npt.NDArray[np.uint8]


class Memory:
    """One memory bank: the arrays that were written to it, where they were written.

    Arrays are kept, not copied, so an image costs no memory beyond itself (a mapped file, often); they must not be
    changed by others while they are here. What a later array leaves of one is copied, so that no more is kept than can
    be read. Where nothing was written there is nothing to read.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pieces: dict[int, ByteArray] = {}

    def write(self, address: int, data: ByteArray) -> None:
        """Put bytes at an address, over what was there."""
        data = data.reshape(-1).view(np.uint8)
        self.forget(address, data.size)
        self._pieces[address] = data

    def forget(self, address: int, size: int) -> None:
        """Let go of bytes, as if they had never been written."""
        end = address + size
        for start, piece in list(self._pieces.items()):
            stop = start + piece.size
            if start < end and address < stop:
                del self._pieces[start]
                if start < address:
                    self._pieces[start] = piece[: address - start].copy()
                if end < stop:
                    self._pieces[end] = piece[end - start :].copy()

    @property
    def size(self) -> int:
        """Bytes that are kept, every array in whole pages: of small ones it is they that take the room."""
        return sum(-(-piece.size // _PAGE) * _PAGE for piece in self._pieces.values())

    def read(self, address: int, size: int) -> ByteArray:
        """Bytes from an address on, without a copy if they were written at once.

        Raises
        ------
        EmulatorError
            If not all of them were written.
        """
        end = address + size
        parts: list[tuple[int, ByteArray]] = []
        for start, piece in sorted(self._pieces.items()):
            stop = start + piece.size
            if start <= address and end <= stop:
                return piece[address - start : end - start]
            if start < end and address < stop:
                parts.append((max(start, address), piece[max(address - start, 0) : end - start]))
        if sum(part.size for _, part in parts) != size:
            raise EmulatorError(f"{self._name}: bytes {address:#x} to {end:#x} were not written")
        return np.concatenate([part for _, part in parts])
