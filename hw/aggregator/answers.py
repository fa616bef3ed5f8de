"""The aggregator's answers: FULL, CLEAR and ECHO as frames, and the queue in which they wait."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.admission import MAC_BITS, OUTCOME, STATE, admitted
from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.bus.stream import RegisteredValidFIFO
from p4sgd.hw.net.packet import VALUES_LAYOUT, build, shard_mask
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import FRAME_BYTES, VERDICT, DropReason, EchoValue, PacketType

__all__ = ["Answers"]

_DEPTH = 64
"""Answers that may wait. A packet has at most one answer, so the queue fills only if ``tx`` is slower than ``rx``."""


class Answers(Component):
    """A builder and queue of answers. An answer that finds the queue full is lost, which the protocol recovers from."""

    LATENCY = 2

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        ports = {
            "mac": In(MAC_BITS),  # the aggregator's address
            # A packet, its outcome, the state of its slot before it, and the slot's sums after it.
            "admitted": In(admitted(config)),
            "outcome": In(OUTCOME),
            "state": In(STATE),
            "sums": In(VALUES_LAYOUT),
            # The answer, `LATENCY` cycles later. `ports` is the bitmap of the ports that it leaves through.
            "tx": Out(stream.Signature(data.StructLayout({"beat": FrameBeat, "ports": config.ports}))),
            "overrun": Out(1),  # pulse: an answer is lost
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        about, outcome = self.admitted, self.outcome
        packet = about.packet
        failed = {check: about.verdict[bit] for bit, check in enumerate(VERDICT)}
        has_slot = about.has_job & ~failed[DropReason.SLOT]
        has_shard = about.has_job & ~failed[DropReason.SHARD]
        to_all = outcome.to_all & ~about.probe

        echo: Any = Signal(VALUES_LAYOUT)
        values: Any = Signal(VALUES_LAYOUT)
        m.d.comb += [
            echo[EchoValue.NUMBER].eq(packet["values"][0]),
            echo[EchoValue.VERDICT].eq(about.verdict),
            echo[EchoValue.PORT].eq(about.port),
            echo[EchoValue.ACKNOWLEDGED].eq(Mux(has_slot, self.state.acknowledged, 0)),
            echo[EchoValue.WORKERS].eq(Mux(about.has_job, about.job.workers, 0)),
            echo[EchoValue.SLOTS].eq(config.slots),
            echo[EchoValue.MAC_HIGH].eq(Mux(has_shard, about.member.mac >> 32, 0)),
            echo[EchoValue.MAC_LOW].eq(Mux(has_shard, about.member.mac[:32], 0)),
        ]
        with m.If(about.probe):
            m.d.comb += values.eq(echo)
        with m.Elif(outcome.full):
            m.d.comb += values.eq(self.sums)
        frame = build(
            m,
            destination=Mux(to_all, about.job.group_mac, packet.source),
            source=self.mac,
            type=Mux(about.probe, PacketType.ECHO, Mux(outcome.full, PacketType.FULL, PacketType.CLEAR)),
            job=packet.job,
            slot=packet.slot,
            round=Mux(about.probe, Mux(has_slot, self.state.round, 0), packet.round),
            shard=Mux(to_all, 0, packet.shard),
            workers=packet.workers,
            bitmap=Mux(about.probe, Mux(has_slot, self.state.aggregated, 0), shard_mask(about.job.workers)),
            values=values,
        )
        layout = data.StructLayout({"frame": 8 * FRAME_BYTES, "ports": config.ports})
        answer: Any = Signal(layout)
        m.submodules.queue = queue = RegisteredValidFIFO(layout.size, _DEPTH)
        waiting: Any = data.View(layout, queue.o.payload)
        room = Signal(range(_DEPTH + 1), init=_DEPTH)
        has_room = Signal(init=1)  # shows `room` of a cycle ago, so it keeps one place in reserve
        asks = about.probe | outcome.full | outcome.clear
        enters = asks & has_room
        m.d.comb += [
            answer.frame.eq(frame),
            answer.ports.eq(Mux(to_all, about.job.ports, Const(1) << about.port)),
            queue.i.payload.eq(answer),
            queue.i.valid.eq(enters),
            queue.o.ready.eq(~self.tx.valid | self.tx.ready),
            self.overrun.eq(asks & ~has_room),
        ]
        m.d.sync += [
            room.eq(room - enters + (queue.o.valid & queue.o.ready)),
            has_room.eq(room > 1),
        ]
        with m.If(queue.o.ready):
            m.d.sync += [
                self.tx.valid.eq(queue.o.valid),
                self.tx.payload.beat.data.eq(waiting.frame),
                self.tx.payload.beat.keep.eq((1 << FRAME_BYTES) - 1),
                self.tx.payload.beat.last.eq(1),
                self.tx.payload.ports.eq(waiting.ports),
            ]
        return m
