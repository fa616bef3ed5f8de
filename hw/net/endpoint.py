"""The worker's side of the AllReduce protocol."""

from dataclasses import dataclass

from amaranth.hdl import Module, Mux, ResetInserter, Signal, Value, ValueLike
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.net.packet import VALUES_LAYOUT, build, parse, shard_mask
from p4sgd.hw.net.receive import FrameCheck
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import FRAME_BYTES, ROUND_BITS, PacketType

__all__ = ["Endpoint"]

_GROUP_BIT = 40
"""Bit of a MAC address, as a number, that marks a group (IEEE 802)."""

_TIME_BITS = 32
_FIRST_TIME = (1 << _TIME_BITS) - 2000
"""Time after reset: shortly before it wraps, so that every simulation passes what boards meet every 17 s."""


_Rounds = tuple[Signal, Signal, Signal]
"""Slot and round of the next partial, and the round before: the lap that is being left."""


@dataclass
class _Slots:
    """What the slots wait for, a bit each. Without either a slot is idle: it may carry the next AllReduce."""

    waits_for_full: Signal
    """The partial is sent until FULL comes."""
    waits_for_clear: Signal
    """ACK is sent until CLEAR comes."""
    has_sums: Signal
    """Sums have come and are not handed on."""


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
        A slot waits for the network or holds sums; up to 2 cycles later.
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
        slots = _Slots(
            waits_for_full=Signal(self._slots),
            waits_for_clear=Signal(self._slots),
            has_sums=Signal(self._slots),
        )
        submitted = self.partials.valid & self.partials.ready
        next_slot = Signal(self._slot_bits)  # of the next partial
        slot_after = Signal(self._slot_bits, init=1)  # next_slot + 1
        next_round = Signal(ROUND_BITS)
        last_round = Signal(ROUND_BITS)  # next_round - 1
        rounds = (next_slot, next_round, last_round)

        # A slot becomes vacant a cycle late, but is taken at once.
        vacant = Signal(self._slots, init=-1)
        m.d.sync += [
            vacant.eq(~(slots.waits_for_full | slots.waits_for_clear | slots.has_sums)),
            self.busy.eq(~vacant.all()),
        ]
        next_vacant = _look_up(m, "next_vacant", submitted, vacant, next_slot, slot_after, init=1)
        with m.If(submitted):
            m.d.sync += [
                next_slot.eq(slot_after),
                slot_after.eq(slot_after + 1),
                vacant.bit_select(next_slot, 1).eq(0),
                slots.waits_for_full.bit_select(next_slot, 1).eq(1),
            ]
            with m.If(next_slot == self._slots - 1):
                m.d.sync += [next_round.eq(next_round + 1), last_round.eq(next_round)]

        acknowledge = self._receive(m, slots, rounds)
        self._transmit(m, slots, next_vacant, rounds, acknowledge)

        with m.If(self.join):
            m.d.sync += [
                *(waiting.eq(0) for waiting in (slots.waits_for_full, slots.waits_for_clear, slots.has_sums)),
                vacant.eq(-1),
                next_slot.eq(0),
                slot_after.eq(1),
                next_round.eq(self.join_round),
                last_round.eq(self.join_round - 1),
            ]
        return m

    @staticmethod
    def _in_last_lap(slot: Value, rounds: _Rounds) -> Value:
        """Whether a slot has not been used in the next partial's round."""
        return slot >= rounds[0]

    @classmethod
    def _round_of(cls, slot: Value, rounds: _Rounds) -> Value:
        """Round of the AllReduce that a slot in use carries."""
        _, next_round, last_round = rounds
        return Mux(cls._in_last_lap(slot, rounds), last_round, next_round)

    def _receive(
        self,
        m: Module,
        slots: _Slots,
        rounds: _Rounds,
    ) -> tuple[Signal, Signal]:
        """Build the receiver; returns the pulse and the slot of a FULL that is to be acknowledged."""
        m.submodules.check = check = FrameCheck()
        connect_stream(m, wiring.flipped(self.rx), check.frames)

        # First stage, in step with the check: what concerns the job and the rounds but no slot.
        heading = parse(self.rx.payload.data)
        next_slot, next_round, last_round = rounds
        to_all = Signal(reset_less=True)
        to_here = Signal(reset_less=True)
        to_shard = Signal(reset_less=True)
        from_peer = Signal(reset_less=True)
        of_job = Signal(reset_less=True)
        of_next_round = Signal(reset_less=True)
        of_last_round = Signal(reset_less=True)
        is_full = Signal(reset_less=True)
        is_clear = Signal(reset_less=True)
        bitmap = Signal.like(heading.bitmap, reset_less=True)
        m.d.sync += bitmap.eq(shard_mask(self.workers))
        new_lap = self.partials.valid & self.partials.ready & (next_slot == self._slots - 1)
        is_next = heading.round == next_round
        with m.If(self.rx.valid):
            m.d.sync += [
                to_all.eq(heading.destination[_GROUP_BIT] & (heading.shard == 0)),
                to_here.eq(heading.destination == self.local_mac),
                to_shard.eq(heading.shard == self.shard),
                from_peer.eq(heading.source == self.peer_mac),
                of_job.eq(
                    (heading.job == self.job)
                    & (heading.workers == self.workers)
                    & (heading.bitmap == bitmap)
                    & (heading.slot[self._slot_bits :] == 0)
                ),
                # As the rounds will be in the second stage; none is of a round that begins just now.
                of_next_round.eq(is_next & ~new_lap),
                of_last_round.eq(Mux(new_lap, is_next, heading.round == last_round)),
                is_full.eq(heading.type == PacketType.FULL),
                is_clear.eq(heading.type == PacketType.CLEAR),
            ]

        # Second stage: what the slot waits for.
        packet = check.packet
        packet_slot = packet.slot[: self._slot_bits]
        arrived = Signal()
        due_full = Signal(reset_less=True)
        due_clear = Signal(reset_less=True)
        repeated = Signal(reset_less=True)  # the packet just before, of the same slot, has changed it: drop this one
        in_turn = Signal(reset_less=True)
        slot = Signal(self._slot_bits, reset_less=True)
        values = Signal(VALUES_LAYOUT, reset_less=True)
        full = Signal()
        clear = Signal()
        delivered = Signal()
        turn = Signal(self._slot_bits)
        turn_after = Signal(self._slot_bits, init=1)  # turn + 1
        due = (
            check.good
            & (to_all | (to_here & to_shard))
            & from_peer
            & of_job
            & Mux(self._in_last_lap(packet_slot, rounds), of_last_round, of_next_round)
        )
        m.d.sync += [
            arrived.eq(check.received),
            due_full.eq(due & is_full & slots.waits_for_full.bit_select(packet_slot, 1)),
            due_clear.eq(due & is_clear & slots.waits_for_clear.bit_select(packet_slot, 1)),
            repeated.eq((full | clear) & (packet_slot == slot)),
            in_turn.eq(Mux(delivered, packet_slot == turn_after, packet_slot == turn)),
            slot.eq(packet_slot),
            values.eq(packet["values"]),
        ]

        # Third stage: what it does.
        m.d.comb += [
            full.eq(arrived & due_full & ~repeated),
            clear.eq(arrived & due_clear & ~repeated),
            self.received.eq(arrived),
            self.dropped.eq(arrived & ~full & ~clear),
        ]
        with m.If(full):
            m.d.sync += [
                slots.waits_for_full.bit_select(slot, 1).eq(0),
                slots.waits_for_clear.bit_select(slot, 1).eq(1),
            ]
        with m.If(clear):
            m.d.sync += slots.waits_for_clear.bit_select(slot, 1).eq(0)

        # Sums go straight out when it is their turn, else by way of the memory.
        memory: Memory = Memory(shape=VALUES_LAYOUT, depth=self._slots, init=[])
        m.submodules.sums_memory = memory
        write, read = memory.write_port(), memory.read_port()
        free = ~self.sums.valid | self.sums.ready
        fetched = Signal()  # the memory shows the sums of slot `turn`
        straight = Signal()
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
            m.d.sync += [self.sums.valid.eq(1), self.sums.payload.eq(values)]
        with m.Elif(full):
            m.d.sync += slots.has_sums.bit_select(slot, 1).eq(1)
        with m.If(fetched & free):
            m.d.sync += [self.sums.valid.eq(1), self.sums.payload.eq(read.data), fetched.eq(0)]
            m.d.sync += slots.has_sums.bit_select(turn, 1).eq(0)
        with m.Elif(~fetched):
            m.d.sync += fetched.eq(slots.has_sums.bit_select(turn, 1))
        with m.If(delivered):
            m.d.sync += [turn.eq(turn_after), turn_after.eq(turn_after + 1)]
        with m.If(self.join):
            m.d.sync += [turn.eq(0), turn_after.eq(1), fetched.eq(0), self.sums.valid.eq(0), arrived.eq(0)]
        return full, slot

    def _transmit(
        self,
        m: Module,
        slots: _Slots,
        next_vacant: Value,
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
        send_ack = Signal()
        ack_slot = Signal(self._slot_bits, reset_less=True)
        ack_round = Signal(ROUND_BITS, reset_less=True)
        # A slot whose ACK a resend has overtaken may have gone on: an ACK of a later round would be a lie. To look at
        # the slot a cycle before the ACK is sent is soon enough: to go on takes longer.
        next_ack = Signal()
        waiting = slots.waits_for_clear
        ack_is_due = _look_up(m, "ack", next_ack, waiting, ack_slot, queue.r_data, only=queue.r_rdy, forget=self.join)
        m.d.comb += [
            queue.w_en.eq(pulse),
            queue.w_data.eq(slot),
            queue.r_en.eq(next_ack),
            next_ack.eq(~ack_is_due | send_ack),
        ]
        with m.If(next_ack):
            m.d.sync += [ack_slot.eq(queue.r_data), ack_round.eq(self._round_of(queue.r_data, rounds))]

        # The scan asks one slot after the other: in use? since when? for too long?
        times: Memory = Memory(shape=_TIME_BITS, depth=self._slots, init=[])
        m.submodules.times = times
        time_write, time_read = times.write_port(), times.read_port()
        now = Signal(_TIME_BITS, init=_FIRST_TIME)
        scan = Signal(self._slot_bits)
        scan_after = Signal(self._slot_bits, init=1)  # scan + 1
        scan_round = Signal(ROUND_BITS, reset_less=True)
        scan_moves = Signal()
        waits_for_full, waits_for_clear = (
            _look_up(m, f"scan_{name}", scan_moves, waiting, scan, scan_after, forget=self.join)
            for name, waiting in (("full", slots.waits_for_full), ("clear", slots.waits_for_clear))
        )
        scan_in_use = waits_for_full | waits_for_clear
        same_use = Signal()  # the slot has not been idle since the scan came to it: what was read is still its own
        elapsed = Signal(_TIME_BITS, reset_less=True)
        overdue = Signal(reset_less=True)
        resend_offered = Signal()
        send_again = Signal()
        m.d.sync += [now.eq(now + 1), scan_round.eq(self._round_of(scan, rounds))]
        with m.If(scan_moves):
            m.d.sync += [scan.eq(scan_after), scan_after.eq(scan_after + 1)]
        m.d.comb += [time_read.addr.eq(scan), read.addr.eq(scan)]
        with m.If(~scan_in_use):
            m.d.sync += same_use.eq(0)
        with m.FSM(name="scan"):
            with m.State("LOOK"):
                with m.If(scan_in_use):
                    m.d.sync += same_use.eq(1)
                    m.next = "MEASURE"
                with m.Else():
                    m.d.comb += scan_moves.eq(1)
            with m.State("MEASURE"):
                m.d.sync += elapsed.eq(now - time_read.data)
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.d.sync += overdue.eq(elapsed >= self.resend_cycles)
                m.next = "RESEND"
            with m.State("RESEND"):
                m.d.comb += resend_offered.eq(overdue & same_use & scan_in_use)
                with m.If(send_again | ~resend_offered):
                    m.d.comb += scan_moves.eq(1)
                    m.next = "LOOK"

        free = ~self.tx.valid | self.tx.ready
        has_partial = Signal()
        m.d.comb += [
            self.partials.ready.eq(free & next_vacant),
            has_partial.eq(self.partials.valid & next_vacant),
            send_ack.eq(free & ~has_partial & ack_is_due),
            send_again.eq(free & ~has_partial & ~ack_is_due & resend_offered),
        ]

        sent_slot = Signal(self._slot_bits)
        is_partial = Signal()
        values = Signal(VALUES_LAYOUT)
        m.d.comb += [
            sent_slot.eq(Mux(has_partial, next_slot, Mux(ack_is_due, ack_slot, scan))),
            is_partial.eq(has_partial | (~ack_is_due & waits_for_full)),
            time_write.addr.eq(sent_slot),
            time_write.data.eq(now),
            time_write.en.eq(free & (has_partial | ack_is_due | resend_offered)),
            self.sent.eq(time_write.en),
            self.resent.eq(send_again),
        ]
        with m.If(has_partial):
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
            round=Mux(has_partial, next_round, Mux(ack_is_due, ack_round, scan_round)),
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


def _look_up(
    m: Module,
    name: str,
    moves: Value,
    bits: Signal,
    here: Value,
    after: Value,
    *,
    only: ValueLike = 1,
    forget: ValueLike = 0,
    init: int = 0,
) -> Value:
    """The bit at a pointer, as it was a cycle ago.

    Where the pointer goes is known late, so both bits are looked up first and chosen from a cycle later.

    Parameters
    ----------
    m, name
        Module, and a name for its registers.
    moves
        Whether the pointer goes from ``here`` to ``after``.
    bits
        Looked up in.
    here, after
        Where the pointer is, and where it would go.
    only
        0 if there is nothing at ``after``.
    forget
        Pulse: the bit is 0 in the next cycle.
    init
        The bit after reset.
    """
    moved = Signal(name=f"{name}_moved")
    bit_here = Signal(name=f"{name}_here", init=init)
    bit_after = Signal(name=f"{name}_after")
    m.d.sync += [
        moved.eq(moves),
        bit_here.eq(bits.bit_select(here, 1)),
        bit_after.eq(bits.bit_select(after, 1) & only),
    ]
    with m.If(forget):
        m.d.sync += [bit_here.eq(0), bit_after.eq(0)]
    return Mux(moved, bit_after, bit_here)
