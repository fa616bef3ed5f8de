"""Jobs from joins: which workers belong to which job of an aggregator."""

from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from p4sgd.host.aggregators.software import SoftwareAggregator
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import JOB_NUMBERS, Job, Member
from p4sgd.hw.spec.register_map import RegisterClient

if TYPE_CHECKING:
    from p4sgd.host.aggregators.controller import Controller

GROUP_MAC = 0x0100_5034_5347
"""Group address of the workers of every job: the group bit and "P4SG". Ports tell jobs apart."""


class NumberTakenError(P4sgdError):
    """The aggregator serves another job under this number. The caller may try another number."""

    def __init__(self, number: int) -> None:
        super().__init__(str(number))  # of which MPI makes that of other ranks

    def __str__(self) -> str:
        return f"job {self.args[0]} cannot begin: the aggregator serves another job under this number; take another one"


def free_number(taken: Set[int], last: int = -1) -> int:
    """The first number of a job after ``last`` that is not taken; the first of all follows the last of all."""
    for step in range(1, JOB_NUMBERS + 1):
        if (number := (last + step) % JOB_NUMBERS) not in taken:
            return number
    raise P4sgdError(f"the aggregator serves jobs under all {JOB_NUMBERS} numbers: end some (p4sgd switch clear)")


@dataclass(frozen=True)
class JoinRequest:
    """The registers of a worker that is about to join a job.

    ``number`` and ``key`` are those of the job, with no key in version 1 of the packet; ``mac`` is the worker's address
    and ``peer_mac`` that at which it expects the aggregator. It may stand in for the worker of another shard.
    """

    number: int
    shard: int
    workers: int
    mac: int
    peer_mac: int
    key: int | None = field(default=None, repr=False)
    stands_in_for: int | None = None

    @classmethod
    def read(cls, worker: RegisterClient) -> Self:
        """Read a worker's registers."""
        job = worker.read(registers.JOB)
        macs = worker.read_pair(registers.LOCAL_MAC), worker.read_pair(registers.PEER_MAC)
        key = worker.read_pair(registers.JOB_KEY) if worker.read(registers.MERGE)["value"] else None
        return cls(job["job"], job["shard"], job["workers"], *macs, key)


class Membership:
    """Has an aggregator serve the jobs that workers join, each in a place of its own.

    Workers that join under the same number form a job. The job is served once all of them have joined, and ends when
    one of them joins again, under any number. An incomplete job is forgotten when a worker joins that does not fit in:
    the host of the others is gone then.

    A number is refused while the aggregator serves another job under it, and so is another address of the aggregator
    while it serves any job. Jobs of other programs are left alone, unless one has a member that joins here: it was left
    behind by an earlier program.

    ``group_mac`` is the group address of the workers of a job, for answers to all.
    """

    def __init__(self, controller: "Controller", group_mac: int = GROUP_MAC) -> None:
        self._controller = controller
        self._group_mac = group_mac
        self._jobs: dict[int, _JobState] = {}

    def join(self, request: JoinRequest, port: int, first_round: int, *, index: int | None = None) -> None:
        """Make a worker behind a port of the aggregator a member of the job in its request.

        ``index`` identifies the worker in several joins; it defaults to the port. Raises NumberTakenError if the
        aggregator serves another job under this number, P4sgdError if it serves jobs under another address or as many
        as it can, or the job has no such shard.
        """
        number, shard, workers = request.number, request.shard, request.workers
        if shard >= workers:
            raise P4sgdError(f"job {number} cannot begin: a worker says that it is shard {shard} of {workers}")
        index = port if index is None else index
        member = Member(request.mac, port)
        self._leave(number, index)
        if number in self._numbers_of_others(member):
            raise NumberTakenError(number)
        state = self._jobs.get(number)
        if state is None or not state.accepts(index, request):
            state = self._jobs[number] = _JobState(workers, request.key)
        state.shards[index] = shard
        state.members[index] = member
        state.stand_ins[index] = request.stands_in_for
        if len(state.members) == workers:
            by_shard = {shard: state.members[index] for index, shard in state.shards.items()}
            others = {shard: state.members[index] for index, shard in state.stand_ins.items()}
            members = tuple(replace(by_shard[shard], stand_in=others.get(shard)) for shard in range(workers))
            ports = sum(1 << port for port in {member.port for member in members})
            job = Job(number, members, self._group_mac, ports, state.key)
            self._controller.set_mac(request.peer_mac)
            self._begin(job, first_round)
            state.served = job

    def promote(self, index: int) -> None:
        """Have the stand-in of a worker take its place in its job. A P4sgdError if the aggregator does not serve it."""
        state = next(job for job in self._jobs.values() if index in job.members)
        for place, job in self._controller.served().items():
            if job == state.served and isinstance(self._controller, SoftwareAggregator):
                self._controller.promote(place, state.shards[index])
                state.served = job.promote(state.shards[index])
                return
        raise P4sgdError(f"the aggregator does not serve the job of worker {index}")

    def end(self) -> None:
        """End all jobs that were begun here, if the aggregator still serves them."""
        begun = [job.served for job in self._jobs.values() if job.served is not None]
        self._jobs.clear()
        if begun:
            for place, job in self._controller.served().items():
                if job in begun:
                    self._controller.end(place)

    def peers_of(self, indices: set[int]) -> set[int]:
        """All workers of the jobs that these workers belong to, themselves included."""
        return set().union(*(job.members for job in self._jobs.values() if indices & job.members.keys()))

    def _leave(self, number: int, index: int) -> None:
        """End the jobs of a worker that joins a job of this number. An incomplete one of the same number stays."""
        for known, job in list(self._jobs.items()):
            if index in job.members and (known != number or job.served is not None):
                del self._jobs[known]
                for place, served in self._controller.served().items():
                    if served == job.served:  # otherwise another program has ended it
                        self._controller.end(place)

    def _numbers_of_others(self, member: Member) -> set[int]:
        """Numbers of the jobs being served. A job of ``member`` that an earlier program has left is ended."""
        own = [job.served for job in self._jobs.values()]
        numbers = set()
        for place, job in self._controller.served().items():
            if member in job.members and job not in own:
                self._controller.end(place)
            else:
                numbers.add(job.number)
        return numbers

    def _begin(self, job: Job, first_round: int) -> None:
        """Have a job served in a free place, although other programs may take places at the same time."""
        places = range(self._controller.jobs)
        while free := set(places) - self._controller.served().keys():
            place = min(free)
            try:
                self._controller.begin(place, job, first_round)
                return
            except P4sgdError:
                served = self._controller.served()
                if any(other.number == job.number and other != job for other in served.values()):
                    raise NumberTakenError(job.number) from None
                if served.get(place, job) == job:  # nobody has taken the place, so the error has another cause
                    raise
        raise P4sgdError(
            f"job {job.number} cannot begin: the aggregator already serves {len(places)} others, the most that it can"
        )


@dataclass
class _JobState:
    """A job that is served, or will be once it is complete. Workers are known by their indices."""

    workers: int
    key: int | None
    shards: dict[int, int] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    stand_ins: dict[int, int | None] = field(default_factory=dict)  # the shard that each stands in for
    served: Job | None = None
    """The job as the aggregator has it; None while it is incomplete."""

    def accepts(self, index: int, request: JoinRequest) -> bool:
        """Whether the job is incomplete and a worker fits in with those that have joined."""
        others = {known for other, known in self.shards.items() if other != index}
        alike = (request.workers, request.key) == (self.workers, self.key)
        return self.served is None and alike and request.shard not in others
