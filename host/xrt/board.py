"""Boards of this machine: their addresses, a list of them, and opening one with its xclbin."""

import contextlib
import ctypes
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.xrt.library import XrtError, XrtLibrary, open_library

PREFIX = "xrt:"
"""Begins the address of a board, where other addresses are those of sockets."""

EMULATED_WAIT_S = 600.0
"""Longest time to wait for anything of a board in Vitis' emulator. Seconds of this machine mean nothing there: an
emulator of so much Verilog may do few cycles a second."""

_BDF = re.compile(r"([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EMULATED = re.compile(r"(0|[1-9][0-9]?)(?:/([1-9][0-9]?))?")


@dataclass(frozen=True)
class BoardAddress:
    """A board of this machine or of Vitis' emulator, and the bitstream that it runs."""

    device: str  # XRT's name: the PCI address ``DDDD:BB:DD.F``, or the number of an emulated board
    xclbin: Path  # the file that v++ has linked
    unit: int = 1  # compute unit of a kernel: only an emulated board has several workers, each a unit of its own

    def __str__(self) -> str:
        return f"{PREFIX}{self.device}{f'/{self.unit}' if self.unit > 1 else ''}"

    @property
    def is_emulated(self) -> bool:
        """Vitis emulates the board: seconds of this machine mean nothing."""
        return self.device.isdecimal()


def parse_device(text: str) -> tuple[str, int]:
    """XRT's name of a board and the number of a unit on it, from ``xrt:DDDD:BB:DD.F``, where the domain may be left
    out, or of an emulated board ``xrt:N`` or ``xrt:N/UNIT``; UserError if the text is none."""
    device = text.removeprefix(PREFIX).lower()
    if text.startswith(PREFIX):
        if emulated := _EMULATED.fullmatch(device):
            return emulated[1], int(emulated[2] or 1)
        if found := _BDF.fullmatch(device):
            return device if found[1] else f"0000:{device}", 1
    raise UserError(
        f"{text!r} is no board: give xrt:DDDD:BB:DD.F, as listed by p4sgd info, or xrt:0 for one that Vitis emulates"
        " (xrt:0/2 for the second worker on it)"
    )


DRIVER = Path("/sys/bus/pci/drivers/xocl")
"""Folder of sysfs with the boards whose user function is bound to XRT's driver."""


@dataclass(frozen=True)
class FoundBoard:
    """A board of this machine. Its text is its address."""

    bdf: str  # its PCI address
    shell: str  # empty if unknown
    is_ready: bool  # else it has no shell loaded, or is being reset

    def __str__(self) -> str:
        return f"{PREFIX}{self.bdf}"

    @property
    def description(self) -> str:
        """Address, shell and state."""
        return f"{self} ({self.shell or 'unknown shell'}{'' if self.is_ready else ', not ready'})"


def find_boards() -> list[FoundBoard]:
    """The boards that XRT's kernel driver reports, in the order of their PCI addresses. XRT itself is not needed."""
    if not DRIVER.is_dir():
        return []
    found = []
    for board in sorted(entry for entry in DRIVER.iterdir() if _BDF.fullmatch(entry.name)):
        shell = next(filter(None, map(_text, sorted(board.glob("rom.*/VBNV")))), "")
        found.append(FoundBoard(board.name, shell, _text(board / "ready") in ("1", "0x1")))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class OpenBoard:
    """A board that is opened and loaded with an xclbin, shared by this program's kernels on it: its ``users``."""

    def __init__(self, library: XrtLibrary, address: BoardAddress, name: str) -> None:
        self._key = library, address.device
        self.xclbin = address.xclbin
        self.users = 0
        with contextlib.ExitStack() as opened:
            xclbin = _open_xclbin(library, self.xclbin)
            opened.callback(library.call, "xrtXclbinFreeHandle", xclbin)
            try:  # XRT accepts the number of a board here, too
                self.handle = library.call("xrtDeviceOpenByBDF", address.device.encode())
            except XrtError as error:
                boards = ", ".join(board.description for board in find_boards())
                boards = boards or "none: check that they have power, and that XRT's driver xocl is loaded"
                raise UserError(f"{name} cannot be opened: {error}; boards of this machine: {boards}") from None
            opened.callback(library.call, "xrtDeviceClose", self.handle)
            try:
                library.call("xrtDeviceLoadXclbinHandle", self.handle, xclbin)
            except XrtError as error:
                raise _why_not_loaded(library, address, xclbin, name, error) from error
            self.uuid = library.text("xrtXclbinGetUUID", xclbin, 16)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Release the board for one user, who has closed kernel and buffers before. The last one closes it."""
        self.users -= 1
        if self.users == 0:
            del _OPEN[self._key]
            self._opened.close()


def _open_xclbin(library: XrtLibrary, path: Path) -> int:
    try:
        path.open("rb").close()
        return library.call("xrtXclbinAllocFilename", os.fsencode(path))
    except OSError as error:
        raise UserError(f"{path}: cannot read the xclbin: {error.strerror}") from None
    except XrtError as error:
        raise UserError(f"{path}: no xclbin, or a broken one: {error}") from None


def _why_not_loaded(
    library: XrtLibrary, address: BoardAddress, xclbin: int, name: str, error: XrtError
) -> UserError | P4sgdError:
    path = address.xclbin
    if error.number == errno.EBUSY:
        return UserError(f"{name} runs another xclbin for another program: wait until that program has ended")
    if error.number == errno.EOPNOTSUPP:
        shells = ", ".join(board.shell for board in find_boards() if board.bdf == address.device)
        platform = library.text("xrtXclbinGetXSAName", xclbin, 256, 256, ctypes.byref(ctypes.c_int()))
        return UserError(
            f"{path}: is for {platform.partition(bytes(1))[0].decode(errors='replace')}, and {name} has another shell"
            f"{f' ({shells})' if shells else ''}: link it for that shell, or flash the board ({error})"
        )
    return P4sgdError(f"{name} cannot be loaded with {path}: {error}")


_OPEN: dict[tuple[XrtLibrary, str], OpenBoard] = {}
"""Open boards of this program, by library and XRT's name of the board."""


def open_board(name: str, address: BoardAddress) -> OpenBoard:
    """Open a board and load its xclbin, unless this program has it open already: Vitis' emulator would start again and
    lose its kernels. ``name`` is for messages.

    UserError if XRT, the board or the xclbin is missing, if the xclbin is for another shell, or if the board runs
    another xclbin, for this program or another one. P4sgdError if XRT fails otherwise.
    """
    library = open_library()
    key = library, address.device
    board = _OPEN.get(key)
    if board is None:
        board = _OPEN[key] = OpenBoard(library, address, name)
    elif board.xclbin.resolve() != address.xclbin.resolve():
        raise UserError(f"{name} is to run {address.xclbin}, but it runs {board.xclbin}: a board runs one xclbin")
    board.users += 1
    return board
