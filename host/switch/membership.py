"""Which workers are of which job of an aggregator."""

from dataclasses import dataclass, field

from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.controller import Controller
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["GROUP_MAC", "Membership"]

GROUP_MAC = 0x0100_5034_5347
"""Address of all workers of a job: the group bit, and "P4SG". Ports tell jobs apart."""


@dataclass
class _Joining:
    """A job that is served, or will be when all its workers are there; by their indices."""

    place: int
    shards: dict[int, int] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    is_served: bool = False


class Membership:
    """Has an aggregator serve the jobs that workers join; each has a place of its own.

    Workers that join under the same number are a job. It is served once all of them have joined, and ends when one of
    them joins again, under whatever number. Jobs that the aggregator serves for others are left alone, unless they are
    of a worker that joins: such a one is what an earlier program has left.

    Parameters
    ----------
    controller
        Of the aggregator that all workers are connected to.
    group_mac
        Address of all workers of a job, for answers to all.
    """

    def __init__(self, controller: Controller, group_mac: int = GROUP_MAC) -> None:
        self._controller = controller
        self._group_mac = group_mac
        self._jobs: dict[int, _Joining] = {}

    def join(self, worker: RegisterClient, port: int, first_round: int, *, index: int | None = None) -> None:
        """Make a worker a member of the job that its registers name.

        Parameters
        ----------
        worker
            Its registers.
        port
            Port of the aggregator that it is behind.
        first_round
            Round that the job begins with.
        index
            What the worker is known by from one join to the next; its port, which will do where every port has one.

        Raises
        ------
        P4sgdError
            If the aggregator serves as many other jobs as it can, or another of this number, or if two workers say
            that they are the same shard.
        """
        who = worker.read(registers.JOB)
        number, workers = who["job"], who["workers"]
        index = port if index is None else index
        member = Member(worker.read_pair(registers.LOCAL_MAC), port)
        others = self._of_others(member)
        job = self._enter(number, index, others)
        job.shards[index] = who["shard"]
        job.members[index] = member
        self._controller.set_mac(worker.read_pair(registers.PEER_MAC))
        if len(job.members) == workers:
            if number in {other.number for other in others.values()}:
                raise P4sgdError(f"job {number} cannot begin: the aggregator serves one of this number for others")
            if job.place in others:  # meanwhile
                job.place = self._free_place(number, others)
            self._controller.begin(job.place, self._whole(number, job), first_round)
            job.is_served = True

    def of_same_jobs(self, indices: set[int]) -> set[int]:
        """All workers of the jobs that some workers are of."""
        return set().union(*(job.members for job in self._jobs.values() if indices & job.members.keys()))

    def _whole(self, number: int, job: _Joining) -> Job:
        by_shard = {shard: index for index, shard in job.shards.items()}
        if set(by_shard) != set(range(len(job.members))):
            raise P4sgdError(
                f"job {number} cannot begin: its {len(job.members)} workers say that they are the shards "
                f"{sorted(job.shards.values())}, which must be 0 to {len(job.members) - 1}, each once"
            )
        members = tuple(job.members[by_shard[shard]] for shard in range(len(job.members)))
        ports = sum(1 << port for port in {member.port for member in members})
        return Job(number, members, self._group_mac, ports)

    def _of_others(self, member: Member) -> dict[int, Job]:
        """What the aggregator serves for others, by place. What was left of a worker that joins here ends."""
        own = {job.place for job in self._jobs.values() if job.is_served}
        found = {place: job for place, job in self._controller.served().items() if place not in own}
        for place, job in list(found.items()):
            if member in job.members:
                self._controller.end(place)
                del found[place]
        return found

    def _enter(self, number: int, index: int, others: dict[int, Job]) -> _Joining:
        """The job of a number, which a worker enters; a served one of its number, and the one that it leaves, end."""
        for known, job in list(self._jobs.items()):
            if job.is_served if known == number else index in job.members:
                self._controller.end(self._jobs.pop(known).place)
        if number not in self._jobs:
            self._jobs[number] = _Joining(self._free_place(number, others))
        return self._jobs[number]

    def _free_place(self, number: int, others: dict[int, Job]) -> int:
        places = self._controller.jobs
        free = set(range(places)) - {job.place for job in self._jobs.values()} - others.keys()
        if not free:
            raise P4sgdError(f"job {number} cannot begin: the aggregator serves {places} others, which is the most")
        return min(free)
