"""Boards with the vendor's shell, driven through XRT: their addresses, a list of them, kernels and buffers."""

import contextlib
import ctypes
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4sgd.host.boards.kernel import BankMemory, BoardAddress, Kernel, MissingKernelError, NoRoomError
from p4sgd.host.boards.library import FROM_DEVICE, TO_DEVICE, XrtError, XrtLibrary, explaining, open_library
from p4sgd.host.errors import P4sgdError, UserError

PREFIX = "xrt:"
"""Begins the address of a board, where other addresses are those of sockets."""

_BDF = re.compile(r"([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EMULATED = re.compile(r"(0|[1-9][0-9]?)(?:/([1-9][0-9]?))?")


@dataclass(frozen=True)
class XrtAddress(BoardAddress):
    """A board of this machine or of Vitis' emulator, and the bitstream that it runs."""

    device: str  # XRT's name: the PCI address ``DDDD:BB:DD.F``, or the number of an emulated board
    xclbin: Path  # the file that v++ has linked
    unit: int = 1  # compute unit of a kernel: only an emulated board has several workers, each a unit of its own

    def __str__(self) -> str:
        return f"{PREFIX}{self.device}{f'/{self.unit}' if self.unit > 1 else ''}"

    @property
    def is_emulated(self) -> bool:
        return self.device.isdecimal()

    @property
    def sensors(self) -> dict[str, int | None]:
        controllers = sorted((DRIVER / self.device).glob("xmc.*"))  # the card's satellite controller, as XRT names it
        readings: dict[str, int | None] = {}
        for name, (file, unit) in _SENSORS.items() if controllers else ():
            texts = [text for each in controllers if (text := _text(each / file)).isdecimal()]
            readings[name] = next((round(int(text) / unit) for text in texts if int(text)), None)
        if controllers:
            levels = [_LEVEL_WATTS.get(_text(each / _POWER_LEVEL)) for each in controllers]
            readings["most_watts"] = next(filter(None, levels), None)
        return readings

    @property
    def remedy(self) -> str:
        return f"reset the board (xbutil reset --device {self.device})"

    def open_kernel(self, name: str, kernel: str) -> "XrtKernel":
        return XrtKernel(name, self, kernel)


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


_SENSORS = {
    "fpga_celsius": ("xmc_fpga_temp", 1),
    "hbm_celsius": ("xmc_hbm_temp", 1),
    "watts": ("xmc_power", 1_000_000),
}
"""File of each sensor, and what its number is divided by: power is in µW. 0 is that of a sensor that a card has not."""

_POWER_LEVEL, _LEVEL_WATTS = "max_power", {"0": 75, "1": 150, "2": 225}
"""File with the level of power that slot and cables may give, and its watts. Names and numbers are those of XRT's own
reports (github.com/Xilinx/XRT, src/runtime_src/core/pcie/linux/device_linux.cpp and core/common/sensor.cpp)."""


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

    def __init__(self, library: XrtLibrary, address: XrtAddress, name: str) -> None:
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
    library: XrtLibrary, address: XrtAddress, xclbin: int, name: str, error: XrtError
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


def open_board(name: str, address: XrtAddress) -> OpenBoard:
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


class XrtMemory(BankMemory):
    """A buffer in the memory ``group`` that one port of a kernel is connected to."""

    def __init__(self, library: XrtLibrary, device: int, group: int, who: str, number: int) -> None:
        super().__init__(who, number)
        self._library = library
        self._device = device
        self._group = group
        self._buffer: int | None = None
        self._copy = np.empty(0, np.uint8)

    def _allocate(self, size: int) -> None:
        call = self._library.call
        try:
            self._buffer = call("xrtBOAlloc", self._device, size, 0, self._group & 0xFFFFFFFF)
        except XrtError as error:
            raise NoRoomError(str(error)) from None
        self.address = call("xrtBOAddress", self._buffer)
        copy = call("xrtBOMap", self._buffer)  # its address in this process
        self._copy = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(copy))
        self.size = size

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        self._copy[address : address + data.size] = data
        if data.size:
            with explaining(f"{self._who} cannot write bank {self._number}"):
                self._sync(TO_DEVICE, address, data.size)

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        if size:
            with explaining(f"{self._who} cannot read bank {self._number}"):
                self._sync(FROM_DEVICE, address, size)
        return self._copy[address : address + size].copy()

    def close(self) -> None:
        """Free the buffer."""
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._copy = np.empty(0, np.uint8)
            super().close()
            with explaining(f"{self._who} cannot release bank {self._number}"):
                self._library.call("xrtBOFree", buffer)

    def _sync(self, direction: int, address: int, size: int) -> None:
        assert self._buffer is not None
        self._library.call("xrtBOSync", self._buffer, direction, size, address)


class XrtKernel(Kernel):
    """A kernel of an xclbin, which is loaded unless the board runs it already. Compute units must be named by v++."""

    def __init__(self, name: str, address: XrtAddress, kernel: str) -> None:
        super().__init__(name, address)
        self._library = open_library()
        with contextlib.ExitStack() as opened:
            self._board = open_board(name, address)
            opened.callback(self._board.close)
            self._kernel = self._open_kernel(address, kernel)
            opened.callback(self._library.call, "xrtKernelClose", self._kernel)
            self._opened = opened.pop_all()

    def _read(self, offset: int) -> int:
        word = ctypes.c_uint32()
        with explaining(f"{self._name} cannot read a register"):
            self._library.call("xrtKernelReadRegister", self._kernel, offset, ctypes.byref(word))
        return word.value

    def write_register(self, offset: int, word: int) -> None:
        with explaining(f"{self._name} cannot write a register"):
            self._library.call("xrtKernelWriteRegister", self._kernel, offset, word)

    def memories(self, count: int) -> list[XrtMemory]:
        return [self._memory(argument) for argument in range(count)]

    def _memory(self, argument: int) -> XrtMemory:
        with explaining(f"{self._name} has no memory for argument {argument} of its kernel"):
            group = self._library.call("xrtKernelArgGroupId", self._kernel, argument)
        memory = XrtMemory(self._library, self._board.handle, group, self._name, argument)
        return self._opened.enter_context(contextlib.closing(memory))

    def close(self) -> None:
        with explaining(f"{self._name} cannot be closed"):
            super().close()

    def _open_kernel(self, address: XrtAddress, kernel: str) -> int:
        unit, path = f"{kernel}_{address.unit}", address.xclbin
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
