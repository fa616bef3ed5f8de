"""Probes of a worker: one is sent at a time, and the aggregator's answer is kept for the host."""

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
    """A sender of probes: when the host asks for one, and when the endpoint gives up, about the slot that it gave up.

    The host's probe goes first. A probe that waits to be sent is not replaced: if the endpoint gives up meanwhile, its
    probe is sent afterwards; a request of the host is ignored.

    Members
    -------
    ask, question
        Pulse, and the probe that the host asks for; ignored while another waits to be sent.
    given_up, given_up_slot
        From the endpoint.
    probe, echo
        To and from the endpoint.
    came
        The last probe has been sent and answered.
    answer
        The last answer; with ``came`` the one to the last probe.
    cycles
        Cycles from the moment the endpoint took the probe to its answer.
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
        owes = Signal()  # the probe about the slot that was given up is still to be sent
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
