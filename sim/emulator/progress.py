"""The mini-batches of a networked worker's run: those of its own shard, and of one that it stands in for."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from p4sgd.hw.spec.config import BANKS, CLOCK_NS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.sim.emulator.worker import Run

Later: TypeAlias = Callable[[Callable[[], Any]], "Future[Any]"]
"""Calls functions one after the other, perhaps on a thread of its own: the method ``submit`` of an executor."""


def at_once(function: Callable[[], Any]) -> "Future[Any]":
    """Call a function now."""
    done: Future[Any] = Future()
    done.set_result(function())
    return done


class Pace:
    """The pace of a thread that computes with at most ``speed`` values in a second, those of `Features.entries`.

    ``took`` gets the time of each pass, in cycles as ``clock`` counts them.
    """

    def __init__(
        self, speed: float, clock: Callable[[], int], took: Callable[[int], None] = lambda cycles: None
    ) -> None:
        self._speed = speed
        self._clock = clock
        self._took = took

    @contextlib.contextmanager
    def computing(self, values: int) -> Iterator[None]:
        """Stretch the enclosed code, which computes with so many values."""
        begin = self._clock()
        yield
        left = values / self._speed - (self._clock() - begin) * CLOCK_NS * 1e-9
        if left > 0:
            time.sleep(left)
        self._took(self._clock() - begin)


class Progress:
    """The mini-batches of a run of one ``shard``.

    An operation, an AllReduce, has ``merged`` micro-batches, the last of a mini-batch may have fewer; the first one of
    the run has the number ``first``. ``later`` does all arithmetic, at this ``pace``.
    """

    def __init__(self, run: Run, shard: int, pace: Pace, merged: int, first: int, later: Later = at_once) -> None:
        self.run = run
        self.shard = shard
        self._pace = pace
        self._later = later
        self._size = BANKS * merged
        self._operations = -(-run.settings.batch // self._size)
        self._first = first
        self._mini_batch = 0
        self._partials: Future[list[IntArray]] | None = None  # of the present mini-batch
        self._update: Future[None] | None = None  # of the last one
        self._sums: list[int] = []

    @property
    def is_over(self) -> bool:
        """Whether the sums of all mini-batches have come."""
        return self._mini_batch == self.run.settings.mini_batches

    @property
    def operations(self) -> range:
        """The operations of the present mini-batch; none at the end."""
        begin = self._first + self._operations * self._mini_batch
        return range(begin, begin if self.is_over else begin + self._operations)

    def compute(self) -> None:
        """Have the partials of this mini-batch computed."""
        if self._partials is None:
            self._partials = self._later(partial(self._forward, self._samples))

    @property
    def has_partials(self) -> bool:
        """Whether they are computed."""
        return self._partials is not None and self._partials.done()

    def partials(self, operation: int) -> IntArray:
        """Those of an operation, if this `has_partials`."""
        assert self._partials is not None
        return self._partials.result()[operation - self.operations.start]

    def take(self, sums: tuple[int, ...]) -> bool:
        """Take the sums of the next operation; returns whether they were the last of a mini-batch, which is then
        updated."""
        self._sums += sums
        if len(self._sums) < self.run.settings.batch:
            return False
        is_skipped = self._partials is None or self._partials.cancel()
        self._update = self._later(partial(self._backward, self._samples, np.array(self._sums, np.int64), is_skipped))
        self._sums.clear()
        self._partials = None
        self._mini_batch += 1
        return True

    @property
    def is_busy(self) -> bool:
        """Whether an update is under way. An error of the last one is raised here."""
        if self._update is None or not self._update.done():
            return self._update is not None
        self._update.result()
        return False

    @property
    def _samples(self) -> slice:
        return self.run.samples(self._mini_batch)

    def _forward(self, samples: slice) -> list[IntArray]:
        with self._pace.computing(self.run.features.entries(samples)):
            partials = self.run.model.forward(samples)
        return np.split(partials, range(self._size, partials.size, self._size))

    def _backward(self, samples: slice, sums: IntArray, is_skipped: bool) -> None:
        with self._pace.computing(self.run.features.entries(samples)):
            if is_skipped:
                self.run.model.skip(samples)
            self.run.model.backward(samples, sums)


class StandIn(Progress):
    """The mini-batches of another worker's shard, with partials only if that one is missing: in the mini-batch before,
    in this one, or, if it ``is_gone``, from now on."""

    is_gone = False
    is_missing = False
    has_sent = False  # for it in this mini-batch
    _has_told = False

    def begin(self) -> None:
        """Begin a mini-batch."""
        if self.is_missing or self.is_gone:
            self.compute()

    def tells(self) -> bool:
        """Whether the partials have just been computed; says so once."""
        is_news = self.has_partials and not self._has_told
        self._has_told |= is_news
        return is_news

    @property
    def is_awaited(self) -> bool:
        """Whether `tells` waits for partials."""
        return self._partials is not None and not self._has_told

    def take(self, sums: tuple[int, ...]) -> bool:
        """See `Progress.take`."""
        has_ended = super().take(sums)
        if has_ended:
            self.is_missing, self.has_sent, self._has_told = self.has_sent, False, False
        return has_ended
