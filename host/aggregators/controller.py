"""Controllers of aggregators: their common interface, and the slots that are under way.

An aggregator serves each job in a *place* with slots of its own. A place is an index of the aggregator, from 0 (the
field ``place`` of its registers and P4 tables); a job's number is chosen by the host of its workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from p4sgd.host.errors import P4sgdError
from p4sgd.host.links.udp import address_text
from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.run import MAX_WORKERS


@dataclass(frozen=True)
class SlotView:
    """State of a slot in an aggregator.

    ``aggregated`` and ``acknowledged`` are bitmaps of the shards whose partials have been added, none in a fresh slot,
    and that have acknowledged the sums.
    """

    round: int
    aggregated: int
    acknowledged: int


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
        return 0

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address, which is refused while jobs are served under another one."""
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
        return

    def close(self) -> None:
        """Close the connection. The aggregator keeps serving its jobs; one that is a process for some seconds."""


def why_not_readdress(known: int, wanted: int, *, udp: bool) -> str:
    """Message for an aggregator that serves jobs and is to change its address."""
    old, new = (address_text(address, udp=udp) for address in (known, wanted))
    return (
        f"jobs are served under the aggregator's address {old}, so it cannot become {new}: give these workers {old} as "
        "the aggregator's address, or end the jobs first"
    )


def why_not_begin(
    place: int, job: Job, served: Iterable[tuple[int, int]], *, parents: bool = False, stand_ins: bool = False
) -> str | None:
    """Message if a job cannot begin in a place, given (place, number) of the jobs being served; None if it can.

    Jobs of some aggregators may have ``parents``, or ``stand_ins``.
    """
    if len(job.members) > MAX_WORKERS:
        return f"job {job.number} cannot begin: an aggregator adds up {MAX_WORKERS} workers, not {len(job.members)}"
    if job.parent is not None and not parents:
        return f"job {job.number} cannot begin: it has a parent, which no Tofino can have"
    if any(member.stand_in for member in job.members) and not stand_ins:
        return f"job {job.number} cannot begin: it has stand-ins, which only aggregators that are programs can have"
    for other, number in served:
        if number == job.number:
            return f"job {number} is being served already"
        if other == place:
            return f"place {place} serves job {number}: end that job first"
    return None


@dataclass(frozen=True)
class WaitingSlot(SlotView):
    """A slot that is under way, and the shards whose partials are missing, or if none are, whose acknowledgements."""

    slot: int
    partials: tuple[int, ...]
    acknowledgements: tuple[int, ...]


def read_active_slots(controller: Controller) -> dict[tuple[int, Job], list[WaitingSlot]]:
    """The slots that are under way, by place and job. A job that ends while its slots are being read is left out."""
    found: dict[tuple[int, Job], list[WaitingSlot]] = {}
    for place, job in controller.served().items():
        try:
            views = controller.read_slots(place, range(controller.slots))
        except P4sgdError:
            if controller.served().get(place) == job:
                raise
            continue
        if controller.served().get(place) != job:  # the slots may be those of another job
            continue
        found[place, job] = waiting = []
        for slot, view in enumerate(views):
            if view.aggregated and view.acknowledged != job.everyone:
                partials = shards_of(job.everyone & ~view.aggregated)
                acknowledgements = () if partials else shards_of(job.everyone & ~view.acknowledged)
                waiting.append(
                    WaitingSlot(**vars(view), slot=slot, partials=partials, acknowledgements=acknowledgements)
                )
    return found


def shards_of(bitmap: int) -> tuple[int, ...]:
    """The shards whose bits are set in a bitmap."""
    return tuple(shard for shard in range(bitmap.bit_length()) if bitmap >> shard & 1)
