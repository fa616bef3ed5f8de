"""What a device tells the aggregator of its workers, and knows of their runs."""

from collections.abc import Callable

from p4sgd.host.aggregators.membership import Applicant, Membership
from p4sgd.host.devices.device import Worker, client_of
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers

__all__ = ["Members", "before_write"]


def before_write(offset: int, word: int, *, on_join: Callable[[int], None], on_start: Callable[[], None]) -> None:
    """Call what there is to do before a worker joins, with the first round, or starts a run."""
    if offset == registers.JOIN.offset:
        on_join(registers.JOIN.decode(word)["round"])
    if offset == registers.CTRL.offset and registers.CTRL.decode(word)["start"]:
        on_start()


class Members:
    """Workers of a device as members of jobs at an aggregator.

    Parameters
    ----------
    membership
        Gives that of the aggregator, when it is needed first; of several ranks the first asks for it.
    ranks
        Ranks with workers of the same aggregator. They have them join alike.
    """

    def __init__(self, membership: Callable[[], Membership], ranks: Communicator = SINGLE_PROCESS) -> None:
        self._membership = membership
        self._ranks = ranks
        self._started: set[int] = set()

    def join(self, worker: Worker, index: int, port: int, first_round: int) -> None:
        """Tell the aggregator of a worker that is about to join the job that its registers name.

        Raises
        ------
        P4sgdError
            As `Membership.join`, in all ranks.
        """
        problem = None
        joining = self._ranks.all_gather((Applicant.of(client_of(worker)), port, index))
        if self._ranks.rank == 0:
            try:
                for applicant, its_port, its_index in joining:
                    self._membership().join(applicant, its_port, first_round, index=its_index)
            except P4sgdError as error:
                problem = error
        problem = broadcast(self._ranks, problem)  # and no worker joins before the aggregator knows of all
        if problem is not None:
            raise problem

    def start(self, index: int) -> None:
        """Note that a worker is started."""
        self._started.add(index)

    def take_started(self) -> set[int]:
        """The own workers that were started since this was last called.

        Raises
        ------
        P4sgdError
            If not all workers of a job were.
        """
        started, self._started = self._started, set()
        everywhere = set().union(*self._ranks.all_gather(started))
        missing = self._membership().of_same_jobs(everywhere) - everywhere if self._ranks.rank == 0 else set()
        if missing := broadcast(self._ranks, missing):
            raise P4sgdError(f"workers {sorted(missing)} were not started, so the others would wait for ever")
        return started
