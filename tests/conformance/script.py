"""What cases are written with: a packet, and by name what the specification says comes of it.

Nothing here knows the state of a slot: every expectation is that of the case's author.
"""

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from conformance.frames import ACK, CLEAR, ECHO, FULL, MOST, PARTIAL, PROBE, VALUES, Frame
from conformance.vectors import Answer, Begin, Case, End, Geometry, Look, Send
from p4sgd.hw.spec.job import Job, Member

MAC = 0x0250_3453_47FF
"""The aggregator's address."""

ROUNDS = 1 << 16

_VERDICT = ("JOB", "WORKERS", "SHARD", "SLOT", "SOURCE")
_COUNTED_BY_JOB = {"WORKERS", "SHARD", "SLOT", "SOURCE", "KEY", "STALE", "DUPLICATE"}


def lanes(number: int) -> tuple[int, ...]:
    """Eight values, a different one in each lane; those of a + b are the sums of those of a and of b."""
    return tuple(number * (lane + 1) for lane in range(VALUES))


def _values(given: int | Sequence[int]) -> tuple[int, ...]:
    return lanes(given) if isinstance(given, int) else tuple(given)


class Script:
    """Writes down a case, step by step."""

    def __init__(self, name: str, why: str, geometry: Geometry) -> None:
        self.geometry = geometry
        self.case = Case(name, why, MAC, geometry)

    def begin(
        self,
        workers: int = 2,
        *,
        place: int = 0,
        number: int = 7,
        first_round: int = 1,
        ports: Sequence[int] | None = None,
        to_all: int | None = None,
        addresses: int | None = None,
        key: int | None = None,
    ) -> "Running":
        """Begin a job; its shard w is behind port w modulo their number, and answers to all leave through these.

        Members' addresses follow from the job's number; with ``addresses`` they are those of the job of that number.
        With a key its packets are of version 2.
        """
        behind = ports or [shard % self.geometry.ports for shard in range(workers)]
        first = 0x0250_0000_0000 + ((number if addresses is None else addresses) << 8)
        members = tuple(Member(first + shard, port) for shard, port in enumerate(behind))
        used = sum({1 << port for port in behind}) if to_all is None else to_all
        job = Job(number, members, 0x0350_0000_0000 + number, used, key)
        self.case.steps.append(Begin(place, job, first_round % ROUNDS))
        return Running(self, place, job)

    def end(self, place: int = 0) -> None:
        """End the job in a place."""
        self.case.steps.append(End(place))

    def send(self, frame: Frame | bytes, port: int = 0, why: str = "") -> "Outcome":
        """A frame of no job, or no packet at all."""
        return Outcome(self, None, frame, port, why)


class Running:
    """A job that has begun, and packets of its workers; ``wrong`` are header fields that are not as they should be."""

    def __init__(self, script: Script, place: int, job: Job) -> None:
        self._script = script
        self.place = place
        self.job = job
        self.workers = len(job.members)

    def frame(self, kind: int, shard: int, **fields: Any) -> Frame:
        right: dict[str, Any] = {
            "destination": MAC,
            "source": self.job.members[shard].mac,
            "job": self.job.number,
            "shard": shard,
            "workers": self.workers,
            "bitmap": 1 << shard,
        }
        if self.job.key is not None and kind != PROBE:
            right |= {"version": 2, "key": self.job.key, "values": ()}
        return Frame(kind, **right | fields)

    def send(self, frame: Frame | bytes, port: int, why: str = "") -> "Outcome":
        """A frame with the number of this job."""
        return Outcome(self._script, self, frame, port, why)

    def partial(
        self,
        shard: int,
        round_: int,
        values: int | Sequence[int] = 0,
        *,
        slot: int = 0,
        port: int | None = None,
        why: str = "",
        **wrong: int,
    ) -> "Outcome":
        packet = {"slot": slot, "round": round_ % ROUNDS, "values": _values(values)}
        return self._sent(self.frame(PARTIAL, shard, **packet | wrong), shard, port, why)

    def ack(
        self, shard: int, round_: int, *, slot: int = 0, port: int | None = None, why: str = "", **wrong: Any
    ) -> "Outcome":
        packet = {"slot": slot, "round": round_ % ROUNDS}
        return self._sent(self.frame(ACK, shard, **packet | wrong), shard, port, why)

    def probe(
        self,
        shard: int,
        *,
        number: int = 0x0BAD_CAFE,
        slot: int = 0,
        port: int | None = None,
        why: str = "",
        **wrong: int,
    ) -> "Outcome":
        packet = {"slot": slot, "values": (number, *[0] * (VALUES - 1))}
        return self._sent(self.frame(PROBE, shard, **packet | wrong), shard, port, why)

    def _sent(self, frame: Frame, shard: int, port: int | None, why: str) -> "Outcome":
        return self.send(frame, self.job.members[shard].port if port is None else port, why)

    def state(self, *, round_: int, aggregated: int = 0, acknowledged: int = 0, slot: int = 0) -> None:
        """The state that a slot is in now."""
        look = Look(self.place, slot, round_ % ROUNDS, aggregated, acknowledged)
        self._script.case.steps.append(look)

    def complete(self, round_: int, values: int = 1, *, slot: int = 0) -> None:
        """Every worker sends a PARTIAL of the same values in a round that is to be complete then."""
        for shard in range(self.workers - 1):
            self.partial(shard, round_, values, slot=slot).added()
        self.partial(self.workers - 1, round_, values, slot=slot).full_to_all(self.workers * values)

    def finish(self, round_: int, *, slot: int = 0) -> None:
        """Every worker sends an ACK of a round that is complete."""
        for shard in range(self.workers - 1):
            self.ack(shard, round_, slot=slot).noted()
        self.ack(self.workers - 1, round_, slot=slot).clear_to_all()


class Outcome:
    """What must come of a frame: one of these is to be called."""

    def __init__(self, script: Script, running: Running | None, frame: Frame | bytes, port: int, why: str) -> None:
        self._script = script
        self._running = running
        self._frame = frame
        self._port = port
        self._why = why

    def added(self) -> None:
        """A PARTIAL is taken; others are missing."""
        self._note(["PARTIALS"])

    def full_to_all(self, sums: int | Sequence[int]) -> None:
        """It was the last one."""
        self._note(["PARTIALS", "FULLS_TO_ALL"], self._to_all(FULL, _values(sums)))

    def full_to_one(self, sums: int | Sequence[int]) -> None:
        """A PARTIAL comes again when the sums are there."""
        self._note(["FULLS_TO_ONE"], self._to_one(FULL, _values(sums)))

    def noted(self) -> None:
        """An ACK is taken; others are missing."""
        self._note(["ACKS"])

    def clear_to_all(self) -> None:
        """It was the last one."""
        self._note(["ACKS", "CLEARS_TO_ALL"], self._to_all(CLEAR))

    def clear_to_one(self) -> None:
        """An ACK comes again when all have acknowledged, or when the others have gone on."""
        self._note(["CLEARS_TO_ONE"], self._to_one(CLEAR))

    def dropped(self, reason: str) -> None:
        """Nothing changes but counters. Of a job's packet RUNT and LONG mean other lengths than those of its round."""
        counts = [f"DROPPED_{reason}"]
        if reason in _COUNTED_BY_JOB or (reason in ("RUNT", "LONG") and self._running is not None):
            assert self._running is not None, "only a packet of a job is dropped for this"
            counts.append(f"JOB{self._running.place}_DROPPED")
        self._write(None, counts)

    def echo(
        self,
        *verdict: str,
        round_: int = 0,
        aggregated: int = 0,
        acknowledged: int = 0,
        workers: int | None = None,
        mac: int | None = None,
    ) -> None:
        """A probe is answered: which checks it fails, and the state of its slot.

        ``workers`` and ``mac`` are those of the job and the shard that it names, unless given.
        """
        probe, known = self._packet, self._running
        size = workers if workers is not None else known.workers if known else 0
        address = mac if mac is not None else known.job.members[probe.shard].mac if known else 0
        values = (
            probe.values[0],
            sum(1 << _VERDICT.index(name) for name in verdict),
            self._port,
            acknowledged,
            size,
            self._script.geometry.slots,
            address >> 32,
            address & 0xFFFF_FFFF,
        )
        version = min(max(1, probe.version), self._script.geometry.version)
        reply = Frame(
            ECHO,
            version=version,
            count=MOST if version > 1 else 0,
            destination=probe.source,
            source=MAC,
            job=probe.job,
            slot=probe.slot,
            round=round_ % ROUNDS,
            shard=probe.shard,
            workers=probe.workers,
            bitmap=aggregated,
            values=values,
        )
        counts = [f"JOB{known.place}_ACCEPTED"] if known else []
        self._write(Answer(reply.to_bytes(), 1 << self._port), ["ECHOES", *counts])

    @property
    def _packet(self) -> Frame:
        assert isinstance(self._frame, Frame), "only a packet is answered"
        return self._frame

    def _reply(self, kind: int, destination: int, shard: int, values: tuple[int, ...]) -> bytes:
        packet, running = self._packet, self._running
        assert running is not None
        key = running.job.key
        if not values:
            values = () if key is not None else (0,) * VALUES
        return Frame(
            kind,
            destination=destination,
            source=MAC,
            job=running.job.number,
            slot=packet.slot,
            round=packet.round,
            shard=shard,
            workers=running.workers,
            bitmap=running.job.everyone,
            values=values,
            version=1 if key is None else 2,
            key=key,
        ).to_bytes()

    def _to_all(self, kind: int, values: tuple[int, ...] = ()) -> Answer:
        assert self._running is not None
        job = self._running.job
        return Answer(self._reply(kind, job.group_mac, 0, values), job.ports)

    def _to_one(self, kind: int, values: tuple[int, ...] = ()) -> Answer:
        assert self._running is not None
        shard = self._packet.shard
        member = self._running.job.members[shard]
        return Answer(self._reply(kind, member.mac, shard, values), 1 << member.port)

    def _note(self, counts: list[str], answer: Answer | None = None) -> None:
        assert self._running is not None
        self._write(answer, [*counts, f"JOB{self._running.place}_ACCEPTED"])

    def _write(self, answer: Answer | None, counts: list[str]) -> None:
        frame = self._frame if isinstance(self._frame, bytes) else self._frame.to_bytes()
        self._script.case.steps.append(Send(frame, self._port, answer, tuple(counts), self._why))


Author = Callable[..., None]


def vector(author: Author) -> Author:
    """A function that writes a case: its name and, in its docstring, the reason."""
    return vector_for({})(author)


def vector_for(*arguments: dict[str, Any]) -> Callable[[Author], Author]:
    """One case for each of these keyword arguments."""

    def mark(author: Author) -> Author:
        author.arguments = arguments  # type: ignore[attr-defined]
        return author

    return mark


def cases_of(topic: ModuleType, geometry: Geometry) -> Iterator[Case]:
    """All cases of a module, in the order in which it has them."""
    for author in list(vars(topic).values()):
        if not hasattr(author, "arguments"):
            continue
        for arguments in author.arguments:
            name = " ".join([author.__name__, *(f"{key}={value}" for key, value in arguments.items())])
            script = Script(name, " ".join((author.__doc__ or "").split()), geometry)
            author(script, **arguments)
            yield script.case
