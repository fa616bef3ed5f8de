"""What all boards of this machine have: kernels with registers, and banks in the memory that these reach."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import MAGIC_WORD

PAGE = 4096
"""Size and alignment of banks are multiples of this."""

EMULATED_WAIT_S = 600.0
"""Longest time to wait for anything of a board in Vitis' emulator. Seconds of this machine mean nothing there: an
emulator of so much Verilog may do few cycles a second."""

_GONE = 0xFFFFFFFF
"""Content of every register when the board has dropped off the bus."""


class MissingKernelError(UserError):
    """The bitstream has no kernel of this name."""


class NoRoomError(P4sgdError):
    """The memory that a bank is in has no room for it."""


class BankMemory(ABC):
    """A bank of the memory that one port of a kernel reaches. It grows by moving to a larger place. ``size`` and
    ``address`` on the board are 0 before there is one; ``who`` and number are for messages."""

    size = address = 0

    def __init__(self, who: str, number: int) -> None:
        self._who = who
        self._number = number

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
            except NoRoomError as error:
                raise UserError(
                    f"{self._who} has no room for {size:,} bytes in bank {self._number}: {error}; take fewer samples, "
                    "more workers or, in a self-test, less --memory"
                ) from None
            bank.write(0, content)

    @abstractmethod
    def _allocate(self, size: int) -> None:
        """Set ``size`` and ``address``, for a multiple of `PAGE`; `NoRoomError` if there is no room."""

    @abstractmethod
    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes, which must fit."""

    @abstractmethod
    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Read bytes from the board."""

    def close(self) -> None:
        """Give up the room, for another bank."""
        self.size = self.address = 0


class Kernel(ABC):
    """A kernel on a board, opened for this program alone.

    ``name`` is that of the user, for messages. `P4sgdError` if the board fails or is gone, also in later calls.
    """

    def __init__(self, name: str, address: "BoardAddress") -> None:
        self._name = name
        self._address = address
        self._opened = contextlib.ExitStack()
        self.client = RegisterClient(self.read_register, self.write_register)

    def read_register(self, offset: int) -> int:
        word = self._read(offset)
        if word == _GONE and self._read(MAGIC_WORD.offset) == _GONE:
            raise P4sgdError(
                f"{self._name} does not answer any more: the board is not on the bus. See dmesg, then "
                f"{self._address.remedy}, or restart the machine"
            )
        return word

    @abstractmethod
    def _read(self, offset: int) -> int: ...

    @abstractmethod
    def write_register(self, offset: int, word: int) -> None: ...

    @abstractmethod
    def memories(self, count: int) -> Sequence[BankMemory]:
        """Banks, still empty, in the memories that the ``count`` arguments of the kernel are connected to. They are
        closed with the kernel."""

    def close(self) -> None:
        """Close banks, kernel and board."""
        self._opened.close()


class BoardAddress(ABC):
    """A board of this machine, and the bitstream that it runs. The text is its address in a cluster file."""

    @property
    def is_emulated(self) -> bool:
        """Vitis emulates the board: seconds of this machine mean nothing."""
        return False

    @property
    def sensors(self) -> dict[str, int | None]:
        """Last readings of the card by name, None where nothing is read; empty if the driver has no sensors.

        They are ``fpga_celsius``, ``hbm_celsius``, ``watts``, and ``most_watts``, which slot and cables may give.
        """
        return {}

    @property
    @abstractmethod
    def remedy(self) -> str:
        """What ends everything that runs on the board."""

    @abstractmethod
    def open_kernel(self, name: str, kernel: str) -> Kernel:
        """Open a kernel. ``name`` is that of the user, for messages.

        `UserError` if the board, its driver or the bitstream is missing or does not suit, if the bitstream has no such
        kernel (`MissingKernelError`), or if another program has it; `P4sgdError` if the board fails otherwise.
        """
