"""Any aggregator with a controller and real interfaces as a subject."""

import time
from collections.abc import Sequence

from conformance.script import MAC
from conformance.subject import Abilities, State
from conformance.wire import Wire
from p4sgd.host.aggregators.controller import Controller
from p4sgd.hw.spec.job import Job

_PATIENCE_S = 5.0


class ControlledSubject:
    """Jobs and counters go through the controller, frames over the wire.

    Parameters
    ----------
    controller
        Of the aggregator; it is given the address that vectors name.
    interfaces
        The far ends of its ports.
    abilities
        What of vectors reaches it, and what it shows.
    settle_s
        How long to look for frames that should not come. An aggregator that does not count FRAMES needs so long for
        one that it does not answer.
    """

    def __init__(
        self, controller: Controller, interfaces: Sequence[str], abilities: Abilities, *, settle_s: float
    ) -> None:
        self.abilities = abilities
        self._controller = controller
        controller.set_mac(MAC)
        self._first = controller.counters().get("FRAMES")
        settled = None if self._first is None else self._await_frames
        self._wire = Wire(interfaces, settled=settled, settle_s=settle_s)

    def _await_frames(self, sent: int) -> None:
        """Return when the aggregator has counted as many frames. Those that it does not count are waited for once."""
        assert self._first is not None
        end = time.monotonic() + _PATIENCE_S
        while (missing := self._first + sent - self._controller.counters()["FRAMES"]) > 0:
            if time.monotonic() > end:
                self._first -= missing
                return
            time.sleep(0.0002)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self._controller.end(place)
        self._controller.begin(place, job, first_round)

    def end(self, place: int) -> None:
        self._controller.end(place)

    def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        return self._wire.exchange(frames, answers)

    def look(self, place: int, slot: int) -> State:
        (view,) = self._controller.read_slots(place, range(slot, slot + 1))
        return State(view.round, view.aggregated, view.acknowledged)

    def counters(self) -> dict[str, int]:
        return self._controller.counters()

    def close(self) -> None:
        self._wire.close()
        self._controller.close()
