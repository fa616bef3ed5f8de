"""What processes that train together have to tell each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:  # the command line imports this when it starts
    import numpy as np
    import numpy.typing as npt

    from p4sgd.hw.spec.fixed import IntArray

__all__ = ["ALONE", "Alone", "ByteArray", "Communicator", "agreed", "share_of"]

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

    def exchange(self, blocks: Sequence[ByteArray]) -> list[ByteArray]:
        """The block."""
        return [block.reshape(-1) for block in blocks]


ALONE = Alone()
"""A process without others."""


def agreed(communicator: Communicator, value: T) -> T:
    """The value of rank 0. What ranks compute from the same numbers may differ in the last bit between processors."""
    return communicator.all_gather(value)[0]


def share_of(communicator: Communicator, total: int) -> range:
    """The part of ``total`` things that this rank takes: neighbours, and as many as the others to within one."""
    rank, size = communicator.rank, communicator.size
    return range(rank * total // size, (rank + 1) * total // size)
