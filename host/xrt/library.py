"""The functions of XRT's C interface that are used here, called by ctypes.

XRT's Python module, pyxrt, will not do: it gives no access to registers since 2021.2, and is built for one version of
Python only. The C interface is in all releases that support the boards, and ctypes releases the GIL during a sync.
"""

import contextlib
import ctypes
import functools
import os
import re
import tempfile
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from p4sgd.host.errors import P4sgdError, UserError

__all__ = [
    "FROM_DEVICE",
    "LIBRARY",
    "RELEASES",
    "SETUP",
    "TO_DEVICE",
    "XrtError",
    "XrtLibrary",
    "find_problem",
    "open_library",
]


LIBRARY = "libxrt_coreutil.so.2"
"""The shared library with XRT's C interface."""

RELEASES = "2022.1 to 2023.2"
"""Releases of XRT that have all functions used here, with the same prototypes, and by public reports support the last
shell of a U280."""

SETUP = "source /opt/xilinx/xrt/setup.sh"
"""The command that sets up XRT in a shell."""

TO_DEVICE, FROM_DEVICE = 0, 1
"""Directions of `XrtLibrary.sync`."""

_UUID_BYTES = 16
_NAME_BYTES = 256

_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "xrtIniStringSet": (c_int, c_char_p, c_char_p),
    "xrtXclbinAllocFilename": (c_void_p, c_char_p),
    "xrtXclbinGetXSAName": (c_int, c_void_p, c_char_p, c_int, POINTER(c_int)),
    "xrtXclbinGetUUID": (c_int, c_void_p, c_char_p),
    "xrtXclbinFreeHandle": (c_int, c_void_p),
    "xrtDeviceOpenByBDF": (c_void_p, c_char_p),
    "xrtDeviceLoadXclbinHandle": (c_int, c_void_p, c_void_p),
    "xrtDeviceClose": (c_int, c_void_p),
    "xrtPLKernelOpenExclusive": (c_void_p, c_void_p, c_char_p, c_char_p),
    "xrtKernelArgGroupId": (c_int, c_void_p, c_int),
    "xrtKernelReadRegister": (c_int, c_void_p, c_uint32, POINTER(c_uint32)),
    "xrtKernelWriteRegister": (c_int, c_void_p, c_uint32, c_uint32),
    "xrtKernelClose": (c_int, c_void_p),
    "xrtBOAlloc": (c_void_p, c_void_p, c_size_t, c_uint64, c_uint32),
    "xrtBOMap": (c_void_p, c_void_p),
    "xrtBOAddress": (c_uint64, c_void_p),
    "xrtBOSync": (c_int, c_void_p, c_int, c_size_t, c_size_t),
    "xrtBOFree": (c_int, c_void_p),
}
"""Types of results and arguments, from xrt_ini.h, xrt_xclbin.h, xrt_device.h, xrt_kernel.h and xrt_bo.h."""

_FAILURES: dict[Any, int | None] = {c_void_p: None, c_int: -1, c_uint64: (1 << 64) - 1}
"""Result of a failed call, by the type of the result."""

_LOGGED = re.compile(r"(?:EMERGENCY|ALERT|CRITICAL|ERROR): *(.*)")
"""The message of an error in a line of XRT's log."""


class XrtError(P4sgdError):
    """A call of XRT failed. The message is XRT's, and does not name the board.

    Attributes
    ----------
    number : int
        Error number of :mod:`errno`; 0 if XRT gives none.
    """

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class XrtLibrary:
    """XRT's C interface. Calls that fail raise `XrtError`. Handles are integers.

    Parameters
    ----------
    functions
        The shared library.
    """

    def __init__(self, functions: Any) -> None:
        self._functions = {}
        for name, (result, *arguments) in _PROTOTYPES.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        # Only the log says why a call failed. XRT creates it, or empties it, when it writes the first line.
        self._log = tempfile.NamedTemporaryFile(prefix="p4sgd-xrt-", suffix=".log")  # noqa: SIM115
        with contextlib.suppress(XrtError):  # the log of a process can be set only once
            self._call("xrtIniStringSet", b"Runtime.runtime_log", os.fsencode(self._log.name))

    def open_xclbin(self, path: Path) -> int:
        """Open an xclbin file; returns its handle."""
        return self._call("xrtXclbinAllocFilename", os.fsencode(path))

    def xclbin_platform(self, xclbin: int) -> str:
        """Name of the platform that an xclbin is linked for."""
        name, size = ctypes.create_string_buffer(_NAME_BYTES), c_int()
        self._call("xrtXclbinGetXSAName", xclbin, name, _NAME_BYTES, ctypes.byref(size))
        return name.value.decode(errors="replace")

    def xclbin_uuid(self, xclbin: int) -> bytes:
        """UUID of an xclbin, 16 bytes."""
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        self._call("xrtXclbinGetUUID", xclbin, uuid)
        return uuid.raw

    def close_xclbin(self, xclbin: int) -> None:
        """Close an xclbin. Boards keep running it."""
        self._call("xrtXclbinFreeHandle", xclbin)

    def open_device(self, device: str) -> int:
        """Open a board by its PCI address or, which XRT also accepts here, by its number."""
        return self._call("xrtDeviceOpenByBDF", device.encode())

    def load(self, device: int, xclbin: int) -> None:
        """Load an xclbin into a board, unless the board runs it already."""
        self._call("xrtDeviceLoadXclbinHandle", device, xclbin)

    def close_device(self, device: int) -> None:
        """Close a board, after its kernels and buffers."""
        self._call("xrtDeviceClose", device)

    def open_kernel(self, device: int, uuid: bytes, name: str) -> int:
        """Open a kernel for this program alone, which access to its registers requires."""
        return self._call("xrtPLKernelOpenExclusive", device, uuid, name.encode())

    def group(self, kernel: int, argument: int) -> int:
        """Number of the memory that an argument of a kernel is connected to, for `allocate`."""
        return self._call("xrtKernelArgGroupId", kernel, argument)

    def read_register(self, kernel: int, offset: int) -> int:
        """Read a register."""
        word = c_uint32()
        self._call("xrtKernelReadRegister", kernel, offset, ctypes.byref(word))
        return word.value

    def write_register(self, kernel: int, offset: int, word: int) -> None:
        """Write a register."""
        self._call("xrtKernelWriteRegister", kernel, offset, word)

    def close_kernel(self, kernel: int) -> None:
        """Close a kernel."""
        self._call("xrtKernelClose", kernel)

    def allocate(self, device: int, size: int, group: int) -> int:
        """Allocate a buffer on the board with a copy in this process. `sync` copies bytes between them."""
        return self._call("xrtBOAlloc", device, size, 0, group & 0xFFFFFFFF)

    def map(self, buffer: int) -> int:
        """Address of a buffer's copy in this process."""
        return self._call("xrtBOMap", buffer)

    def address(self, buffer: int) -> int:
        """Address of a buffer on the board."""
        return self._call("xrtBOAddress", buffer)

    def sync(self, buffer: int, direction: int, size: int, offset: int) -> None:
        """Copy a part of a buffer from or to the board."""
        self._call("xrtBOSync", buffer, direction, size, offset)

    def free(self, buffer: int) -> None:
        """Free a buffer."""
        self._call("xrtBOFree", buffer)

    def _call(self, name: str, *arguments: object) -> int:
        ctypes.set_errno(0)
        result: int = self._functions[name](*arguments)
        if result == _FAILURES[_PROTOTYPES[name][0]]:
            number = ctypes.get_errno()
            reasons = dict.fromkeys(match[1].strip() for match in map(_LOGGED.search, self._new_lines()) if match)
            text = "; ".join(reasons) or (os.strerror(number) if number else "XRT does not say why")
            raise XrtError(f"{name}: {text}", number)
        return result

    def _new_lines(self) -> list[str]:
        return self._log.read().decode(errors="replace").splitlines()


@functools.cache
def open_library() -> XrtLibrary:
    """Load XRT, once in a process.

    Raises
    ------
    UserError
        If it is not installed or not set up.
    """
    root = os.environ.get("XILINX_XRT")
    if root is None:
        raise UserError(f"XRT is not set up, which boards need: {SETUP} (install XRT first if it is missing)")
    try:
        return XrtLibrary(ctypes.CDLL(str(Path(root) / "lib" / LIBRARY), use_errno=True))
    except OSError as error:
        raise UserError(f"XRT cannot be used: {error}: install it, then {SETUP}") from None
    except AttributeError as error:
        raise UserError(f"this version of XRT cannot be used: {error}: install {RELEASES}") from None


def find_problem() -> str | None:
    """Why `open_library` would fail, for a list of requirements; None if XRT is there. XRT is not loaded."""
    root = os.environ.get("XILINX_XRT")
    if root is None:
        return "XILINX_XRT is not set"
    path = Path(root) / "lib" / LIBRARY
    return None if path.exists() else f"there is no {path}"
