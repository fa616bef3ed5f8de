"""The Python model of the aggregator as a subject, and its compiled form."""

from collections.abc import Sequence
from itertools import groupby

from support.aggregator_model import Aggregator
from support.batch import answers_of

from conformance.frames import MOST
from conformance.script import MAC
from conformance.subject import Abilities, State
from conformance.vectors import Geometry
from p4sgd.hw.spec.job import Job
from p4sgd.sim.network.batch import BatchAggregator


class ModelSubject:
    """`support/aggregator_model.py`, or a class that is derived from it."""

    def __init__(self, geometry: Geometry, model: type[Aggregator] = Aggregator) -> None:
        self.abilities = Abilities(geometry)
        self._model = model(geometry.slots, jobs=geometry.places, mac=MAC, most=MOST if geometry.version > 1 else 0)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self._model.begin(place, job, first_round)

    def end(self, place: int) -> None:
        self._model.end(place)

    def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        found = []
        for port, frame in frames:
            answer = self._model.receive_frame(frame, port)
            if answer:
                sent = answer.packet.to_bytes()
                found += [(out, sent) for out in range(self.abilities.geometry.ports) if answer.ports >> out & 1]
        return found

    def look(self, place: int, slot: int) -> State:
        state = self._model.slots[place][slot]
        return State(state.round, state.aggregated, state.acknowledged)

    def counters(self) -> dict[str, int]:
        return self._model.counters()


class BatchSubject:
    """`sim/network/batch.py`."""

    def __init__(self, geometry: Geometry) -> None:
        self.abilities = Abilities(geometry)
        most = MOST if geometry.version > 1 else 0
        self._model = BatchAggregator(geometry.slots, jobs=geometry.places, mac=MAC, most=most)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self._model.begin(place, job, first_round)

    def end(self, place: int) -> None:
        self._model.end(place)

    def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        found = []
        for port, group in groupby(frames, lambda each: each[0]):
            for sent, ports in answers_of(self._model, [frame for _, frame in group], port):
                found += [(out, sent) for out in range(self.abilities.geometry.ports) if ports >> out & 1]
        return found

    def look(self, place: int, slot: int) -> State:
        (state,) = self._model.read_slots(place, range(slot, slot + 1))
        return State(*state)

    def counters(self) -> dict[str, int]:
        return self._model.counters()
