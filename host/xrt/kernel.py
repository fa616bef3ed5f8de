"""A kernel on a board: its registers, and buffers in the memory that it reaches."""

import contextlib
import ctypes
import errno

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.xrt.board import BoardAddress, open_board
from p4sgd.host.xrt.library import FROM_DEVICE, TO_DEVICE, XrtError, XrtLibrary, explaining, open_library
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import MAGIC_WORD

PAGE = 4096
"""Size and alignment of buffers are multiples of this."""


class BankMemory:
    """A bank: a buffer in the memory ``group`` that one port of a kernel is connected to. It grows by moving to a
    larger buffer. ``size`` and ``address`` on the board are 0 before there is one; ``who`` and number are for messages.
    """

    def __init__(self, library: XrtLibrary, device: int, group: int, who: str, number: int) -> None:
        self._library = library
        self._device = device
        self._group = group
        self._who = who
        self._number = number
        self._buffer: int | None = None
        self._copy = np.empty(0, np.uint8)
        self.size = self.address = 0

    def reserve(self, size: int, *, beside: "BankMemory | None" = None) -> None:
        """Make room for so many bytes. The content is kept, but the address may change.

        A bank ``beside`` shares memory with this one and may be in the way: it moves, too, with its content. A
        `UserError` if the board's memory is too small; the content is lost then.
        """
        if size <= self.size:
            return
        growing = [(self, size)] if beside is None or beside.size == 0 else [(self, size), (beside, beside.size)]
        kept = [bank.read(0, bank.size) for bank, _ in growing]
        for bank, _ in growing:
            bank.close()  # before allocating, as there may be no room for both
        for (bank, needed), content in zip(growing, kept, strict=True):
            try:
                bank._allocate(-(-needed // PAGE) * PAGE)
            except XrtError as error:
                raise UserError(
                    f"{self._who} has no room for {size:,} bytes in bank {self._number}: {error}; take fewer samples, "
                    "more workers or, in a self-test, less --memory"
                ) from None
            bank.write(0, content)

    def _allocate(self, size: int) -> None:
        call = self._library.call
        self._buffer = call("xrtBOAlloc", self._device, size, 0, self._group & 0xFFFFFFFF)
        self.address = call("xrtBOAddress", self._buffer)
        copy = call("xrtBOMap", self._buffer)  # its address in this process
        self._copy = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(copy))
        self.size = size

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes, which must fit."""
        self._copy[address : address + data.size] = data
        if data.size:
            with explaining(f"{self._who} cannot write bank {self._number}"):
                self._sync(TO_DEVICE, address, data.size)

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Read bytes of the buffer from the board."""
        if size:
            with explaining(f"{self._who} cannot read bank {self._number}"):
                self._sync(FROM_DEVICE, address, size)
        return self._copy[address : address + size].copy()

    def close(self) -> None:
        """Free the buffer."""
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._copy = np.empty(0, np.uint8)
            self.size = self.address = 0
            with explaining(f"{self._who} cannot release bank {self._number}"):
                self._library.call("xrtBOFree", buffer)

    def _sync(self, direction: int, address: int, size: int) -> None:
        assert self._buffer is not None
        self._library.call("xrtBOSync", self._buffer, direction, size, address)


_GONE = 0xFFFFFFFF
"""Content of every register when the board has dropped off the bus."""


class MissingKernelError(UserError):
    """The xclbin has no kernel of this name."""


class BoardKernel:
    """A kernel on a board, opened for this program alone, which access to its registers requires.

    The xclbin is loaded unless the board runs it already. Its compute units must be named by v++. ``name`` is that of
    the user, for messages. UserError as of `open_board`, or if the kernel is missing (`MissingKernelError`) or in use;
    P4sgdError if XRT fails otherwise or the board is gone, also in later calls.
    """

    def __init__(self, name: str, address: BoardAddress, kernel: str) -> None:
        self._name = name
        self._address = address
        self._library = open_library()
        with contextlib.ExitStack() as opened:
            self._board = open_board(name, address)
            opened.callback(self._board.close)
            self._kernel = self._open_kernel(kernel)
            opened.callback(self._library.call, "xrtKernelClose", self._kernel)
            self._opened = opened.pop_all()
        self.client = RegisterClient(self.read_register, self.write_register)

    def read_register(self, offset: int) -> int:
        word = self._read(offset)
        if word == _GONE and self._read(MAGIC_WORD.offset) == _GONE:
            raise P4sgdError(
                f"{self._name} does not answer any more: the board is not on the bus. See dmesg, then reset it "
                f"(xbutil reset --device {self._address.device}), or restart the machine"
            )
        return word

    def _read(self, offset: int) -> int:
        word = ctypes.c_uint32()
        with explaining(f"{self._name} cannot read a register"):
            self._library.call("xrtKernelReadRegister", self._kernel, offset, ctypes.byref(word))
        return word.value

    def write_register(self, offset: int, word: int) -> None:
        with explaining(f"{self._name} cannot write a register"):
            self._library.call("xrtKernelWriteRegister", self._kernel, offset, word)

    def memory(self, argument: int) -> BankMemory:
        """A bank, still empty, in the memory that an argument of the kernel is connected to. It is closed with the
        kernel."""
        with explaining(f"{self._name} has no memory for argument {argument} of its kernel"):
            group = self._library.call("xrtKernelArgGroupId", self._kernel, argument)
        memory = BankMemory(self._library, self._board.handle, group, self._name, argument)
        return self._opened.enter_context(contextlib.closing(memory))

    def close(self) -> None:
        """Close banks, kernel and board."""
        with explaining(f"{self._name} cannot be closed"):
            self._opened.close()

    def _open_kernel(self, kernel: str) -> int:
        unit, path = f"{kernel}_{self._address.unit}", self._address.xclbin
        name = f"{kernel}:{{{unit}}}".encode()
        try:
            return self._library.call("xrtPLKernelOpenExclusive", self._board.handle, self._board.uuid, name)
        except XrtError as error:
            if error.number == errno.EBUSY:
                raise UserError(f"{self._name} is in use by another program: wait until that has ended") from None
            if error.number == errno.ENOTSUP:
                raise UserError(
                    f"{path}: cannot be used: its kernel {kernel} is described as other than ap_ctrl_hs, the only kind "
                    f"that XRT opens ({error})"
                ) from None
            if error.number in (0, errno.EINVAL):
                raise MissingKernelError(
                    f"{path}: has no kernel {kernel} with a compute unit {unit}: {error}"
                ) from None
            raise P4sgdError(f"{self._name} cannot open its kernel {kernel}: {error}") from error
