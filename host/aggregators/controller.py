"""Controllers of aggregators: their common interface, and the progress of jobs.

An aggregator serves each job in a *place* with slots of its own. A place is an index of the aggregator, from 0 (the
field ``place`` of its registers and P4 tables); a job's number is chosen by the host of its workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from p4sgd.host.errors import P4sgdError
from p4sgd.host.links.udp import address_text
from p4sgd.hw.spec.job import Job


@dataclass(frozen=True)
class SlotView:
    """State of a slot in an aggregator, with bitmaps of shards."""

    round: int
    aggregated: int
    """Shards whose partials have been added; 0 if the slot is fresh."""
    acknowledged: int
    """Shards that have acknowledged the sums."""


class Controller(Protocol):
    """Control of an aggregator. Every call raises `P4sgdError` if the aggregator cannot be reached or refuses."""

    @property
    def slots(self) -> int:
        """Slots of each job."""
        ...

    @property
    def jobs(self) -> int:
        """Number of places, which is how many jobs can be served at a time."""
        ...

    @property
    def most(self) -> int:
        """Most micro-batches in a packet of version 2; 0 if only version 1 is spoken: jobs must not have a key then."""
        ...

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own MAC address.

        Another address than the current one is refused while jobs are served, as their workers would not be heard.
        """
        ...

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a free place from this round on, with all slots fresh.

        Refused if the place is not free, or if another place serves a job of this number. If two programs ask for one
        place at the same time, one of them is refused, on aggregators that can tell them apart.
        """
        ...

    def end(self, place: int) -> None:
        """End the job in a place, if there is one."""
        ...

    def served(self) -> dict[int, Job]:
        """The jobs being served, by place."""
        ...

    def counters(self) -> dict[str, int]:
        """Counters by their names in :func:`p4sgd.hw.spec.aggregator.counters`, those that this aggregator has."""
        ...

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """State of the given slots of a place."""
        ...

    def check_process(self) -> None:
        """Check that the process of the aggregator, if it is one, has not ended. It may be called often."""
        ...

    def close(self) -> None:
        """Close the connection. The aggregator keeps serving its jobs."""
        ...


def why_not_readdress(known: int, wanted: int, *, udp: bool) -> str:
    """Message for an aggregator that serves jobs and is to change its address."""
    old, new = (address_text(address, udp=udp) for address in (known, wanted))
    return (
        f"jobs are served under the aggregator's address {old}, so it cannot become {new}: give these workers {old} as "
        "the aggregator's address, or end the jobs first"
    )


def why_not_begin(place: int, job: Job, served: Iterable[tuple[int, int]]) -> str | None:
    """Message if a job cannot begin in a place, given (place, number) of the jobs being served; None if it can."""
    for other, number in served:
        if number == job.number:
            return f"job {number} is being served already"
        if other == place:
            return f"place {place} serves job {number}: end that job first"
    return None


@dataclass(frozen=True)
class WaitingSlot:
    """A slot that is under way: it has some partials of its round, and not yet all acknowledgements."""

    slot: int
    round: int
    aggregated: int
    acknowledged: int
    partials: tuple[int, ...]
    """Shards whose partials are missing."""
    acknowledgements: tuple[int, ...]
    """Shards whose acknowledgements are missing, if no partials are."""


@dataclass(frozen=True)
class JobProgress:
    """A job being served, with its slots that are under way."""

    place: int
    job: Job
    under_way: tuple[WaitingSlot, ...]
    stuck: tuple[WaitingSlot, ...]
    """Slots that have not changed since the previous reading."""


def shards_of(bitmap: int) -> tuple[int, ...]:
    """The shards whose bits are set in a bitmap."""
    return tuple(shard for shard in range(bitmap.bit_length()) if bitmap >> shard & 1)


def read_active_slots(controller: Controller) -> dict[tuple[int, Job], tuple[WaitingSlot, ...]]:
    """The slots that are under way, by place and job. A job that ends while its slots are being read is left out."""
    found = {}
    for place, job in controller.served().items():
        try:
            seen = _under_way(controller, place, job)
        except P4sgdError:
            if controller.served().get(place) == job:
                raise
            continue
        if controller.served().get(place) == job:  # else the slots may be those of another job
            found[place, job] = seen
    return found


def _under_way(controller: Controller, place: int, job: Job) -> tuple[WaitingSlot, ...]:
    found = []
    for slot, view in enumerate(controller.read_slots(place, range(controller.slots))):
        if view.aggregated and view.acknowledged != job.everyone:
            partials = shards_of(job.everyone & ~view.aggregated)
            acknowledgements = () if partials else shards_of(job.everyone & ~view.acknowledged)
            found.append(WaitingSlot(slot, **vars(view), partials=partials, acknowledgements=acknowledgements))
    return tuple(found)


def read_progress(before: dict[tuple[int, Job], tuple[WaitingSlot, ...]], controller: Controller) -> list[JobProgress]:
    """Read the slots of all jobs again, and find those unchanged since ``before``, by `read_active_slots`."""
    found = []
    for (place, job), under_way in read_active_slots(controller).items():
        seen = set(before.get((place, job), ()))
        found.append(JobProgress(place, job, under_way, tuple(slot for slot in under_way if slot in seen)))
    return found
