"""A bank of a board's worker."""

import ctypes
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.xrt.library import FROM_DEVICE, TO_DEVICE, XrtLibrary

__all__ = ["CHUNK_BYTES", "PAGE", "BankMemory"]

PAGE = 4096
"""Buffers are as many of these long, and begin at a multiple of it."""

CHUNK_BYTES = 4 << 20
"""While the board fetches so much, as much is copied to where it fetches next."""


class BankMemory:
    """A buffer in the memory that a bank's port is connected to; a larger one replaces it when it is too small.

    Parameters
    ----------
    library
        XRT.
    device
        Handle of the board.
    group
        The memory, as XRT numbers those of the kernel.

    Attributes
    ----------
    size : int
        Bytes of the buffer; 0 if there is none yet.
    address : int
        Where it is on the board; 0 if there is none yet.
    """

    def __init__(self, library: XrtLibrary, device: int, group: int) -> None:
        self._library = library
        self._device = device
        self._group = group
        self._buffer: int | None = None
        self._copy = np.empty(0, np.uint8)
        self.size = self.address = 0

    def reserve(self, size: int) -> None:
        """Have room for so many bytes. What was written stays, perhaps at another address of the board.

        Raises
        ------
        XrtError
            If the board's memory has no such room. What was written is lost then.
        """
        if size <= self.size:
            return
        kept = self.read(0, self.size)
        self.close()  # first: both together may be too large
        size = -(-size // PAGE) * PAGE
        self._buffer = self._library.allocate(self._device, size, self._group)
        self.address = self._library.address(self._buffer)
        where = self._library.map(self._buffer)
        self._copy = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(where))
        self.size = size
        self.write(0, kept)

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes, for which there is room: while the board fetches a chunk, the next is copied."""
        with ThreadPoolExecutor(1) as fetching:  # it has no thread before there are two chunks
            under_way: Future[None] | None = None
            for start, end in _chunks(data.size):
                self._copy[address + start : address + end] = data[start:end]
                if under_way is not None:
                    under_way.result()
                    under_way = None
                if end < data.size:
                    under_way = fetching.submit(self._sync, TO_DEVICE, address + start, end - start)
                else:
                    self._sync(TO_DEVICE, address + start, end - start)

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of the buffer, as the board has them."""
        if size:
            self._sync(FROM_DEVICE, address, size)
        return self._copy[address : address + size].copy()

    def close(self) -> None:
        """Give the buffer back."""
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._copy = np.empty(0, np.uint8)
            self.size = self.address = 0
            self._library.free(buffer)

    def _sync(self, direction: int, address: int, size: int) -> None:
        assert self._buffer is not None
        self._library.sync(self._buffer, direction, size, address)


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, CHUNK_BYTES):
        yield start, min(start + CHUNK_BYTES, size)
