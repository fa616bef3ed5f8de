"""Ranks over MPI."""

import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from p4sgd.host.distributed.communicator import ByteArray
from p4sgd.hw.spec.fixed import IntArray

__all__ = ["MpiCommunicator"]


T = TypeVar("T")

_PATIENCE_S = 2.0
"""How long a rank that has failed waits for the others to fail too, s."""

_LOOK_S = 0.01


class MpiCommunicator:
    """All ranks that `mpiexec` has started.

    From its making on Ctrl-C and SIGTERM are noted, and take effect in the next call of a collective method.
    """

    def __init__(self) -> None:
        self._ranks = MPI.COMM_WORLD
        # Of its own, for ranks that fail while others are in the middle of a call.
        self._failures = MPI.COMM_WORLD.Dup()
        self._interrupted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    @property
    def rank(self) -> int:
        """Which of the ranks this is."""
        return self._ranks.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._ranks.size

    def all_gather(self, value: T) -> list[T]:
        """See `Communicator.all_gather`."""
        parts: list[tuple[bool, T]] = self._ranks.allgather((self._interrupted, value))
        self._end_if(any(interrupted for interrupted, _ in parts))
        return [part for _, part in parts]

    def all_sum(self, values: IntArray) -> IntArray:
        """See `Communicator.all_sum`."""
        own = np.append(values, np.int64(self._interrupted))
        total = np.empty_like(own)
        self._ranks.Allreduce(own, total)
        self._end_if(bool(total[-1]))
        result: IntArray = total[:-1].reshape(values.shape)
        return result

    def all_min(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See `Communicator.all_min`."""
        own = np.append(values, -float(self._interrupted))
        least = np.empty_like(own)
        self._ranks.Allreduce(own, least, MPI.MIN)
        self._end_if(bool(least[-1]))
        return least[:-1]

    def all_to_all(self, blocks: Sequence[ByteArray]) -> list[ByteArray]:
        """See `Communicator.exchange`."""
        ours = np.array([(block.size, self._interrupted) for block in blocks], np.int64)
        theirs = np.empty_like(ours)
        self._ranks.Alltoall(ours, theirs)
        self._end_if(bool(theirs[:, 1].any()))
        sent, sizes = ours[:, 0], theirs[:, 0]
        received = np.empty(sizes.sum(), np.uint8)
        parts = [block.reshape(-1) for block in blocks]
        self._ranks.Alltoallv((np.concatenate(parts), (sent, _starts(sent))), (received, (sizes, _starts(sizes))))
        return np.split(received, np.cumsum(sizes)[:-1])

    def fail(self, failure: T) -> list[T] | None:
        """Tell the other ranks that this one has failed, and how.

        Returns
        -------
        How all have failed, by rank; ``None`` if some go on, which then wait for this one: `abort` ends them.
        """
        meeting = self._failures.Ibarrier()
        end = time.monotonic() + _PATIENCE_S
        while not meeting.Test():
            if time.monotonic() > end:
                return None
            time.sleep(_LOOK_S)
        return self._failures.allgather(failure)

    def abort(self, status: int) -> NoReturn:
        """End all ranks at once, with this exit status."""
        self._ranks.Abort(status)
        raise SystemExit(status)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True

    def _end_if(self, interrupted: bool) -> None:
        if interrupted:
            self._interrupted = False
            raise KeyboardInterrupt


def _starts(sizes: IntArray) -> IntArray:
    return np.cumsum(sizes) - sizes
