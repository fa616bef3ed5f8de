"""Probes of a worker: one is sent at a time, and the aggregator's answer is kept for the host."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.net.endpoint import PROBE
from p4sgd.hw.net.reception import ECHO
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import ROUND_BITS, EchoValue

__all__ = ["Prober"]

_TIME_BITS = 32


class Prober(Component):
    """A sender of probes: when the host asks for one, and when the endpoint gives up, about the slot that it gave up.

    The host's probe goes first. A probe that waits to be sent is not replaced: if the endpoint gives up meanwhile, its
    probe is sent afterwards; a request of the host is ignored.
    """

    def __init__(self, config: WorkerConfig) -> None:
        ports = {
            # The probe that the host asks for; ignored while another waits to be sent.
            "probe_slot_strobe": In(1),
            "probe_slot": In(16),
            "probe_number": In(8),
            "probe_broadcast": In(1),
            # From the endpoint.
            "given_up": In(1),
            "given_up_slot": In(config.slot_bits),
            # To and from the endpoint.
            "probe": Out(stream.Signature(PROBE)),
            "echo": In(ValidSignature(ECHO)),
            # The last answer; with `echo_came` the one to the last probe.
            "echo_came": Out(1),
            "echo_number": Out(8),
            "echo_verdict": Out(8),
            "echo_port": Out(8),
            "echo_version": Out(4),
            "echo_job_round": Out(ROUND_BITS),
            "echo_job_workers": Out(8),
            "echo_aggregated": Out(32),
            "echo_acknowledged": Out(32),
            "echo_slots": Out(32),
            "echo_source": Out(64),
            "echo_expected_low": Out(32),
            "echo_expected_high": Out(16),
            "echo_cycles": Out(_TIME_BITS),  # cycles from the moment the endpoint took the probe to its answer
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        had_given_up = Signal()
        owes = Signal()  # the probe about the slot that was given up is still to be sent
        waits = self.probe.valid
        cycles = Signal(_TIME_BITS)
        number = self.probe.payload.number
        answer: Any = Signal(ECHO)
        values = answer["values"]
        m.d.comb += [
            self.echo_number.eq(values[EchoValue.NUMBER]),
            self.echo_verdict.eq(values[EchoValue.VERDICT]),
            self.echo_port.eq(values[EchoValue.PORT]),
            self.echo_version.eq(answer.version),
            self.echo_job_round.eq(answer.round),
            self.echo_job_workers.eq(values[EchoValue.WORKERS]),
            self.echo_aggregated.eq(answer.aggregated),
            self.echo_acknowledged.eq(values[EchoValue.ACKNOWLEDGED]),
            self.echo_slots.eq(values[EchoValue.SLOTS]),
            self.echo_source.eq(answer.source),
            self.echo_expected_low.eq(values[EchoValue.MAC_LOW]),
            self.echo_expected_high.eq(values[EchoValue.MAC_HIGH]),
        ]
        right = self.echo.payload["values"][EchoValue.NUMBER][: len(number)] == number
        m.d.sync += [had_given_up.eq(self.given_up), cycles.eq(cycles + 1)]
        with m.If(waits & self.probe.ready):
            m.d.sync += [waits.eq(0), cycles.eq(0)]
        with m.If(self.echo.valid & right & ~waits & ~self.echo_came):
            m.d.sync += [self.echo_came.eq(1), answer.eq(self.echo.payload), self.echo_cycles.eq(cycles)]
        with m.If(self.given_up & ~had_given_up):
            m.d.sync += owes.eq(1)
        with m.If(~waits):
            with m.If(self.probe_slot_strobe):
                m.d.sync += [
                    waits.eq(1),
                    self.probe.payload.slot.eq(self.probe_slot),
                    self.probe.payload.number.eq(self.probe_number),
                    self.probe.payload.broadcast.eq(self.probe_broadcast),
                    self.echo_came.eq(0),
                ]
            with m.Elif(owes):
                m.d.sync += [
                    owes.eq(0),
                    waits.eq(1),
                    self.probe.payload.slot.eq(self.given_up_slot),
                    self.probe.payload.number.eq(0),
                    self.probe.payload.broadcast.eq(0),
                    self.echo_came.eq(0),
                ]
        with m.If(~self.given_up):
            m.d.sync += owes.eq(0)
        return m
