"""The declarations of XRT's functions, against C declarations and against an installed XRT.

An installed XRT is found by XILINX_XRT, which its setup.sh sets. No board is needed.
"""

import ctypes
import shutil

import pytest
from support.xrt import HANDLER, build_library

from p4sgd.host.devices.xrt_worker import BoardWorker
from p4sgd.host.errors import UserError
from p4sgd.host.xrt import library
from p4sgd.host.xrt.board import BoardAddress

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
    for name in library._PROTOTYPES:
        getattr(functions, name)(*[ctypes.c_uint64(WIDE)] * 6)
    assert {name: list(map(ctypes.sizeof, types)) for name, types in library._PROTOTYPES.items()} == measured


def test_log_messages_become_errors(xrt, capfd):
    with pytest.raises(library.XrtError, match=r"^xrtDeviceOpenByBDF: No such device 'ffff:3b:00.1'"):
        xrt.open_device("ffff:3b:00.1")
    assert capfd.readouterr() == ("", "")


def test_a_broken_xclbin(xrt, tmp_path):
    path = tmp_path / "text.xclbin"
    path.write_text("hello " * 1000)
    with pytest.raises(UserError, match=r"text.xclbin: no xclbin, or a broken one: .*Invalid xclbin"):
        BoardWorker(0, BoardAddress("ffff:3b:00.1", path))
    with pytest.raises(library.XrtError, match=r"Failed to open file .*none") as raised:
        xrt.open_xclbin(tmp_path / "none")
    assert raised.value.number in (0, 2)


def test_invalid_handles(xrt):
    for call in (
        lambda: xrt.read_register(0x1234, 0),
        lambda: xrt.write_register(0x1234, 0, 0),
        lambda: xrt.group(0x1234, 0),
        lambda: xrt.address(0x1234),
        lambda: xrt.map(0x1234),
        lambda: xrt.sync(0x1234, library.TO_DEVICE, 64, 0),
        lambda: xrt.load(0x1234, 0x1234),
        lambda: xrt.close_kernel(0x1234),
        lambda: xrt.close_device(0x1234),
        lambda: xrt.close_xclbin(0x1234),
        lambda: xrt.free(0x1234),
        lambda: xrt.allocate(0x1234, 4096, 0),
        lambda: xrt.open_kernel(0x1234, bytes(16), "p4sgd_worker:{p4sgd_worker_1}"),
        lambda: xrt.xclbin_uuid(0x1234),
        lambda: xrt.xclbin_platform(0x1234),
    ):
        with pytest.raises(library.XrtError, match=r"^xrt\w+: (?!XRT does not say)"):
            call()
