"""The worker's side of the AllReduce protocol."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.bus.stream import ValidSignature, connect_stream
from p4sgd.hw.net.packet import VALUES_LAYOUT, build
from p4sgd.hw.net.reception import ECHO, WORKER, Reception, in_last_lap
from p4sgd.hw.net.timers import ResendTimer, StallTimer, lookahead
from p4sgd.hw.primitives import Component, hold, late_reset
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import BROADCAST, FRAME_BYTES, ROUND_BITS, DropReason, EchoValue, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["PROBE", "Endpoint", "Prober"]

PROBE = data.StructLayout({"slot": 16, "number": 8, "broadcast": 1})
"""A probe to send: the slot to ask about, the number that its echo repeats, and whether it is broadcast."""

_Rounds = tuple[Signal, Signal, Signal]
"""Slot and round of the next partial, and the round before it, which slots not yet used again are in."""


@dataclass
class _Slots:
    """State of the slots, one bit for each slot. A slot without any of these bits may carry the next AllReduce."""

    waits_for_full: Signal  # PARTIAL is sent until FULL comes
    waits_for_clear: Signal  # ACK is sent until CLEAR comes
    has_sums: Signal  # sums have come and wait for their turn


class Endpoint(Component):
    """The worker's state machine of the protocol, which turns a stream of partials into a stream of sums::

        partials ─┬────────────────────────────────────────▶ 1 ┐
                  └▶ values of slots ──▶ ResendTimer ──────▶ 4 │
        probe ────────────────────────────────────────────▶ 3 ├─▶ tx
                                         slots to ACK ─────▶ 2 ┘
                                              ▲
        rx ──▶ Reception ─────▶ FULL, CLEAR of the right slot, round and phase
                                              │ in turn ────────────────▶ sums
                                              └▶ sums of slots ─ later ─┘

    AllReduce n, counted from the join, uses slot ``n mod slots`` in round ``join_round + n div slots``, modulo 2^16
    (hw/net/README.md). The numbers in the picture are priorities: new partials, acknowledgements, probes, resends.

    `TX_LATENCY` cycles from ``partials`` to ``tx``; `RX_LATENCY` from ``rx`` to ``sums``, if it is their turn. The
    receiver never waits. A packet is sent again at most 5 · slots cycles after it is due, if nothing else is to be
    sent.
    """

    TX_LATENCY = 1
    RX_LATENCY = 3

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        ports = {
            # Partial activations, int32 with 16 fraction bits; taken when the next slot is free.
            "partials": In(stream.Signature(VALUES_LAYOUT)),
            "sums": Out(stream.Signature(VALUES_LAYOUT)),  # their sums over all workers, in the same format and order
            # Frames to and from the network, one beat each.
            "tx": Out(stream.Signature(FrameBeat)),
            "rx": In(stream.Signature(FrameBeat)),
            # The worker's identity in its job, and the aggregator's address; stable after the join.
            "job": In(8),
            "shard": In(5),
            "workers": In(6),
            "local_mac": In(48),
            "peer_mac": In(48),
            # `first_wait`, `doublings` and `limit` of `ResendTimer`; stable after the join.
            "resend_cycles": In(32),
            "doublings": In(4),
            "resend_limit": In(8),
            # Probes to send, and answers of aggregators.
            "probe": In(stream.Signature(PROBE)),
            "echo": Out(ValidSignature(ECHO)),
            # This slot has waited too long, for FULL with `given_up_partial`, else for CLEAR; or `tx` did not take its
            # PARTIAL while no other was in use. All is forgotten, as by `leave`.
            "given_up_slot": Out(config.slot_bits),
            "given_up_round": Out(ROUND_BITS),
            "given_up_partial": Out(1),
            "given_up": Out(1),
            # Pulse: forget all slots, withdraw sums; the next AllReduce uses slot 0 in this round. `partials` is idle.
            "join": In(1),
            "join_round": In(ROUND_BITS),
            "leave": In(1),  # level: forget all slots, withdraw sums, take no partial until the next join
            "joined": Out(1),  # neither left nor given up since the last join: partials are taken
            "busy": Out(1),  # a slot waits for the network or holds sums; up to 2 cycles late
            # Pulses: a packet was sent; it had been sent before; a frame has come; it was dropped, and why.
            "sent": Out(1),
            "resent": Out(1),
            "received": Out(1),
            "dropped": Out(1),
            "drop": Out(DropReason),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        slots = _Slots(
            waits_for_full=Signal(self._config.slots),
            waits_for_clear=Signal(self._config.slots),
            has_sums=Signal(self._config.slots),
        )
        submitted = self.partials.valid & self.partials.ready
        # Successors and predecessors are registers of their own, so that no adder stands before a lookup or comparison.
        next_slot = Signal(self._config.slot_bits)  # of the next partial
        slot_after = Signal(self._config.slot_bits, init=1)  # next_slot + 1
        next_round = Signal(ROUND_BITS)
        last_round = Signal(ROUND_BITS)  # next_round - 1
        rounds = (next_slot, next_round, last_round)

        # `vacant` shows a cycle late that a slot has become free, but at once (below) that one is taken: no slot is
        # ever taken twice.
        vacant = Signal(self._config.slots, init=-1)
        m.d.sync += [
            vacant.eq(~(slots.waits_for_full | slots.waits_for_clear | slots.has_sums)),
            self.busy.eq(~vacant.all()),
        ]
        next_vacant = lookahead(m, "next_vacant", submitted, vacant, next_slot, slot_after, init=1)
        with m.If(submitted):
            m.d.sync += [
                next_slot.eq(slot_after),
                slot_after.eq(slot_after + 1),
                vacant.bit_select(next_slot, 1).eq(0),
                slots.waits_for_full.bit_select(next_slot, 1).eq(1),
            ]
            with m.If(next_slot == self._config.slots - 1):
                m.d.sync += [next_round.eq(next_round + 1), last_round.eq(next_round)]

        forget = Signal()
        gives_up = Signal()
        m.d.comb += forget.eq(self.join | self.leave | gives_up)
        reception = self._receive(m, slots, rounds, submitted & (next_slot == self._config.slots - 1), forget)
        timer = self._transmit(m, slots, next_vacant, rounds, reception, forget)

        # A partial that `tx` does not take has no slot yet that the resend timer could see. It may still be taken in
        # the cycles in which this timer gives up; then it is forgotten with the slots.
        m.submodules.stall = stall = StallTimer()
        m.d.comb += [
            stall.stalled.eq(self.partials.valid & next_vacant & self.joined & ~submitted & ~self.busy),
            stall.first_wait.eq(self.resend_cycles),
            stall.doublings.eq(self.doublings),
            stall.limit.eq(self.resend_limit),
        ]

        # The answer may still come in this cycle. It is too late: all slots are forgotten in the next.
        nothing_leaves = Signal()
        give_up = timer.give_up | nothing_leaves
        m.d.sync += [nothing_leaves.eq(stall.give_up & ~forget), gives_up.eq(give_up & ~forget)]
        with m.If(give_up & ~forget & ~self.given_up):
            m.d.sync += [
                self.joined.eq(0),
                self.given_up.eq(1),
                self.given_up_slot.eq(Mux(nothing_leaves, next_slot, timer.scan)),
                self.given_up_round.eq(Mux(nothing_leaves, next_round, self._round_of(timer.scan, rounds))),
                self.given_up_partial.eq(nothing_leaves | timer.is_partial),
            ]
        with m.If(forget):
            m.d.sync += [
                *(waiting.eq(0) for waiting in (slots.waits_for_full, slots.waits_for_clear, slots.has_sums)),
                vacant.eq(-1),
            ]
        with m.If(self.leave):
            m.d.sync += self.joined.eq(0)
        with m.If(self.join):
            m.d.sync += [
                self.joined.eq(1),
                self.given_up.eq(0),
                next_slot.eq(0),
                slot_after.eq(1),
                next_round.eq(self.join_round),
                last_round.eq(self.join_round - 1),
            ]
        return m

    @staticmethod
    def _round_of(slot: Value, rounds: _Rounds) -> Value:
        """The round of a slot in use."""
        next_slot, next_round, last_round = rounds
        return Mux(in_last_lap(slot, next_slot), last_round, next_round)

    def _receive(self, m: Module, slots: _Slots, rounds: _Rounds, new_lap: Value, forget: Value) -> Reception:
        """Build the receiving side: state changes and the way of the sums; returns the filter in front of it."""
        m.submodules.reception = reception = Reception(self._config)
        connect_stream(m, wiring.flipped(self.rx), reception.rx)
        turn = Signal(self._config.slot_bits)
        turn_after = Signal(self._config.slot_bits, init=1)  # turn + 1
        delivered = Signal()
        in_turn = Signal(reset_less=True)
        full, slot, values = reception.full, reception.slot, reception.values
        m.d.comb += [
            *(reception.worker[name].eq(getattr(self, name)) for name in WORKER.members),
            reception.next_slot.eq(rounds[0]),
            reception.next_round.eq(rounds[1]),
            reception.last_round.eq(rounds[2]),
            reception.new_lap.eq(new_lap),
            reception.waits_for_full.eq(slots.waits_for_full),
            reception.waits_for_clear.eq(slots.waits_for_clear),
            reception.forget.eq(forget),
            *(getattr(self, name).eq(getattr(reception, name)) for name in ("received", "dropped", "drop")),
        ]
        connect_stream(m, reception.echo, wiring.flipped(self.echo))
        m.d.sync += in_turn.eq(
            Mux(delivered, reception.coming == turn_after, reception.coming == turn),
        )
        with m.If(full):
            m.d.sync += [
                slots.waits_for_full.bit_select(slot, 1).eq(0),
                slots.waits_for_clear.bit_select(slot, 1).eq(1),
            ]
        with m.If(reception.clear):
            m.d.sync += slots.waits_for_clear.bit_select(slot, 1).eq(0)

        # Sums go straight out if it is their turn, else through the memory, which costs 2 cycles more.
        memory: Memory = Memory(shape=VALUES_LAYOUT, depth=self._config.slots, init=[])
        m.submodules.sums_memory = memory
        write, read = memory.write_port(), memory.read_port()
        free = ~self.sums.valid | self.sums.ready
        fetched = Signal()  # the memory shows the sums of slot `turn`
        straight = Signal()
        sums = hold(m, self.sums.payload)
        m.d.comb += [
            straight.eq(full & in_turn & free),
            write.addr.eq(slot),
            write.data.eq(values),
            write.en.eq(full),
            read.addr.eq(turn),
            delivered.eq(straight | (fetched & free)),
        ]
        with m.If(self.sums.ready):
            m.d.sync += self.sums.valid.eq(0)
        with m.If(straight):
            m.d.sync += [self.sums.valid.eq(1), sums.eq(values)]
        with m.Elif(full):
            m.d.sync += slots.has_sums.bit_select(slot, 1).eq(1)
        with m.If(fetched & free):
            m.d.sync += [self.sums.valid.eq(1), sums.eq(read.data), fetched.eq(0)]
            m.d.sync += slots.has_sums.bit_select(turn, 1).eq(0)
        with m.Elif(~fetched):
            m.d.sync += fetched.eq(slots.has_sums.bit_select(turn, 1))
        with m.If(delivered):
            m.d.sync += [turn.eq(turn_after), turn_after.eq(turn_after + 1)]
        with m.If(forget):
            m.d.sync += [turn.eq(0), turn_after.eq(1), fetched.eq(0), self.sums.valid.eq(0)]
        return reception

    def _transmit(
        self, m: Module, slots: _Slots, next_vacant: Value, rounds: _Rounds, reception: Reception, forget: Value
    ) -> ResendTimer:
        """Build the transmitter, one packet register with four sources; returns the resend timer."""
        next_slot, next_round, _ = rounds
        memory: Memory = Memory(shape=VALUES_LAYOUT, depth=self._config.slots, init=[])
        m.submodules.values_memory = memory
        write, read = memory.write_port(), memory.read_port()
        submitted = self.partials.valid & self.partials.ready
        m.d.comb += [
            write.addr.eq(next_slot),
            write.data.eq(self.partials.payload),
            write.en.eq(submitted),
        ]

        # Slots to acknowledge. A slot that finds the queue full is left to the resend timer.
        queue = SyncFIFOBuffered(width=self._config.slot_bits, depth=max(4, self._config.slots))
        m.submodules.queue = ResetInserter(forget)(queue)
        send_ack = Signal()
        ack_slot = Signal(self._config.slot_bits, reset_less=True)
        ack_round = Signal(ROUND_BITS, reset_less=True)
        # If the resend timer has sent a slot's ACK, the slot may have been used again; an ACK of the new round would be
        # false. So it is looked up once more, a cycle before: CLEAR, a new PARTIAL and its FULL take longer than that.
        next_ack = Signal()
        waiting = slots.waits_for_clear
        ack_is_due = lookahead(m, "ack", next_ack, waiting, ack_slot, queue.r_data, only=queue.r_rdy, forget=forget)
        m.d.comb += [
            queue.w_en.eq(reception.full),
            queue.w_data.eq(reception.slot),
            queue.r_en.eq(next_ack),
            next_ack.eq(~ack_is_due | send_ack),
        ]
        with m.If(next_ack):
            m.d.sync += [ack_slot.eq(queue.r_data), ack_round.eq(self._round_of(queue.r_data, rounds))]

        m.submodules.timer = timer = ResendTimer(self._config)
        scan_round = Signal(ROUND_BITS, reset_less=True)
        resends = Signal()
        m.d.sync += scan_round.eq(self._round_of(timer.scan, rounds))
        m.d.comb += [
            read.addr.eq(timer.scan),
            timer.waits_for_full.eq(slots.waits_for_full),
            timer.waits_for_clear.eq(slots.waits_for_clear),
            timer.forget.eq(forget),
            timer.first_wait.eq(self.resend_cycles),
            timer.doublings.eq(self.doublings),
            timer.limit.eq(self.resend_limit),
        ]

        free = ~self.tx.valid | self.tx.ready
        has_partial = Signal()
        probes = Signal()
        m.d.comb += [
            self.partials.ready.eq(free & next_vacant & self.joined),
            has_partial.eq(self.partials.valid & next_vacant & self.joined),
            send_ack.eq(free & ~has_partial & ack_is_due),
            probes.eq(free & ~has_partial & ~ack_is_due & self.probe.valid),
            resends.eq(free & ~has_partial & ~ack_is_due & ~self.probe.valid & timer.offered),
            self.probe.ready.eq(probes),
        ]

        sent_slot = Signal(self._config.slot_bits)
        bitmap = Signal(MAX_WORKERS, reset_less=True)
        m.d.sync += bitmap.eq(Const(1) << self.shard)
        is_partial = Signal()
        is_probe = ~has_partial & ~ack_is_due & self.probe.valid
        values: Any = Signal(VALUES_LAYOUT)
        m.d.comb += [
            sent_slot.eq(Mux(has_partial, next_slot, Mux(ack_is_due, ack_slot, timer.scan))),
            is_partial.eq(has_partial | (~ack_is_due & timer.is_partial)),
            timer.sent.eq(free & (has_partial | ack_is_due | resends)),
            timer.sent_slot.eq(sent_slot),
            timer.sent_partial.eq(is_partial),
            timer.is_resend.eq(resends),
            self.sent.eq(timer.sent | probes),
            self.resent.eq(resends),
        ]
        with m.If(is_probe):
            m.d.comb += values[EchoValue.NUMBER].eq(self.probe.payload.number)
        with m.Elif(has_partial):
            m.d.comb += values.eq(self.partials.payload)
        with m.Elif(is_partial):
            m.d.comb += values.eq(read.data)
        frame = build(
            m,
            destination=Mux(is_probe & self.probe.payload.broadcast, BROADCAST, self.peer_mac),
            source=self.local_mac,
            type=Mux(is_probe, PacketType.PROBE, Mux(is_partial, PacketType.PARTIAL, PacketType.ACK)),
            job=self.job,
            slot=Mux(is_probe, self.probe.payload.slot, sent_slot),
            round=Mux(is_probe, 0, Mux(has_partial, next_round, Mux(ack_is_due, ack_round, scan_round))),
            shard=self.shard,
            workers=self.workers,
            bitmap=bitmap,
            values=values,
        )
        sending = Signal(8 * FRAME_BYTES, reset_less=True)
        with m.If(free):
            m.d.sync += [self.tx.valid.eq(self.sent), sending.eq(frame)]
        m.d.comb += [
            self.tx.payload.data.eq(sending),
            self.tx.payload.keep.eq((1 << FRAME_BYTES) - 1),
            self.tx.payload.last.eq(1),
        ]
        return timer


_TIME_BITS = 32


class Prober(Component):
    """A sender of probes: when the host asks for one, and about a slot that the endpoint gives up.

    A probe that waits is not replaced: that of the endpoint is sent afterwards, a request of the host is ignored.
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
        cycles = Signal(_TIME_BITS, reset_less=True)
        number = self.probe.payload.number
        late = late_reset(m)
        answer: Any = Signal(ECHO, reset_less=True)
        probe, taken = hold(m, self.probe.payload), hold(m, self.echo_cycles)
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
            m.d.sync += [self.echo_came.eq(1), answer.eq(self.echo.payload), taken.eq(cycles)]
        with m.If(late):
            m.d.sync += [answer.eq(0), taken.eq(0)]
        with m.If(self.given_up & ~had_given_up):
            m.d.sync += owes.eq(1)
        with m.If(~waits):
            with m.If(self.probe_slot_strobe):
                m.d.sync += [
                    waits.eq(1),
                    probe.slot.eq(self.probe_slot),
                    probe.number.eq(self.probe_number),
                    probe.broadcast.eq(self.probe_broadcast),
                    self.echo_came.eq(0),
                ]
            with m.Elif(owes):
                m.d.sync += [
                    owes.eq(0),
                    waits.eq(1),
                    probe.slot.eq(self.given_up_slot),
                    probe.number.eq(0),
                    probe.broadcast.eq(0),
                    self.echo_came.eq(0),
                ]
        with m.If(~self.given_up):
            m.d.sync += owes.eq(0)
        return m
