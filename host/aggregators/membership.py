"""Which workers are of which job of an aggregator."""

from dataclasses import dataclass, field
from typing import Self

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["GROUP_MAC", "Applicant", "Membership", "NumberTakenError"]


GROUP_MAC = 0x0100_5034_5347
"""Address of all workers of a job: the group bit, and "P4SG". Ports tell jobs apart."""


class NumberTakenError(P4sgdError):
    """The aggregator serves others under the number of a job; another number will do."""


@dataclass(frozen=True)
class Applicant:
    """A worker that is about to join a job, by what its registers say.

    Parameters
    ----------
    number, shard, workers
        The job, what the worker is in it, and how many they are.
    mac
        Address of the worker.
    peer_mac
        Address at which it looks for the aggregator.
    """

    number: int
    shard: int
    workers: int
    mac: int
    peer_mac: int

    @classmethod
    def of(cls, worker: RegisterClient) -> Self:
        """Ask a worker."""
        who = worker.read(registers.JOB)
        macs = worker.read_pair(registers.LOCAL_MAC), worker.read_pair(registers.PEER_MAC)
        return cls(who["job"], who["shard"], who["workers"], *macs)


@dataclass
class _Joining:
    """A job that is served, or will be when all its workers are there; these by their indices.

    Attributes
    ----------
    workers
        How many they are.
    shards, members
        Who has joined, and as what.
    served
        What the aggregator was told; None as long as the job is not whole.
    """

    workers: int
    shards: dict[int, int] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    served: Job | None = None

    def takes(self, index: int, shard: int, workers: int) -> bool:
        """Whether the job is not whole, and a worker goes with those that have joined."""
        others = {known for other, known in self.shards.items() if other != index}
        return self.served is None and workers == self.workers and shard not in others


class Membership:
    """Has an aggregator serve the jobs that workers join; each has a place of its own.

    Workers that join under the same number are a job. It is served once all of them have joined, and ends when one of
    them joins again, under whatever number. A job that still lacks workers is forgotten when one joins that does not go
    with those before: its host has gone.

    A number is refused while others are served under it, and so is another address of the aggregator while it serves
    any. Jobs that the aggregator serves for others are left alone, unless they are of a worker that joins: such a
    one is what an earlier program has left.

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

    def join(self, worker: Applicant, port: int, first_round: int, *, index: int | None = None) -> None:
        """Make a worker a member of the job that it names.

        Parameters
        ----------
        worker
            What it says.
        port
            Port of the aggregator that it is behind.
        first_round
            Round that the job begins with.
        index
            What the worker is known by from one join to the next; its port, which will do where every port has one.

        Raises
        ------
        NumberTakenError
            If the aggregator serves others under this number.
        P4sgdError
            If it serves others under another address, or as many jobs as it can, or if the worker says that it is a
            shard that the job does not have.
        """
        number, shard, workers = worker.number, worker.shard, worker.workers
        if shard >= workers:
            raise P4sgdError(f"job {number} cannot begin: a worker says that it is shard {shard} of {workers}")
        index = port if index is None else index
        member = Member(worker.mac, port)
        self._leave(number, index)
        if number in self._numbers_of_others(member):
            raise NumberTakenError(_taken(number))
        joining = self._jobs.get(number)
        if joining is None or not joining.takes(index, shard, workers):
            joining = self._jobs[number] = _Joining(workers)
        joining.shards[index] = shard
        joining.members[index] = member
        if len(joining.members) == workers:
            job = self._whole(number, joining)
            self._controller.set_mac(worker.peer_mac)
            self._begin(job, first_round)
            joining.served = job

    def of_same_jobs(self, indices: set[int]) -> set[int]:
        """All workers of the jobs that some workers are of."""
        return set().union(*(job.members for job in self._jobs.values() if indices & job.members.keys()))

    def _leave(self, number: int, index: int) -> None:
        """End the jobs that a worker leaves when it joins one of this number, which may still wait for others."""
        for known, job in list(self._jobs.items()):
            if index in job.members and (known != number or job.served is not None):
                del self._jobs[known]
                for place, served in self._controller.served().items():
                    if served == job.served:  # else somebody else has ended it
                        self._controller.end(place)

    def _numbers_of_others(self, member: Member) -> set[int]:
        """Numbers of jobs that the aggregator serves. What an earlier program has left of a worker that joins ends."""
        own = [job.served for job in self._jobs.values()]
        numbers = set()
        for place, job in self._controller.served().items():
            if member in job.members and job not in own:
                self._controller.end(place)
            else:
                numbers.add(job.number)
        return numbers

    def _whole(self, number: int, joining: _Joining) -> Job:
        by_shard = {shard: joining.members[index] for index, shard in joining.shards.items()}
        members = tuple(by_shard[shard] for shard in range(joining.workers))
        ports = sum(1 << port for port in {member.port for member in members})
        return Job(number, members, self._group_mac, ports)

    def _begin(self, job: Job, first_round: int) -> None:
        """Have a job served in a free place, though others may take one at the same time."""
        places = range(self._controller.jobs)
        while free := set(places) - self._controller.served().keys():
            place = min(free)
            try:
                self._controller.begin(place, job, first_round)
                return
            except P4sgdError:
                served = self._controller.served()
                if any(other.number == job.number and other != job for other in served.values()):
                    raise NumberTakenError(_taken(job.number)) from None
                if served.get(place, job) == job:  # nobody has taken the place: that was not the reason
                    raise
        raise P4sgdError(
            f"job {job.number} cannot begin: the aggregator serves {len(places)} others, which is the most"
        )


def _taken(number: int) -> str:
    return f"job {number} cannot begin: the aggregator serves others under this number; take another"
