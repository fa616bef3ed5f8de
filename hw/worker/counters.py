"""Where the cycles of a run go."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.registers import COUNTERS
from p4sgd.hw.worker.sequencer import Phase

__all__ = ["COUNTER_BITS", "Counters"]

COUNTER_BITS = 48
"""Width of a counter: 13 days at 250 MHz."""


class Counters(wiring.Component):
    """Counts cycles by cause and packets, from the start of a run to its end.

    Every cycle of a run has exactly one cause, so the causes sum to ``CYCLES``. Training cycles are judged at engine
    0's forward pass: it took a line (busy); else its last line is gone (drain); else no line was there (memory); else
    it had to wait, for sums while no backward pass was under way (network), or for the backward pass (chaining).

    Members
    -------
    clear : In(1)
        Pulse at the start of a run.
    phase : In(Phase)
    took_line, lines_left, line_waiting, awaiting_sums : In(1)
        State of engine 0.
    sent, resent, received, dropped : In(1)
        Pulses of the endpoint.
    <counter> : Out(48)
        One output for each of `COUNTERS`, in lower case.
    """

    def __init__(self) -> None:
        inputs = (
            "clear",
            "took_line",
            "lines_left",
            "line_waiting",
            "awaiting_sums",
            "sent",
            "resent",
            "received",
            "dropped",
        )
        super().__init__(
            {name: In(1) for name in inputs}
            | {"phase": In(Phase)}
            | {name.lower(): Out(COUNTER_BITS) for name, _ in COUNTERS}
        )

    clear: Signal
    phase: Signal
    took_line: Signal
    lines_left: Signal
    line_waiting: Signal
    awaiting_sums: Signal
    sent: Signal
    resent: Signal
    received: Signal
    dropped: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        training = self.phase == Phase.TRAIN
        stalled = training & ~self.took_line
        blocked = stalled & self.lines_left & self.line_waiting
        events = {
            "cycles": self.phase != Phase.IDLE,
            "cycles_model": self.phase == Phase.MODEL,
            "cycles_busy": training & self.took_line,
            "cycles_memory": stalled & self.lines_left & ~self.line_waiting,
            "cycles_network": blocked & self.awaiting_sums,
            "cycles_chaining": blocked & ~self.awaiting_sums,
            "cycles_drain": (stalled & ~self.lines_left) | (self.phase == Phase.FINISH),
            "packets_sent": self.sent,
            "packets_resent": self.resent,
            "packets_received": self.received,
            "packets_dropped": self.dropped,
        }
        for name, event in events.items():
            count = getattr(self, name)
            # The event is registered first: the increment is then a counter and nothing else.
            happened = Signal(name=f"{name}_event")
            m.d.sync += happened.eq(event)
            with m.If(self.clear):
                m.d.sync += [count.eq(0), happened.eq(0)]
            with m.Elif(happened):
                m.d.sync += count.eq(count + 1)
        return m
