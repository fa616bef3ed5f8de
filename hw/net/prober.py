"""Asking an aggregator what it thinks, and keeping what it says."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.net.endpoint import PROBE
from p4sgd.hw.net.reception import ECHO
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import EchoValue

__all__ = ["Prober"]

_TIME_BITS = 32


class Prober(wiring.Component):
    """Sends a probe when the host asks for one, and when the endpoint gives up: about the slot that it gave up.

    The host's goes first. One that waits to be sent is not exchanged for another: the endpoint's is sent after it,
    one of the host does nothing.

    Members
    -------
    ask : In(1), question : In(PROBE)
        Pulse: the host's; nothing if a probe waits to be sent.
    given_up : In(1), given_up_slot : In(slot_bits)
        As the endpoint says.
    probe : Out(stream of PROBE), echo : In(flow of ECHO)
        To and from the endpoint.
    came : Out(1)
        There is an answer to the last probe, which has been sent.
    answer : Out(ECHO)
        It; else that to an earlier one.
    cycles : Out(32)
        Cycles from the probe's way out to its answer.
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(
            {
                "ask": In(1),
                "question": In(PROBE),
                "given_up": In(1),
                "given_up_slot": In(config.slot_bits),
                "probe": Out(stream.Signature(PROBE)),
                "echo": In(ValidSignature(ECHO)),
                "came": Out(1),
                "answer": Out(ECHO),
                "cycles": Out(_TIME_BITS),
            }
        )

    ask: Signal
    question: Any
    given_up: Signal
    given_up_slot: Signal
    probe: stream.Interface
    echo: Any
    came: Signal
    answer: Any
    cycles: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        had_given_up = Signal()
        owes = Signal()  # a probe about the slot that was given up
        waits = self.probe.valid
        cycles = Signal(_TIME_BITS)
        number = self.probe.payload.number
        right = self.echo.payload["values"][EchoValue.NUMBER][: len(number)] == number
        m.d.sync += [had_given_up.eq(self.given_up), cycles.eq(cycles + 1)]
        with m.If(waits & self.probe.ready):
            m.d.sync += [waits.eq(0), cycles.eq(0)]
        with m.If(self.echo.valid & right & ~waits & ~self.came):
            m.d.sync += [self.came.eq(1), self.answer.eq(self.echo.payload), self.cycles.eq(cycles)]
        with m.If(self.given_up & ~had_given_up):
            m.d.sync += owes.eq(1)
        with m.If(~waits):
            with m.If(self.ask):
                m.d.sync += [waits.eq(1), self.probe.payload.eq(self.question), self.came.eq(0)]
            with m.Elif(owes):
                m.d.sync += [
                    owes.eq(0),
                    waits.eq(1),
                    self.probe.payload.slot.eq(self.given_up_slot),
                    self.probe.payload.number.eq(0),
                    self.probe.payload.broadcast.eq(0),
                    self.came.eq(0),
                ]
        with m.If(~self.given_up):
            m.d.sync += owes.eq(0)
        return m
