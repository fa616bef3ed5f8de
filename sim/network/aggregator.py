"""The aggregator's side of the AllReduce protocol, packet by packet."""

from dataclasses import dataclass

from p4sgd.hw.spec.packet import ROUND_BITS, VALUES, MalformedPacketError, Packet, PacketType

__all__ = ["Aggregator", "Answer", "SlotState"]

_ROUNDS = 1 << ROUND_BITS


def _wrap(value: int) -> int:
    """Two's complement, 32 bits. Clamped partials never wrap; what a faulty sender sums up to is defined too."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclass
class SlotState:
    """What the aggregator knows of a slot.

    Attributes
    ----------
    round
        Round that the slot carries.
    aggregated
        Bitmap of the shards whose partials are in ``sums``. Empty only in a fresh slot: one that has carried nothing
        yet, which counts as round 0 (or the one it was cleared to), done by all, with no sums to answer with.
    acknowledged
        Bitmap of the shards that have acknowledged the sums.
    sums
        Eight int32.
    """

    round: int = 0
    aggregated: int = 0
    acknowledged: int = 0
    sums: tuple[int, ...] = (0,) * VALUES


@dataclass(frozen=True)
class Answer:
    """A packet the aggregator sends, and the bitmap of the ports it leaves through."""

    packet: Packet
    ports: int


class Aggregator:
    """Sums partials slot by slot and answers; the same state machine as :class:`p4sgd.hw.net.aggregator.Aggregator`.

    Parameters
    ----------
    slots
        AllReduce operations in flight.
    ports
        Ports; shard i of the job is on port i.
    job, workers
        The job, and how many workers it has (1 to 32).
    mac
        Own address: packets to any other are dropped.
    group_mac
        Address of all workers, for answers to all.

    Attributes
    ----------
    slots : list of SlotState
    accepted, dropped : int
        Packets that changed something or were answered, and all others.
    """

    def __init__(
        self, slots: int, ports: int, *, job: int = 0, workers: int, mac: int = 0, group_mac: int = 1 << 40
    ) -> None:
        self.job = job
        self.workers = workers
        self.mac = mac
        self.group_mac = group_mac
        self._ports = ports
        self._slots = slots
        self.accepted = 0
        self.dropped = 0
        self.clear()

    def clear(self, clear_round: int = 0) -> None:
        """Make every slot fresh, as if ``clear_round`` were over: workers join at the round after it."""
        self.slots = [SlotState(round=clear_round) for _ in range(self._slots)]

    def receive_frame(self, frame: bytes, port: int) -> Answer | None:
        """Act on the bytes of a frame; what is no packet is dropped."""
        try:
            packet = Packet.from_bytes(frame)
        except MalformedPacketError:
            self.dropped += 1
            return None
        return self.receive(packet, port)

    def receive(self, packet: Packet, port: int) -> Answer | None:
        """Act on a packet that came in through ``port``; at most one packet goes out."""
        if not self._is_ours(packet, port):
            self.dropped += 1
            return None
        slot = self.slots[packet.slot]
        before = (slot.round, slot.aggregated, slot.acknowledged)
        act = self._partial if packet.type is PacketType.PARTIAL else self._acknowledge
        answer = act(slot, packet)
        if answer is None and before == (slot.round, slot.aggregated, slot.acknowledged):
            self.dropped += 1
        else:
            self.accepted += 1
        return answer

    @property
    def _all(self) -> int:
        return (1 << self.workers) - 1

    def _is_ours(self, packet: Packet, port: int) -> bool:
        return (
            packet.type in (PacketType.PARTIAL, PacketType.ACK)
            and packet.destination == self.mac
            and packet.job == self.job
            and packet.workers == self.workers
            and packet.slot < self._slots
            and packet.shard < self.workers
            and packet.bitmap == 1 << packet.shard
            and packet.shard == port
        )

    def _partial(self, slot: SlotState, packet: Packet) -> Answer | None:
        if packet.round == (slot.round + 1) % _ROUNDS:
            slot.round = packet.round
            slot.aggregated = packet.bitmap
            slot.acknowledged = 0
            slot.sums = packet.values
        elif packet.round != slot.round or slot.aggregated == 0:
            return None
        elif slot.aggregated & packet.bitmap:
            return self._answer_one(PacketType.FULL, packet, slot) if slot.aggregated == self._all else None
        else:
            slot.aggregated |= packet.bitmap
            slot.sums = tuple(_wrap(a + b) for a, b in zip(slot.sums, packet.values, strict=True))
        return self._answer_all(PacketType.FULL, packet, slot) if slot.aggregated == self._all else None

    def _acknowledge(self, slot: SlotState, packet: Packet) -> Answer | None:
        if slot.aggregated == 0:
            return None
        if packet.round != slot.round:
            is_before = (packet.round - slot.round) % _ROUNDS >= _ROUNDS // 2
            return self._answer_one(PacketType.CLEAR, packet, slot) if is_before else None
        if slot.aggregated != self._all:
            return None
        is_repeated = slot.acknowledged & packet.bitmap
        slot.acknowledged |= packet.bitmap
        if slot.acknowledged != self._all:
            return None
        answer = self._answer_one if is_repeated else self._answer_all
        return answer(PacketType.CLEAR, packet, slot)

    def _answer_all(self, kind: PacketType, packet: Packet, slot: SlotState) -> Answer:
        reply = self._reply(kind, packet, slot, shard=0, destination=self.group_mac)
        return Answer(reply, self._all & ((1 << self._ports) - 1))

    def _answer_one(self, kind: PacketType, packet: Packet, slot: SlotState) -> Answer:
        reply = self._reply(kind, packet, slot, shard=packet.shard, destination=packet.source)
        return Answer(reply, packet.bitmap)

    def _reply(self, kind: PacketType, packet: Packet, slot: SlotState, *, shard: int, destination: int) -> Packet:
        return Packet(
            type=kind,
            job=self.job,
            slot=packet.slot,
            round=packet.round,
            shard=shard,
            workers=self.workers,
            bitmap=self._all,
            values=slot.sums if kind is PacketType.FULL else (0,) * VALUES,
            destination=destination,
            source=self.mac,
        )
