"""A kernel of a board, and banks of its memory.

A bank of a board's worker.

A kernel of a board.
"""

import contextlib
import ctypes
import errno
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.xrt.board import BoardAddress, open_board
from p4sgd.host.xrt.library import FROM_DEVICE, TO_DEVICE, XrtError, XrtLibrary, open_library
from p4sgd.hw.spec.registers import MAGIC_WORD

__all__ = ["CHUNK_BYTES", "PAGE", "BankMemory", "BoardKernel", "MissingKernelError"]


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


_GONE = 0xFFFFFFFF
"""What is read of a board that is not on the bus any more."""


class MissingKernelError(UserError):
    """An xclbin has no such kernel."""


class BoardKernel:
    """Registers of a kernel of a board, and memory that it reaches, for this program alone.

    The board is loaded with the xclbin unless it runs it already. It must have one compute unit of the kernel, with
    the name that v++ gives it.

    Parameters
    ----------
    name
        Who this is, for messages.
    address
        The board.
    kernel
        Name of the kernel.

    Raises
    ------
    UserError
        If XRT is not there, there is no such board, xclbin or kernel (`MissingKernelError`), the xclbin is for another
        shell, or the board is in use.
    P4sgdError
        Then and later, if XRT cannot do what it should, or the board is gone.
    """

    def __init__(self, name: str, address: BoardAddress, kernel: str) -> None:
        self._name = name
        self._address = address
        self._library = library = open_library()
        with contextlib.ExitStack() as opened:
            self._board = open_board(name, address)
            opened.callback(self._board.close)
            self._kernel = self._open_kernel(kernel)
            opened.callback(library.close_kernel, self._kernel)
            self._opened = opened.pop_all()

    def __str__(self) -> str:
        return self._name

    def read_register(self, offset: int) -> int:
        """Read a word."""
        word = self._read(offset)
        if word == _GONE and self._read(MAGIC_WORD.offset) == _GONE:
            raise P4sgdError(
                f"{self._name} does not answer any more: the board is not on the bus. See dmesg, then xbutil reset "
                f"--device {self._address.device}, or start the machine anew"
            )
        return word

    def write_register(self, offset: int, word: int) -> None:
        """Write a word."""
        try:
            self._library.write_register(self._kernel, offset, word)
        except XrtError as error:
            raise self.failure("cannot write a register", error) from error

    def memory(self, argument: int) -> BankMemory:
        """Memory, none yet, that an argument of the kernel is connected to."""
        try:
            group = self._library.group(self._kernel, argument)
        except XrtError as error:
            raise self.failure(f"has no memory for argument {argument} of its kernel", error) from error
        return BankMemory(self._library, self._board.handle, group)

    def close(self) -> None:
        """Give kernel and board back; all memory must have been given back before."""
        try:
            self._opened.close()
        except XrtError as error:
            raise self.failure("cannot be closed", error) from error

    def failure(self, what: str, error: XrtError) -> P4sgdError:
        """The error of a board, for one of XRT."""
        return P4sgdError(f"{self._name} {what}: {error}")

    def _open_kernel(self, kernel: str) -> int:
        try:
            return self._library.open_kernel(self._board.handle, self._board.uuid, f"{kernel}:{{{kernel}_1}}")
        except XrtError as error:
            if error.number == errno.EBUSY:
                raise UserError(f"{self._name} is in use by another program: wait until that has ended") from None
            if error.number == errno.ENOTSUP:
                raise UserError(
                    f"{self._address.xclbin}: cannot be used: its kernel {kernel} is described as one that is not "
                    f"ap_ctrl_hs, which XRT does not open ({error})"
                ) from None
            if error.number in (0, errno.EINVAL):
                raise MissingKernelError(
                    f"{self._address.xclbin}: has no kernel {kernel} with a compute unit {kernel}_1: {error}"
                ) from None
            raise self.failure(f"does not give its kernel {kernel}", error) from error

    def _read(self, offset: int) -> int:
        try:
            return self._library.read_register(self._kernel, offset)
        except XrtError as error:
            raise self.failure("cannot read a register", error) from error
