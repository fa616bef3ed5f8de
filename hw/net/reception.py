"""The receiving part of a worker's endpoint: frames are checked and matched with slots."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.bus.stream import ValidSignature, connect_stream
from p4sgd.hw.net.packet import VALUES_LAYOUT, FrameCheck, parse, shard_mask
from p4sgd.hw.primitives import Component, hold
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import GROUP_BIT, ROUND_BITS, DropReason, PacketType

__all__ = ["ECHO", "WORKER", "Reception", "in_last_lap"]

WORKER = data.StructLayout({"job": 8, "shard": 5, "workers": 6, "local_mac": 48, "peer_mac": 48})
"""The worker's identity in its job, and the aggregator's address; stable after the join."""

ECHO = data.StructLayout({"version": 4, "source": 48, "round": ROUND_BITS, "aggregated": 32, "values": VALUES_LAYOUT})
"""An aggregator's answer to a probe; `EchoValue` says what the values are."""


def in_last_lap(slot: Value, next_slot: Value) -> Value:
    """Whether a slot was last used in the round before that of the next partial, which goes to ``next_slot``.

    Slots are used in turn, so those below are a round further than the others, and none needs a number of its own.
    """
    return slot >= next_slot


class Reception(Component):
    """A filter for received frames, one a cycle, which passes each FULL and CLEAR that its slot waits for."""

    LATENCY = 2

    def __init__(self, config: WorkerConfig) -> None:
        self._slot_bits = config.slot_bits
        ports = {
            "rx": In(stream.Signature(FrameBeat)),  # frames from the network
            "worker": In(WORKER),  # the worker's identity and the aggregator's address
            # Slot and round of the next partial, and the round before.
            "next_slot": In(config.slot_bits),
            "next_round": In(ROUND_BITS),
            "last_round": In(ROUND_BITS),
            "new_lap": In(1),  # the next partial takes the last slot in this cycle: slot 0 and a new round follow
            # What each slot waits for.
            "waits_for_full": In(config.slots),
            "waits_for_clear": In(config.slots),
            "forget": In(1),  # all slots are being forgotten: packets that have come are dropped
            "coming": Out(config.slot_bits),  # the value of `slot` in the next cycle
            # Pulses, `LATENCY` cycles after a frame: FULL or CLEAR has come for this slot, which waits for it.
            "full": Out(1),
            "clear": Out(1),
            "slot": Out(config.slot_bits),
            "values": Out(VALUES_LAYOUT),
            "echo": Out(ValidSignature(ECHO)),  # at the same latency: an aggregator's answer to a probe
            # Pulses, at the same latency: a frame has come; it is none of the above, and why.
            "received": Out(1),
            "dropped": Out(1),
            "drop": Out(DropReason),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.check = check = FrameCheck()
        connect_stream(m, wiring.flipped(self.rx), check.frames)

        # First stage, in step with `check`: all comparisons that need no slot, as wide ones would be long on the way
        # through the slots' vectors.
        worker = self.worker
        heading = parse(self.rx.payload.data)
        to_all = heading.destination[GROUP_BIT]
        bitmap = Signal.like(heading.bitmap, reset_less=True)
        m.d.sync += bitmap.eq(shard_mask(worker.workers))
        is_next = heading.round == self.next_round
        first = {
            "is_full": heading.type == PacketType.FULL,
            "is_clear": heading.type == PacketType.CLEAR,
            "is_echo": heading.type == PacketType.ECHO,
            "to_all": to_all,
            "to_here": heading.destination == worker.local_mac,
            "of_job": heading.job == worker.job,
            "of_workers": heading.workers == worker.workers,
            "of_shard": heading.shard == Mux(to_all, 0, worker.shard),
            "of_everyone": heading.bitmap == bitmap,
            "has_slot": heading.slot[self._slot_bits :] == 0,
            "from_peer": heading.source == worker.peer_mac,
            # Against the rounds as they will be in the second stage. No packet can be of a round that begins just now.
            "of_next_round": is_next & ~self.new_lap,
            "of_last_round": Mux(self.new_lap, is_next, heading.round == self.last_round),
        }
        seen = {name: Signal(name=name, reset_less=True) for name in first}
        with m.If(self.rx.valid):
            m.d.sync += [seen[name].eq(answer) for name, answer in first.items()]

        # Second stage: which check fails, and does the slot wait for this packet?
        packet = check.packet
        m.d.comb += self.coming.eq(packet.slot[: self._slot_bits])
        right_round = Mux(in_last_lap(self.coming, self.next_slot), seen["of_last_round"], seen["of_next_round"])
        is_work = seen["is_full"] | seen["is_clear"]
        failed = {
            DropReason.ADDRESS: Mux(seen["to_all"], seen["is_echo"], ~seen["to_here"]),
            DropReason.TYPE: ~is_work & ~seen["is_echo"],
            DropReason.JOB: is_work & ~seen["of_job"],
            DropReason.WORKERS: is_work & ~seen["of_workers"],
            DropReason.SHARD: is_work & ~(seen["of_shard"] & seen["of_everyone"]),
            DropReason.SLOT: is_work & ~seen["has_slot"],
            DropReason.SOURCE: is_work & ~seen["from_peer"],
            DropReason.STALE: is_work & ~right_round,
        }
        slot, values, drop = (hold(m, port) for port in (self.slot, self.values, self.drop))
        echo = hold(m, self.echo.payload)
        passes = Signal()
        arrived = Signal()
        acts = Signal()  # a packet has arrived, and its slot is not being forgotten
        due_full = Signal(reset_less=True)
        due_clear = Signal(reset_less=True)
        # The packet before changed the same slot, which the vectors show a cycle later: this one is a duplicate, as
        # FULL and CLEAR of a round are never due one right after the other.
        repeated = Signal(reset_less=True)
        m.d.comb += passes.eq(check.good & ~Cat(failed.values()).any())
        m.d.sync += [
            arrived.eq(check.received),
            acts.eq(check.received & ~self.forget),
            due_full.eq(passes & seen["is_full"] & self.waits_for_full.bit_select(self.coming, 1)),
            due_clear.eq(passes & seen["is_clear"] & self.waits_for_clear.bit_select(self.coming, 1)),
            repeated.eq((self.full | self.clear) & (self.coming == self.slot)),
            self.echo.valid.eq(check.received & passes & seen["is_echo"]),
            slot.eq(self.coming),
            values.eq(packet["values"]),
            drop.eq(DropReason.DUPLICATE),
        ]
        for reason in reversed(failed):
            with m.If(failed[reason]):
                m.d.sync += drop.eq(reason)
        with m.If(~check.good):
            m.d.sync += drop.eq(check.drop)
        m.d.sync += [
            echo.version.eq(packet.version),
            echo.source.eq(packet.source),
            echo.round.eq(packet.round),
            echo.aggregated.eq(packet.bitmap),
            echo["values"].eq(packet["values"]),
        ]

        # Third stage: act on it.
        m.d.comb += [
            self.full.eq(acts & due_full & ~repeated),
            self.clear.eq(acts & due_clear & ~repeated),
            self.received.eq(arrived),
            self.dropped.eq(arrived & ~self.full & ~self.clear & ~self.echo.valid),
        ]
        return m
