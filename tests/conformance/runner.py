"""Runs vectors on a subject and compares all that it shows with what it should."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from conformance.frames import describe
from conformance.vectors import Begin, Case, End, Geometry, Look, Send, Step
from p4sgd.hw.spec.job import Job


class State(NamedTuple):
    """What is seen of a slot: its round, and bitmaps of shards."""

    round: int
    aggregated: int
    acknowledged: int


@dataclass(frozen=True)
class Abilities:
    """What of a vector a subject can be shown, and what it can show; the rest is left out.

    It takes cases for exactly so many slots as in ``geometry``, and for no more places and ports. Frames of
    ``shortest`` to ``longest`` bytes reach it, those of other EtherTypes only if it ``sees_other_protocols``.
    ``keeps_order``: frames sent one right after the other arrive in this order, whatever the ports; else each is sent
    when all has come of the one before. ``looks``: it shows the state of slots, and counts nothing by that.
    """

    geometry: Geometry
    shortest: int = 0
    longest: int = 9000
    sees_other_protocols: bool = True
    keeps_order: bool = True
    looks: bool = True


class Subject(Protocol):
    """An aggregator to be tested, of the address that vectors name; all calls return when the thing is done."""

    abilities: Abilities

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a place, all its slots fresh; one that was there is ended."""

    def end(self, place: int) -> None:
        """Serve the job in a place no longer; nothing if there is none."""

    def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        """Send frames into ports, in this order, as close to each other as can be; returns what comes out.

        Ports come before bytes, in order within a port. Who cannot know when all has come waits for so many
        ``answers``, with patience, and then a little longer for more.
        """

    def look(self, place: int, slot: int) -> State:
        """The state of a slot of the job in a place. Never called without ``abilities.looks``."""

    def counters(self) -> dict[str, int]:
        """Counters by the names of ``p4sgd.hw.spec.aggregator.counters``; those that are missing are not compared."""


class NonconformanceError(AssertionError):
    """A subject does something else than a vector says; the message names the case and the step."""


class UnfitError(ValueError):
    """A vector is for an aggregator of another size than the subject."""


@dataclass
class Done:
    """How much of the vectors a subject has been shown."""

    cases: int = 0
    frames: int = 0
    left_out: int = 0
    """Frames that cannot reach it."""
    looks: int = 0


def run(subject: Subject, cases: Iterable[Case], *, close: bool = False) -> Done:
    """Show a subject all cases, for an aggregator of its size, one after the other.

    Whatever it serves is ended before each case. ``close`` sends frames right after one another, from one beginning or
    end of a job to the next, and slots are looked at only then. Else each frame is sent when all has come of the one
    before, and its answer is known by that.

    Raises NonconformanceError at the first difference, UnfitError if a case is for an aggregator of another size.
    """
    done = Done()
    counters = subject.counters()
    for case in cases:
        counters = _Run(subject, case, done).play(counters, close and subject.abilities.keeps_order)
        done.cases += 1
    return done


class _Run:
    """One case on one subject."""

    def __init__(self, subject: Subject, case: Case, done: Done) -> None:
        have, needed = subject.abilities.geometry, case.geometry
        if have.slots != needed.slots or have.version != needed.version or not have.holds(needed):
            raise UnfitError(f"{case.name} is for {needed}, not for {have}")
        self._subject = subject
        self._case = case
        self._done = done

    def play(self, before: dict[str, int], close: bool) -> dict[str, int]:
        """All steps; counters before in, counters after out."""
        for place in range(self._case.geometry.places):
            self._subject.end(place)
        expected: Counter[str] = Counter()
        for group in _groups(self._case.steps, close):
            shown = [(number, step) for number, step in group if self._is_shown(step)]
            sends = [(number, step) for number, step in shown if isinstance(step, Send)]
            if sends:
                self._exchange(sends)
            for _, send in sends:
                expected.update(("FRAMES", *send.counts))
            for number, step in shown:
                self._do(number, step)
        after = self._subject.counters()
        self._compare_counters(before, after, expected)
        return after

    def _is_shown(self, step: Step) -> bool:
        able = self._subject.abilities
        if not isinstance(step, Send):
            return not isinstance(step, Look) or able.looks
        is_ours = able.sees_other_protocols or step.frame[12:14] == b"\x88\xb5"
        reaches = able.shortest <= len(step.frame) <= able.longest and is_ours
        self._done.left_out += not reaches
        return reaches

    def _do(self, number: int, step: Step) -> None:
        match step:
            case Begin(place, job, first_round):
                self._subject.begin(place, job, first_round)
            case End(place):
                self._subject.end(place)
            case Look(place=place, slot=slot):
                found = self._subject.look(place, slot)
                expected = State(step.round, step.aggregated, step.acknowledged)
                self._done.looks += 1
                if found != expected:
                    raise self._differs(number, f"slot {slot} of place {place} is {found}, not {expected}")

    def _exchange(self, sends: list[tuple[int, Send]]) -> None:
        """Send frames and compare what leaves each port with what should."""
        expected: dict[int, list[tuple[int, bytes]]] = {}
        for number, send in sends:
            if send.answer:
                for port in _ports(send.answer.ports):
                    expected.setdefault(port, []).append((number, send.answer.frame))
        count = sum(map(len, expected.values()))
        came: dict[int, list[bytes]] = {}
        for port, frame in self._subject.exchange([(send.port, send.frame) for _, send in sends], count):
            came.setdefault(port, []).append(frame)
        self._done.frames += len(sends)
        first, last = sends[0][0], sends[-1][0]
        among = f" (steps {first} to {last} were sent together)" if first != last else ""
        for port in sorted({*expected, *came}):
            wanted, got = expected.get(port, []), came.get(port, [])
            for (number, frame), other in zip(wanted, got, strict=False):
                if frame != other:
                    raise self._differs(number, f"port {port} sends{among}\n{_shown(other)}\nnot\n{_shown(frame)}")
            if len(got) > len(wanted):
                extra = _shown(got[len(wanted)])
                raise self._differs(last, f"port {port} sends what it should not{among}:\n{extra}")
            if len(got) < len(wanted):
                number, frame = wanted[len(got)]
                raise self._differs(number, f"port {port} does not send{among}\n{_shown(frame)}")

    def _compare_counters(self, before: dict[str, int], after: dict[str, int], expected: Counter[str]) -> None:
        moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        wanted = {name: count for name, count in expected.items() if name in after}
        if moved != wanted:
            raise self._differs(len(self._case.steps), f"counters moved by {moved}, not {wanted}")

    def _differs(self, number: int, what: str) -> NonconformanceError:
        step = self._case.steps[number - 1] if self._case.steps else None
        sent = f" ({describe(step.frame)} into port {step.port})" if isinstance(step, Send) else ""
        why = f": {step.why}" if isinstance(step, Send) and step.why else ""
        return NonconformanceError(f"{self._case.name}, step {number}{sent}{why}\n{what}\n({self._case.why})")


def _groups(steps: list[Step], close: bool) -> Iterator[list[tuple[int, Step]]]:
    """Numbered steps, each alone; or ``close``, frames that are sent together, and looks before the next frame."""
    sends: list[tuple[int, Step]] = []
    looks: list[tuple[int, Step]] = []
    for number, step in enumerate(steps, 1):
        if close and isinstance(step, Send):
            sends.append((number, step))
            looks = []
        elif close and isinstance(step, Look):
            looks.append((number, step))
        else:
            yield sends + looks
            sends, looks = [], []
            yield [(number, step)]
    yield sends + looks


def _ports(bitmap: int) -> Iterator[int]:
    return (port for port in range(bitmap.bit_length()) if bitmap >> port & 1)


def _shown(frame: bytes) -> str:
    return f"  {describe(frame)}\n  {frame.hex()}"
