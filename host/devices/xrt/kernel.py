"""A kernel of a board."""

import contextlib
import errno

from p4sgd.host.control.board import BoardAddress
from p4sgd.host.devices.xrt.board import open_board
from p4sgd.host.devices.xrt.library import XrtError, open_library
from p4sgd.host.devices.xrt.memory import BankMemory
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.registers import MAGIC_WORD

__all__ = ["BoardKernel", "MissingKernelError"]

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
