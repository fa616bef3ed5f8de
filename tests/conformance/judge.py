"""What an aggregator must do with a frame, by `support/aggregator_model.py`, which must do as every case says."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from support.aggregator_model import Aggregator

from conformance.frames import MAC, MOST
from conformance.vectors import Answer, Begin, Case, End, Geometry, Look, Send
from p4sgd.hw.spec.job import Job


class Judge:
    """The model of an aggregator, asked frame by frame."""

    def __init__(self, geometry: Geometry) -> None:
        most = MOST if geometry.version > 1 else 0
        self.model = Aggregator(geometry.slots, jobs=geometry.places, mac=MAC, most=most)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self.model.begin(place, job, first_round)

    def end(self, place: int) -> None:
        self.model.end(place)

    def look(self, place: int, slot: int) -> Look:
        state = self.model.slots[place][slot]
        return Look(place, slot, state.round, state.aggregated, state.acknowledged)

    def judge(self, frame: bytes, port: int) -> tuple[Answer | None, tuple[str, ...]]:
        """The answer to a frame, and the counters that go up by one besides FRAMES."""
        before = self.model.counters()
        answer = self.model.receive_frame(frame, port)
        after = self.model.counters()
        counts = tuple(name for name in after if after[name] != before[name] and name != "FRAMES")
        return Answer(answer.packet.to_bytes(), answer.ports) if answer else None, counts


def judged(cases: Iterable[Case], geometry: Geometry) -> Iterator[Case]:
    """The same frames for an aggregator of another size or version, with what the model says of them.

    Cases that need more places are left out, and so are looks at slots that there are not.
    """
    for case in cases:
        if not any(isinstance(step, Begin) and step.place >= geometry.places for step in case.steps):
            judge = Judge(geometry)
            found = Case(case.name, case.why, case.mac, geometry)
            for step in case.steps:
                match step:
                    case Begin(place, job, first_round):
                        judge.begin(place, job, first_round)
                        found.steps.append(step)
                    case End(place):
                        judge.end(place)
                        found.steps.append(step)
                    case Look(place=place, slot=slot):
                        if slot < geometry.slots:
                            found.steps.append(judge.look(place, slot))
                    case Send(frame=frame, port=port):
                        answer, counts = judge.judge(frame, port)
                        found.steps.append(replace(step, answer=answer, counts=counts))
            yield found
