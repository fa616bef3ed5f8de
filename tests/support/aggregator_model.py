"""State machine of the aggregator in the AllReduce protocol, to be read, and compared with all others.

The product has it compiled, `p4sgd.sim.network.batch`.
"""

from collections import Counter
from dataclasses import dataclass, replace
from operator import add

from p4sgd.hw.spec.aggregator import COUNTERS, PARENT_COUNTERS, job_counters
from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.packet import (
    BROADCAST,
    GROUP_BIT,
    KEYED_VERSION,
    ROUND_BITS,
    VALUES,
    VERDICT,
    VERSION,
    Drop,
    DropReason,
    EchoValue,
    KeyedDrop,
    MalformedPacketError,
    Packet,
    PacketType,
    key_in_round,
    round_near,
)

_ROUNDS = 1 << ROUND_BITS


def _wrap(value: int) -> int:
    """Wrap to 32-bit two's complement."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _is_group(mac: int) -> bool:
    return bool(mac >> GROUP_BIT & 1)


def _no_values(job: Job) -> tuple[int, ...]:
    """Those of ACK and CLEAR."""
    return () if job.key is not None else (0,) * VALUES


def _add(sums: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
    """Add int32 element by element, wrapping as the hardware does; clamped partials never wrap."""
    added = tuple(map(add, sums, values))
    fit = min(added) >= -(1 << 31) and max(added) < 1 << 31
    return added if fit else tuple(map(_wrap, added))


@dataclass(slots=True)
class SlotState:
    """State of a slot of a job: bitmaps of the shards whose partials are in ``sums``, and that have acknowledged these.

    A parent has a bit of its own in both: its FULL, whose values replace the sums, is its part of ``aggregated``, and
    its CLEAR that of ``acknowledged``. ``aggregated`` is 0 only in a slot that has not been used yet: that counts as
    complete in the round before the job's first, but has no sums to answer with. ``round`` is modulo 2^16, and has
    wrapped ``wraps`` times.
    """

    round: int = 0
    wraps: int = 0
    aggregated: int = 0
    acknowledged: int = 0
    sums: tuple[int, ...] = (0,) * VALUES


@dataclass(frozen=True, slots=True)
class Answer:
    """A packet to send, and the bitmap of the ports to send it through."""

    packet: Packet
    ports: int


class Aggregator:
    """Sums up partials and answers, as `p4sgd.hw.aggregator.aggregator.Aggregator` does.

    It serves one of ``jobs`` jobs in each place, with so many ``slots`` each, and takes at ``most`` so many
    micro-batches in a packet of version 2, or speaks version 1 only, as hardware does.
    """

    def __init__(self, slots: int, *, jobs: int = 1, mac: int = 0, most: int = 0) -> None:
        self.mac = mac
        self.most = most
        self._slots = slots
        self._places = jobs
        self._place_of: dict[int, int] = {}
        self.jobs: dict[int, Job] = {}
        self.slots: list[list[SlotState]] = [[] for _ in range(jobs)]
        self.accepted = 0
        self.drops: Counter[Drop] = Counter()
        self.job_accepted: Counter[int] = Counter()
        self.job_dropped: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()

    def begin(self, index: int, job: Job, first_round: int = 1) -> None:
        """Serve a job in place ``index`` from round ``first_round`` on, with all slots unused."""
        if self._place_of.get(job.number, index) != index:
            raise ValueError(f"job {job.number} is being served already")
        self.end(index)
        wraps, before = divmod(first_round - 1, _ROUNDS)
        self.slots[index] = [SlotState(before, wraps) for _ in range(self._slots)]
        self.jobs[index] = job
        self._place_of[job.number] = index

    def promote(self, index: int, shard: int) -> None:
        """See `Job.promote`."""
        self.jobs[index] = self.jobs[index].promote(shard)

    def end(self, index: int) -> None:
        """End the job in place ``index``, if there is one."""
        job = self.jobs.pop(index, None)
        if job is not None:
            del self._place_of[job.number]

    def counters(self) -> dict[str, int]:
        """All counters but OVERRUNS, by the names of :func:`p4sgd.hw.spec.aggregator.counters`."""
        found = {"FRAMES": self.accepted + self.drops.total()}
        known: tuple[type[Drop], ...] = (DropReason, KeyedDrop) if self.most else (DropReason,)
        found |= {f"DROPPED_{drop.name}": self.drops[drop] for reasons in known for drop in reasons}
        counted = COUNTERS | PARENT_COUNTERS
        found |= {name: self.counts[name] for name in counted if name not in found and name != "OVERRUNS"}
        for place in range(self._places):
            accepted, dropped = job_counters(place)
            found |= {accepted: self.job_accepted[place], dropped: self.job_dropped[place]}
        return found

    def receive_frame(self, frame: bytes, port: int) -> Answer | None:
        """Process a frame, which is dropped if it is not a packet."""
        try:
            packet = Packet.from_bytes(frame, self.most)
        except MalformedPacketError as error:
            self.drops[error.reason] += 1
            return None
        return self.receive(packet, port)

    def receive(self, packet: Packet, port: int) -> Answer | None:
        """Process a packet from a port; returns the packet to send, if any."""
        place = self._place_of.get(packet.job)
        is_probe = packet.type is PacketType.PROBE
        is_from_parent = (
            packet.type in (PacketType.FULL, PacketType.CLEAR) and place is not None and self.jobs[place].parent
        )
        is_to_all = packet.destination == BROADCAST if is_probe else is_from_parent and _is_group(packet.destination)
        if packet.destination != self.mac and not is_to_all:
            self.drops[DropReason.ADDRESS] += 1
            return None
        if packet.type not in (PacketType.PARTIAL, PacketType.ACK, PacketType.PROBE) and not is_from_parent:
            self.drops[DropReason.TYPE] += 1
            return None
        outcome = self._act(packet, port, place)
        if isinstance(outcome, Drop):
            self.drops[outcome] += 1
            if place is not None:
                self.job_dropped[place] += 1
            return None
        self.accepted += 1
        if place is not None:
            self.job_accepted[place] += 1
        return outcome

    def _act(self, packet: Packet, port: int, place: int | None) -> Answer | Drop | None:
        """The answer, None if the packet is accepted without an answer, or why it is dropped."""
        job = None if place is None else self.jobs[place]
        failed = self._failed_checks(packet, port, job)
        slot = SlotState() if place is None or DropReason.SLOT in failed else self.slots[place][packet.slot]
        if packet.type is PacketType.PROBE:
            self.counts["ECHOES"] += 1
            return self._echo(packet, port, job, slot, failed)
        if failed:
            return failed[0]
        assert job is not None
        if packet.key != self._key(job, slot, packet.round):  # packets of version 1 have none
            return KeyedDrop.KEY
        acts = {
            PacketType.PARTIAL: self._partial,
            PacketType.FULL: self._full,
            PacketType.ACK: self._acknowledge,
            PacketType.CLEAR: self._clear,
        }
        if packet.type is PacketType.PARTIAL and self._is_of_stand_in(packet, port, job):
            is_known = packet.round == slot.round and slot.aggregated & packet.bitmap
            return DropReason.DUPLICATE if is_known else self._partial(slot, packet, job)
        return acts[packet.type](slot, packet, job)

    @staticmethod
    def _key(job: Job, slot: SlotState, sent: int) -> int | None:
        """The key that a packet must have, of the round that is sent as this number."""
        now = slot.wraps * _ROUNDS + slot.round
        return None if job.key is None else key_in_round(job.key, round_near(sent, now))

    @staticmethod
    def _is_of_stand_in(packet: Packet, port: int, job: Job) -> bool:
        """Whether a PARTIAL is of its shard's stand-in, which gets no answer: as a worker it has what it needs."""
        owner = job.members[packet.shard]
        return (packet.source, port) != (owner.mac, owner.port)

    def _failed_checks(self, packet: Packet, port: int, job: Job | None) -> list[DropReason]:
        """The checks of `VERDICT` that a packet fails, in the order of `VERDICT`."""
        if job is None:
            return [DropReason.JOB]
        failed = []
        parent = job.parent if packet.type in (PacketType.FULL, PacketType.CLEAR) else None
        if packet.workers != (parent.workers if parent else len(job.members)):
            failed.append(DropReason.WORKERS)
        if parent:
            own = 0 if _is_group(packet.destination) else parent.shard
            is_shard, bitmap = packet.shard == own, parent.everyone
        else:
            is_shard, bitmap = packet.shard < len(job.members), 1 << packet.shard
        if not is_shard or packet.bitmap != bitmap:
            failed.append(DropReason.SHARD)
        if packet.slot >= self._slots:
            failed.append(DropReason.SLOT)
        if DropReason.SHARD not in failed:
            sources = [parent or job.members[packet.shard]]
            if packet.type is PacketType.PARTIAL and job.members[packet.shard].stand_in:
                sources.append(job.members[packet.shard].stand_in)
            if all((packet.source, port) != (source.mac, source.port) for source in sources):
                failed.append(DropReason.SOURCE)
        return failed

    def _partial(self, slot: SlotState, packet: Packet, job: Job) -> Answer | Drop | None:
        if packet.round == (slot.round + 1) % _ROUNDS:
            slot.round = packet.round
            slot.wraps += packet.round == 0
            slot.aggregated = packet.bitmap
            slot.acknowledged = 0
            slot.sums = packet.values
        elif packet.round != slot.round or slot.aggregated == 0:
            return DropReason.STALE
        elif slot.aggregated & packet.bitmap:
            if slot.aggregated == job.whole:
                return self._answer_one(PacketType.FULL, packet, slot, job)
            return self._ask(packet, slot, job) if slot.aggregated == job.everyone else DropReason.DUPLICATE
        elif len(packet.values) != len(slot.sums):
            return DropReason.RUNT if len(packet.values) < len(slot.sums) else DropReason.LONG
        else:
            slot.aggregated |= packet.bitmap
            slot.sums = _add(slot.sums, packet.values)
        self.counts["PARTIALS"] += 1
        if slot.aggregated != job.everyone:
            return None
        return self._ask(packet, slot, job) if job.parent else self._answer_all(PacketType.FULL, packet, slot, job)

    def _full(self, slot: SlotState, packet: Packet, job: Job) -> Answer | Drop:
        """The parent's sums take the place of those that it was sent."""
        if packet.round != slot.round or slot.aggregated not in (job.everyone, job.whole):
            return DropReason.STALE
        if slot.aggregated == job.whole:
            return DropReason.DUPLICATE
        if len(packet.values) != len(slot.sums):
            return DropReason.RUNT if len(packet.values) < len(slot.sums) else DropReason.LONG
        slot.aggregated = job.whole
        slot.sums = packet.values
        return self._answer_all(PacketType.FULL, packet, slot, job)

    def _acknowledge(self, slot: SlotState, packet: Packet, job: Job) -> Answer | Drop | None:
        if slot.aggregated == 0:
            return DropReason.STALE
        if packet.round != slot.round:
            is_before = (packet.round - slot.round) % _ROUNDS >= _ROUNDS // 2
            return self._answer_one(PacketType.CLEAR, packet, slot, job) if is_before else DropReason.STALE
        if slot.aggregated != job.whole:
            return DropReason.STALE
        is_repeated = slot.acknowledged & packet.bitmap
        if slot.acknowledged == job.whole:
            return self._answer_one(PacketType.CLEAR, packet, slot, job)
        slot.acknowledged |= packet.bitmap
        if not is_repeated:
            self.counts["ACKS"] += 1
        if slot.acknowledged != job.everyone:
            return DropReason.DUPLICATE if is_repeated else None
        return self._ask(packet, slot, job) if job.parent else self._answer_all(PacketType.CLEAR, packet, slot, job)

    def _clear(self, slot: SlotState, packet: Packet, job: Job) -> Answer | Drop:
        """All of the parent's shards have acknowledged."""
        if packet.round != slot.round or slot.acknowledged not in (job.everyone, job.whole):
            return DropReason.STALE
        if slot.acknowledged == job.whole:
            return DropReason.DUPLICATE
        slot.acknowledged = job.whole
        return self._answer_all(PacketType.CLEAR, packet, slot, job)

    def _echo(self, packet: Packet, port: int, job: Job | None, slot: SlotState, failed: list[DropReason]) -> Answer:
        known = {DropReason.JOB, DropReason.SHARD}.isdisjoint(failed)
        mac = job.members[packet.shard].mac if job and known else 0
        values = {
            EchoValue.NUMBER: packet.values[0],
            EchoValue.VERDICT: sum(1 << VERDICT.index(check) for check in failed),
            EchoValue.PORT: port,
            EchoValue.ACKNOWLEDGED: slot.acknowledged,
            EchoValue.WORKERS: len(job.members) if job else 0,
            EchoValue.SLOTS: self._slots,
            EchoValue.MAC_HIGH: mac >> 32,
            EchoValue.MAC_LOW: mac & 0xFFFFFFFF,
        }
        is_keyed = bool(self.most) and packet.version >= KEYED_VERSION
        reply = Packet(
            type=PacketType.ECHO,
            job=packet.job,
            slot=packet.slot,
            round=slot.round,
            shard=packet.shard,
            workers=packet.workers,
            bitmap=slot.aggregated,
            values=tuple(_wrap(values[name]) for name in EchoValue),
            destination=packet.source,
            source=self.mac,
            version=KEYED_VERSION if is_keyed else VERSION,
            most=self.most if is_keyed else 0,
        )
        return Answer(reply, 1 << port)

    def _ask(self, packet: Packet, slot: SlotState, job: Job) -> Answer:
        """PARTIAL or ACK to the parent, as the packet of the worker that it answers."""
        assert job.parent is not None
        self.counts[f"{packet.type.name}S_TO_PARENT"] += 1
        asked = replace(
            packet,
            shard=job.parent.shard,
            workers=job.parent.workers,
            bitmap=1 << job.parent.shard,
            values=slot.sums if packet.type is PacketType.PARTIAL else _no_values(job),
            destination=job.parent.mac,
            source=self.mac,
        )
        return Answer(asked, 1 << job.parent.port)

    def _answer_all(self, kind: PacketType, packet: Packet, slot: SlotState, job: Job) -> Answer:
        self.counts[f"{kind.name}S_TO_ALL"] += 1
        return Answer(self._reply(kind, packet, slot, job, shard=0, destination=job.group_mac), job.ports)

    def _answer_one(self, kind: PacketType, packet: Packet, slot: SlotState, job: Job) -> Answer:
        self.counts[f"{kind.name}S_TO_ONE"] += 1
        member = job.members[packet.shard]
        reply = self._reply(kind, packet, slot, job, shard=packet.shard, destination=member.mac)
        return Answer(reply, 1 << member.port)

    def _reply(
        self, kind: PacketType, packet: Packet, slot: SlotState, job: Job, *, shard: int, destination: int
    ) -> Packet:
        return Packet(
            type=kind,
            job=packet.job,
            slot=packet.slot,
            round=packet.round,
            shard=shard,
            workers=len(job.members),
            bitmap=job.everyone,
            values=slot.sums if kind is PacketType.FULL else _no_values(job),
            destination=destination,
            source=self.mac,
            version=packet.version,
            key=packet.key,
        )
