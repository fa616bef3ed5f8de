"""A worker's kernel in the simulator, driven as its driver will: registers over AXI4-Lite, memory behind every port."""

from typing import Any

import numpy as np
from cocotb.task import resume

from p4sgd.build.generate.boards import BOARDS, map_memories
from p4sgd.host.devices.xrt_worker import AddressRegisters
from p4sgd.hw.spec.config import WorkerConfig
from support.foreign_axi import Buffer, register_master


class KernelWorker:
    """A worker of a device; to be used in a function that ``cocotb.task.bridge`` runs.

    Its buffers are where they can be on a U280, each in a channel of its own, some of them above 4 GiB: so an address
    that lost a part, or is another port's, is in none. Banks are not in their last channel, where the labels may be.
    What writes addresses is XRT's driver.

    ``size`` is that of each buffer in bytes; ``stall`` the chance of a pause, in each cycle of each channel.
    """

    def __init__(self, dut: Any, config: WorkerConfig, *, size: int = 1 << 20, stall: float = 0.0) -> None:
        self.config = config
        self._bus = register_master(dut, "s_axi_control", stall)
        *banks, labels = map_memories(config, BOARDS["u280"].hbm).channels
        channels = [*(bank[-2] for bank in banks), labels[0]]
        self._buffers = [
            Buffer(dut, f"m_axi_gmem{number}", stall, channel * BOARDS["u280"].hbm.channel_bytes, size)
            for number, channel in enumerate(channels)
        ]
        self._addresses = AddressRegisters(config, lambda bank: self._buffers[bank].base, self._write_word)

    @property
    def strays(self) -> list[str]:
        """What the kernel asked memory for that is not in the port's buffer."""
        return [stray for buffer in self._buffers for stray in buffer.strays]

    def read_register(self, offset: int) -> int:
        if offset in self._addresses:
            return self._addresses.read(offset)
        return resume(self._bus.read_dword)(offset)

    def write_register(self, offset: int, word: int) -> None:
        if offset in self._addresses:
            self._addresses.write(offset, word)
        else:
            self._write_word(offset, word)

    def write_memory(self, bank: int, address: int, data: Any) -> None:
        buffer = self._buffers[bank]
        buffer.content[buffer.part(buffer.base + address, data.nbytes)] = data.tobytes()

    def read_memory(self, bank: int, address: int, size: int) -> Any:
        buffer = self._buffers[bank]
        return np.frombuffer(buffer.content[buffer.part(buffer.base + address, size)], np.uint8)

    def _write_word(self, offset: int, word: int) -> None:
        resume(self._bus.write_dword)(offset, word)
