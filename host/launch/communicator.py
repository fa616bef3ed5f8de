"""What processes that train together have to tell each other."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from p4sgd.host.errors import P4sgdError, UserError

if TYPE_CHECKING:  # the command line imports this when it starts
    import numpy as np
    import numpy.typing as npt

    from p4sgd.hw.spec.fixed import IntArray

__all__ = ["ALONE", "Alone", "ByteArray", "Communicator", "agreed", "check_same", "share_of", "together"]

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

    def exchange(self, blocks: Sequence[ByteArray]) -> list[ByteArray]:
        """Send ``blocks[rank]`` to each rank; what each has sent here, by rank, as uint8 (bytes,).

        Blocks are uint8 of any shape; they may be empty.
        """
        ...


class Alone:
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

    def exchange(self, blocks: Sequence[ByteArray]) -> list[ByteArray]:
        """The block."""
        return [block.reshape(-1) for block in blocks]


ALONE = Alone()
"""A process without others."""


def agreed(communicator: Communicator, value: T) -> T:
    """The value of rank 0. What ranks compute from the same numbers may differ in the last bit between processors."""
    return communicator.all_gather(value)[0]


def together(communicator: Communicator, action: Callable[[], None] | None) -> None:
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
