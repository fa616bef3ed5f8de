"""What every aggregator can be told and asked, whatever it is made of."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.packet import mac_text

__all__ = ["Controller", "SlotView", "why_not_begin", "why_not_readdress"]


@dataclass(frozen=True)
class SlotView:
    """A slot as an aggregator shows it.

    Attributes
    ----------
    round
        Round that it carries.
    aggregated
        Bitmap of the shards whose partials it has; 0 if it is fresh.
    acknowledged
        Bitmap of the shards that have acknowledged its sums.
    """

    round: int
    aggregated: int
    acknowledged: int


class Controller(Protocol):
    """Access to an aggregator. Every call may raise `P4sgdError`: the aggregator cannot be reached or refuses.

    A job is served in a place, 0 to ``jobs`` - 1.
    """

    @property
    def slots(self) -> int:
        """Slots of each job."""
        ...

    @property
    def jobs(self) -> int:
        """Places."""
        ...

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address. Refused if it has another and serves jobs, which would be heard no more."""
        ...

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a place from this round on, with all slots fresh.

        Refused if the place serves a job, which `end` ends, or if a job of this number is served anywhere. Of two
        programs that ask for one place one is refused, where the aggregator can tell.
        """
        ...

    def end(self, place: int) -> None:
        """Serve what is in a place no longer; nothing happens if nothing is."""
        ...

    def served(self) -> dict[int, Job]:
        """The jobs that are served, by place."""
        ...

    def counters(self) -> dict[str, int]:
        """Counters by their names in :func:`p4sgd.hw.spec.aggregator.counters`, without those that it lacks."""
        ...

    def look(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry."""
        ...

    def close(self) -> None:
        """Let go of the aggregator, which serves on."""
        ...


def why_not_readdress(known: int, wanted: int) -> str:
    """Why an aggregator that serves jobs under one address does not take another."""
    return (
        f"jobs are served under the aggregator's address {mac_text(known)}, so it cannot be {mac_text(wanted)}: "
        f"give these workers {mac_text(known)} as the aggregator's address, or end the jobs first"
    )


def why_not_begin(place: int, job: Job, served: Iterable[tuple[int, int]]) -> str | None:
    """Why a job cannot begin in a place, given places and numbers of those that are served; None if it can."""
    for other, number in served:
        if number == job.number:
            return f"job {number} is being served already"
        if other == place:
            return f"place {place} serves job {number}: end that first"
    return None
