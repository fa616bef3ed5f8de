"""The Python model of the aggregator as a subject, and its compiled form."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from support.aggregator_model import Aggregator
from support.batch import answers_of

from conformance.frames import MAC, MOST
from conformance.runner import Abilities, State
from conformance.vectors import Geometry
from p4sgd.hw.spec.job import Job
from p4sgd.sim.network.batch import BatchAggregator


class ModelSubject:
    """`support/aggregator_model.py`, or a class that is derived from it."""

    def __init__(self, geometry: Geometry, model: type[Any] = Aggregator) -> None:
        self.abilities = Abilities(geometry)
        self._model = model(geometry.slots, jobs=geometry.places, mac=MAC, most=MOST if geometry.version > 1 else 0)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self._model.begin(place, job, first_round)

    def end(self, place: int) -> None:
        self._model.end(place)

    def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        ports = range(self.abilities.geometry.ports)
        return [(out, sent) for sent, to in self._answers(frames) for out in ports if to >> out & 1]

    def _answers(self, frames: Sequence[tuple[int, bytes]]) -> Iterator[tuple[bytes, int]]:
        """Answers, each with the bitmap of its ports."""
        for port, frame in frames:
            if answer := self._model.receive_frame(frame, port):
                yield answer.packet.to_bytes(), answer.ports

    def look(self, place: int, slot: int) -> State:
        state = self._model.slots[place][slot]
        return State(state.round, state.aggregated, state.acknowledged)

    def counters(self) -> dict[str, int]:
        return self._model.counters()


class BatchSubject(ModelSubject):
    """`sim/network/batch.py`."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry, BatchAggregator)

    def _answers(self, frames: Sequence[tuple[int, bytes]]) -> Iterator[tuple[bytes, int]]:
        for port, group in groupby(frames, lambda each: each[0]):
            yield from answers_of(self._model, [frame for _, frame in group], port)

    def look(self, place: int, slot: int) -> State:
        (state,) = self._model.read_slots(place, range(slot, slot + 1))
        return State(*state)
