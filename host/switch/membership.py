"""Which workers are of which job of an aggregator."""

from dataclasses import dataclass, field

from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.fpga import FpgaAggregator
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["Membership"]

_GROUP_MAC = 0x0100_5034_5347
"""Address of all workers of a job: the group bit, and "P4SG". Ports tell jobs apart."""


@dataclass
class _Job:
    place: int
    ports: set[int] = field(default_factory=set)
    is_served: bool = False


class Membership:
    """Has an aggregator serve the jobs that workers join; each has a place of its own.

    Workers that join under the same number are a job. It is served once all of them have joined, and ends when one of
    them joins again, under whatever number.

    Parameters
    ----------
    aggregator
        The one that all workers are connected to.
    """

    def __init__(self, aggregator: FpgaAggregator) -> None:
        self._aggregator = aggregator
        self._jobs: dict[int, _Job] = {}

    def join(self, worker: RegisterClient, port: int, first_round: int) -> None:
        """Make the worker behind a port a member of the job that its registers name.

        Parameters
        ----------
        worker
            Its registers.
        port
            Port of the aggregator that it is behind.
        first_round
            Round that the job begins with.

        Raises
        ------
        P4sgdError
            If the aggregator serves as many other jobs as it can.
        """
        who = worker.read(registers.JOB)
        number, workers = who["job"], who["workers"]
        job = self._enter(number, port)
        self._aggregator.set_mac(worker.read_pair(registers.PEER_MAC))
        self._aggregator.set_member(job.place, who["shard"], mac=worker.read_pair(registers.LOCAL_MAC), port=port)
        if len(job.ports) == workers:
            job.is_served = True
            self._aggregator.begin(
                job.place,
                number=number,
                workers=workers,
                group_mac=_GROUP_MAC,
                ports=sum(1 << member for member in job.ports),
                first_round=first_round,
            )

    def of_same_jobs(self, ports: set[int]) -> set[int]:
        """Ports of all workers of the jobs that the workers behind some ports are of."""
        return set().union(*(job.ports for job in self._jobs.values() if job.ports & ports))

    def _enter(self, number: int, port: int) -> _Job:
        """The job of a number, with a worker more; a served one of its number, and the one that it leaves, end."""
        for known, job in list(self._jobs.items()):
            if job.is_served if known == number else port in job.ports:
                self._aggregator.end(self._jobs.pop(known).place)
        if number not in self._jobs:
            places = self._aggregator.config.jobs
            free = set(range(places)) - {job.place for job in self._jobs.values()}
            if not free:
                raise P4sgdError(f"job {number} cannot begin: the aggregator serves {places} others, which is the most")
            self._jobs[number] = _Job(min(free))
        job = self._jobs[number]
        job.ports.add(port)
        return job
