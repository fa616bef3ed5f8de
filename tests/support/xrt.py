"""A machine with emulated boards behind the functions of XRT's C interface.

The functions are those of the shared library that `build_library` compiles from ``xrt.cpp``, with the types of XRT's
headers, and are loaded as XRT's own library is. They are stricter than XRT: a misuse that a board would tolerate, or
answer with a wrong result some day, is noted in `Machine.violations` and fails the test. The program's copy of a buffer
and the board's are two arrays, so a missing sync shows. Workers are emulated and use a board's addresses.
"""

import atexit
import contextlib
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
import time
import traceback
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.serve.aggregator import SoftwareAggregatorServer
from p4sgd.host.xrt import board as finding
from p4sgd.host.xrt import library
from p4sgd.hw.spec import aggregator as spec
from p4sgd.hw.spec import cmac, registers, selftest
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.sim.emulator import EmulatorError
from p4sgd.sim.emulator.networked import NetworkedWorker
from support.worker_process import PairLink

TINY = WorkerConfig.tiny()
PLATFORM = "xilinx_u280_gen3x16_xdma_1_202211_1"
SHELL = "xilinx_u280_gen3x16_xdma_base_1"
SENSORS = {"xmc_power": "41499999", "xmc_fpga_temp": "54", "xmc_hbm_temp": "51", "xmc_cage_temp0": "0"}
"""Files of XRT's driver: µW and °C, as its show functions print them; 0 where there is no module in the cage."""
PAGE = 4096
REGISTER_BYTES = 4096
RUN_LINGERS_S = 0.005
"""How long an aborted run takes to end."""
LINK_UP_S = 0.02
"""How long a link takes to come up."""


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


# -- memory --------------------------------------------------------------------------------------------------------


@dataclass
class Allocation:
    address: int
    data: np.ndarray

    @property
    def end(self):
        return self.address + self.data.size


class Channel:
    """A pseudo-channel of the board's memory, or neighbours as one memory. Its initial content is arbitrary.

    One that is a part of ``another`` has its allocations: XRT's driver keeps a single list of what is taken of the
    board, and looks for room in a range of it. Ports of kernels read and write it by addresses of the board.
    """

    size = 0  # for workers, which do not limit it

    def __init__(self, base, room, another=None):
        self.base, self._end = base, base + room
        self.allocations = [] if another is None else another.allocations

    def allocate(self, size):
        start = self.base + 3 * PAGE  # so an address without the base added is in no allocation
        for known in sorted(self.allocations, key=lambda each: each.address):
            if start + size <= known.address:
                break
            start = max(start, -(-known.end // PAGE) * PAGE + PAGE)
        if start + size > self._end:
            raise OSError(errno.ENOMEM, f"Could not allocate {size} bytes in bank")
        self.allocations.append(Allocation(start, np.full(size, 0xA5, np.uint8)))
        return self.allocations[-1]

    def _part(self, address, size):
        for known in self.allocations:
            if known.address <= address and address + size <= known.end:
                return known.data[address - known.address :][:size]
        raise EmulatorError(f"bytes {address:#x} to {address + size:#x} are in no buffer of the port's channel")

    def read(self, address, size):
        return self._part(address, size).copy()

    def write(self, address, data):
        self._part(address, data.size)[:] = data.reshape(-1)


# -- boards --------------------------------------------------------------------------------------------------------


class KernelWorker(NetworkedWorker):
    """A worker as a kernel. An aborted run ends a little later, and errors in a run are violations."""

    def __init__(self, board, config, groups, link):
        super().__init__(config, link.send, lambda: time.monotonic_ns() // CLOCK_NS, most=0)
        self._board = board
        self._memory = [board.channels[group] for group in groups]
        self.hangs = False
        self._ends_at = None

    @property
    def runs(self):
        return not self.registers.get(registers.CTRL, "idle")

    def write_register(self, offset, word):
        if offset == registers.ABORT.offset and self.runs:
            if not self.hangs:
                self._ends_at = time.monotonic() + RUN_LINGERS_S
            return
        try:
            super().write_register(offset, word)
        except EmulatorError as error:
            self._board.machine.violations.append(f"a run that cannot be was started: {error}")

    def work(self):
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            self._ends_at = None
            super().write_register(registers.ABORT.offset, 1)
        try:
            super().work()
        except EmulatorError as error:
            self._board.machine.violations.append(f"a run went wrong: {error}")

    def _end(self, flag):
        super()._end(flag)
        if flag == "memory_error":
            self._board.machine.violations.append("a run has met an error of the memory")


class Kernel:
    """A kernel that neither runs nor takes frames."""

    runs = hangs = False

    def receive(self, frame):
        pass

    def work(self):
        pass


class KernelAggregator(Kernel):
    """An aggregator as a kernel: registers in front of the switch's state machine, without counters."""

    def __init__(self, machine, config):
        self._aggregator = machine.server.aggregator
        self._words = {register.offset: register.reset for register in spec.after_reset(config)}
        self._client = RegisterClient(self._words.__getitem__, self._words.__setitem__)
        self._members = {}

    def read_register(self, offset):
        if offset == spec.JOBS.offset:
            return spec.JOBS.encode(running=sum(1 << place for place in self._aggregator.jobs))
        return self._words.get(offset, 0)

    def write_register(self, offset, word):
        self._words[offset] = word
        client = self._client
        if offset == spec.MAC[1].offset:
            self._aggregator.mac = client.read_pair(spec.MAC)
        elif offset == spec.END.offset:
            self._aggregator.end(spec.END.decode(word)["place"])
        elif offset == spec.MEMBER.offset:
            member = spec.MEMBER.decode(word)
            found = Member(client.read_pair(spec.MEMBER_MAC), member["port"])
            self._members[member["place"], member["shard"]] = found
        elif offset == spec.BEGIN.offset:
            begun = spec.BEGIN.decode(word)
            settings, *group, ports = spec.job_registers(begun["place"])
            job = client.read(settings)
            members = tuple(self._members[begun["place"], shard] for shard in range(job["workers"]))
            found = Job(job["number"], members, client.read_pair(tuple(group)), client.read(ports)["value"])
            self._aggregator.begin(begun["place"], found, begun["round"])
        elif offset == spec.LOOK_MEMBER.offset:
            looked = spec.LOOK_MEMBER.decode(word)
            shown = self._members.get((looked["place"], looked["shard"]), Member(0, 0))
            client.write_pair(spec.SHOWN_MAC, shown.mac)
            client.write(spec.SHOWN_PORT, value=shown.port)


class KernelSelfTest(Kernel):
    """A self-test as a kernel: by the exact model, with a beat a cycle after a latency.

    The board's ``faults`` say what is wrong: the ``read`` or ``written`` content of a port (a function that changes
    it), ports that are ``swapped``, cycles a beat of ``slow`` ones (a number, or a function of the ports that run), and
    of those that are so in ``single`` beats, their ``errors``, after how many beats a port is ``stuck``, the ``clock``
    in MHz, what to add to the results of ``frames`` by cage, and what is not as it should be in ``loopback``, as of a
    cable.
    """

    LATENCY = 75

    def __init__(self, board, config, cages, groups):
        self._board = board
        self._sizes = selftest.Sizes.of(WorkerConfig(**config), cages)
        self._ports = [board.channels[group] for group in groups]
        self._words = {register.offset: register.reset for register in selftest.after_reset(self._sizes)}
        self._client = RegisterClient(self._words.__getitem__, self._words.__setitem__)

    def read_register(self, offset):
        if offset == selftest.CLOCK.offset:
            return int(time.monotonic() * 1e6 * self._board.faults.get("clock", 250)) % (1 << 32)
        return self._words.get(offset, 0)

    def write_register(self, offset, word):
        self._words[offset] = word
        if offset == selftest.RUN.offset:
            chosen = self._client.read_pair(selftest.PORTS)
            ports = [port for port in range(self._sizes.memories) if chosen >> port & 1]
            for port in ports:
                try:
                    self._run(port, ports, self._read if selftest.RUN.decode(word)["read"] else self._write)
                except EmulatorError as error:
                    self._board.machine.violations.append(f"a port reads or writes elsewhere: {error}")
        if offset == selftest.SEND.offset:
            for cage in range(self._sizes.cages):
                if self._words[selftest.CAGES.offset] >> cage & 1:
                    self._send(cage, word)

    def _run(self, port, ports, run):
        faults, result = self._board.faults, run(port)
        strided = self._client.read(selftest.SHAPE)["stride_beats"] > 1
        cycles = faults.get("single" if strided else "slow", {}).get(port, 1)
        cycles = max(cycles(ports) if callable(cycles) else cycles, 1)
        result |= {"cycles": round(result["beats"] * cycles) + self.LATENCY, "latency": self.LATENCY}
        result["errors"] = faults.get("errors", {}).get(port, 0)
        if port in faults.get("stuck", {}):
            result["beats"] = faults["stuck"][port]
            self._client.write_pair(selftest.BUSY, self._client.read_pair(selftest.BUSY) | 1 << port)
        for name, register in selftest.port_results(port).items():
            self._client.write(register, value=result[name])

    def _port(self, port):
        """Address, first number, bytes of a beat, and what is there, of the memory that a port reaches."""
        swapped = self._board.faults.get("swapped", ())
        other = sum(swapped) - port if port in swapped else port
        address, first = self._client.read_pair(selftest.address_of(other)), self._client.read(selftest.first_of(port))
        return address, first["value"], self._sizes.bytes_of(port), self._ports[other]

    def _read(self, port):
        address, first, beat_bytes, memory = self._port(port)
        shape = self._client.read(selftest.SHAPE)
        beats = self._client.read(selftest.GROUPS)["value"] * shape["stride_beats"]
        content = memory.read(address, beats * beat_bytes)
        self._board.faults.get("read", lambda port, content: None)(port, content)
        return selftest.read_result(content.reshape(beats, beat_bytes), first, **shape)

    def _write(self, port):
        assert self._sizes.writes(port), "only ports that a worker writes can write"
        address, first, beat_bytes, memory = self._port(port)
        beats = self._client.read(selftest.CHUNKS)["value"] * self._sizes.chunk_beats
        content = selftest.pattern(first, beats, beat_bytes).reshape(-1)
        self._board.faults.get("written", lambda port, content: None)(port, content)
        memory.write(address, content)
        return {"beats": beats, "wrong": 0, "wrong_beat": 0, "wrong_word": 0, "wrong_words": 0}

    def _send(self, cage, frames):
        result = {"sending": 0, "sent": frames, "received": frames, "wrong": 0, "missing": 0}
        result["cycles"] = round(1.76 * frames)
        for name, more in self._board.faults.get("frames", {}).get(cage, {}).items():
            result[name] += more
        for name, register in selftest.cage_registers(cage).items():
            self._client.write(register, value=result[name])


class KernelMac(Kernel):
    """A MAC as a kernel. Its link is up a moment after loading or reset, if the cable is good."""

    def __init__(self, board):
        self._board = board
        self.words = {register.offset: register.reset for register in cmac.after_reset()}
        self.resets = self.rx_resets = 0
        self._begin()

    def _begin(self):
        """Come out of reset."""
        self._up_at = time.monotonic() + LINK_UP_S
        self._rs_fec = cmac.CONTROL.decode(self.words[cmac.CONTROL.offset])["rs_fec"]

    def read_register(self, offset):
        if offset in (cmac.STATUS.offset, cmac.LANES.offset):
            control = cmac.CONTROL.decode(self.words[cmac.CONTROL.offset])
            cable = self._board.faults.get("loopback", {}) if control["loopback"] else self._board.cable
            fits = cable.get("there", True) and self._rs_fec == cable.get("rs_fec", 1)
            adapted = self.rx_resets >= cable.get("rx_resets", 0)
            signal = fits and adapted and not control["reset"] and not control["rx_reset"]
            block_lock = cable.get("block_lock", 0xFFFFF) if signal else 0
            fec_lock = cable.get("fec_lock", 0xF) if signal and self._rs_fec else 0
            if offset == cmac.LANES.offset:
                return cmac.LANES.encode(block_lock=block_lock, fec_lock=fec_lock)
            aligned = block_lock == 0xFFFFF and fec_lock == 0xF * self._rs_fec and not cable.get("skewed")
            remote_fault = aligned and cable.get("remote_fault", 0)
            return cmac.STATUS.encode(
                up=aligned and not remote_fault and time.monotonic() >= self._up_at,
                aligned=aligned,
                local_fault=not aligned,
                remote_fault=remote_fault,
                rx_reset=cable.get("rx_reset", 0),
                power_good=cable.get("power_good", 0xF),
                hi_ber=cable.get("hi_ber", 0),
                fec_aligned=aligned and self._rs_fec,
            )
        return self.words.get(offset, 0)

    def write_register(self, offset, word):
        if offset == cmac.SNAPSHOT.offset:
            for name, count in self._board.cable.get("errors", {}).items():
                self.words[cmac.COUNTERS[name].offset] += count
        if offset != cmac.CONTROL.offset:
            return
        before, after = (cmac.CONTROL.decode(each) for each in (self.words[offset], word))
        if before["rs_fec"] != after["rs_fec"] and not after["reset"]:
            self._board.machine.violations.append("RS-FEC is changed outside of reset")
        self.words[offset] = word
        if before["reset"] and not after["reset"]:
            self.resets += 1
            self._begin()
        self.rx_resets += before["rx_reset"] and not after["rx_reset"]


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
        self.before_sync = lambda buffer: None
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
        files = {"rom.u.1/VBNV": SHELL, "ready": "0x1", **{f"xmc.u.2/{name}": text for name, text in SENSORS.items()}}
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
            with self.lock if name != "xrtBOSync" else contextlib.nullcontext():
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
        self.before_sync(found)
        with self.lock:
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
