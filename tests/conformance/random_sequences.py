"""Long random sequences: jobs come and go, packets are lost, late, repeated and broken; the model says what comes."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from conformance.frames import (
    ACK,
    BROADCAST,
    BYTES,
    CLEAR,
    FULL,
    MAC,
    PARTIAL,
    PROBE,
    ROUNDS,
    VALUES,
    Frame,
    is_keyed,
)
from conformance.judge import Judge
from conformance.vectors import Begin, Case, End, Geometry, Send
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import key_in_round

CASE_FRAMES = 250
"""Frames of a case: a few jobs, one after the other in each place."""

_DISTANCES = (0, 0, 0, 1, -1, -1, 2, -2, (1 << 15) - 1, -(1 << 15), -(1 << 15) + 1)
_EXTREMES = (0, 1, 0xFFFF_FFFF, 0x7FFF_FFFF, 0x8000_0000)


def random_cases(geometry: Geometry, seed: int, frames: int) -> Iterator[Case]:
    """Cases with so many frames in all; the same ones for the same seed."""
    for number, first in enumerate(range(0, frames, CASE_FRAMES)):
        rng = random.Random(f"{seed} {number}")
        yield _Sequence(geometry, rng, f"random {seed} {number}").case(min(CASE_FRAMES, frames - first))


class _Sequence:
    """A case in the making."""

    def __init__(self, geometry: Geometry, rng: random.Random, name: str) -> None:
        self._geometry = geometry
        self._rng = rng
        self._name = name
        self._judge = Judge(geometry)
        self._jobs: dict[int, Job] = {}  # by place
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=60)
        self._hot = rng.sample(range(geometry.slots), rng.randint(1, 4))
        self._places = rng.sample(range(geometry.places), rng.randint(1, min(3, geometry.places)))
        self._numbers = {place: 16 * place + rng.randrange(8) for place in self._places}
        self._workers = rng.choice((1, 2, 2, 3, 3, 4, 8, 32))

    def case(self, frames: int) -> Case:
        rng, judge = self._rng, self._judge
        case = Case(self._name, "a random sequence, judged by the oracle", MAC, self._geometry)
        for place in self._places:
            case.steps.append(self._begin(place))
        for _ in range(frames):
            chance = rng.random()
            if chance < 0.008:
                case.steps.append(self._begin(rng.choice(self._places)))
            elif chance < 0.011 and self._sent:  # else there might be nothing to send
                place = rng.choice(self._places)
                judge.end(place)
                self._jobs.pop(place, None)
                case.steps.append(End(place))
            elif chance < 0.05 and self._jobs:
                case.steps.append(judge.look(rng.choice(sorted(self._jobs)), rng.choice(self._hot)))
            port, frame = self._next()
            self._sent.append((port, frame))
            answer, counts = judge.judge(frame, port)
            case.steps.append(Send(frame, port, answer, counts))
        case.steps += [judge.look(place, slot) for place in self._jobs for slot in self._hot]
        return case

    def _begin(self, place: int) -> Begin:
        """The next job in a place: mostly the same workers, under the next number."""
        rng = self._rng
        self._numbers[place] = 16 * place + (self._numbers[place] + 1) % 16
        workers = self._workers if rng.random() < 0.8 else rng.choice((1, 2, 5))
        members = tuple(
            Member(0x0250_0000_0000 + (place << 8) + shard, rng.randrange(self._geometry.ports))
            for shard in range(workers)
        )
        if self._geometry.stand_ins and rng.random() < 0.5:  # each stands in for the one before it
            others = members[1:] + members[:1]
            members = tuple(
                replace(own, stand_in=other if other != own else None)
                for own, other in zip(members, others, strict=True)
            )
        ports = sum({1 << member.port for member in members})
        if rng.random() < 0.1:
            ports = rng.randrange(1, 1 << self._geometry.ports)
        has_key = self._geometry.version > 1 and rng.random() < 0.8
        key = rng.getrandbits(64) if has_key else None
        parent = None
        if self._geometry.parents and workers < 32 and rng.random() < 0.8:
            racks = rng.choice((1, 2, 3, 32))
            parent = Parent(0x0250_0001_0000 + place, rng.randrange(self._geometry.ports), rng.randrange(racks), racks)
        job = Job(self._numbers[place], members, 0x0350_0000_0000 + self._numbers[place], ports, key, parent)
        first_round = rng.choice((1, 1, 65533, 32766, rng.randrange(ROUNDS)))
        self._judge.begin(place, job, first_round)
        self._jobs[place] = job
        return Begin(place, job, first_round)

    def _next(self) -> tuple[int, bytes]:
        """A port and a frame for it."""
        rng = self._rng
        if self._sent and (rng.random() < 0.12 or not self._jobs):
            port, frame = rng.choice(self._sent)
        else:
            port, packet = self._plausible(rng.choice(sorted(self._jobs)))
            frame = packet.to_bytes()
        return self._broken(port, frame) if rng.random() < 0.2 else (port, frame)

    def _plausible(self, place: int) -> tuple[int, Frame]:
        """What leads a slot on, or a packet of a round nearby."""
        rng, job = self._rng, self._jobs[place]
        everyone = range(len(job.members))
        slot = rng.choice(self._hot) if rng.random() < 0.95 else rng.randrange(self._geometry.slots)
        now = self._judge.model.slots[place][slot]
        kind, distance, shards = PARTIAL, 1, list(everyone)
        if now.aggregated and now.aggregated != job.whole:
            distance, shards = 0, [shard for shard in everyone if not now.aggregated >> shard & 1]
            kind = PARTIAL if shards else FULL
        elif now.aggregated and now.acknowledged != job.whole:
            distance, shards = 0, [shard for shard in everyone if not now.acknowledged >> shard & 1]
            kind = ACK if shards else CLEAR
        if rng.random() < 0.25:
            kinds = (PARTIAL, ACK, FULL, CLEAR) if job.parent else (PARTIAL, ACK)
            kind, distance, shards = rng.choice(kinds), rng.choice(_DISTANCES), list(everyone)
        shard = rng.choice(shards or everyone)
        extremes = rng.random() < 0.3
        round_ = now.wraps * ROUNDS + now.round + distance
        key = None if job.key is None else key_in_round(job.key, round_)
        if self._geometry.version > 1 and rng.random() < 0.03:  # all is right but that it has a key or none
            key = rng.getrandbits(64) if key is None else None
        if key is not None and rng.random() < 0.03:  # 65,536 rounds late
            key ^= 1
        count = VALUES
        if key is not None and kind in (PARTIAL, FULL):
            joins = distance == 0 and bool(now.aggregated) and rng.random() < 0.95
            count = len(now.sums) if joins else VALUES * rng.choice((1, 1, 2, 3, 8, 46))
        values = tuple(rng.choice(_EXTREMES) if extremes else rng.getrandbits(32) for _ in range(count))
        if rng.random() < 0.06:
            kind, values, key = PROBE, (rng.getrandbits(32), *[0] * (VALUES - 1)), None
        version = 1 if key is None else 2
        if kind == PROBE and self._geometry.version > 1:
            version = rng.choice((1, 2))
        source: Member | Parent = job.members[shard]
        if (other := job.members[shard].stand_in) and rng.random() < 0.3:
            source = other
        destination, workers, bitmap = MAC, len(everyone), 1 << shard
        if kind == PROBE and rng.random() < 0.5:
            destination = BROADCAST
        elif kind in (FULL, CLEAR) and job.parent:
            source, shard, workers, bitmap = job.parent, job.parent.shard, job.parent.workers, job.parent.everyone
            if rng.random() < 0.6:
                destination, shard = 0x0350_0000_0000, 0
        packet = Frame(
            kind,
            destination=destination,
            source=source.mac,
            job=job.number,
            slot=slot,
            round=round_ % ROUNDS,
            shard=shard,
            workers=workers,
            bitmap=bitmap,
            values=values if kind not in (ACK, CLEAR) else () if key is not None else (0,) * VALUES,
            version=version,
            key=key,
        )
        return source.port, packet

    def _broken(self, port: int, frame: bytes) -> tuple[int, bytes]:
        """Not as it should be: bits, fields, length or port."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.1:
            return rng.randrange(self._geometry.ports), frame
        if kind < 0.18:
            return port, frame[: rng.randrange(len(frame) + 1)]
        if kind < 0.24:
            return port, frame + rng.randbytes(rng.choice((1, 1, 36, 64, 65, 1450)))
        keyed = self._geometry.version > 1 and is_keyed(frame) and not len(frame) % 4
        if kind < 0.5 or (len(frame) != BYTES and not keyed):
            flipped = bytearray(frame or b"\0")
            for _ in range(rng.choice((1, 1, 2))):
                flipped[rng.randrange(min(len(flipped), 40 if keyed else 32))] ^= 1 << rng.randrange(8)
            return port, bytes(flipped)
        packet = Frame.from_bytes(frame, keyed=keyed)
        others = {
            "kind": rng.randrange(16),
            "destination": rng.choice((BROADCAST, packet.source, MAC ^ 1)),
            "source": rng.choice((packet.source ^ 1, packet.source ^ 0x100, rng.getrandbits(48))),
            "job": rng.choice((packet.job ^ 1, rng.randrange(256))),
            "slot": rng.choice((self._geometry.slots % ROUNDS, self._geometry.slots | packet.slot, ROUNDS - 1))
            % ROUNDS,
            "round": rng.randrange(ROUNDS),
            "shard": rng.choice((packet.shard ^ 1, packet.shard | 32, packet.workers % 256)),
            "workers": rng.choice((packet.workers ^ 1, rng.randrange(256))),
            "bitmap": rng.choice((0, packet.bitmap * 2 % (1 << 32), packet.bitmap | 1, 0xFFFF_FFFF)),
            "version": rng.randrange(16),
            "ethertype": rng.getrandbits(16),
            "reserved": 1 << rng.randrange(48),
        }
        if keyed:
            others |= {"key": packet.key ^ 1 << rng.randrange(64), "reserved": packet.reserved ^ 1 << rng.randrange(48)}
        wrong = rng.sample(sorted(others), rng.choice((1, 1, 1, 2, 2, 3)))
        return port, packet.but(**{name: others[name] for name in wrong}).to_bytes()
