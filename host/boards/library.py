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
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from p4sgd.host.errors import P4sgdError, UserError

LIBRARY = "libxrt_coreutil.so.2"

RELEASES = "2022.1 to 2023.2"
"""Releases of XRT that have all functions used here, with the same prototypes, and by public reports support the last
shell of a U280."""

SETUP = "source /opt/xilinx/xrt/setup.sh"

TO_DEVICE, FROM_DEVICE = 0, 1
"""Directions of ``xrtBOSync``."""

PROTOTYPES: dict[str, tuple[Any, ...]] = {
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
    """A call of XRT failed. The message is XRT's, and names no board; ``number`` is of :mod:`errno`, 0 if unknown."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class XrtLibrary:
    """XRT's C interface, given its shared library. Handles are integers."""

    def __init__(self, functions: Any) -> None:
        self._functions = {}
        for name, (result, *arguments) in PROTOTYPES.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        # Only the log says why a call failed. XRT creates it, or empties it, when it writes the first line.
        self._log = tempfile.NamedTemporaryFile(prefix="p4sgd-xrt-", suffix=".log")  # noqa: SIM115
        with contextlib.suppress(XrtError):  # the log of a process can be set only once
            self.call("xrtIniStringSet", b"Runtime.runtime_log", os.fsencode(self._log.name))

    def call(self, name: str, *arguments: object) -> int:
        """Call one of `PROTOTYPES`; returns its result, for example a handle. `XrtError` if it fails."""
        ctypes.set_errno(0)
        result: int = self._functions[name](*arguments)
        if result == _FAILURES[PROTOTYPES[name][0]]:
            number = ctypes.get_errno()
            lines = self._log.read().decode(errors="replace").splitlines()
            reasons = dict.fromkeys(match[1].strip() for match in map(_LOGGED.search, lines) if match)
            text = "; ".join(reasons) or (os.strerror(number) if number else "XRT does not say why")
            raise XrtError(f"{name}: {text}", number)
        return result

    def text(self, name: str, handle: int, size: int, *more: object) -> bytes:
        """Call a function that fills a buffer of ``size`` bytes, and return these."""
        buffer = ctypes.create_string_buffer(size)
        self.call(name, handle, buffer, *more)
        return buffer.raw


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Say who could not do what, where a call of XRT fails."""
    try:
        yield
    except XrtError as error:
        raise P4sgdError(f"{what}: {error}") from error


@functools.cache
def open_library() -> XrtLibrary:
    """Load XRT, once in a process; UserError if it is not installed or not set up."""
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
