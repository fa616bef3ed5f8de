"""Threads that train together, for some mini-batches: in each they wait at a barrier to exchange sums."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from p4sgd.hw.spec.fixed import IntArray
from p4sgd.sim.compiled import compiled
from p4sgd.sim.intrinsics import load_acquire, store_release

THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
"""Number of threads: the environment variable NUMBA_NUM_THREADS, by default the number of processors."""

_PATIENCE = 300_000
"""After so many checks, some 300 µs, a waiting thread sleeps: another one must have lost its processor. Less patience
would make a chain of sleeps, because a thread that sleeps for 50 µs or more lets the others wait as long."""

_APART = 8  # words of a cache line: what threads write is so far apart

_types: Any = numba.types

_sleep = _types.ExternalFunction("usleep", _types.int32(_types.uint32))
"""Sleep for some microseconds: usleep of the C library."""


def barrier_of(threads: int) -> IntArray:
    """``arrivals`` of a `barrier` of so many threads."""
    return np.zeros(threads * _APART, np.int64)


@compiled("the emulator's loops", nogil=True)
def barrier(arrivals: Any, thread: int, number: int) -> None:
    """Wait until all threads have come to the barrier for the ``number``-th time."""
    store_release(arrivals, thread * _APART, number)
    for other in range(arrivals.size // _APART):
        tries = 0
        while load_acquire(arrivals, other * _APART) < number:
            tries += 1
            if tries > _PATIENCE:
                _sleep(np.uint32(50))


def in_threads(part: Callable[[int], None], threads: int, arrivals: IntArray | None = None) -> None:
    """Call ``part(0)`` to ``part(threads - 1)`` at the same time, each in a thread of its own, and wait for them.

    A single one is the calling thread. If one fails or cannot be started, the others pass the barrier of ``arrivals``
    without it. Ctrl-C interrupts the waiting: the threads then end by themselves, and their results are of no use.
    """
    if threads == 1:
        part(0)
        return
    errors: list[BaseException] = []

    def fail(error: BaseException) -> None:
        errors.append(error)
        if arrivals is not None:
            arrivals[:] = np.iinfo(np.int64).max

    def guarded(thread: int) -> None:
        try:
            _spread(thread)
            part(thread)
        except BaseException as error:
            fail(error)

    def lead() -> None:
        others = [threading.Thread(target=guarded, args=(thread,)) for thread in range(1, threads)]
        try:
            for other in others:
                other.start()
        except RuntimeError as error:
            fail(error)
        guarded(0)
        for other in others:
            if other.ident is not None:
                other.join()

    # Not in this thread, because an exception of Ctrl-C between two starts would leave the first one waiting for ever.
    leader = threading.Thread(target=lead)
    leader.start()
    leader.join()
    if errors:
        raise errors[0]


def _spread(thread: int) -> None:
    """Move the calling thread to a processor of its own, where it may be moved from again.

    Linux often leaves threads that wait for each other on the processor on which they were started.
    """
    with contextlib.suppress(OSError):
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {sorted(allowed)[(os.getpid() + thread) % len(allowed)]})
        os.sched_setaffinity(0, allowed)
