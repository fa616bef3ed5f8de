"""The mini-batches of a networked worker's run: those of its own shard, and of one that it stands in for."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.sim.emulator.worker import Run


class Progress:
    """The mini-batches of a run of one shard.

    An operation, an AllReduce, has ``merged`` micro-batches, the last of a mini-batch may have fewer; the first one of
    the run has the number ``first``. All arithmetic is done within ``computing()``, which takes its time.
    """

    def __init__(
        self, run: Run, computing: Callable[[], AbstractContextManager[None]], merged: int, first: int
    ) -> None:
        self.run = run
        self._computing = computing
        self._size = BANKS * merged
        self._operations = -(-run.settings.batch // self._size)
        self._first = first
        self._partials: IntArray | None = None
        self._sums: list[int] = []
        self._mini_batch = 0

    @property
    def is_over(self) -> bool:
        """Whether all mini-batches are done."""
        return self._mini_batch == self.run.settings.mini_batches

    @property
    def operations(self) -> range:
        """The operations of the present mini-batch; none at the end."""
        begin = self._first + self._operations * self._mini_batch
        return range(begin, begin if self.is_over else begin + self._operations)

    def partials(self) -> list[IntArray]:
        """The partials of these operations, computed when they are first asked for."""
        if self._partials is None:
            with self._computing():
                self._partials = self.run.model.forward(self._samples)
        return np.split(self._partials, range(self._size, self._partials.size, self._size))

    def take(self, sums: tuple[int, ...]) -> bool:
        """Take the sums of the next operation; returns whether they were the last of a mini-batch, whose update is
        then done."""
        self._sums += sums
        if len(self._sums) < self.run.settings.batch:
            return False
        with self._computing():
            if self._partials is None:
                self.run.model.skip(self._samples)
            self.run.model.backward(self._samples, np.array(self._sums, np.int64))
        self._sums.clear()
        self._partials = None
        self._mini_batch += 1
        return True

    @property
    def _samples(self) -> slice:
        return self.run.samples(self._mini_batch)


Later: TypeAlias = Callable[[Callable[[], Any]], "Future[Any]"]
"""Calls functions one after the other, perhaps on a thread of its own: the method ``submit`` of an executor."""


def at_once(function: Callable[[], Any]) -> "Future[Any]":
    """Call a function now."""
    done: Future[Any] = Future()
    done.set_result(function())
    return done


class StandIn:
    """The run of another worker's ``shard``: its update with all sums, its partials only if it is missing.

    ``later`` does the arithmetic.
    """

    def __init__(self, progress: Progress, shard: int, later: Later) -> None:
        self.shard = shard
        self._progress = progress
        self._later = later
        self._last: Future[Any] | None = None
        self._partials: Future[list[IntArray]] | None = None  # of the present mini-batch
        self._has_asked = self._has_sent = False
        self.is_missing = False  # whether the worker was so in the mini-batch before, or is in this one

    def begin(self) -> None:
        """Begin a mini-batch."""
        if self.is_missing:
            self.compute()

    def compute(self) -> None:
        """Have the partials of this mini-batch computed."""
        self.is_missing = True
        if self._partials is None:
            self._partials = self._later(self._progress.partials)

    def partials(self) -> list[IntArray] | None:
        """They, to be sent; None if they are not computed."""
        if self._partials is None or not self._partials.done():
            return None
        self._has_sent = True
        return self._partials.result()

    def should_ask(self) -> bool:
        """Whether the partials have just been computed, so that it is time to ask whether the worker is still missing;
        says so once."""
        is_time = not self._has_asked and self._partials is not None and self._partials.done()
        self._has_asked |= is_time
        return is_time

    def take(self, sums: tuple[int, ...], *, ends: bool) -> None:
        """Take the sums of the next operation, which perhaps ``ends`` the mini-batch."""
        if ends:
            if self._partials is not None:
                self._partials.cancel()
            self.is_missing = self._has_sent
            self._partials, self._has_asked, self._has_sent = None, False, False
        self._last = self._later(lambda: self._progress.take(sums))

    @property
    def is_awaited(self) -> bool:
        """Whether `should_ask` waits for partials."""
        return self._partials is not None and not self._has_asked

    @property
    def is_busy(self) -> bool:
        """Whether something is still computed. An error of it is raised here."""
        waiting = [each for each in (self._partials, self._last) if each is not None and not each.done()]
        if not waiting and self._last is not None:
            self._last.result()
        return bool(waiting)

    def finish(self) -> None:
        """End the run, see `Run.finish`."""
        self._progress.run.finish()
