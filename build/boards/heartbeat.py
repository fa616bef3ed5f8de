"""The smallest design that shows that a card, its clock and its serial port work."""

from typing import Any

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import io, wiring
from amaranth.lib.wiring import Out

from p4sgd.build.boards.serial import BAUD, Report

__all__ = ["Heartbeat", "HeartbeatDemonstration"]


class Heartbeat(wiring.Component):
    """Tells every second by a serial line how many seconds there have been since reset.

    Parameters
    ----------
    clock_hz
        Frequency of the domain ``sync``.
    baud
        Bits a second on the line.

    Members
    -------
    line : Out(1)
        8 bits, no parity, one stop bit: ``p4sgd heartbeat 0000002a``, carriage return, new line.
    """

    line: Signal

    def __init__(self, clock_hz: int, baud: int = BAUD) -> None:
        self._clock_hz = clock_hz
        self._baud = baud
        super().__init__({"line": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.report = report = Report(
            "p4sgd heartbeat {seconds}",
            {"seconds": 32},
            period_cycles=self._clock_hz,
            bit_cycles=round(self._clock_hz / self._baud),
        )
        cycle = Signal(range(self._clock_hz))
        seconds = Signal(32)
        with m.If(cycle == self._clock_hz - 1):
            m.d.sync += [cycle.eq(0), seconds.eq(seconds + 1)]
        with m.Else():
            m.d.sync += cycle.eq(cycle + 1)
        m.d.comb += [report.numbers.seconds.eq(seconds), self.line.eq(report.line)]
        return m


class HeartbeatDemonstration(Elaboratable):
    """`Heartbeat` at the serial port of a board with a default clock and a resource ``uart``."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.heartbeat = heartbeat = Heartbeat(int(platform.default_clk_frequency))
        m.submodules.tx = tx = io.Buffer(io.Direction.Output, platform.request("uart", dir="-").tx)
        m.d.comb += tx.o.eq(heartbeat.line)
        return m
