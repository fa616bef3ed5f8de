"""Cycle and packet counters of a run."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.register_file import COUNTER_BITS, EventCounters
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import DropReason
from p4sgd.hw.spec.registers import counters
from p4sgd.hw.worker.sequencer import Phase

__all__ = ["Counters"]


class Counters(Component):
    """Counters of a run: its cycles by cause, its packets and dropped frames.

    Every cycle of a run has exactly one cause, so the causes add up to ``CYCLES``. Training cycles are judged by the
    forward pass of engine 0. It takes a line (busy); or its last line is gone (drain); or there is no line (memory); or
    the line waits for sums that have not come (network) or for the backward pass (chaining). The cycles before the
    first line is requested belong to the preparation of the run (model).

    Between runs the outputs follow the counters, at most `END_CYCLES` behind. During a run they change only at a
    snapshot, so all are of one moment, however long the host takes to read them.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._names = [name.lower() for name in counters(config)]
        ports = {
            "clear": In(1),  # pulse at the start of a run
            "snapshot_take_strobe": In(1),  # update the outputs
            "phase": In(Phase),
            # Bit e: the flag of engine e, as in `engine_state`.
            "took_line": In(config.engines),
            "lines_left": In(config.engines),
            "line_waiting": In(config.engines),
            # As in `engine_state`, of engine 0.
            "awaiting_sums": In(1),
            "in_flight_now": In(16),
            "in_flight_most": Out(16),  # largest of the run
            # Pulses of the endpoint, and the reason of the last.
            "sent": In(1),
            "resent": In(1),
            "received": In(1),
            "dropped": In(1),
            "drop": In(DropReason),
            # One for each of `p4sgd.hw.spec.registers.counters`.
            **dict.fromkeys(self._names, Out(COUNTER_BITS)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        running = self.phase != Phase.IDLE
        begun = Signal()  # the engines have requested lines
        training = Signal()
        m.d.comb += training.eq((self.phase == Phase.TRAIN) & (begun | self.lines_left[0]))
        with m.If(self.clear):
            m.d.sync += begun.eq(0)
        with m.Elif(training):
            m.d.sync += begun.eq(1)
        took_line, lines_left, line_waiting = self.took_line[0], self.lines_left[0], self.line_waiting[0]
        stalled = training & ~took_line
        blocked = stalled & lines_left & line_waiting
        events: dict[str, Value] = {
            "cycles": running,
            "cycles_model": (self.phase == Phase.MODEL) | ((self.phase == Phase.TRAIN) & ~training),
            "cycles_busy": training & took_line,
            "cycles_memory": stalled & lines_left & ~line_waiting,
            "cycles_network": blocked & self.awaiting_sums,
            "cycles_chaining": blocked & ~self.awaiting_sums,
            "cycles_drain": (stalled & ~lines_left) | (self.phase == Phase.FINISH),
            "packets_sent": running & self.sent,
            "packets_resent": running & self.resent,
            "packets_received": running & self.received,
            "packets_dropped": running & self.dropped,
        }
        for drop in DropReason:
            events[f"dropped_{drop.name.lower()}"] = running & self.dropped & (self.drop == drop)
        for index in range(len(self.took_line)):
            events[f"engine{index}_lines"] = training & self.took_line[index]
            events[f"engine{index}_starved"] = training & self.lines_left[index] & ~self.line_waiting[index]
        show = Signal()
        m.d.sync += show.eq(self.snapshot_take_strobe | ~running)
        m.submodules.counts = counts = EventCounters(len(self._names))
        m.d.comb += [
            counts.events.eq(Cat(events[name] for name in self._names)),
            counts.clear.eq(self.clear),
            counts.show.eq(show),
            *(getattr(self, name).eq(shown) for name, shown in zip(self._names, counts.shown, strict=True)),
        ]
        with m.If(self.clear):
            m.d.sync += self.in_flight_most.eq(0)
        with m.Elif(self.in_flight_now > self.in_flight_most):
            m.d.sync += self.in_flight_most.eq(self.in_flight_now)
        return m
