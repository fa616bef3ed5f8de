"""Communicator over MPI."""

import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from p4sgd.host.distributed.communicator import Communicator, Started
from p4sgd.hw.spec.fixed import ByteArray, IntArray
from p4sgd.sim.ending import ending_signals

T = TypeVar("T")

_PATIENCE_S = 2.0  # for which a failed rank waits for the others to fail too
_FORWARD_S = 0.3  # for the launcher to forward what a rank has printed: once the job is aborted, some forget it
_POLL_S = 0.01


class _Request(Started[T]):
    """What an MPI request has started, in a list of those under way until it is done."""

    def __init__(self, request: MPI.Request, take: Callable[[], T], under_way: "list[_Request[Any]]") -> None:
        self.request: MPI.Request = request
        self._take = take
        self._under_way = under_way
        for each in under_way:
            each.done()
        under_way.append(self)

    def wait(self) -> T:
        self.request.Wait()
        self._under_way.remove(self)
        return self._take()

    def done(self) -> bool:
        return self.request.Test()


class MpiCommunicator(Communicator):
    """The `Communicator` of all ranks that `mpiexec` has started.

    It handles signals that end programs, which take effect on all ranks in the next collective call.
    """

    def __init__(self) -> None:
        self._ranks = MPI.COMM_WORLD
        self.rank, self.size = self._ranks.rank, self._ranks.size
        self.interrupted = False
        # A second communicator: a rank may fail while others are inside a collective call of the first one.
        self._failures = MPI.COMM_WORLD.Dup()
        # Keeps the buffers into which MPI writes, even if nobody waits for them.
        self._under_way: list[_Request[Any]] = []
        for number in ending_signals():
            signal.signal(number, self._note)

    def all_gather(self, value: T) -> list[T]:
        parts: list[tuple[bool, T]] = self._ranks.allgather((self.interrupted, value))
        self._end_if(any(interrupted for interrupted, _ in parts))
        return [part for _, part in parts]

    def all_sum(self, values: IntArray) -> IntArray:
        own = self._flagged(values)
        total = np.empty_like(own)
        self._ranks.Allreduce(own, total)
        return self._unflagged(total, values.shape)

    def start_sum(
        self, values: IntArray, owner: int | None = None, *, interruptible: bool = False
    ) -> Started[IntArray | None]:
        own = self._flagged(values) if interruptible else np.ascontiguousarray(values)
        total = np.empty_like(own)
        if owner is None:
            request = self._ranks.Iallreduce(own, total)
        else:
            request = self._ranks.Ireduce(own, total, root=owner)
        if interruptible:
            return _Request(request, lambda: self._unflagged(total, values.shape), self._under_way)
        return _Request(request, lambda: total if owner in (None, self.rank) else None, self._under_way)

    def start_broadcast(self, values: npt.NDArray[np.float64], owner: int) -> Started[npt.NDArray[np.float64]]:
        buffer = np.ascontiguousarray(values)
        return _Request(self._ranks.Ibcast(buffer, owner), lambda: buffer, self._under_way)

    def all_to_all(self, blocks: Sequence[ByteArray], sizes: IntArray | None = None) -> list[ByteArray]:
        sent = np.array([block.size for block in blocks], np.int64)
        if sizes is None:
            ours = np.stack((sent, np.full_like(sent, self.interrupted)), axis=1)
            theirs = np.empty_like(ours)
            self._ranks.Alltoall(ours, theirs)
            self._end_if(bool(theirs[:, 1].any()))
            sizes = theirs[:, 0]
        received = np.empty(sizes.sum(), np.uint8)
        parts = [block.reshape(-1) for block in blocks]
        self._ranks.Alltoallv((np.concatenate(parts), (sent, _starts(sent))), (received, (sizes, _starts(sizes))))
        return np.split(received, np.cumsum(sizes)[:-1])

    def fail(self, failure: T) -> list[T] | None:
        meeting = self._failures.Ibarrier()
        end = time.monotonic() + _PATIENCE_S
        while not meeting.Test():
            if time.monotonic() > end:
                return None
            time.sleep(_POLL_S)
        return self._failures.allgather(failure)

    def abort(self, status: int) -> NoReturn:
        time.sleep(_FORWARD_S)
        self._ranks.Abort(status)
        raise SystemExit(status)

    def _flagged(self, values: IntArray) -> IntArray:
        """Values to add up with the flag of an interruption, which travels with them: one call, not two."""
        return np.append(values, np.int64(self.interrupted))

    def _unflagged(self, total: IntArray, shape: tuple[int, ...]) -> IntArray:
        self._end_if(bool(total[-1]))
        result: IntArray = total[:-1].reshape(shape)
        return result

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True

    def _end_if(self, interrupted: bool) -> None:
        if interrupted:
            self.interrupted = False
            for each in self._under_way:  # which all ranks have started, and MPI complains if nobody waits for them
                each.request.Wait()
            raise KeyboardInterrupt


def _starts(sizes: IntArray) -> IntArray:
    return np.cumsum(sizes) - sizes
