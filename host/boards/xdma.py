"""Boards without a shell, whose design AMD's XDMA core joins to PCI Express, driven through its character devices.

The driver (github.com/Xilinx/dma_ip_drivers, XDMA/linux-kernel) makes of the board N ``/dev/xdmaN_user``, whose
positions are those of the registers, 4 bytes at a time, and ``/dev/xdmaN_h2c_0`` and ``/dev/xdmaN_c2h_0``, which write
and read the board's memory from a position on. It knows no kernels and gives away no memory: where these are is in the
address map that `p4sgd build vivado` writes with the design.

Only read(2), write(2), pread and pwrite are safe: readv, preadv and the like crash the kernel (the driver's issue 113).
"""

import contextlib
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from p4sgd.host.boards.kernel import BankMemory, BoardAddress, Kernel, MissingKernelError, NoRoomError
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import open_ordinary

PREFIX = "xdma:"
"""Begins the address of such a board."""

DEVICES = Path("/dev")
"""Folder of the driver's devices."""

_REGISTERS = 4096
"""Bytes of registers of a kernel."""

_TRANSFER = 1 << 26
"""Most bytes of a transfer. The driver pins the pages of one, and takes less than 2 GiB."""


class MemoryRange(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of the board's memory that a port of a kernel reaches. Those of two ports may overlap."""

    address: int
    bytes: int


class KernelMap(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the registers of a kernel begin, and the memory of each of its arguments."""

    # The design has 1 MiB for registers, and the driver does not check that positions are within.
    registers: Annotated[int, Meta(ge=0, lt=1 << 20, multiple_of=_REGISTERS)]
    memories: tuple[MemoryRange, ...] = ()


class AddressMap(Struct, frozen=True, forbid_unknown_fields=True):
    """An address map: kernels by name."""

    kernels: dict[str, KernelMap]
    generated_by: str = ""


@dataclass(frozen=True)
class XdmaAddress(BoardAddress):
    """Board ``number`` of the driver, and the address map of the bitstream that it runs."""

    number: int
    address_map: Path

    def __str__(self) -> str:
        return f"{PREFIX}{self.number}"

    @property
    def remedy(self) -> str:
        return "load the bitstream of the board again, and rescan the bus"

    def open_kernel(self, name: str, kernel: str) -> "XdmaKernel":
        return XdmaKernel(name, self, kernel)

    def device(self, kind: str) -> Path:
        """The path of a device."""
        return DEVICES / f"xdma{self.number}_{kind}"


def parse_number(text: str) -> int:
    """The number of a board from ``xdma:N``; UserError if the text is none."""
    number = text.removeprefix(PREFIX)
    if not re.fullmatch("0|[1-9][0-9]{0,2}", number):
        raise UserError(f"{text!r} is no board: give xdma:N for the board of {DEVICES}/xdmaN_user")
    return int(number)


def find_boards() -> list[str]:
    """Addresses of the boards that the driver has found, in order."""
    names = (re.fullmatch("xdma([0-9]+)_user", path.name) for path in DEVICES.glob("xdma*_user"))
    return [f"{PREFIX}{number}" for number in sorted(int(name[1]) for name in names if name)]


def read_map(path: Path) -> AddressMap:
    """Read an address map; raises UserError with file and key of a mistake."""
    try:
        with open_ordinary(path) as file:
            return msgspec.json.decode(file.read(), type=AddressMap)
    except OSError as error:
        raise UserError(f"{path}: cannot read the address map: {error.strerror}") from None
    except (RecursionError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: no address map, as p4sgd build vivado writes it: {error}") from None


class XdmaMemory(BankMemory):
    """A bank in a range of the board's memory. ``banks`` are those of all ranges, which may overlap."""

    def __init__(
        self, name: str, number: int, within: MemoryRange, to_board: int, from_board: int, banks: "list[XdmaMemory]"
    ) -> None:
        super().__init__(name, number)
        self._within = within
        self._to_board, self._from_board = to_board, from_board
        self._banks = banks

    def _allocate(self, size: int) -> None:
        """Take the first room that is free."""
        start, end = self._within.address, self._within.address + self._within.bytes
        for bank in sorted(self._banks, key=lambda each: each.address):
            if bank.size and bank.address < start + size and start < bank.address + bank.size:
                start = bank.address + bank.size
        if start + size > end:
            raise NoRoomError(f"bank {self._number} needs {size:,} of its {self._within.bytes:,} bytes of memory")
        self.address, self.size = start, size

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        done = 0
        with _failing(f"{self._who} cannot write bank {self._number}"):
            while done < data.size:
                part = data[done : done + _TRANSFER]
                if not part.flags.writeable:  # The driver wants to write the pages that it pins, also these.
                    part = part.copy()
                done += _moved(os.pwrite(self._to_board, part.data, self.address + address + done))

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        data = np.empty(size, np.uint8)
        done = 0
        with _failing(f"{self._who} cannot read bank {self._number}"):
            while done < size:
                part = os.pread(self._from_board, min(size - done, _TRANSFER), self.address + address + done)
                data[done : done + _moved(len(part))] = np.frombuffer(part, np.uint8)
                done += len(part)
        return data


class XdmaKernel(Kernel):
    """A kernel of a design with an XDMA core. A lock on its part of the registers' device keeps other programs out."""

    def __init__(self, name: str, address: XdmaAddress, kernel: str) -> None:
        super().__init__(name, address)
        found = read_map(address.address_map).kernels.get(kernel)
        if found is None:
            raise MissingKernelError(f"{address.address_map}: has no kernel {kernel}")
        self._path = address.address_map
        self._map = found
        with contextlib.ExitStack() as opened:
            self._registers = _open(name, address, "user", os.O_RDWR, opened)
            _lock(name, self._registers, found.registers)
            if found.memories:
                self._to_board = _open(name, address, "h2c_0", os.O_WRONLY, opened)
                self._from_board = _open(name, address, "c2h_0", os.O_RDONLY, opened)
            self._opened = opened.pop_all()

    def _read(self, offset: int) -> int:
        with _failing(f"{self._name} cannot read a register"):
            word = os.pread(self._registers, 4, self._map.registers + offset)
            _moved(len(word), least=4)
        return int.from_bytes(word, "little")

    def write_register(self, offset: int, word: int) -> None:
        with _failing(f"{self._name} cannot write a register"):
            _moved(os.pwrite(self._registers, word.to_bytes(4, "little"), self._map.registers + offset), least=4)

    def memories(self, count: int) -> list[XdmaMemory]:
        ranges = self._map.memories
        if len(ranges) != count:
            raise UserError(
                f"{self._path}: has {len(ranges)} memories, and {self._name} has {count}: give the address map of the "
                "folder from which its bitstream was built"
            )
        banks: list[XdmaMemory] = []
        for number, within in enumerate(ranges):
            banks.append(XdmaMemory(self._name, number, within, self._to_board, self._from_board, banks))
        return banks


def _open(name: str, address: XdmaAddress, kind: str, flags: int, opened: contextlib.ExitStack) -> int:
    path = address.device(kind)
    try:
        device = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        known = ", ".join(find_boards()) or "none: load the bitstream, then AMD's driver xdma"
        raise UserError(f"{name} cannot be opened: {path}: {error.strerror}; boards of this machine: {known}") from None
    opened.callback(os.close, device)
    return device


def _lock(name: str, device: int, start: int) -> None:
    """Keep others from the registers of a kernel, until the device is closed."""
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, _REGISTERS, 0)
    try:
        fcntl.fcntl(device, fcntl.F_OFD_SETLK, lock)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise P4sgdError(f"{name} cannot be locked: {error.strerror}") from error
        raise UserError(f"{name} is in use by another program: wait until that has ended") from None


def _moved(count: int, *, least: int = 1) -> int:
    """The bytes of a transfer, of which there must be so many."""
    if count < least:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return count


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise P4sgdError(f"{what}: {error.strerror} (see dmesg)") from error
