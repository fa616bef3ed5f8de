"""The worker's side of the AllReduce protocol, packet by packet."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from p4sgd.hw.spec.packet import ROUND_BITS, VALUES, MalformedPacketError, Packet, PacketType

__all__ = ["Endpoint", "SlotPhase"]


class SlotPhase(Enum):
    """What a worker's slot is waiting for."""

    IDLE = 0
    """Nothing; it may carry the next AllReduce."""
    PARTIAL = 1
    """The sums: the partial is sent until FULL comes."""
    ACK = 2
    """The end of the round: ACK is sent until CLEAR comes."""


@dataclass
class _Slot:
    phase: SlotPhase = SlotPhase.IDLE
    number: int = 0
    """Number of the AllReduce that the slot carries, counted from the join."""
    values: tuple[int, ...] = (0,) * VALUES
    sums: tuple[int, ...] | None = None
    """Sums that have come before their turn."""
    sent_at: int = 0


class Endpoint:
    """Sends partials, takes sums and hands them on in order; as :class:`p4sgd.hw.net.endpoint.Endpoint`.

    Time is any integer that does not run backwards, in the unit of ``resend_after``.

    Parameters
    ----------
    slots
        AllReduce operations in flight. Number n uses slot ``n mod slots`` in round ``first_round + n div slots``.
    job, shard, workers
        Who the worker is; shards count from 0.
    local_mac, peer_mac
        Own address and the aggregator's.
    first_round
        Round of the first AllReduce: 1 for a fresh aggregator.
    resend_after
        Time without an answer after which a packet is sent again.

    Attributes
    ----------
    sums : deque of tuples of eight int
        Sums in the order of the partials; the owner takes them from the left.
    dropped : int
        Packets that were not acted on.
    """

    def __init__(
        self,
        slots: int,
        *,
        job: int = 0,
        shard: int,
        workers: int,
        local_mac: int = 0,
        peer_mac: int = 0,
        first_round: int = 1,
        resend_after: int = 100,
    ) -> None:
        self.job = job
        self.shard = shard
        self.workers = workers
        self.local_mac = local_mac
        self.peer_mac = peer_mac
        self.resend_after = resend_after
        self._count = slots
        self.dropped = 0
        self.join(first_round)

    def join(self, first_round: int) -> None:
        """Forget all slots; the next AllReduce is slot 0 of ``first_round``."""
        self._first_round = first_round
        self._slots = [_Slot() for _ in range(self._count)]
        self._submitted = 0
        self._delivered = 0
        self.sums: deque[tuple[int, ...]] = deque()

    @property
    def can_submit(self) -> bool:
        """Whether the next slot is free: its last round is cleared, and its sums are handed on."""
        slot = self._slots[self._submitted % self._count]
        return slot.phase is SlotPhase.IDLE and slot.sums is None

    @property
    def busy(self) -> bool:
        """Whether any slot waits for the network, or holds sums."""
        return any(slot.phase is not SlotPhase.IDLE or slot.sums is not None for slot in self._slots)

    def submit(self, values: Sequence[int], now: int) -> Packet:
        """Begin an AllReduce with this worker's eight partials; returns the packet to send.

        Raises
        ------
        RuntimeError
            If the next slot is not free (see `can_submit`).
        """
        if not self.can_submit:
            raise RuntimeError("the next slot is still in use")
        index = self._submitted % self._count
        self._slots[index] = _Slot(SlotPhase.PARTIAL, self._submitted, tuple(values), sent_at=now)
        self._submitted += 1
        return self._packet(index)

    def receive_frame(self, frame: bytes, now: int) -> Packet | None:
        """Act on the bytes of a frame; what is no packet is dropped."""
        try:
            packet = Packet.from_bytes(frame)
        except MalformedPacketError:
            self.dropped += 1
            return None
        return self.receive(packet, now)

    def receive(self, packet: Packet, now: int) -> Packet | None:
        """Act on a packet; returns the acknowledgement to send, if there is one."""
        slot = self._slots[packet.slot] if packet.slot < self._count else _Slot()
        waits_for = {PacketType.FULL: SlotPhase.PARTIAL, PacketType.CLEAR: SlotPhase.ACK}.get(packet.type)
        if not self._is_ours(packet) or slot.phase is not waits_for or packet.round != self._round(slot):
            self.dropped += 1
            return None
        if packet.type is PacketType.CLEAR:
            slot.phase = SlotPhase.IDLE
            return None
        slot.phase = SlotPhase.ACK
        slot.sums = packet.values
        slot.sent_at = now
        self._deliver()
        return self._packet(packet.slot)

    def resend(self, now: int) -> list[Packet]:
        """Packets that have waited for an answer for ``resend_after`` and are due again."""
        due = []
        for index, slot in enumerate(self._slots):
            if slot.phase is not SlotPhase.IDLE and now - slot.sent_at >= self.resend_after:
                slot.sent_at = now
                due.append(self._packet(index))
        return due

    def _round(self, slot: _Slot) -> int:
        return (self._first_round + slot.number // self._count) % (1 << ROUND_BITS)

    def _is_ours(self, packet: Packet) -> bool:
        is_to_all = bool(packet.destination >> 40 & 1) and packet.shard == 0  # the group bit of the address
        is_to_me = packet.destination == self.local_mac and packet.shard == self.shard
        return (
            (is_to_all or is_to_me)
            and packet.source == self.peer_mac
            and packet.job == self.job
            and packet.workers == self.workers
            and packet.bitmap == (1 << self.workers) - 1
        )

    def _deliver(self) -> None:
        while self._delivered < self._submitted:
            slot = self._slots[self._delivered % self._count]
            if slot.sums is None:
                return
            self.sums.append(slot.sums)
            slot.sums = None
            self._delivered += 1

    def _packet(self, index: int) -> Packet:
        slot = self._slots[index]
        is_partial = slot.phase is SlotPhase.PARTIAL
        return Packet(
            type=PacketType.PARTIAL if is_partial else PacketType.ACK,
            job=self.job,
            slot=index,
            round=self._round(slot),
            shard=self.shard,
            workers=self.workers,
            bitmap=1 << self.shard,
            values=slot.values if is_partial else (0,) * VALUES,
            destination=self.peer_mac,
            source=self.local_mac,
        )
