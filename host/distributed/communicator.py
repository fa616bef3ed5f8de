"""What processes that train together have to tell each other, and how they find each other.

What processes that train together have to tell each other.

Launchers by name: how the processes of a job were started, and so how they find each other.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from p4sgd.host.errors import P4sgdError, UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from p4sgd.host.distributed.mpi import MpiCommunicator
    from p4sgd.hw.spec.fixed import IntArray

__all__ = [
    "LAUNCHERS",
    "SINGLE_PROCESS",
    "ByteArray",
    "Communicator",
    "SingleProcess",
    "broadcast",
    "check_same",
    "open_communicator",
    "raise_on_all",
    "share_of",
]


T = TypeVar("T")

ByteArray: TypeAlias = "npt.NDArray[np.uint8]"


class Communicator(Protocol):
    """The processes of a job, called ranks. All run the same code and call the same methods in the same order.

    A call returns when every rank has made it. Ctrl-C in any rank is a `KeyboardInterrupt` in all of them, in the same
    call, so that all have done the same.
    """

    @property
    def rank(self) -> int:
        """Which of the ranks this is, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def all_gather(self, value: T) -> list[T]:
        """What every rank gives, by rank; anything small that pickles."""
        ...

    def all_sum(self, values: "IntArray") -> "IntArray":
        """The sum over ranks of arrays of one shape: int64."""
        ...

    def all_min(self, values: "npt.NDArray[np.float64]") -> "npt.NDArray[np.float64]":
        """The least over ranks of each of the values of vectors of one length: float64, no NaN."""
        ...

    def all_to_all(self, blocks: Sequence[ByteArray]) -> list[ByteArray]:
        """Send ``blocks[rank]`` to each rank; what each has sent here, by rank, as uint8 (bytes,).

        Blocks are uint8 of any shape; they may be empty.
        """
        ...


class SingleProcess:
    """The only process of its job."""

    rank = 0
    size = 1

    def all_gather(self, value: T) -> list[T]:
        """The value."""
        return [value]

    def all_sum(self, values: "IntArray") -> "IntArray":
        """The values."""
        return values

    def all_min(self, values: "npt.NDArray[np.float64]") -> "npt.NDArray[np.float64]":
        """The values."""
        return values

    def all_to_all(self, blocks: Sequence[ByteArray]) -> list[ByteArray]:
        """The block."""
        return [block.reshape(-1) for block in blocks]


SINGLE_PROCESS = SingleProcess()
"""A process without others."""


def broadcast(communicator: Communicator, value: T) -> T:
    """The value of rank 0. What ranks compute from the same numbers may differ in the last bit between processors."""
    return communicator.all_gather(value)[0]


def raise_on_all(communicator: Communicator, action: Callable[[], None] | None) -> None:
    """Do what may fail in some ranks only; it then fails in all of them, so that none goes on alone.

    Parameters
    ----------
    communicator
        The ranks, all of which call this.
    action
        What this one does; ``None`` is nothing.

    Raises
    ------
    UserError, P4sgdError
        What this rank's action has raised, else what that of the first has that failed.
    """
    failure: UserError | P4sgdError | None = None
    if action is not None:
        try:
            action()
        except (UserError, P4sgdError) as error:
            failure = error
    failures = communicator.all_gather(None if failure is None else (isinstance(failure, UserError), str(failure)))
    if failure is not None:
        raise failure
    for each in failures:
        if each is not None:
            is_user, text = each
            raise UserError(text) if is_user else P4sgdError(text)


def check_same(communicator: Communicator, value: str, problem: str) -> None:
    """Refuse what is not the same in all ranks.

    Raises
    ------
    UserError
        If it is not, with the text ``problem``.
    """
    if len(set(communicator.all_gather(value))) > 1:
        raise UserError(problem)


def share_of(communicator: Communicator, total: int) -> range:
    """The part of ``total`` things that this rank takes: neighbours, and as many as the others to within one."""
    rank, size = communicator.rank, communicator.size
    return range(rank * total // size, (rank + 1) * total // size)


LAUNCHERS = ("none", "mpi")
"""Names, the default first."""

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Where MPICH, Open MPI and Slurm tell a process how many they have started; the first that is there counts."""


def open_communicator(launcher: str | None) -> "SingleProcess | MpiCommunicator":
    """Meet the other processes of the job.

    Parameters
    ----------
    launcher
        One of `LAUNCHERS`; ``None``, if the user has named none, is the first.

    Raises
    ------
    UserError
        If there is no such launcher, if it has not started this process, or if MPI is not there or is another one than
        the launcher's; or if none was named, but several processes were started, which all would do the same.
    """
    started = next((os.environ[name] for name in _SIZES if name in os.environ), None)
    if launcher is None:
        if started not in (None, "1"):
            raise UserError(
                f"was started {started} times, and each would train by itself: --launcher mpi has them train together "
                f"(--launcher none, if each is to do so)"
            )
        return SINGLE_PROCESS
    if launcher not in LAUNCHERS:
        raise UserError(f"there is no launcher {launcher!r}; there are {', '.join(LAUNCHERS)}")
    if launcher == "none":
        return SINGLE_PROCESS
    if started == "1":
        return SINGLE_PROCESS
    if started is None:
        raise UserError(
            "the launcher mpi is for processes that mpiexec starts: mpiexec -n WORKERS p4sgd train … --launcher mpi"
        )
    try:
        from p4sgd.host.distributed.mpi import MpiCommunicator
    except ModuleNotFoundError as error:
        raise UserError("the launcher mpi needs mpi4py: pip install 'p4sgd[mpi]'") from error
    except (ImportError, RuntimeError) as error:  # what mpi4py says without a library
        raise UserError(
            f"mpi4py finds no MPI library ({error}): install one, or pip install mpich, whose mpiexec then is the one "
            f"to use"
        ) from error
    communicator = MpiCommunicator()
    if str(communicator.size) != started:
        raise UserError(
            f"mpiexec has started {started} processes, but mpi4py's MPI library sees {communicator.size}: they are of "
            f"different MPIs; use the mpiexec that belongs to the library"
        )
    return communicator
