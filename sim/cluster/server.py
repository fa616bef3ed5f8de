"""Server inside the simulator of a cluster.

It runs as a cocotb test and answers the requests of :class:`p4sgd.sim.cluster.process.ClusterProcess`. Between requests
simulated time stands still.
"""

from multiprocessing.connection import Connection
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, First, RisingEdge, Timer

from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.timing import RESET_CYCLES


async def _edge_with(clock: Any, signal: Any) -> None:
    """Wait for a rising edge at which a signal is high."""
    await RisingEdge(clock)
    while not signal.value:
        await RisingEdge(clock)


class AxiLiteMaster:
    """Single reads and writes on an AXI4-Lite port."""

    def __init__(self, dut: Any, port: str) -> None:
        self._clock = dut.clk
        self._channels = {
            name: [getattr(dut, f"{port}__{name}__{part}") for part in ("payload", "valid", "ready")]
            for name in ("aw", "w", "b", "ar", "r")
        }

    async def _send(self, channel: str, word: int) -> None:
        payload, valid, ready = self._channels[channel]
        payload.value, valid.value = word, 1
        await _edge_with(self._clock, ready)
        valid.value = 0

    async def _receive(self, channel: str) -> int:
        payload, valid, ready = self._channels[channel]
        ready.value = 1
        await _edge_with(self._clock, valid)
        ready.value = 0
        return int(payload.value)

    async def write(self, offset: int, word: int) -> None:
        """Write a word and wait for the response."""
        await self._send("aw", offset)
        await self._send("w", word | 0xF << 32)
        await self._receive("b")

    async def read(self, offset: int) -> int:
        """Read a word."""
        await self._send("ar", offset)
        return await self._receive("r") & 0xFFFFFFFF


class _Server:
    def __init__(self, dut: Any) -> None:
        self._dut = dut
        ports = [*(f"control__{worker}" for worker in range(len(dut.idle))), "aggregator_control"]
        self._masters = [AxiLiteMaster(dut, port) for port in ports]

    async def reset(self, settings: dict[str, int]) -> None:
        """Set inputs, then reset the design: some components sample them in the first cycle after reset."""
        for name, value in settings.items():
            getattr(self._dut, name).value = value
        self._dut.rst.value = 1
        await ClockCycles(self._dut.clk, RESET_CYCLES)
        self._dut.rst.value = 0
        await RisingEdge(self._dut.clk)

    async def write(self, index: int, offset: int, word: int) -> None:
        """Write a register of a worker; the aggregator's index follows that of the last worker."""
        await self._masters[index].write(offset, word)

    async def read(self, index: int, offset: int) -> int:
        return await self._masters[index].read(offset)

    async def set(self, **inputs: int) -> None:
        """Change several inputs of the top level in the same cycle."""
        for name, value in inputs.items():
            getattr(self._dut, name).value = value
        await RisingEdge(self._dut.clk)

    async def load(self, memories: int) -> None:
        """Load the memory banks of a bitmap from their files."""
        await self._trigger(self._dut.load, memories)

    async def save(self, memories: int) -> None:
        """Save the memory banks of a bitmap to their files."""
        await self._trigger(self._dut.save, memories)

    async def _trigger(self, signal: Any, memories: int) -> None:
        signal.value = memories
        await ClockCycles(self._dut.clk, 2)
        signal.value = 0
        await ClockCycles(self._dut.clk, 2)

    async def run(self, cycles: int) -> bool:
        """Run until every worker is idle, for at most ``cycles`` cycles; returns whether all are."""
        await RisingEdge(self._dut.clk)
        if not self._dut.all_idle.value:
            await First(RisingEdge(self._dut.all_idle), Timer(cycles * CLOCK_NS, unit="ns"))
        await FallingEdge(self._dut.clk)
        return bool(self._dut.all_idle.value)


@cocotb.test()
async def serve(dut: Any) -> None:
    """Answer requests, which come through standard input, until the client closes the connection."""
    Clock(dut.clk, CLOCK_NS, unit="ns").start()
    server = _Server(dut)
    with Connection(0) as client:
        while True:
            try:
                do, arguments = client.recv()
            except EOFError:
                return
            client.send(await getattr(server, do)(**arguments))
