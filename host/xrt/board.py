"""Boards of this machine: which there are, where they are, and their xclbin, opened once for all kernels.

Where a board of this machine is, and what it runs.

Which boards this machine has, by what XRT's driver in the kernel says; XRT itself is not needed.

A board with its xclbin, which a program opens once for all of its kernels.
"""

import contextlib
import errno
import re
from dataclasses import dataclass
from pathlib import Path

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.xrt.library import XrtError, XrtLibrary, open_library

__all__ = ["DRIVER", "PREFIX", "BoardAddress", "FoundBoard", "OpenBoard", "find_boards", "open_board", "parse_device"]


PREFIX = "xrt:"
"""Of an address of a board, where there may be one of a socket."""

_BDF = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NUMBER = re.compile(r"0|[1-9][0-9]?")


@dataclass(frozen=True)
class BoardAddress:
    """A board, by its place on the PCI bus or as one that Vitis emulates, and the file with its kernels.

    Attributes
    ----------
    device
        What XRT knows it by: ``DDDD:BB:DD.F`` (domain, bus, device and function), or the number of an emulated board,
        which has no such place.
    xclbin
        What v++ has linked.
    """

    device: str
    xclbin: Path

    def __str__(self) -> str:
        return f"{PREFIX}{self.device}"


def parse_device(text: str) -> str:
    """Read ``xrt:DDDD:BB:DD.F``, of which the domain may be left out, or ``xrt:N``; returns what XRT knows it by.

    Raises
    ------
    UserError
        If it is no such address.
    """
    device = text.removeprefix(PREFIX).lower()
    if text.startswith(PREFIX):
        if _NUMBER.fullmatch(device):
            return device
        if _BDF.fullmatch(device):
            return device if device.count(":") == 2 else f"0000:{device}"
    raise UserError(
        f"{text!r} is no board: give xrt:DDDD:BB:DD.F, as p4sgd info lists them, or of one that Vitis emulates xrt:0"
    )


DRIVER = Path("/sys/bus/pci/drivers/xocl")
"""Boards whose user function XRT's driver has taken."""

_PLACE = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class FoundBoard:
    """A board; as a text its address.

    Attributes
    ----------
    bdf
        Its place on the PCI bus.
    shell
        The shell that it has; empty if it does not say.
    is_ready
        Whether it can be used; else its shell is not loaded, or it is being reset.
    """

    bdf: str
    shell: str
    is_ready: bool

    def __str__(self) -> str:
        return f"{PREFIX}{self.bdf}"

    @property
    def description(self) -> str:
        """Address, shell and state."""
        return f"{self} ({self.shell or 'unknown shell'}{'' if self.is_ready else ', not ready'})"


def find_boards() -> list[FoundBoard]:
    """The boards, in the order of their places."""
    if not DRIVER.is_dir():
        return []
    places = sorted(entry for entry in DRIVER.iterdir() if _PLACE.fullmatch(entry.name))
    return [FoundBoard(place.name, _shell(place), _text(place / "ready") in ("1", "0x1")) for place in places]


def _shell(place: Path) -> str:
    return next(filter(None, map(_text, sorted(place.glob("rom.*/VBNV")))), "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


_NONE = "none: see whether they have power, and XRT's driver xocl is loaded"


class OpenBoard:
    """A board that runs an xclbin.

    Parameters
    ----------
    library
        XRT.
    address
        The board.
    name
        Who wants it, for messages.

    Attributes
    ----------
    xclbin : Path
        What it runs.
    handle : int
        XRT's, of the device.
    uuid : bytes
        What the xclbin is known by.
    users : int
        How many kernels of this program have it.
    """

    def __init__(self, library: XrtLibrary, address: BoardAddress, name: str) -> None:
        self._library = library
        self._name = name
        self._address = address
        self.xclbin = address.xclbin
        self.users = 0
        with contextlib.ExitStack() as opened:
            xclbin = self._open_xclbin()
            opened.callback(library.close_xclbin, xclbin)
            self.handle = self._open_device()
            opened.callback(library.close_device, self.handle)
            self._load(xclbin)
            self.uuid = library.xclbin_uuid(xclbin)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Give it back, after all that the user has of it; the last one closes it."""
        self.users -= 1
        if self.users == 0:
            del _OPEN[self._library, self._address.device]
            self._opened.close()

    def _open_xclbin(self) -> int:
        path = self._address.xclbin
        try:
            path.open("rb").close()
            return self._library.open_xclbin(path)
        except OSError as error:
            raise UserError(f"{path}: cannot read the xclbin: {error.strerror}") from None
        except XrtError as error:
            raise UserError(f"{path}: no xclbin, or a broken one: {error}") from None

    def _open_device(self) -> int:
        try:
            return self._library.open_device(self._address.device)
        except XrtError as error:
            boards = ", ".join(board.description for board in find_boards())
            raise UserError(
                f"{self._name} cannot be opened: {error}; boards of this machine: {boards or _NONE}"
            ) from None

    def _load(self, xclbin: int) -> None:
        path = self._address.xclbin
        try:
            self._library.load(self.handle, xclbin)
        except XrtError as error:
            if error.number == errno.EBUSY:
                raise UserError(
                    f"{self._name} runs another xclbin for another program: wait until that has ended"
                ) from None
            if error.number == errno.EOPNOTSUPP:
                shells = ", ".join(board.shell for board in find_boards() if board.bdf == self._address.device)
                raise UserError(
                    f"{path}: is for {self._library.xclbin_platform(xclbin)}, and {self._name} has another shell"
                    f"{f' ({shells})' if shells else ''}: link it for that, or flash the board ({error})"
                ) from None
            raise P4sgdError(f"{self._name} cannot be loaded with {path}: {error}") from error


_OPEN: dict[tuple[XrtLibrary, str], OpenBoard] = {}
"""Boards that this program has, by what XRT knows them by."""


def open_board(name: str, address: BoardAddress) -> OpenBoard:
    """A board, opened and loaded for the first of this program who wants it.

    A board takes it that it is loaded twice with the same xclbin. Vitis' emulator begins anew, and forgets its kernels.

    Raises
    ------
    UserError
        If XRT is not there, there is no such board or xclbin, the xclbin is for another shell, or the board runs
        another one, for this program or for another.
    P4sgdError
        If XRT cannot do what it should.
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
