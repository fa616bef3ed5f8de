"""The Python model of the aggregator as a subject."""

from collections.abc import Sequence

from conformance.script import MAC
from conformance.subject import Abilities, State
from conformance.vectors import Geometry
from p4sgd.hw.spec.job import Job
from p4sgd.sim.network.aggregator import Aggregator


class ModelSubject:
    """`sim/network/aggregator.py`, or a class that is derived from it."""

    def __init__(self, geometry: Geometry, model: type[Aggregator] = Aggregator) -> None:
        self.abilities = Abilities(geometry)
        self._model = model(geometry.slots, jobs=geometry.places, mac=MAC)

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
