"""A machine with emulated boards behind the functions of XRT's C interface.

The functions are those of the shared library that `build_library` compiles from ``xrt.cpp``, with the types of XRT's
headers, and are loaded as XRT's own library is. They are stricter than XRT: a misuse that a board would tolerate, or
answer with a wrong result some day, is noted in `Machine.violations` and fails the test. The program's copy of a buffer
and the board's are two arrays, so a missing sync shows. Workers are emulated and use a board's addresses.
"""

import atexit
import ctypes
import dataclasses
import errno
import fcntl
import functools
import itertools
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import traceback
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p4sgd.host.boards import library
from p4sgd.host.boards import xrt as finding
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.serve.aggregator import SoftwareAggregatorServer
from p4sgd.hw.spec import cmac, selftest
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from support.worker_process import PairLink
from support.xrt_kernels import Allocation, Channel, KernelAggregator, KernelMac, KernelSelfTest, KernelWorker

TINY = WorkerConfig.tiny()
PLATFORM = "xilinx_u280_gen3x16_xdma_1_202211_1"
SHELL = "xilinx_u280_gen3x16_xdma_base_1"
REGISTER_BYTES = 4096


CLOSED_EARLY = "a device is closed before what is of it"

HANDLER = CFUNCTYPE(c_int, c_char_p, c_size_t, c_size_t, POINTER(c_uint64), POINTER(c_uint64), use_errno=True)
"""``handler(name, bytes of the result, number of arguments, arguments, result)``: whether the call succeeds."""


@functools.cache
def build_library():
    """Compile the library, once in a process; returns its path."""
    folder = tempfile.TemporaryDirectory(prefix="p4sgd-xrt-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / library.LIBRARY
    subprocess.run(
        ["g++", "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, Path(__file__).with_name("xrt.cpp")], check=True
    )
    return path


def bdf_of(index):
    return f"0000:{0x3B + index:02x}:00.1"


class Board:
    """A board with a cable. If ``lost``, it has dropped off the bus.

    ``cable`` says what is not as it should be with its link: fields of registers, the ``rx_resets`` that its receivers
    need to adapt, and the ``errors`` that are counted from one snapshot to the next. Its last two memories are a pair
    of channels and the second of these alone. Kernels of a number have a link, on a real board those of number 1.
    """

    def __init__(self, machine, bdf, links, channels=8, channel_bytes=1 << 20):
        self.machine, self.bdf = machine, bdf
        self.platform = PLATFORM
        self.channels = [Channel(number << 28, channel_bytes) for number in range(channels)]
        pair = Channel(channels << 28, 2 * channel_bytes)
        self.channels += [pair, Channel(pair.base + channel_bytes, channel_bytes, pair)]
        self.links = links
        self.lost = False
        self.cable = {}
        self.faults = {}
        self.uuid = None
        self.kernels, self.xclbin = {}, {}
        self.opened = {}  # handles of kernels, by name

    def load(self, xclbin):
        if xclbin.platform != self.platform:
            self.machine.log("ERROR", "Xclbin does not match shell on card.")
            raise OSError(errno.EOPNOTSUPP, "failed to load xclbin")
        if self.machine.emulation:
            if self.opened:
                self.machine.violations.append("an emulated device forgets its open kernels when it is loaded")
        elif xclbin.uuid == self.uuid:
            return
        elif self.opened:
            self.machine.log("ERROR", "Xclbin on card is in use, can't change.")
            raise OSError(errno.EBUSY, "failed to load xclbin")
        self.uuid = xclbin.uuid
        self.xclbin = xclbin.kernels
        self.kernels = {name: (self._kernel(name, kernel), kernel["groups"]) for name, kernel in xclbin.kernels.items()}

    def _kernel(self, name, kernel):
        if name.startswith(("p4sgd_cmac", cmac.EMULATED_KERNEL)):
            return KernelMac(self)
        if name.startswith(selftest.KERNEL):
            return KernelSelfTest(self, kernel["config"], kernel["cages"], kernel["groups"])
        if name.startswith("p4sgd_aggregator"):
            return KernelAggregator(self.machine, AggregatorConfig(**kernel["config"]))
        return KernelWorker(self, WorkerConfig(**kernel["config"]), kernel["groups"], self.links[_number(name) - 1])

    def turn(self):
        """Deliver frames to the kernels and let them work."""
        for number, link in enumerate(self.links, 1):
            while (frame := link.receive()) is not None:
                for name, (kernel, _) in self.kernels.items():
                    if _number(name) == number:
                        kernel.receive(frame)
        for kernel, _ in self.kernels.values():
            kernel.work()

    @property
    def runs(self):
        return any(worker.runs for worker, _ in self.kernels.values())


def _number(unit):
    return int(unit.rpartition("_")[2])


# -- handles -------------------------------------------------------------------------------------------------------


@dataclass
class Xclbin:
    uuid: bytes
    platform: str
    kernels: dict


@dataclass
class OpenDevice:
    board: Board


@dataclass
class OpenKernel:
    board: Board
    device: int
    uuid: bytes
    name: str
    lock: int

    @property
    def worker(self):
        if self.board.uuid != self.uuid:
            raise OSError(errno.EINVAL, "the kernel's xclbin is not loaded any more")
        return self.board.kernels[self.name][0]


@dataclass
class Buffer:
    """A buffer: the program's ``copy``, and the ``allocation`` on the board."""

    board: Board
    device: int
    channel: Channel
    allocation: Allocation
    copy: np.ndarray


def make_xclbin(
    path, config=TINY, *, platform=PLATFORM, kernel="p4sgd_worker", number=1, groups=None, control="hs", macs=1, cages=2
):
    """Write an xclbin for this machine. One for the emulator has no ``macs``. A self-test tries so many ``cages``."""
    if groups is None:
        groups = [1 + bank % 7 for bank in range(config.memories)] if isinstance(config, WorkerConfig) else []
    document = {
        "uuid": (number << 64 | 0xAB00_00CD).to_bytes(16, "little").hex(),  # zeros in it must not end it
        "platform": platform,
        "kernels": {
            f"{kernel}_1": {"config": dataclasses.asdict(config), "groups": groups, "control": control, "cages": cages}
        },
    }
    for cage in range(macs):
        document["kernels"][f"{cmac.kernel_name(cage)}_1"] = {"config": {}, "groups": [], "control": "hs"}
    path.write_text(json.dumps(document))
    return path


class Machine:
    """A machine with boards 0, 1, … and a switch process. Board i is behind port i.

    ``calls`` are the names of the functions called; ``on_call(name, arguments)`` is called before each. With
    ``emulation`` it is Vitis' emulator, whose boards have no place on a bus, but numbers; the kernels of number n of a
    single board are then behind port n - 1, for as many ``links`` as there are.
    """

    def __init__(self, folder, boards, *, channel_bytes=1 << 20, locks=None, emulation=False, links=1):
        self.folder = folder
        self.emulation = emulation
        self._locks = locks or folder  # shared by processes that use the same boards
        self.violations = []
        self.calls = []
        self.on_call = lambda name, arguments: None
        self.lock = threading.RLock()
        self._handles = {}
        self._freed = []
        self._numbers = itertools.count(0x7F00_0000_1000, 0x40)
        self._log_path = None
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(boards * links)]
        self._sockets = [end for pair in pairs for end in pair]
        self.ports = {f"port{index}": PairLink(far) for index, (_, far) in enumerate(pairs)}
        ends = [PairLink(near) for near, _ in pairs]
        self.boards = [
            Board(self, str(index) if emulation else bdf_of(index), ends[index::boards], channel_bytes=channel_bytes)
            for index in range(boards)
        ]
        (folder / "lib").mkdir()
        # A copy of its own, which is loaded anew: so no other machine's handler is in it.
        path = shutil.copy(build_library(), folder / "lib" / library.LIBRARY)
        self._handler = HANDLER(self._call)  # ctypes keeps no reference
        ctypes.CDLL(path).set_handler(self._handler)
        self.switch = f"unix:{folder}/switch"
        self.server = SoftwareAggregatorServer(self.ports, ControlAddress.parse(self.switch), slots=16, jobs=2)
        self._goes_on = True
        self._threads = [threading.Thread(target=each) for each in (self.server.run, self._run_boards)]
        for thread in self._threads:
            thread.start()

    def install(self, monkeypatch):
        """Make this process find XRT and the boards."""
        library.open_library.cache_clear()
        monkeypatch.setenv("XILINX_XRT", str(self.folder))
        driver = self.folder / "xocl"
        files = {"rom.u.1/VBNV": SHELL, "ready": "0x1"}
        driver.mkdir()
        for board in [] if self.emulation else self.boards:
            for name, text in files.items():
                path = driver / board.bdf / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{text}\n")
        (driver / "bind").write_text("")
        monkeypatch.setattr(finding, "DRIVER", driver)

    def cluster_file(self, xclbin, *, ports=None, network="resend_us = 20000", aggregator=None):
        """Write a cluster file of all boards, with the switch or the lines of ``aggregator``."""
        lines = aggregator or ['kind = "socket"', f'control = "{self.switch}"']
        lines = ["[aggregator]", *lines, "[network]", network]
        for index, board in enumerate(self.boards):
            port = index if ports is None else ports[index]
            lines += ["[[workers]]", f'control = "xrt:{board.bdf}"', f'xclbin = "{xclbin}"', f"port = {port}"]
        path = self.folder / "cluster.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def crash(self):
        """Release the program's resources as the kernel does after SIGKILL. The boards continue."""
        with self.lock:
            for handle, thing in list(self._handles.items()):
                if isinstance(thing, OpenKernel):
                    os.close(thing.lock)
                    del thing.board.opened[handle]
            self._handles.clear()
            self._log_path = None
        library.open_library.cache_clear()  # the test continues as another program

    @property
    def open_handles(self):
        return [type(each).__name__ for each in self._handles.values()]

    def close(self):
        """Switch off, and fail if there were violations."""
        self._goes_on = False
        self.server.stop()
        for thread in self._threads:
            thread.join(30)
        self.server.close()
        for end in self._sockets:
            end.close()
        library.open_library.cache_clear()
        assert not self.violations, "\n".join(self.violations)

    def _run_boards(self):
        links = [link for board in self.boards for link in board.links]
        while self._goes_on:
            select.select(links, [], [], 0.0005)
            with self.lock:
                for board in self.boards:
                    board.turn()

    # -- the functions -------------------------------------------------------------------------------------------

    def _call(self, function, result_bytes, count, arguments, result):
        """Carry out a call of the library; returns whether it succeeds."""
        name, words = function.decode(), arguments[:count]
        try:
            self.on_call(name, words)
            with self.lock:
                self.calls.append(name)
                result[0] = getattr(self, f"_{name}")(*words)
            return True
        except OSError as error:
            self.log("ERROR", error.strerror)
            ctypes.set_errno(error.errno)
        except BaseException:
            self.violations.append(traceback.format_exc())
        return False

    def log(self, severity, text):
        if self._log_path is not None:
            with open(self._log_path, "a") as log:
                log.write(f"[Sun Nov 22 00:02:13 2026 GMT] [XRT] Tid: 140206915521408,  {severity}: {text}\n")

    def _add(self, thing):
        handle = next(self._numbers)
        self._handles[handle] = thing
        return handle

    def _get(self, handle, kind):
        found = self._handles.get(handle)
        if not isinstance(found, kind):
            self.violations.append(f"{handle} is no open {kind.__name__} but {found}")
            raise OSError(errno.EINVAL, "No such handle")
        return found

    def _xrtIniStringSet(self, key, value):
        assert ctypes.string_at(key) == b"Runtime.runtime_log"
        assert self._log_path is None, "the log is set twice"
        self._log_path = os.fsdecode(ctypes.string_at(value))
        with open(self._log_path, "w") as log:
            log.write("XRT build version: 2.13.0\nBuild hash: 0\n")
        return 0

    def _xrtXclbinAllocFilename(self, path):
        try:
            with open(os.fsdecode(ctypes.string_at(path))) as file:
                document = json.load(file)
            return self._add(Xclbin(bytes.fromhex(document["uuid"]), document["platform"], document["kernels"]))
        except ValueError:
            raise OSError(0, "Invalid xclbin") from None

    def _xrtXclbinGetXSAName(self, xclbin, name, size, returned):
        text = self._get(xclbin, Xclbin).platform.encode()
        c_int.from_address(returned).value = len(text)
        ctypes.memmove(name, text[:size].ljust(size, b"\0"), size)
        return 0

    def _xrtXclbinGetUUID(self, xclbin, uuid):
        ctypes.memmove(uuid, self._get(xclbin, Xclbin).uuid, 16)
        return 0

    def _xrtXclbinFreeHandle(self, xclbin):
        self._get(xclbin, Xclbin)
        del self._handles[xclbin]
        return 0

    def _xrtDeviceOpenByBDF(self, bdf):
        wanted = ctypes.string_at(bdf).decode()
        for board in self.boards:
            if board.bdf == wanted:
                return self._add(OpenDevice(board))
        text = "Invalid device string" if self.emulation else "No such device"
        raise OSError(errno.EINVAL, f"{text} '{wanted}': Invalid argument")

    def _xrtDeviceLoadXclbinHandle(self, device, xclbin):
        self._get(device, OpenDevice).board.load(self._get(xclbin, Xclbin))
        return 0

    def _xrtDeviceClose(self, device):
        self._get(device, OpenDevice)
        if any(isinstance(each, OpenKernel | Buffer) and each.device == device for each in self._handles.values()):
            self.violations.append(CLOSED_EARLY)
        del self._handles[device]
        return 0

    def _xrtPLKernelOpenExclusive(self, device, uuid, name):
        board = self._get(device, OpenDevice).board
        if ctypes.string_at(uuid, 16) != board.uuid:
            raise OSError(errno.EINVAL, "No such xclbin")
        wanted = ctypes.string_at(name).decode()
        kernel, _, rest = wanted.partition(":")
        unit = rest.removeprefix("{").removesuffix("}")
        if not unit.startswith(kernel) or unit not in board.kernels:
            raise OSError(errno.EINVAL, f"No such kernel '{wanted}'")
        if board.xclbin[unit]["control"] != "hs":
            raise OSError(errno.ENOTSUP, "AP_CTRL_NONE is only supported by XRT native API xrt::ip")
        lock = os.open(self._locks / f"{board.bdf}-{unit}.lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise OSError(errno.EBUSY, "failed to open ip context: Device or resource busy") from None
        handle = self._add(OpenKernel(board, device, board.uuid, unit, lock))
        board.opened[handle] = unit
        return handle

    def _xrtKernelArgGroupId(self, kernel, argument):
        opened = self._get(kernel, OpenKernel)
        groups = opened.board.kernels[opened.name][1]
        if not 0 <= argument < len(groups):
            raise OSError(0, "vector::_M_range_check")
        return groups[argument]

    def _register(self, kernel, offset):
        opened = self._get(kernel, OpenKernel)
        if offset % 4 or offset + 4 > REGISTER_BYTES:
            self.violations.append(f"{offset:#x} is no register")
            raise OSError(0, "Cannot read or write outside kernel register space")
        return opened.board, opened.worker

    def _xrtKernelReadRegister(self, kernel, offset, word):
        board, worker = self._register(kernel, offset)
        c_uint32.from_address(word).value = 0xFFFFFFFF if board.lost else worker.read_register(offset)
        return 0

    def _xrtKernelWriteRegister(self, kernel, offset, word):
        board, worker = self._register(kernel, offset)
        if not board.lost:
            worker.write_register(offset, word)
        return 0

    def _xrtKernelClose(self, kernel):
        opened = self._get(kernel, OpenKernel)
        if opened.worker.runs and not opened.board.lost and not opened.worker.hangs:
            self.violations.append("a kernel is left running")
        os.close(opened.lock)
        del opened.board.opened[kernel], self._handles[kernel]
        return 0

    def _xrtBOAlloc(self, device, size, flags, group):
        board = self._get(device, OpenDevice).board
        if flags or not size or not 0 <= group < len(board.channels):
            raise OSError(errno.EINVAL, f"no buffer with flags {flags}, size {size}, group {group}")
        channel = board.channels[group]
        return self._add(Buffer(board, device, channel, channel.allocate(size), np.full(size, 0x5A, np.uint8)))

    def _xrtBOMap(self, buffer):
        return self._get(buffer, Buffer).copy.ctypes.data

    def _xrtBOAddress(self, buffer):
        return self._get(buffer, Buffer).allocation.address

    def _xrtBOSync(self, buffer, direction, size, offset):
        found = self._get(buffer, Buffer)
        if found.board.lost:
            raise OSError(errno.EIO, "unable to sync BO: Input/output error")
        if size == 0 or offset + size > found.copy.size or direction not in (0, 1):
            self.violations.append(f"sync of {size} bytes from {offset} of {found.copy.size}, way {direction}")
            raise OSError(errno.EINVAL, "Invalid argument")
        part = slice(offset, offset + size)
        if direction == 0:
            found.allocation.data[part] = found.copy[part]
        else:
            found.copy[part] = found.allocation.data[part]
        return 0

    def _xrtBOFree(self, buffer):
        found = self._get(buffer, Buffer)
        workers = [worker for worker, _ in found.board.kernels.values()]
        if any(worker.runs and not worker.hangs for worker in workers) and not found.board.lost:
            self.violations.append("memory of a run is taken away from it")
        found.channel.allocations.remove(found.allocation)
        found.copy[:] = 0xEE  # not freed, as the program may still read the mapping, which would crash
        self._freed.append(found.copy)
        del self._handles[buffer]
        return 0
