"""The workers of a device as members of an aggregator's jobs: who joins, and who was started."""

from collections.abc import Callable
from dataclasses import replace

from p4sgd.host.aggregators.membership import JoinRequest, Membership
from p4sgd.host.devices.device import Worker, client_of
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers


def is_start(offset: int, word: int) -> bool:
    """Whether a register write starts a run."""
    return offset == registers.CTRL.offset and bool(registers.CTRL.decode(word)["start"])


class JobWorkers:
    """Tells the aggregator which workers join, and notes which workers are started.

    ``membership`` is called in the first rank only, and not before it is needed. Ranks with workers at the same
    aggregator make them join at the same time. ``workers`` is given where registers say which shard of its rack a
    worker is: the job has so many, and their indices are its shards."""

    def __init__(
        self, membership: Callable[[], Membership], ranks: Communicator = SINGLE_PROCESS, workers: int | None = None
    ) -> None:
        self._membership = membership
        self._ranks = ranks
        self._workers = workers
        self._started: set[int] = set()

    def before_write(self, worker: Worker, index: int, port: int, offset: int, word: int) -> None:
        """Note a register write that starts a run, and tell the aggregator of one that makes the worker join the job in
        its registers: it must serve the job before the worker sends packets.

        Raises as `Membership.join`, in all ranks."""
        if offset == registers.JOIN.offset:
            self._join(worker, index, port, registers.JOIN.decode(word)["round"])
        elif is_start(offset, word):
            self._started.add(index)

    def _join(self, worker: Worker, index: int, port: int, first_round: int) -> None:
        problem = None
        request = replace(JoinRequest.read(client_of(worker)), stands_in_for=getattr(worker, "stands_in_for", None))
        if self._workers is not None:
            request = replace(request, shard=index, workers=self._workers)
        requests = self._ranks.all_gather((request, port, index))
        if self._ranks.rank == 0:
            try:
                for request, its_port, its_index in requests:
                    self._membership().join(request, its_port, first_round, index=its_index)
            except P4sgdError as error:
                problem = error
        problem = broadcast(self._ranks, problem)  # also keeps workers from joining before the aggregator knows of all
        if problem is not None:
            raise problem

    def take_started(self) -> set[int]:
        """The workers of this rank that were started since the last call; a `P4sgdError` if others of their job were
        not."""
        started, self._started = self._started, set()
        everywhere = set().union(*self._ranks.all_gather(started))
        missing = self._membership().peers_of(everywhere) - everywhere if self._ranks.rank == 0 else set()
        if missing := broadcast(self._ranks, missing):
            raise P4sgdError(f"workers {sorted(missing)} were not started, so the others would wait for ever")
        return started
