"""What the slots of a job do: which are under way, and what those wait for that do not move."""

from dataclasses import dataclass

from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.controller import Controller, SlotView
from p4sgd.hw.spec.job import Job

__all__ = ["JobProgress", "WaitingSlot", "look_at_jobs", "shards_of", "watch"]


@dataclass(frozen=True)
class WaitingSlot:
    """A slot that is under way.

    Attributes
    ----------
    slot, round
        Which it is, and the round that it carries.
    aggregated, acknowledged
        Bitmaps of the shards whose partials it has, and of those that have acknowledged the sums.
    partials
        Shards whose partials have not arrived; none once all have.
    acknowledgements
        Shards that have not acknowledged, once all partials have arrived.
    """

    slot: int
    round: int
    aggregated: int
    acknowledged: int
    partials: tuple[int, ...]
    acknowledgements: tuple[int, ...]


@dataclass(frozen=True)
class JobProgress:
    """A job that is served, its slots that are under way, and those of them that did not move between two looks."""

    place: int
    job: Job
    under_way: tuple[WaitingSlot, ...]
    stuck: tuple[WaitingSlot, ...]


def shards_of(bitmap: int) -> tuple[int, ...]:
    """The shards in a bitmap."""
    return tuple(shard for shard in range(bitmap.bit_length()) if bitmap >> shard & 1)


def look_at_jobs(controller: Controller) -> dict[tuple[int, Job], tuple[WaitingSlot, ...]]:
    """The slots that have some partials, and not yet all acknowledgements, by place and job.

    A job that ends while it is looked at is left out.
    """
    found = {}
    for place, job in controller.served().items():
        problem = None
        try:
            seen = _under_way(controller, place, job)
        except P4sgdError as error:
            problem = error
        if controller.served().get(place) != job:
            continue  # what was seen may be of the next job, or the problem that there is none
        if problem is not None:
            raise problem
        found[place, job] = seen
    return found


def _under_way(controller: Controller, place: int, job: Job) -> tuple[WaitingSlot, ...]:
    views = controller.look(place, range(controller.slots))
    return tuple(
        _waiting(slot, view, job.everyone)
        for slot, view in enumerate(views)
        if view.aggregated and view.acknowledged != job.everyone
    )


def _waiting(slot: int, view: SlotView, everyone: int) -> WaitingSlot:
    partials = shards_of(everyone & ~view.aggregated)
    acknowledgements = () if partials else shards_of(everyone & ~view.acknowledged)
    return WaitingSlot(slot, view.round, view.aggregated, view.acknowledged, partials, acknowledgements)


def watch(before: dict[tuple[int, Job], tuple[WaitingSlot, ...]], controller: Controller) -> list[JobProgress]:
    """Look at all jobs again.

    Parameters
    ----------
    before
        What `look_at_jobs` has found some time ago.
    controller
        Of the aggregator.
    """
    found = []
    for (place, job), under_way in look_at_jobs(controller).items():
        seen = set(before.get((place, job), ()))
        found.append(JobProgress(place, job, under_way, tuple(slot for slot in under_way if slot in seen)))
    return found
