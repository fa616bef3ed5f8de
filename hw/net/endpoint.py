"""The worker's side of the AllReduce protocol."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.net.packet import VALUES_LAYOUT, build, shard_mask
from p4sgd.hw.net.receive import FrameCheck
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import FRAME_BYTES, ROUND_BITS, PacketType

__all__ = ["Endpoint", "SlotPhase"]

_GROUP_BIT = 40
"""Bit of a MAC address, as a number, that marks a group (IEEE 802)."""

_TIME_BITS = 32
_FIRST_TIME = (1 << _TIME_BITS) - 2000
"""Time after reset: shortly before it wraps, so that every simulation passes what boards meet every 17 s."""


_Rounds = tuple[Signal, Signal, Signal]
"""Slot and round of the next partial, and the round before: the lap that is being left."""


class SlotPhase(enum.Enum, shape=2):
    """What a slot is waiting for."""

    IDLE = 0
    """Nothing; it may carry the next AllReduce."""
    PARTIAL = 1
    """The sums: the partial is sent until FULL comes."""
    ACK = 2
    """The end of the round: ACK is sent until CLEAR comes."""


class Endpoint(wiring.Component):
    """Sends partials, hands on sums in the order of the partials, and resends what is not answered::

        partials ─┬────────────────────────────────────────▶ 1 ┐
                  └▶ values of slots ──▶ resend scan ──────▶ 3 ├─▶ tx
                                         slots to ACK ─────▶ 2 ┘
                                              ▲
        rx ──▶ FrameCheck ──▶ ours? ──▶ FULL, CLEAR of the right slot, round and phase
                                              │ in turn ────────────────▶ sums
                                              └▶ sums of slots ─ later ─┘

    AllReduce n, counted from the join, uses slot ``n mod slots`` in round ``join_round + n div slots``. The protocol is
    that of hw/net/README.md. Fresh partials go before acknowledgements, these before resends.

    Latency: `TX_LATENCY` cycles from ``partials`` to ``tx``, `RX_LATENCY` cycles from ``rx`` to ``sums`` in turn. The
    receiver never waits, so it cannot be blocked by a blocked transmitter. The resend scan spends 4 cycles on a slot in
    use and 1 on an idle one, so a packet is sent again at most 4 · slots cycles after it is due, if nothing more urgent
    is to be sent.

    Members
    -------
    partials : In(stream of ArrayLayout(int32, 8))
        Taken when the next slot is free.
    sums : Out(stream of ArrayLayout(int32, 8))
    tx : Out(stream of FrameBeat), rx : In(stream of FrameBeat)
    job : In(8), shard : In(5), workers : In(6), local_mac, peer_mac : In(48)
        Who the worker is, and the aggregator's address; stable after the join.
    resend_cycles : In(32)
        Cycles without an answer after which a packet is sent again.
    join : In(1), join_round : In(16)
        Pulse: forget all slots; the next AllReduce is slot 0 of this round. With ``partials`` at rest; sums that have
        not been taken are withdrawn.
    busy : Out(1)
        A slot waits for the network or holds sums.
    sent, resent, received, dropped : Out(1)
        Pulses: a packet was sent; it had been sent before; a frame came; it was not acted on.
    """

    TX_LATENCY = 1
    RX_LATENCY = 3

    def __init__(self, config: WorkerConfig) -> None:
        self._slots = config.slots
        self._slot_bits = config.slot_bits
        pulses = ("busy", "sent", "resent", "received", "dropped")
        super().__init__(
            {
                "partials": In(stream.Signature(VALUES_LAYOUT)),
                "sums": Out(stream.Signature(VALUES_LAYOUT)),
                "tx": Out(stream.Signature(FrameBeat)),
                "rx": In(stream.Signature(FrameBeat)),
                "job": In(8),
                "shard": In(5),
                "workers": In(6),
                "local_mac": In(48),
                "peer_mac": In(48),
                "resend_cycles": In(32),
                "join": In(1),
                "join_round": In(ROUND_BITS),
            }
            | {name: Out(1) for name in pulses}
        )

    partials: stream.Interface
    sums: stream.Interface
    tx: stream.Interface
    rx: stream.Interface
    job: Signal
    shard: Signal
    workers: Signal
    local_mac: Signal
    peer_mac: Signal
    resend_cycles: Signal
    join: Signal
    join_round: Signal
    busy: Signal
    sent: Signal
    resent: Signal
    received: Signal
    dropped: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        phases: list[Any] = [Signal(SlotPhase, name=f"phase{slot}") for slot in range(self._slots)]
        has_sums = Signal(self._slots)  # sums have come and are not handed on
        next_slot = Signal(self._slot_bits)  # of the next partial
        next_round = Signal(ROUND_BITS)
        last_round = Signal(ROUND_BITS)  # next_round - 1
        rounds = (next_slot, next_round, last_round)
        m.d.comb += self.busy.eq(Cat(phase.as_value() for phase in phases).any() | has_sums.any())

        submitted = self.partials.valid & self.partials.ready
        with m.If(submitted):
            m.d.sync += [next_slot.eq(next_slot + 1), Array(phases)[next_slot].eq(SlotPhase.PARTIAL)]
            with m.If(next_slot == self._slots - 1):
                m.d.sync += [next_round.eq(next_round + 1), last_round.eq(next_round)]

        acknowledge = self._receive(m, phases, has_sums, rounds)
        self._transmit(m, phases, has_sums, rounds, acknowledge)

        with m.If(self.join):
            m.d.sync += [phase.eq(SlotPhase.IDLE) for phase in phases]
            m.d.sync += [has_sums.eq(0), next_slot.eq(0)]
            m.d.sync += [next_round.eq(self.join_round), last_round.eq(self.join_round - 1)]
        return m

    @staticmethod
    def _round_of(slot: Value, rounds: _Rounds) -> Value:
        """Round of the AllReduce that a slot in use carries: slots from ``next_slot`` on are still in the last lap."""
        next_slot, next_round, last_round = rounds
        return Mux(slot >= next_slot, last_round, next_round)

    def _receive(
        self,
        m: Module,
        phases: list[Any],
        has_sums: Signal,
        rounds: _Rounds,
    ) -> tuple[Signal, Signal]:
        """Build the receiver; returns the pulse and the slot of a FULL that is to be acknowledged."""
        m.submodules.check = check = FrameCheck()
        connect_stream(m, wiring.flipped(self.rx), check.frames)

        # Second stage: what concerns the job but no slot.
        packet = check.packet
        arrived = Signal()
        ours = Signal(reset_less=True)
        is_full = Signal(reset_less=True)
        is_clear = Signal(reset_less=True)
        slot = Signal(self._slot_bits, reset_less=True)
        round = Signal(ROUND_BITS, reset_less=True)
        values = Signal(VALUES_LAYOUT, reset_less=True)
        to_all = packet.destination[_GROUP_BIT] & (packet.shard == 0)
        to_me = (packet.destination == self.local_mac) & (packet.shard == self.shard)
        m.d.sync += [
            arrived.eq(check.received),
            is_full.eq(packet.type == PacketType.FULL),
            is_clear.eq(packet.type == PacketType.CLEAR),
            slot.eq(packet.slot),
            round.eq(packet.round),
            values.eq(packet["values"]),
            ours.eq(
                check.good
                & (to_all | to_me)
                & (packet.source == self.peer_mac)
                & (packet.job == self.job)
                & (packet.workers == self.workers)
                & (packet.bitmap == shard_mask(self.workers))
                & (packet.slot < self._slots)
            ),
        ]

        # Third stage: what concerns the slot.
        phase = Array(phases)[slot]
        current = Signal()
        full = Signal()
        clear = Signal()
        m.d.comb += [
            current.eq(arrived & ours & (round == self._round_of(slot, rounds))),
            full.eq(current & is_full & (phase == SlotPhase.PARTIAL)),
            clear.eq(current & is_clear & (phase == SlotPhase.ACK)),
            self.received.eq(arrived),
            self.dropped.eq(arrived & ~full & ~clear),
        ]
        with m.If(full):
            m.d.sync += phase.eq(SlotPhase.ACK)
        with m.If(clear):
            m.d.sync += phase.eq(SlotPhase.IDLE)

        # Sums go straight out when it is their turn, else by way of the memory.
        memory: Memory = Memory(shape=VALUES_LAYOUT, depth=self._slots, init=[])
        m.submodules.sums_memory = memory
        write, read = memory.write_port(), memory.read_port()
        turn = Signal(self._slot_bits)
        free = ~self.sums.valid | self.sums.ready
        fetched = Signal()  # the memory shows the sums of slot `turn`
        straight = Signal()
        delivered = Signal()
        m.d.comb += [
            straight.eq(full & (slot == turn) & free),
            write.addr.eq(slot),
            write.data.eq(values),
            write.en.eq(full),
            read.addr.eq(turn),
            delivered.eq(straight | (fetched & free)),
        ]
        with m.If(self.sums.ready):
            m.d.sync += self.sums.valid.eq(0)
        with m.If(straight):
            m.d.sync += [self.sums.valid.eq(1), self.sums.payload.eq(values)]
        with m.Elif(full):
            m.d.sync += has_sums.bit_select(slot, 1).eq(1)
        with m.If(fetched & free):
            m.d.sync += [self.sums.valid.eq(1), self.sums.payload.eq(read.data), fetched.eq(0)]
            m.d.sync += has_sums.bit_select(turn, 1).eq(0)
        with m.Elif(~fetched):
            m.d.sync += fetched.eq(has_sums.bit_select(turn, 1))
        with m.If(delivered):
            m.d.sync += turn.eq(turn + 1)
        with m.If(self.join):
            m.d.sync += [turn.eq(0), fetched.eq(0), self.sums.valid.eq(0), arrived.eq(0)]
        return full, slot

    def _transmit(
        self,
        m: Module,
        phases: list[Any],
        has_sums: Signal,
        rounds: _Rounds,
        acknowledge: tuple[Signal, Signal],
    ) -> None:
        """Build the transmitter: one packet register, three sources."""
        next_slot, next_round, _ = rounds
        memory: Memory = Memory(shape=VALUES_LAYOUT, depth=self._slots, init=[])
        m.submodules.values_memory = memory
        write, read = memory.write_port(), memory.read_port()
        submitted = self.partials.valid & self.partials.ready
        m.d.comb += [
            write.addr.eq(next_slot),
            write.data.eq(self.partials.payload),
            write.en.eq(submitted),
        ]

        # Slots to acknowledge. What finds the queue full is left to the scan.
        queue = SyncFIFOBuffered(width=self._slot_bits, depth=max(4, self._slots))
        m.submodules.queue = ResetInserter(self.join)(queue)
        pulse, slot = acknowledge
        m.d.comb += [queue.w_en.eq(pulse), queue.w_data.eq(slot)]

        # The scan asks one slot after the other: in use? since when? for too long?
        times: Memory = Memory(shape=_TIME_BITS, depth=self._slots, init=[])
        m.submodules.times = times
        time_write, time_read = times.write_port(), times.read_port()
        now = Signal(_TIME_BITS, init=_FIRST_TIME)
        scan = Signal(self._slot_bits)
        scan_phase = Array(phases)[scan]
        scan_in_use = scan_phase != SlotPhase.IDLE
        same_use = Signal()  # the slot has not been idle since the scan came to it: what was read is still its own
        elapsed = Signal(_TIME_BITS, reset_less=True)
        overdue = Signal(reset_less=True)
        resend_offered = Signal()
        send_again = Signal()
        m.d.sync += now.eq(now + 1)
        m.d.comb += [time_read.addr.eq(scan), read.addr.eq(scan)]
        with m.If(~scan_in_use):
            m.d.sync += same_use.eq(0)
        with m.FSM(name="scan"):
            with m.State("LOOK"):
                with m.If(scan_in_use):
                    m.d.sync += same_use.eq(1)
                    m.next = "MEASURE"
                with m.Else():
                    m.d.sync += scan.eq(scan + 1)
            with m.State("MEASURE"):
                m.d.sync += elapsed.eq(now - time_read.data)
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.d.sync += overdue.eq(elapsed >= self.resend_cycles)
                m.next = "RESEND"
            with m.State("RESEND"):
                m.d.comb += resend_offered.eq(overdue & same_use & scan_in_use)
                with m.If(send_again | ~resend_offered):
                    m.d.sync += scan.eq(scan + 1)
                    m.next = "LOOK"

        free = ~self.tx.valid | self.tx.ready
        next_free = (Array(phases)[next_slot] == SlotPhase.IDLE) & ~has_sums.bit_select(next_slot, 1)
        send_partial = Signal()
        ack_is_due = Signal()
        send_ack = Signal()
        m.d.comb += [
            self.partials.ready.eq(free & next_free),
            send_partial.eq(submitted),
            # A slot whose ACK a resend has overtaken may have gone on: an ACK of a later round would be a lie.
            ack_is_due.eq(Array(phases)[queue.r_data] == SlotPhase.ACK),
            send_ack.eq(free & ~send_partial & queue.r_rdy & ack_is_due),
            send_again.eq(free & ~send_partial & ~send_ack & resend_offered),
            queue.r_en.eq(send_ack | ~ack_is_due),
        ]

        sent_slot = Signal(self._slot_bits)
        is_partial = Signal()
        values = Signal(VALUES_LAYOUT)
        m.d.comb += [
            sent_slot.eq(Mux(send_partial, next_slot, Mux(send_ack, queue.r_data, scan))),
            is_partial.eq(send_partial | (~send_ack & (scan_phase == SlotPhase.PARTIAL))),
            time_write.addr.eq(sent_slot),
            time_write.data.eq(now),
            time_write.en.eq(send_partial | send_ack | send_again),
            self.sent.eq(time_write.en),
            self.resent.eq(send_again),
        ]
        with m.If(send_partial):
            m.d.comb += values.eq(self.partials.payload)
        with m.Elif(is_partial):
            m.d.comb += values.eq(read.data)
        frame = build(
            m,
            destination=self.peer_mac,
            source=self.local_mac,
            type=Mux(is_partial, PacketType.PARTIAL, PacketType.ACK),
            job=self.job,
            slot=sent_slot,
            round=Mux(send_partial, next_round, self._round_of(sent_slot, rounds)),
            shard=self.shard,
            workers=self.workers,
            bitmap=1 << self.shard,
            values=values,
        )
        with m.If(free):
            m.d.sync += [
                self.tx.valid.eq(time_write.en),
                self.tx.payload.data.eq(frame),
                self.tx.payload.keep.eq((1 << FRAME_BYTES) - 1),
                self.tx.payload.last.eq(1),
            ]
