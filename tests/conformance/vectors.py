"""Vectors: what they are made of, and the JSON Lines that they are kept in (README.md, schema.json)."""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.frames import describe, mac_number, mac_text
from p4sgd.hw.spec.job import Job, Member, Parent


@dataclass(frozen=True)
class Geometry:
    """The aggregator that a case is for: exactly so many slots, at least so many places of jobs, and ports.

    ``version`` is the highest of the packet that it speaks; its jobs may have ``parents``, or ``stand_ins``.
    """

    slots: int = 64
    places: int = 4
    ports: int = 4
    version: int = 1
    parents: bool = False
    stand_ins: bool = False

    def holds(self, other: "Geometry") -> bool:
        """Whether it is as large in everything."""
        own, its = vars(self), vars(other)
        return all(own[name] >= its[name] for name in own if name != "version")


_FURTHER = ("parents", "stand_ins")


@dataclass(frozen=True)
class Begin:
    """A job is begun, all slots fresh; one that was in the place is ended."""

    place: int
    job: Job
    first_round: int


@dataclass(frozen=True)
class End:
    """The job in a place is ended."""

    place: int


@dataclass(frozen=True)
class Answer:
    """A frame that comes out, and the bitmap of ports that it leaves through."""

    frame: bytes
    ports: int


@dataclass(frozen=True)
class Send:
    """A frame goes into a port: its answer, if there is one, and the counters that go up by one besides FRAMES."""

    frame: bytes
    port: int
    answer: Answer | None
    counts: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class Look:
    """The state of a slot at this moment."""

    place: int
    slot: int
    round: int
    aggregated: int
    acknowledged: int


Step = Begin | End | Send | Look


@dataclass
class Case:
    """Steps for an aggregator of this address that serves no job yet."""

    name: str
    why: str
    mac: int
    geometry: Geometry
    steps: list[Step] = field(default_factory=list)


class VectorError(ValueError):
    """A line of a file that is no vector; the message names both."""


def _member_of(record: dict[str, Any]) -> Member:
    stand_in = _member_of(record["stand_in"]) if "stand_in" in record else None
    return Member(mac_number(record["mac"]), record["port"], stand_in)


def _source(member: Member) -> dict[str, Any]:
    stand_in = {"stand_in": _source(member.stand_in)} if member.stand_in else {}
    return {"mac": mac_text(member.mac), "port": member.port} | stand_in


def _job_of(record: dict[str, Any]) -> Job:
    members = tuple(map(_member_of, record["members"]))
    key = int(record["key"], 16) if "key" in record else None
    parent = None
    if "parent" in record:
        parent = Parent(**(record["parent"] | {"mac": mac_number(record["parent"]["mac"])}))
    return Job(record["job"], members, mac_number(record["group_mac"]), record["ports"], key, parent)


def _record(step: Step) -> dict[str, Any]:
    """A step as JSON has it."""
    match step:
        case Begin(place, job, first_round):
            begin = {
                "begin": place,
                "job": job.number,
                "first_round": first_round,
                "group_mac": mac_text(job.group_mac),
                "ports": job.ports,
                "members": [_source(member) for member in job.members],
            } | ({} if job.key is None else {"key": f"{job.key:016x}"})
            return begin | ({"parent": vars(job.parent) | {"mac": mac_text(job.parent.mac)}} if job.parent else {})
        case End(place):
            return {"end": place}
        case Look(place, slot, round_, aggregated, acknowledged):
            state = {"round": round_, "aggregated": aggregated, "acknowledged": acknowledged}
            return {"look": place, "slot": slot} | state
        case Send(frame, port, answer, counts, why):
            record: dict[str, Any] = {"send": frame.hex(), "port": port, "is": describe(frame)}
            if why:
                record["why"] = why
            if answer:
                shown = {"frame": answer.frame.hex(), "ports": answer.ports, "is": describe(answer.frame)}
                record["answer"] = shown
            return record | {"counts": list(counts)}


def _step(record: dict[str, Any]) -> Step:
    match record:
        case {"begin": place}:
            return Begin(place, _job_of(record), record["first_round"])
        case {"end": place}:
            return End(place)
        case {"look": place}:
            return Look(place, record["slot"], record["round"], record["aggregated"], record["acknowledged"])
        case {"send": frame}:
            found = record.get("answer")
            answer = Answer(bytes.fromhex(found["frame"]), found["ports"]) if found else None
            counts = tuple(record["counts"])
            return Send(bytes.fromhex(frame), record["port"], answer, counts, record.get("why", ""))
    raise ValueError(f"neither of case, begin, end, send, look: {sorted(record)}")


def to_text(cases: Iterable[Case]) -> str:
    """Cases as JSON Lines."""
    lines = []
    for case in cases:
        size = case.geometry
        head = {"case": case.name, "why": case.why, "mac": mac_text(case.mac)}
        head |= {"slots": size.slots, "places": size.places, "ports": size.ports}
        head |= {"version": size.version} if size.version > 1 else {}
        lines.append(json.dumps(head | {name: True for name in _FURTHER if vars(size)[name]}))
        lines += [json.dumps(_record(step)) for step in case.steps]
    return "".join(line + "\n" for line in lines)


def from_text(text: Iterable[str], file: str) -> Iterator[Case]:
    """Cases of JSON Lines, one after the other; raises VectorError if a line is none of a vector."""
    case: Case | None = None
    for number, line in enumerate(text, 1):
        try:
            record = json.loads(line)
            if "case" in record:
                if case is not None:
                    yield case
                further = (record.get(name, False) for name in _FURTHER)
                size = record["slots"], record["places"], record["ports"], record.get("version", 1)
                geometry = Geometry(*size, *further)
                case = Case(record["case"], record["why"], mac_number(record["mac"]), geometry)
            elif case is None:
                raise ValueError("a step before the first case")
            else:
                case.steps.append(_step(record))
        except (KeyError, TypeError, ValueError) as error:
            raise VectorError(f"{file}, line {number}: {error!r}") from error
    if case is not None:
        yield case


def read(path: Path) -> Iterator[Case]:
    """Cases of a file, ``.jsonl`` or ``.jsonl.gz``."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from from_text(lines, str(path))


def write(path: Path, cases: Iterable[Case]) -> None:
    """Keep cases in a file, ``.jsonl`` or ``.jsonl.gz``; the same bytes for the same cases."""
    data = to_text(cases).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
