"""The aggregator's side of the AllReduce protocol."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.net.packet import VALUES_LAYOUT, build, shard_mask
from p4sgd.hw.net.receive import FrameCheck
from p4sgd.hw.spec.packet import FRAME_BYTES, ROUND_BITS, VALUES, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["Aggregator"]

_STATE = data.StructLayout({"round": ROUND_BITS, "aggregated": MAX_WORKERS, "acknowledged": MAX_WORKERS})


class Aggregator(wiring.Component):
    """Adds up the partials of every slot and answers; one packet at a time::

        rx ──▶ FrameCheck ──▶ ours? ──▶ state and sums of the slot ──▶ new state, new sums ──▶ tx

    The state machine is that of hw/net/README.md. A packet takes 5 cycles from ``rx`` to ``tx``; the next one is taken
    in the 5th, or in the 4th if there was nothing to answer. Sums are 32-bit two's complement: clamped partials cannot
    wrap them, and what a faulty sender makes of them is defined all the same.

    After reset and after ``clear`` all slots are made fresh, one a cycle, whatever the state of ``rx`` and ``tx``. No
    packet is taken meanwhile, and one that was being looked at is dropped. An answer that already waits for ``tx`` is
    sent, in the name of the job and the address it belongs to.

    Parameters
    ----------
    slots
        AllReduce operations in flight, a power of two up to 65536.
    ports
        Ports; shard i of the job is on port i.

    Members
    -------
    rx : In(stream of {beat: FrameBeat, port})
    tx : Out(stream of {beat: FrameBeat, ports})
        ``ports`` is the bitmap of the ports that a frame leaves through.
    job : In(8), workers : In(6), mac : In(48), group_mac : In(48)
        The job, its number of workers, the own address, and the address for answers to all; stable.
    clear : In(1), clear_round : In(16)
        Pulse: make all slots fresh, as if ``clear_round`` were over; workers then join at the round after it. Another
        pulse begins anew. After reset the round is 0. The other settings may change with the pulse.
    clearing : Out(1)
        Slots are being made fresh: from the cycle after ``clear``, or from reset, ``slots`` cycles.
    accepted, dropped : Out(1)
        Pulses: a packet changed something or was answered; it did not.
    """

    def __init__(self, slots: int, ports: int) -> None:
        if slots < 2 or slots & (slots - 1) or slots > 65536:
            raise ValueError(f"slots must be a power of two, 2 to 65536, not {slots}")
        if not 1 <= ports <= MAX_WORKERS:
            raise ValueError(f"ports must be 1 to {MAX_WORKERS}, not {ports}")
        self._slots = slots
        self._ports = ports
        port_bits = max(1, (ports - 1).bit_length())
        super().__init__(
            {
                "rx": In(stream.Signature(data.StructLayout({"beat": FrameBeat, "port": port_bits}))),
                "tx": Out(stream.Signature(data.StructLayout({"beat": FrameBeat, "ports": ports}))),
                "job": In(8),
                "workers": In(6),
                "mac": In(48),
                "group_mac": In(48),
                "clear": In(1),
                "clear_round": In(ROUND_BITS),
                "clearing": Out(1),
                "accepted": Out(1),
                "dropped": Out(1),
            }
        )

    rx: stream.Interface
    tx: stream.Interface
    job: Signal
    workers: Signal
    mac: Signal
    group_mac: Signal
    clear: Signal
    clear_round: Signal
    clearing: Signal
    accepted: Signal
    dropped: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.check = check = FrameCheck()
        state_memory: Memory = Memory(shape=_STATE, depth=self._slots, init=[])
        sums_memory: Memory = Memory(shape=VALUES_LAYOUT, depth=self._slots, init=[])
        m.submodules.state = state_memory
        m.submodules.sums = sums_memory
        state_read, state_write = state_memory.read_port(), state_memory.write_port()
        sums_read, sums_write = sums_memory.read_port(), sums_memory.write_port()

        packet = check.packet
        port = Signal(self.rx.payload.port.shape(), reset_less=True)
        ours = Signal(reset_less=True)
        everyone = shard_mask(self.workers)
        m.d.comb += [
            check.frames.payload.eq(self.rx.payload.beat),
            state_read.addr.eq(packet.slot),
            sums_read.addr.eq(packet.slot),
            sums_write.addr.eq(packet.slot),
        ]

        # First the questions, each of one addition or comparison; then what follows from the answers.
        old = state_read.data
        is_partial = packet.type == PacketType.PARTIAL
        distance = Signal(ROUND_BITS, reset_less=True)  # of the packet's round from the slot's
        with_partial = Signal(MAX_WORKERS, reset_less=True)
        with_ack = Signal(MAX_WORKERS, reset_less=True)
        questions = {
            "is_fresh": old.aggregated == 0,
            "had_partial": (old.aggregated & packet.bitmap) != 0,
            "had_ack": (old.acknowledged & packet.bitmap) != 0,
            "was_complete": old.aggregated == everyone,
            "completes_alone": packet.bitmap == everyone,
            "completes": (old.aggregated | packet.bitmap) == everyone,
            "acknowledges_all": (old.acknowledged | packet.bitmap) == everyone,
        }
        known: Any = Signal(data.StructLayout(dict.fromkeys(questions, 1)), reset_less=True)
        added: Any = Signal(VALUES_LAYOUT, reset_less=True)
        compare = [known[name].eq(answer) for name, answer in questions.items()]
        compare += [
            distance.eq(packet.round - old.round),
            with_partial.eq(old.aggregated | packet.bitmap),
            with_ack.eq(old.acknowledged | packet.bitmap),
            *(added[index].eq(sums_read.data[index] + packet["values"][index]) for index in range(VALUES)),
        ]

        new: Any = Signal(_STATE)
        new_sums: Any = Signal(VALUES_LAYOUT)
        store = Signal()
        answer = Signal()
        to_all = Signal()
        m.d.comb += [new.eq(old), new_sums.eq(sums_read.data)]
        with m.If(is_partial):
            with m.If(distance == 1):
                m.d.comb += [
                    store.eq(1),
                    new.round.eq(packet.round),
                    new.aggregated.eq(packet.bitmap),
                    new.acknowledged.eq(0),
                    new_sums.eq(packet["values"]),
                    to_all.eq(1),
                    answer.eq(known.completes_alone),
                ]
            with m.Elif((distance == 0) & ~known.is_fresh):
                with m.If(known.had_partial):
                    m.d.comb += answer.eq(known.was_complete)
                with m.Else():
                    m.d.comb += [
                        store.eq(1),
                        new.aggregated.eq(with_partial),
                        new_sums.eq(added),
                        to_all.eq(1),
                        answer.eq(known.completes),
                    ]
        with m.Elif(~known.is_fresh):
            with m.If(distance == 0):
                with m.If(known.was_complete):
                    m.d.comb += [
                        store.eq(~known.had_ack),
                        new.acknowledged.eq(with_ack),
                        to_all.eq(store),
                        answer.eq(known.acknowledges_all),
                    ]
            with m.Else():
                m.d.comb += answer.eq(distance[-1])

        # After reset and `clear`: fresh slots, one a cycle.
        fresh: Any = Signal(_STATE)  # its round is that of the last `clear`
        sweep = Signal(range(self._slots))
        sweeping = Signal(init=1)
        m.d.comb += self.clearing.eq(sweeping)
        with m.If(sweeping):
            m.d.sync += sweep.eq(sweep + 1)
            with m.If(sweep == self._slots - 1):
                m.d.sync += sweeping.eq(0)
        with m.If(self.clear):
            m.d.sync += [sweeping.eq(1), sweep.eq(0), fresh.round.eq(self.clear_round)]

        # One packet after the other.
        answered = Signal(reset_less=True)
        answered_all = Signal(reset_less=True)
        sums: Any = Signal(VALUES_LAYOUT, reset_less=True)
        keep = Signal()
        m.d.comb += [
            state_write.addr.eq(Mux(sweeping, sweep, packet.slot)),
            state_write.data.eq(Mux(sweeping, fresh.as_value(), new.as_value())),
            state_write.en.eq(sweeping | keep),
            sums_write.data.eq(new_sums),
            sums_write.en.eq(keep & is_partial),
        ]
        frame = build(
            m,
            destination=Mux(answered_all, self.group_mac, packet.source),
            source=packet.destination,
            type=Mux(answered, PacketType.FULL, PacketType.CLEAR),
            job=packet.job,
            slot=packet.slot,
            round=packet.round,
            shard=Mux(answered_all, 0, packet.shard),
            workers=self.workers,
            bitmap=everyone,
            values=Mux(answered, sums.as_value(), 0),
        )

        m.d.sync += [self.accepted.eq(0), self.dropped.eq(0)]
        with m.If(self.tx.ready):
            m.d.sync += self.tx.valid.eq(0)
        with m.FSM():
            with m.State("RECEIVE"):
                m.d.comb += [self.rx.ready.eq(~sweeping), check.frames.valid.eq(self.rx.valid & ~sweeping)]
                m.d.sync += port.eq(self.rx.payload.port)
                with m.If(check.frames.valid):
                    m.next = "LOOK"
            with m.State("LOOK"):
                m.d.sync += ours.eq(
                    check.good
                    & ((packet.type == PacketType.PARTIAL) | (packet.type == PacketType.ACK))
                    & (packet.destination == self.mac)
                    & (packet.job == self.job)
                    & (packet.workers == self.workers)
                    & (packet.slot < self._slots)
                    & (packet.shard < self.workers)
                    & (packet.shard == port)
                    & (packet.bitmap == (Const(1) << packet.shard[:5]))
                )
                m.next = "COMPARE"
                with m.If(~check.received):  # inside of a long frame
                    m.next = "RECEIVE"
            with m.State("COMPARE"):
                m.d.sync += compare
                m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.comb += keep.eq(ours & store)
                m.d.sync += [
                    self.accepted.eq(ours & (store | answer)),
                    self.dropped.eq(~(ours & (store | answer))),
                    answered.eq(is_partial),
                    answered_all.eq(to_all),
                    sums.eq(new_sums),
                ]
                m.next = "RECEIVE"
                with m.If(ours & answer):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                with m.If(~self.tx.valid | self.tx.ready):
                    m.d.sync += [
                        self.tx.valid.eq(1),
                        self.tx.payload.beat.data.eq(frame),
                        self.tx.payload.beat.keep.eq((1 << FRAME_BYTES) - 1),
                        self.tx.payload.beat.last.eq(1),
                        self.tx.payload.ports.eq(Mux(answered_all, everyone, packet.bitmap)),
                    ]
                    m.next = "RECEIVE"
        with m.If(self.clear | sweeping):
            m.d.sync += ours.eq(0)  # what is known of its slot is no longer true
        return m
