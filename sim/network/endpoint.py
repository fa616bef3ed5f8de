"""State machine of a worker in the AllReduce protocol."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum

from p4sgd.hw.spec.packet import (
    GROUP_BIT,
    KEYED_VERSION,
    ROUND_BITS,
    VALUES,
    VERSION,
    Drop,
    DropReason,
    KeyedDrop,
    MalformedPacketError,
    Packet,
    PacketType,
    key_in_round,
    round_near,
)

_ROUNDS = 1 << ROUND_BITS


class SlotPhase(Enum):
    """State of a slot of a worker."""

    IDLE = 0
    """Free for the next AllReduce."""
    PARTIAL = 1
    """PARTIAL is resent until FULL comes, with the sums."""
    ACK = 2
    """ACK is resent until CLEAR comes."""


@dataclass
class _Slot:
    phase: SlotPhase = SlotPhase.IDLE
    number: int = 0
    """Number of the slot's current or last AllReduce, counted from the join; negative if there was none yet."""
    values: tuple[int, ...] = (0,) * VALUES
    sums: tuple[int, ...] | None = None  # sums that wait for those of earlier operations, to be delivered in order
    began: int = 0  # when the packet of this phase was sent first
    sent_at: int = 0  # and last
    resends: int = 0  # how often the packet of this phase has been sent again


@dataclass(frozen=True)
class GivenUp:
    """The slot that ran out of resends first, and what it waited for."""

    slot: int
    round: int
    phase: SlotPhase


@dataclass(eq=False)
class Endpoint:
    """Sends partials and delivers sums in order, as :class:`p4sgd.hw.net.endpoint.Endpoint` does.

    Time is an integer that never decreases, in the unit of ``resend_after``.
    """

    slots: int
    """AllReduce operations in flight. Operation n uses slot ``n mod slots`` in round ``first_round + n div slots``."""
    _: KW_ONLY
    shard: int
    workers: int
    job: int = 0
    local_mac: int = 0
    peer_mac: int = 0  # the aggregator's address
    first_round: int = 1  # round of the first AllReduce: 1 if the aggregator has just begun the job
    resend_after: int = 100  # time after which a packet without an answer is sent again
    adapts: bool = False  # how long it waits first follows the answers; never less than ``resend_after``
    doublings: int = 0  # how often this time doubles, 0 to 15
    resends: int = 0  # how often a packet is sent again before the endpoint gives up; 0 for no limit
    key: int | None = None  # key of the job, for version 2
    most: int = 0  # most micro-batches in a packet of version 2; 0 to speak version 1 only
    also: int | None = None  # another shard whose answers it takes, whose worker is gone
    has_stand_in: bool = False  # another worker may send its partials; the sums are then taken before it begins

    def __post_init__(self) -> None:
        self.drops: Counter[Drop] = Counter()
        self.echo: Packet | None = None
        """The last answer to a probe."""
        self.join(self.first_round)

    def join(self, first_round: int) -> None:
        """Reset all slots; the next AllReduce uses slot 0 in ``first_round``."""
        self.first_round = first_round
        self.also = None
        self._slots = [_Slot(number=index - self.slots) for index in range(self.slots)]
        self._submitted = 0
        self._delivered = 0
        self._answer: tuple[float, float] | None = None  # time that answers take, smoothed, and its mean deviation
        self._wait = 0.0  # first wait that follows from it
        self._learned_at = 0  # when the last answer told it
        self.sums: deque[tuple[int, ...]] = deque()
        """Sums in the order of the partials; the owner takes them from the left."""
        self.given_up: GivenUp | None = None
        """Why the endpoint has stopped, since the last join."""
        self.joined = True
        """Whether it has neither left the job nor given up since the last join; if not, it uses no slots."""

    def leave(self) -> None:
        """Reset all slots, and use none until the next join."""
        self.joined = False
        self.sums.clear()
        for slot in self._slots:
            slot.phase, slot.sums = SlotPhase.IDLE, None

    @property
    def can_submit(self) -> bool:
        """Whether the next slot is free: its last round is cleared and its sums are delivered."""
        slot = self._slots[self._submitted % self.slots]
        return self.joined and slot.phase is SlotPhase.IDLE and slot.sums is None

    @property
    def next_operation(self) -> int:
        """Number of the operation to submit next, from the join on."""
        return self._submitted

    def packet_of(self, operation: int, shard: int, values: tuple[int, ...]) -> Packet:
        """The PARTIAL of another worker in an operation that `waits_for` sums, for its stand-in to send."""
        return replace(self._packet(operation % self.slots), shard=shard, bitmap=1 << shard, values=values)

    def unanswered(self) -> list[Packet]:
        """The last packet of each slot that waits for an answer."""
        return [self._packet(index) for index, slot in enumerate(self._slots) if slot.phase is not SlotPhase.IDLE]

    def round_of(self, slot: int) -> int:
        """Round of a slot's current or last operation, modulo 2^16."""
        return self._round(self._slots[slot]) % _ROUNDS

    def waits_for(self, operation: int) -> bool:
        """Whether an operation has begun and its sums have not come."""
        slot = self._slots[operation % self.slots]
        return slot.phase is SlotPhase.PARTIAL and slot.number == operation

    @property
    def busy(self) -> bool:
        """Whether any slot waits for a packet or holds sums."""
        return any(slot.phase is not SlotPhase.IDLE or slot.sums is not None for slot in self._slots)

    def submit(self, values: Sequence[int], now: int) -> Packet:
        """Begin an AllReduce if `can_submit`, with eight partials for each micro-batch; returns the packet to send."""
        if not self.can_submit:
            raise RuntimeError("the next slot is still in use")
        index = self._submitted % self.slots
        self._slots[index] = _Slot(SlotPhase.PARTIAL, self._submitted, tuple(values), began=now, sent_at=now)
        self._pass_over()
        return self._packet(index)

    def receive_frame(self, frame: bytes, now: int) -> Packet | None:
        """Process a frame, which is dropped if it is not a packet."""
        try:
            packet = Packet.from_bytes(frame, self.most)
        except MalformedPacketError as error:
            self.drops[error.reason] += 1
            return None
        return self.receive(packet, now)

    def receive(self, packet: Packet, now: int) -> Packet | None:
        """Process a packet; returns the acknowledgement to send, if any."""
        drop = self._check(packet)
        if drop is not None:
            self.drops[drop] += 1
            return None
        if packet.type is PacketType.ECHO:
            self.echo = packet
            return None
        slot = self._slots[packet.slot]
        if self.adapts and slot.phase is not SlotPhase.IDLE:
            self._adapt(slot, now)
        if packet.type is PacketType.CLEAR:
            slot.phase = SlotPhase.IDLE
            return None
        if slot.phase is SlotPhase.IDLE:  # its stand-in has begun the next operation
            slot.number += self.slots
        slot.phase = SlotPhase.ACK
        slot.sums = packet.values
        slot.began = slot.sent_at = now
        slot.resends = 0
        self._pass_over()
        self._deliver()
        return self._packet(packet.slot)

    def probe(self, slot: int, number: int, destination: int | None = None, *, version: int = VERSION) -> Packet:
        """A PROBE, by default to the aggregator of the job, about this worker and a slot.

        The answer has the highest version that the aggregator speaks, but none above ``version``.
        """
        return Packet(
            type=PacketType.PROBE,
            job=self.job,
            slot=slot,
            round=0,
            shard=self.shard,
            workers=self.workers,
            bitmap=1 << self.shard,
            values=(number, *[0] * (VALUES - 1)),
            destination=self.peer_mac if destination is None else destination,
            source=self.local_mac,
            version=version,
        )

    def resend(self, now: int) -> list[Packet]:
        """Packets to send again because no answer came in time; none once a slot has run out of resends."""
        due = []
        for index, slot in enumerate(self._slots):
            if slot.phase is SlotPhase.IDLE or now < self._due(slot):
                continue
            if self.resends and slot.resends == self.resends:
                self.given_up = GivenUp(index, self.round_of(index), slot.phase)
                self.leave()
                return []
            slot.sent_at = now
            slot.resends = min(slot.resends + 1, max(self.resends, self.doublings))  # larger counts change nothing
            due.append(self._packet(index))
        return due

    def next_resend(self) -> int | None:
        """Time of the next resend unless a packet comes before; None if no slot waits for an answer."""
        return min((self._due(slot) for slot in self._slots if slot.phase is not SlotPhase.IDLE), default=None)

    @property
    def first_wait(self) -> int:
        """Time after which a packet that is sent now is sent again."""
        wait = int(self._wait) if self.adapts else 0
        return max(self.resend_after, min(wait, self.resend_after << self.doublings))

    def _due(self, slot: _Slot) -> int:
        longest = self.resend_after << self.doublings
        return slot.sent_at + min(self.first_wait << min(slot.resends, self.doublings), longest)

    def _adapt(self, slot: _Slot, now: int) -> None:
        """Learn from an answer how long to wait for others (RFC 6298, section 2, with Karn's rule of section 3).

        A pause of a program counts once, not for each slot, and as twice the wait at most: most answers take no longer
        because of it.
        """
        if slot.began < self._learned_at:
            return
        self._learned_at = now
        took = min(now - slot.began, 2 * self.first_wait)
        if slot.resends:  # nobody knows which of the packets it answers, but that it took no longer
            self._wait = max(self._wait, took)
            return
        smooth, deviation = self._answer or (took, took / 2)
        if self._answer:
            deviation += (abs(took - smooth) - deviation) / 4
            smooth += (took - smooth) / 8
        self._answer = smooth, deviation
        self._wait = smooth + 4 * deviation

    def _round(self, slot: _Slot, ahead: int = 0) -> int:
        return self.first_round + slot.number // self.slots + ahead

    def _key_in(self, round_: int) -> int | None:
        return None if self.key is None else key_in_round(self.key, round_)

    def _check(self, packet: Packet) -> Drop | None:
        """Why a packet is dropped: the first check that it fails; None if it passes all."""
        is_to_all = bool(packet.destination >> GROUP_BIT & 1)
        if not is_to_all and packet.destination != self.local_mac:
            return DropReason.ADDRESS
        if packet.type is PacketType.ECHO:
            return DropReason.ADDRESS if is_to_all else None
        if packet.type not in (PacketType.FULL, PacketType.CLEAR):
            return DropReason.TYPE
        if packet.job != self.job:
            return DropReason.JOB
        if packet.workers != self.workers:
            return DropReason.WORKERS
        shards = (0,) if is_to_all else (self.shard, self.also)
        if packet.shard not in shards or packet.bitmap != (1 << self.workers) - 1:
            return DropReason.SHARD
        if packet.slot >= self.slots:
            return DropReason.SLOT
        if packet.source != self.peer_mac:
            return DropReason.SOURCE
        slot = self._slots[packet.slot]
        round_ = round_near(packet.round, self._round(slot))
        if packet.key != self._key_in(round_):
            return KeyedDrop.KEY
        is_free = packet.type is PacketType.FULL and slot.phase is SlotPhase.IDLE and slot.sums is None
        if self.has_stand_in and is_free and round_ == self._round(slot, 1):
            return None
        if round_ != self._round(slot):
            return DropReason.STALE
        waits_for = SlotPhase.PARTIAL if packet.type is PacketType.FULL else SlotPhase.ACK
        if slot.phase is not waits_for:
            return DropReason.DUPLICATE
        if packet.type is PacketType.FULL and len(packet.values) != len(slot.values):
            return DropReason.RUNT if len(packet.values) < len(slot.values) else DropReason.LONG
        return None

    def _pass_over(self) -> None:
        """Go on to the next operation that has not begun."""
        while self._slots[self._submitted % self.slots].number >= self._submitted:
            self._submitted += 1

    def _deliver(self) -> None:
        while (slot := self._slots[self._delivered % self.slots]).sums is not None:
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
            round=self._round(slot) % _ROUNDS,
            shard=self.shard,
            workers=self.workers,
            bitmap=1 << self.shard,
            values=slot.values if is_partial else (0,) * VALUES if self.key is None else (),
            destination=self.peer_mac,
            source=self.local_mac,
            version=VERSION if self.key is None else KEYED_VERSION,
            key=self._key_in(self._round(slot)),
        )
