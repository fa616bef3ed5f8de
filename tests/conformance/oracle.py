"""What an aggregator must do, from nothing but the packets that it has taken.

This is no state machine: of a slot it keeps every packet that changed it, and works out round, bitmaps and sums from
these whenever it is asked. Checks are a list, in the order of the specification. So it shares neither code nor manner
with the implementations that it judges.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

from conformance.frames import (
    ACK,
    BROADCAST,
    BYTES,
    CLEAR,
    ECHO,
    FULL,
    KEYED_BYTES,
    MAC,
    MOST,
    PARTIAL,
    PROBE,
    ROUNDS,
    VALUES,
    Frame,
    is_keyed,
)
from conformance.vectors import Answer, Begin, Case, End, Geometry, Look, Send
from p4sgd.hw.spec.job import Job


@dataclass
class Service:
    """A job that is served, and the packets that its slots took, the oldest first."""

    place: int
    job: Job
    first_round: int
    taken: dict[int, list[Frame]] = field(default_factory=dict)

    def moment(self, slot: int) -> "Moment":
        return Moment(self, self.taken.get(slot, []))


class Moment:
    """A slot after the packets that it took."""

    def __init__(self, service: Service, taken: list[Frame]) -> None:
        newest = next((packet.round for packet in reversed(taken) if packet.kind == PARTIAL), None)
        of_round = [] if newest is None else list(takewhile(lambda p: p.round == newest, reversed(taken)))
        self.partials = [packet for packet in of_round if packet.kind == PARTIAL]
        self.is_fresh = not taken
        self.round = (service.first_round - 1) % ROUNDS if newest is None else newest
        self.heard = {packet.shard for packet in self.partials}
        self.thanked = {packet.shard for packet in of_round if packet.kind == ACK}
        everyone = set(range(len(service.job.members)))
        self.is_complete = self.heard == everyone
        self.is_over = self.thanked == everyone

    def sums(self) -> tuple[int, ...]:
        lanes = zip(*(packet.values for packet in self.partials), strict=True)
        return tuple(sum(lane) % (1 << 32) for lane in lanes)


def bits(shards: set[int]) -> int:
    return sum(1 << shard for shard in shards)


@dataclass(frozen=True)
class Arrival:
    """A packet, the port it came in through, and the job of its number."""

    packet: Frame
    port: int
    service: Service | None
    geometry: Geometry

    @property
    def has_shard(self) -> bool:
        packet = self.packet
        return packet.shard < len(self.job.members) and packet.bitmap == 1 << packet.shard

    @property
    def count_bits(self) -> int:
        """The reserved bits that hold a number of micro-batches."""
        packet = self.packet
        has_values = packet.key is not None and packet.kind in (PARTIAL, FULL)
        has_most = packet.kind == ECHO and min(packet.version, self.geometry.version) > 1
        return 0xFFFF << 32 if has_values or has_most else 0

    @property
    def job(self) -> Job:
        assert self.service is not None
        return self.service.job

    @property
    def is_from_member(self) -> bool:
        member = self.job.members[self.packet.shard]
        return (self.packet.source, self.port) == (member.mac, member.port)


Check = tuple[str, Callable[[Arrival], bool]]

FORMAT: tuple[Check, ...] = (
    ("ETHERTYPE", lambda a: a.packet.ethertype == 0x88B5),
    ("VERSION", lambda a: 1 <= a.packet.version <= a.geometry.version or a.packet.kind in (PROBE, ECHO)),
    ("RESERVED", lambda a: a.packet.reserved & ~a.count_bits == 0),
    ("ADDRESS", lambda a: a.packet.destination in ((MAC, BROADCAST) if a.packet.kind == PROBE else (MAC,))),
    ("TYPE", lambda a: a.packet.kind in (PARTIAL, ACK, PROBE)),
)
"""What must be so of every packet."""

SETTINGS: tuple[Check, ...] = (
    ("JOB", lambda a: a.service is not None),
    ("WORKERS", lambda a: a.service is None or a.packet.workers == len(a.job.members)),
    ("SHARD", lambda a: a.service is None or a.has_shard),
    ("SLOT", lambda a: a.service is None or a.packet.slot < a.geometry.slots),
    ("SOURCE", lambda a: a.service is None or not a.has_shard or a.is_from_member),
)
"""What depends on settings, in the order of a verdict's bits: of a probe it is only told."""

Judgement = tuple[Answer | None, tuple[str, ...]]
"""The answer, and the counters that go up by one besides FRAMES."""


class Oracle:
    """An aggregator that remembers all."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.services: dict[int, Service] = {}

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self.services[place] = Service(place, job, first_round)

    def end(self, place: int) -> None:
        self.services.pop(place, None)

    def look(self, place: int, slot: int) -> Look:
        moment = self.services[place].moment(slot)
        return Look(place, slot, moment.round, bits(moment.heard), bits(moment.thanked))

    def judge(self, frame: bytes, port: int) -> Judgement:
        """What must come of a frame; if it is taken it is remembered."""
        keyed = self.geometry.version > 1 and is_keyed(frame)
        size = BYTES
        if keyed and frame[14] & 15 in (PARTIAL, FULL):
            count = frame[26] << 8 | frame[27]
            size = KEYED_BYTES + 4 * VALUES * count if 0 < count <= MOST else 0
        if len(frame) != size:
            return None, ("DROPPED_RUNT" if len(frame) < size else "DROPPED_LONG",)
        packet = Frame.from_bytes(frame, keyed=keyed)
        services = (service for service in self.services.values() if service.job.number == packet.job)
        arrival = Arrival(packet, port, next(services, None), self.geometry)
        for name, holds in FORMAT:
            if not holds(arrival):
                return None, (f"DROPPED_{name}",)
        failed = [name for name, holds in SETTINGS if not holds(arrival)]
        if packet.kind == PROBE:
            return self._told(arrival, failed)
        if failed:
            return self._dropped(arrival, failed[0])
        if packet.key != arrival.job.key:
            return self._dropped(arrival, "KEY")
        return self._worked(arrival)

    @staticmethod
    def _dropped(arrival: Arrival, name: str) -> Judgement:
        by_job = () if arrival.service is None else (f"JOB{arrival.service.place}_DROPPED",)
        return None, (f"DROPPED_{name}", *by_job)

    def _told(self, arrival: Arrival, failed: list[str]) -> Judgement:
        """A probe and its echo."""
        packet, service = arrival.packet, arrival.service
        shown = service.moment(packet.slot) if service and "SLOT" not in failed else None
        mac = arrival.job.members[packet.shard].mac if service and "SHARD" not in failed else 0
        verdict = sum(1 << bit for bit, (name, _) in enumerate(SETTINGS) if name in failed)
        values = (
            packet.values[0],
            verdict,
            arrival.port,
            bits(shown.thanked) if shown else 0,
            len(service.job.members) if service else 0,
            self.geometry.slots,
            *divmod(mac, 1 << 32),
        )
        version = min(max(1, packet.version), self.geometry.version)
        echo = packet.but(kind=ECHO, destination=packet.source, source=MAC).but(
            version=version,
            count=MOST if version > 1 else 0,
            round=shown.round if shown else 0,
            bitmap=bits(shown.heard) if shown else 0,
            values=values,
        )
        by_job = (f"JOB{service.place}_ACCEPTED",) if service else ()
        return Answer(echo.to_bytes(), 1 << arrival.port), ("ECHOES", *by_job)

    def _worked(self, arrival: Arrival) -> Judgement:
        """A PARTIAL or an ACK of a member, about a slot that there is."""
        packet, service = arrival.packet, arrival.service
        assert service is not None
        before = service.moment(packet.slot)
        ahead = (packet.round - before.round) % ROUNDS
        is_now = ahead == 0 and not before.is_fresh
        if packet.kind == PARTIAL:
            is_new = ahead == 1 or (is_now and packet.shard not in before.heard)
        else:
            is_new = is_now and before.is_complete and packet.shard not in before.thanked
        if is_new and packet.kind == PARTIAL and ahead == 0:
            length = len(before.partials[0].values)
            if len(packet.values) != length:
                return self._dropped(arrival, "RUNT" if len(packet.values) < length else "LONG")
        if is_new:
            service.taken.setdefault(packet.slot, []).append(packet)
            return self._first(arrival, service.moment(packet.slot))
        return self._again(arrival, before, is_now=is_now, is_before=ahead >= ROUNDS // 2 and not before.is_fresh)

    def _first(self, arrival: Arrival, after: Moment) -> Judgement:
        """What the slot has become by a packet that was new."""
        if arrival.packet.kind == PARTIAL:
            answer = self._answer(arrival, FULL, after, to_all=True) if after.is_complete else None
            counts = ("PARTIALS", *(["FULLS_TO_ALL"] if answer else []))
        else:
            answer = self._answer(arrival, CLEAR, after, to_all=True) if after.is_over else None
            counts = ("ACKS", *(["CLEARS_TO_ALL"] if answer else []))
        return self._accepted(arrival, answer, counts)

    def _again(self, arrival: Arrival, slot: Moment, *, is_now: bool, is_before: bool) -> Judgement:
        """What the slot, which stays as it is, says to a packet that is not new."""
        if arrival.packet.kind == PARTIAL and is_now and slot.is_complete:
            return self._accepted(arrival, self._answer(arrival, FULL, slot, to_all=False), ("FULLS_TO_ONE",))
        if arrival.packet.kind == ACK and (is_before or (is_now and slot.is_over)):
            return self._accepted(arrival, self._answer(arrival, CLEAR, slot, to_all=False), ("CLEARS_TO_ONE",))
        said = slot.heard if arrival.packet.kind == PARTIAL else slot.thanked
        return self._dropped(arrival, "DUPLICATE" if is_now and arrival.packet.shard in said else "STALE")

    @staticmethod
    def _accepted(arrival: Arrival, answer: Answer | None, counts: tuple[str, ...]) -> Judgement:
        assert arrival.service is not None
        return answer, (*counts, f"JOB{arrival.service.place}_ACCEPTED")

    @staticmethod
    def _answer(arrival: Arrival, kind: int, slot: Moment, *, to_all: bool) -> Answer:
        packet, job = arrival.packet, arrival.job
        member = job.members[packet.shard]
        reply = packet.but(
            kind=kind,
            destination=job.group_mac if to_all else member.mac,
            source=MAC,
            shard=0 if to_all else packet.shard,
            bitmap=bits(set(range(len(job.members)))),
            values=slot.sums() if kind == FULL else () if job.key is not None else (0,) * VALUES,
            reserved=0,
            count=None,
        )
        return Answer(reply.to_bytes(), job.ports if to_all else 1 << member.port)


def judged(cases: Iterable[Case], geometry: Geometry) -> Iterator[Case]:
    """The same frames for an aggregator of another size or version, with what the oracle says of them.

    Cases that need more places are left out, and so are looks at slots that there are not.
    """
    for case in cases:
        if not any(isinstance(step, Begin) and step.place >= geometry.places for step in case.steps):
            oracle = Oracle(geometry)
            found = Case(case.name, case.why, case.mac, geometry)
            for step in case.steps:
                match step:
                    case Begin(place, job, first_round):
                        oracle.begin(place, job, first_round)
                        found.steps.append(step)
                    case End(place):
                        oracle.end(place)
                        found.steps.append(step)
                    case Look(place=place, slot=slot):
                        if slot < geometry.slots:
                            found.steps.append(oracle.look(place, slot))
                    case Send(frame=frame, port=port):
                        answer, counts = oracle.judge(frame, port)
                        found.steps.append(replace(step, answer=answer, counts=counts))
            yield found
