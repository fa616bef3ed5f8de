"""Collective communication between the processes that train together (ranks)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from p4sgd.host.errors import P4sgdError, UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from p4sgd.hw.spec.fixed import ByteArray, IntArray

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Started(Generic[T_co]):
    """A collective call that may still be under way, in subclasses; here its result."""

    def __init__(self, result: T_co) -> None:
        self._result = result

    def wait(self) -> T_co:
        """Its result; to be called once."""
        return self._result

    def done(self) -> bool:
        """Whether `wait` would return at once. An MPI library may send only while it is called, so a rank that computes
        for long calls this now and then."""
        return True


class Communicator:
    """The processes that train together, called ranks. All run the same code and make the same calls in the same order.
    Subclasses connect several; this is a process that trains alone.

    A call returns when every rank has made it, unless it only starts something. Ctrl-C in any rank raises
    `KeyboardInterrupt` in all of them, in the same call.
    """

    rank = 0
    size = 1
    interrupted = False
    """Whether Ctrl-C in this rank waits for the next call, for loops that wait for something else."""

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in the order of the ranks. Values are small and can be pickled."""
        return [value]

    def all_sum(self, values: "IntArray") -> "IntArray":
        """Element-wise sum over all ranks of int64 arrays of the same shape."""
        return values

    def start_sum(
        self, values: "IntArray", owner: int | None = None, *, interruptible: bool = False
    ) -> "Started[IntArray | None]":
        """Start an `all_sum` and return at once; only ``owner`` gets the sum, by default all ranks.

        Several calls may be under way. All ranks start them in the same order, and wait for all of them; ``values``
        must not change before that. An interruption takes effect in the next call that is not of this kind; if
        ``interruptible``, when this sum is waited for, and nobody waits for those started after it.
        """
        return Started(values)

    def start_broadcast(self, values: "npt.NDArray[np.float64]", owner: int) -> "Started[npt.NDArray[np.float64]]":
        """Start to send a float64 array from its owner to all ranks, and return at once; see `start_sum`. The others
        give an array of the same shape, which may be overwritten."""
        return Started(values)

    def all_to_all(self, blocks: "Sequence[ByteArray]", sizes: "IntArray | None" = None) -> "list[ByteArray]":
        """Send ``blocks[rank]``, uint8 of any shape, which may be empty, to each rank; returns the received blocks,
        uint8 (bytes,). If all ranks know the bytes that come from each rank, int64 (ranks,), that saves a message; an
        interruption takes effect in a later call."""
        return [block.reshape(-1) for block in blocks]

    def fail(self, failure: T) -> list[T] | None:
        """The failures of all ranks, in order; ``None`` if some ranks have not failed within 2 s. Those wait for this
        one in a collective call, and only `abort` ends them."""
        return [failure]

    def abort(self, status: int) -> NoReturn:
        raise SystemExit(status)


SINGLE_PROCESS = Communicator()
"""The communicator to use where no other is given."""


def broadcast(communicator: Communicator, value: T) -> T:
    """The value of rank 0: on different processors, ranks may compute numbers that differ in the last bit."""
    return communicator.all_gather(value)[0]


def raise_on_all(communicator: Communicator, action: Callable[[], None] | None) -> None:
    """Carry out an action that may fail on some ranks, ``None`` for none, such that none continues alone: raises the
    `UserError` or `P4sgdError` of this rank, or if there is none, that of the first rank that failed."""
    failure: UserError | P4sgdError | None = None
    try:
        if action is not None:
            action()
    except (UserError, P4sgdError) as error:
        failure = error
    failures = communicator.all_gather(None if failure is None else (isinstance(failure, UserError), str(failure)))
    if failure is not None:
        raise failure
    for is_user, text in filter(None, failures):
        raise UserError(text) if is_user else P4sgdError(text)


def check_same(communicator: Communicator, facts: Mapping[str, str]) -> None:
    """Compare texts by name, by one all-gather: `UserError` on all ranks that names what is not the same on all, and
    the first rank that differs from rank 0."""
    first, *others = communicator.all_gather(dict(facts))
    for rank, own in enumerate(others, 1):
        for name in {**first, **own}:
            ours, theirs = (each.get(name, "none") for each in (first, own))
            if ours != theirs:
                raise UserError(
                    f"{name}: not the same on all ranks: rank {rank} has {theirs}, rank 0 has {ours}: start all ranks "
                    f"with the same"
                )


def share_of(communicator: Communicator, total: int) -> range:
    """This rank's share of ``total`` items: contiguous; shares differ by at most one item."""
    rank, size = communicator.rank, communicator.size
    return range(rank * total // size, (rank + 1) * total // size)
