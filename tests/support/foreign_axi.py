"""AXI ends written by others (cocotbext-axi), as an independent check of the buses that face vendors' hardware.

They find their signals by name, so components are wrapped in `FlatPorts`. A bench that uses this module is skipped
where cocotbext-axi is missing.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cocotb.task import resume

from p4sgd.hw.spec.register_map import RegisterClient

axi = pytest.importorskip("cocotbext.axi", reason="needs cocotbext-axi")


def _pauses(stall: float) -> Iterator[bool]:
    rng = random.Random(random.getrandbits(32))
    while True:
        yield rng.random() < stall


def pause(stall: float, *channels: Any) -> None:
    """Let channels pause at random, each on its own; ``stall`` is the chance in each cycle."""
    for channel in channels:
        channel.set_pause_generator(_pauses(stall))


def clocking(dut: Any) -> dict[str, Any]:
    """Clock and reset of a design: those of a kernel, or as Amaranth names them."""
    if hasattr(dut, "ap_clk"):
        return {"clock": dut.ap_clk, "reset": dut.ap_rst_n, "reset_active_level": False}
    return {"clock": dut.clk, "reset": dut.rst}


class Buffer:
    """A buffer in a board's memory, on a master's AXI4 bus: on its read channels alone if it has no others.

    Beside it there is nothing: what a master reads or writes elsewhere ends in an error and is noted.

    ``base``: where it is on the board; ``strays``: what was asked for that is not in it.
    """

    def __init__(self, dut: Any, prefix: str, stall: float, base: int, size: int) -> None:
        self.base, self.content = base, bytearray(size)
        self.strays: list[str] = []
        self._prefix = prefix
        reads = axi.AxiSlaveRead(axi.AxiReadBus.from_prefix(dut, prefix), **clocking(dut), target=self)
        pause(stall, reads.ar_channel, reads.r_channel)
        if hasattr(dut, f"{prefix}_awvalid"):
            writes = axi.AxiSlaveWrite(axi.AxiWriteBus.from_prefix(dut, prefix), **clocking(dut), target=self)
            pause(stall, writes.aw_channel, writes.w_channel, writes.b_channel)

    async def read(self, address: int, size: int) -> bytes:
        """Bytes at an address of the board."""
        return bytes(self.content[self.part(address, size)])

    async def write(self, address: int, data: bytes) -> None:
        """Write bytes at an address of the board."""
        self.content[self.part(address, len(data))] = data

    def part(self, address: int, size: int) -> slice:
        """Of the content, what is at an address of the board; ValueError, and a stray, if it is elsewhere."""
        start = address - self.base
        if not 0 <= start <= start + size <= len(self.content):
            self.strays.append(f"{self._prefix} asks for {address:#x}, its buffer is at {self.base:#x}")
            raise ValueError(self.strays[-1])  # which the bus answers with SLVERR
        return slice(start, start + size)


class HostMemory:
    """A buffer as the host has it: a `p4sgd.host.boards.kernel.BankMemory` of its final size from the start."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.address, self.size = buffer.base, len(buffer.content)

    def reserve(self, size: int) -> None:
        assert size <= self.size

    def write(self, address: int, data: Any) -> None:
        self._buffer.content[self._part(address, data.nbytes)] = data.tobytes()

    def read(self, address: int, size: int) -> Any:
        return np.frombuffer(self._buffer.content[self._part(address, size)], np.uint8)

    def _part(self, address: int, size: int) -> slice:
        return self._buffer.part(self.address + address, size)

    def close(self) -> None:
        pass


def send(source: Any, *frames: bytes) -> None:
    """Queue frames at the end of a stream."""
    for frame in frames:
        source.send_nowait(axi.AxiStreamFrame(frame))


def frame_source(dut: Any, prefix: str, stall: float) -> Any:
    """Sends frames to an AXI4-Stream of the design."""
    source = axi.AxiStreamSource(axi.AxiStreamBus.from_prefix(dut, prefix), **clocking(dut))
    pause(stall, source)
    return source


def frame_sink(dut: Any, prefix: str, stall: float) -> Any:
    """Receives frames from an AXI4-Stream of the design."""
    sink = axi.AxiStreamSink(axi.AxiStreamBus.from_prefix(dut, prefix), **clocking(dut))
    pause(stall, sink)
    return sink


class RegisterWords:
    """Words of an AXI4-Lite slave, read and written as :class:`support.axi.LiteMaster` does.

    Or, in a function that ``cocotb.task.bridge`` runs, as a worker of the host does: ``client`` knows their fields.
    """

    def __init__(self, dut: Any, prefix: str, stall: float) -> None:
        self._bus = axi.AxiLiteMaster(axi.AxiLiteBus.from_prefix(dut, prefix), **clocking(dut))
        write, read = self._bus.write_if, self._bus.read_if
        pause(stall, write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel)
        self.client = RegisterClient(self.read_register, self.write_register)

    async def write(self, offset: int, word: int) -> None:
        answer = await self._bus.write(offset, word.to_bytes(4, "little"))
        assert answer.resp == axi.AxiResp.OKAY

    async def read(self, offset: int) -> int:
        answer = await self._bus.read(offset, 4)
        assert answer.resp == axi.AxiResp.OKAY
        return int.from_bytes(answer.data, "little")

    def read_register(self, offset: int) -> int:
        return int(resume(self.read)(offset))

    def write_register(self, offset: int, word: int) -> None:
        resume(self.write)(offset, word)
