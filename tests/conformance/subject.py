"""What a switch must be able to do to be tested."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from conformance.vectors import Geometry
from p4sgd.hw.spec.job import Job


class State(NamedTuple):
    """What is seen of a slot: its round, and bitmaps of shards."""

    round: int
    aggregated: int
    acknowledged: int


@dataclass(frozen=True)
class Abilities:
    """What of a vector a subject can be shown, and what it can show; the rest is left out.

    Attributes
    ----------
    geometry
        Its size: it takes cases for exactly so many slots, and for no more places and ports.
    shortest, longest
        Bytes of frames that reach it: on a real network those of 14 to 1514.
    sees_other_protocols
        Whether frames of other EtherTypes reach it. A socket is bound to one.
    keeps_order
        Whether frames sent one right after the other arrive in this order, whatever the ports. Else a frame is sent
        when all has come of the one before.
    looks
        Whether it shows the state of slots, and counts nothing by that. If not, answers alone tell it.
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

        Parameters
        ----------
        frames
            Port and bytes of each.
        answers
            How many frames should come out, over all ports. Who cannot know when all has come waits for so many, with
            patience, and then a little longer for more.

        Returns
        -------
        list of (int, bytes)
            Port and bytes of every frame that came out of one. Order counts within a port.
        """

    def look(self, place: int, slot: int) -> State:
        """The state of a slot of the job in a place. Never called without ``abilities.looks``."""

    def counters(self) -> dict[str, int]:
        """Counters by the names of ``p4sgd.hw.spec.aggregator.counters``; those that are missing are not compared."""
