"""The declarations of XRT's functions, against C declarations and against an installed XRT.

An installed XRT is found by XILINX_XRT, which its setup.sh sets. No board is needed.
"""

import ctypes
import shutil

import pytest
from support.xrt import HANDLER, build_library

from p4sgd.host.boards import library
from p4sgd.host.boards.xrt import XrtAddress
from p4sgd.host.devices.board_worker import BoardWorker
from p4sgd.host.errors import UserError

WIDE = 0x7FFF_FFFF_7FFF_FFFF
"""What is left of it in a narrower parameter is another number."""


@pytest.fixture(scope="module")
def xrt():
    """XRT, loaded once, as the log can be set only once in a process."""
    if problem := library.find_problem():
        pytest.skip(f"needs XRT: {problem}")
    library.open_library.cache_clear()
    yield library.open_library()
    library.open_library.cache_clear()


def test_types_are_as_wide_as_in_the_headers(tmp_path):
    """Passing a number that is too narrow or too wide may work by chance, so the widths are measured in C."""
    measured = {}

    def measure(name, result_bytes, count, words, result):
        measured[name.decode()] = [result_bytes, *(8 if word == WIDE else 4 for word in words[:count])]
        return True

    functions, handler = ctypes.CDLL(shutil.copy(build_library(), tmp_path)), HANDLER(measure)
    functions.set_handler(handler)
    for name in library.PROTOTYPES:
        getattr(functions, name)(*[ctypes.c_uint64(WIDE)] * 6)
    assert {name: list(map(ctypes.sizeof, types)) for name, types in library.PROTOTYPES.items()} == measured


def test_errors_of_an_installed_xrt(xrt, tmp_path, capfd):
    """Its log messages become errors: of a board that is not there, a broken xclbin, and handles of nothing."""
    path, handle = tmp_path / "text.xclbin", 0x1234
    path.write_text("hello " * 1000)
    with pytest.raises(UserError, match=r"text.xclbin: no xclbin, or a broken one: .*Invalid xclbin"):
        BoardWorker(0, XrtAddress("ffff:3b:00.1", path))
    uuid, number, word = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_uint32()
    for says, name, *arguments in (
        ("No such device 'ffff:3b:00.1'", "xrtDeviceOpenByBDF", b"ffff:3b:00.1"),
        ("Failed to open file .*none", "xrtXclbinAllocFilename", bytes(tmp_path / "none")),
        *(
            ("(?!XRT does not say)", name, handle, *arguments)
            for name, *arguments in (
                ("xrtKernelReadRegister", 0, ctypes.byref(word)),
                ("xrtKernelWriteRegister", 0, 0),
                ("xrtKernelArgGroupId", 0),
                ("xrtBOAddress",),
                ("xrtBOMap",),
                ("xrtBOSync", library.TO_DEVICE, 64, 0),
                ("xrtDeviceLoadXclbinHandle", handle),
                ("xrtKernelClose",),
                ("xrtDeviceClose",),
                ("xrtXclbinFreeHandle",),
                ("xrtBOFree",),
                ("xrtBOAlloc", 4096, 0, 0),
                ("xrtPLKernelOpenExclusive", bytes(16), b"p4sgd_worker:{p4sgd_worker_1}"),
                ("xrtXclbinGetUUID", uuid),
                ("xrtXclbinGetXSAName", uuid, 256, ctypes.byref(number)),
            )
        ),
    ):
        with pytest.raises(library.XrtError, match=rf"^{name}: {says}"):
            xrt.call(name, *arguments)
    assert capfd.readouterr() == ("", "")
