"""What every aggregator can be told and asked, whatever it is made of.

What every aggregator can be told and asked, whatever it is made of.

What the slots of a job do: which are under way, and what those wait for that do not move.

Controllers by kind of aggregator.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from p4sgd.host.aggregators.cluster_file import Cluster
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.packet import mac_text

__all__ = [
    "Controller",
    "JobProgress",
    "SlotView",
    "WaitingSlot",
    "look_at_jobs",
    "open_controller",
    "shards_of",
    "watch",
    "why_not_begin",
    "why_not_readdress",
]


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

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
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
    views = controller.read_slots(place, range(controller.slots))
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


def open_controller(cluster: Cluster) -> Controller:
    """The controller of a cluster's aggregator.

    Raises
    ------
    UserError
        If there is no controller of this kind here.
    P4sgdError
        If the aggregator cannot be reached.
    """
    aggregator = cluster.aggregator
    if aggregator.kind == "socket":
        from p4sgd.host.aggregators.software import SoftwareAggregator

        return SoftwareAggregator(ControlAddress.parse(aggregator.control))
    opened: Controller
    if aggregator.kind == "bmv2":
        opened = _module("p4runtime", aggregator.kind).open_p4runtime(aggregator)
        return opened
    if aggregator.kind == "tofino":
        opened = _module("bfruntime", aggregator.kind).open_bfruntime(aggregator)
        return opened
    from p4sgd.host.aggregators.fpga import BoardAggregator

    assert aggregator.board is not None
    return BoardAggregator(aggregator.board, rs_fec=cluster.network.rs_fec)


def _module(name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(f"p4sgd.host.aggregators.{name}")
    except ModuleNotFoundError as error:
        raise UserError(f"an aggregator of kind {kind} needs {error.name}, which is not installed") from None
