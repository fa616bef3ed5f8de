"""Boards without a shell behind an imitation of the devices of AMD's XDMA driver.

Registers are those of the emulated kernels of `support.xrt_kernels`. The devices are files, which the program opens,
closes and locks; what it reads and writes goes to the kernels and to the board's memory, in transfers that may be
shorter than asked for, as those of the driver.
"""

import errno
import json
import os
from types import SimpleNamespace

import numpy as np

from p4sgd.host.boards import xdma
from p4sgd.hw.spec.cmac import kernel_name
from p4sgd.sim.emulator import EmulatorError
from support.xrt_kernels import KernelMac, KernelWorker

REGISTERS = 4096
RANGE = 1 << 20
"""Bytes of each memory."""


class Range:
    """The part of a board's memory that a port reaches. Its initial content is arbitrary."""

    size = 0  # for workers, which do not limit it

    def __init__(self, memory, address, size):
        self._memory, self._address, self._end = memory, address, address + size

    def _part(self, address, size):
        if not self._address <= address <= address + size <= self._end:
            raise EmulatorError(f"bytes {address:#x} to {address + size:#x} are not of the port's memory")
        return self._memory[address : address + size]

    def read(self, address, size):
        return self._part(address, size).copy()

    def write(self, address, data):
        self._part(address, data.size)[:] = data.reshape(-1)


class Driver:
    """The driver of a `support.xrt.Machine`'s boards, which get a worker of a configuration and a MAC each.

    ``ranges`` are address and bytes of each memory of the worker, one after the other by default.
    """

    def __init__(self, machine, config, ranges=None):
        self.machine = machine
        self.folder = machine.folder / "dev"
        self.folder.mkdir()
        self.fails = None  # error of all transfers
        self.devices = {}  # board and kind by descriptor
        ranges = ranges or [(RANGE * bank, RANGE) for bank in range(config.memories)]
        memories = [{"address": address, "bytes": size} for address, size in ranges]
        kernels = {"p4sgd_worker": {"registers": 0, "memories": memories}, kernel_name(0): {"registers": REGISTERS}}
        self.address_map = machine.folder / "address_map.json"
        self.address_map.write_text(json.dumps({"kernels": kernels}))
        self._random = np.random.default_rng(1)
        self._memories = []
        for index, board in enumerate(machine.boards):
            memory = np.full(max(address + size for address, size in ranges), 0xA5, np.uint8)
            self._memories.append(memory)
            board.channels = [Range(memory, *each) for each in ranges]
            worker = KernelWorker(board, config, range(config.memories), board.links[0])
            board.kernels = {"p4sgd_worker_1": (worker, []), "p4sgd_cmac_1": (KernelMac(board), [])}
            for kind in ("user", "h2c_0", "c2h_0"):
                (self.folder / f"xdma{index}_{kind}").touch()

    def install(self, monkeypatch):
        monkeypatch.setattr(xdma, "DEVICES", self.folder)
        own = {name: getattr(self, name) for name in ("open", "close", "pread", "pwrite")}
        monkeypatch.setattr(xdma, "os", SimpleNamespace(**(vars(os) | own)))

    def cluster_file(self):
        lines = ["[aggregator]", 'kind = "socket"', f'control = "{self.machine.switch}"', "[network]"]
        lines += ["resend_us = 20000"]
        for index, _ in enumerate(self.machine.boards):
            lines += ["[[workers]]", f'control = "xdma:{index}"', 'address_map = "address_map.json"', f"port = {index}"]
        path = self.machine.folder / "cluster.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def open(self, path, flags):
        device = os.open(path, flags)
        number, kind = path.name.removeprefix("xdma").split("_", 1)
        self.devices[device] = int(number), kind
        return device

    def close(self, device):
        del self.devices[device]
        os.close(device)

    def _device(self, device, *kinds):
        number, kind = self.devices[device]
        assert kind in kinds, f"{kind} is not for this"
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        return number

    def _register(self, device, position):
        board = self.machine.boards[self._device(device, "user")]
        if position % 4:
            raise OSError(errno.EPROTO, "Protocol error")
        place, offset = divmod(position, REGISTERS)
        return board, list(board.kernels.values())[place][0], offset

    def pread(self, device, size, position):
        if self.devices[device][1] == "c2h_0":
            memory = self._memories[self._device(device, "c2h_0")]
            size = int(self._random.integers(1, size + 1))
            with self.machine.lock:
                return memory[position : position + size].tobytes()
        board, kernel, offset = self._register(device, position)
        assert size == 4
        with self.machine.lock:
            return (0xFFFFFFFF if board.lost else kernel.read_register(offset)).to_bytes(4, "little")

    def pwrite(self, device, data, position):
        if self.devices[device][1] == "user":
            _, kernel, offset = self._register(device, position)
            with self.machine.lock:
                kernel.write_register(offset, int.from_bytes(data, "little"))
            return len(data)
        memory = self._memories[self._device(device, "h2c_0")]
        if memoryview(data).readonly:  # The driver pins pages for writing.
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        size = int(self._random.integers(1, len(data) + 1))
        with self.machine.lock:
            memory[position : position + size] = np.frombuffer(data[:size], np.uint8)
        return size
