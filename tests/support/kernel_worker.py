"""A worker's kernel in the simulator, driven as its driver will: registers over AXI4-Lite, memory behind every port."""

from typing import Any

import numpy as np
from cocotb.task import resume

from p4sgd.hw.spec.config import WorkerConfig
from support.foreign_axi import ram, register_master


class KernelWorker:
    """A worker of a device; to be used in a function that ``cocotb.task.bridge`` runs.

    ``size`` is that of each memory in bytes; ``stall`` the chance of a pause, in each cycle of each channel.
    """

    def __init__(self, dut: Any, config: WorkerConfig, *, size: int = 1 << 20, stall: float = 0.0) -> None:
        self.config = config
        self._bus = register_master(dut, "s_axi_control", stall)
        self._memories = [ram(dut, f"m_axi_gmem{i}", stall, size) for i in range(config.memories)]

    def read_register(self, offset: int) -> int:
        return resume(self._bus.read_dword)(offset)

    def write_register(self, offset: int, word: int) -> None:
        resume(self._bus.write_dword)(offset, word)

    def write_memory(self, bank: int, address: int, data: Any) -> None:
        self._memories[bank].write(address, data.tobytes())

    def read_memory(self, bank: int, address: int, size: int) -> Any:
        return np.frombuffer(self._memories[bank].read(address, size), np.uint8)
