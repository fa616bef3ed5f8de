"""The RTL aggregator as a subject, inside the simulator: `run` in a thread, by cocotb's `bridge`."""

from collections.abc import Sequence
from typing import Any

from cocotb.task import resume
from cocotb.triggers import ClockCycles
from support.aggregator import Host
from support.bench import start
from support.frames import KEEP, beat
from support.streams import StreamSink, StreamSource

from conformance.frames import BYTES, MAC
from conformance.runner import Abilities, State
from conformance.vectors import Geometry
from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job

_SETTLED = Aggregator.LATENCY + 4
"""Cycles from the last frame to the last answer, and a few more."""


class RtlSubject:
    """``hw/aggregator`` under Verilator: its frames are beats of 512 bits, its host writes registers.

    Bytes that ``keep`` leaves out are 0, so that a short frame is a packet but for its length.
    """

    def __init__(self, dut: Any, config: AggregatorConfig, stall: float = 0.0) -> None:
        dut.rx__valid.value = dut.tx__ready.value = 0
        self.abilities = Abilities(Geometry(config.slots, config.jobs, config.ports, parents=True))
        self._dut = dut
        self._host = Host(dut, config)
        self._rx = StreamSource(dut, "rx", stall)

    async def start(self) -> None:
        """Reset it, and give it its address."""
        await start(self._dut)
        self._tx = StreamSink(self._dut, "tx")  # not before: there may be an answer of the bench before
        await self._host.write_pair(registers.MAC, MAC)

    @resume
    async def begin(self, place: int, job: Job, first_round: int) -> None:
        await self._host.begin(place, job, first_round)

    @resume
    async def end(self, place: int) -> None:
        await self._host.write(registers.END, place=place)

    @resume
    async def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        for port, frame in frames:
            self._rx.send(_beats(frame, port))
        await self._rx.drained()
        await ClockCycles(self._dut.clk, _SETTLED)
        found = []
        for item in self._tx.items:
            assert item >> 512 & KEEP == KEEP, "an answer has 64 bytes"
            assert item >> 576 & 1, "in one beat"
            frame = (item & (1 << 512) - 1).to_bytes(BYTES, "little")
            found += [(port, frame) for port in range(self.abilities.geometry.ports) if item >> 577 + port & 1]
        self._tx.items.clear()
        return found

    @resume
    async def look(self, place: int, slot: int) -> State:
        return State(*await self._host.look(place, slot))

    @resume
    async def counters(self) -> dict[str, int]:
        return await self._host.counters()


def _beats(frame: bytes, port: int) -> list[int]:
    """A frame as payloads of ``rx``; one without a byte is a beat without one."""
    pieces = [frame[first : first + BYTES] for first in range(0, len(frame), BYTES)] or [b""]
    return [
        beat(piece, port, keep=(1 << len(piece)) - 1, last=int(number == len(pieces)))
        for number, piece in enumerate(pieces, 1)
    ]
