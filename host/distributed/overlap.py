"""Sums of a mini-batch over ranks, in messages that travel while the ranks compute."""

import itertools
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from p4sgd.host.distributed.communicator import Communicator, broadcast
from p4sgd.host.distributed.merging import CostTable, Passes
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray

__all__ = ["MergedSums", "MessageTimes"]

Forward: TypeAlias = Callable[[range], IntArray]
Backward: TypeAlias = Callable[[range, IntArray], None]

_TRIALS = 5
"""Mini-batches that are measured with one message, and as many with several."""

_SEVERAL = 8
"""How many these are: the more, the better do they show what a message takes the processor."""

_REPEATS = 5
"""How often a message of each size is measured."""

_AT_ONCE = 4
"""Messages under way at the same time when their latency is measured."""

_MEASURED = 4096
"""Most mini-batches whose times are kept."""

_MOST_ITEMS = 32
"""Most items of a plan, which takes milliseconds with so many. With more micro-batches an item is several of them."""


@dataclass(frozen=True)
class MessageTimes:
    """How the sums of a mini-batch travel, with times in seconds.

    Attributes
    ----------
    messages
        Micro-batches in each message.
    predicted_s
        Predicted time of a mini-batch.
    one_message_s
        The same with a single message.
    measured_s
        Median of the mini-batches that were done so, the last 4096 at most, on this rank; None if none was.
    planning_s
        Time to measure messages and make the plan.
    """

    messages: tuple[int, ...]
    predicted_s: float
    one_message_s: float
    measured_s: float | None
    planning_s: float

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        count = len(self.messages)
        lengths = " + ".join(map(str, self.messages)) if count <= _TOLD else f"up to {max(self.messages)}"
        measured = "" if self.measured_s is None else f"measured {self.measured_s * 1e3:.2f} ms, "
        return (
            f"sums of a mini-batch in {count} message{'s' if count > 1 else ''} of {lengths} micro-batches: {measured}"
            f"predicted {self.predicted_s * 1e3:.2f} ms, in one message {self.one_message_s * 1e3:.2f} ms"
        )


_TOLD = 8
"""Most messages whose lengths are listed."""


class MergedSums:
    """Does mini-batches with sums over all ranks: an ``add`` of `p4sgd.sim.emulator.RemoteWorkers`.

    The first mini-batches are measured with one message and with several, which tells what a micro-batch takes and what
    each message takes the processor besides. Then messages of several sizes are measured, and the lengths of all other
    messages are planned (`Passes.best`). Sums of integers do not depend on that. All ranks use the plan of rank 0.

    Parameters
    ----------
    ranks
        The ranks, all of which make the same calls.
    merge
        Micro-batches in a message, a whole number as text, or ``auto`` for a plan.
    """

    def __init__(self, ranks: Communicator, merge: str = "auto") -> None:
        self._ranks = ranks
        self._merge = None if merge == "auto" else int(merge)
        self._begin(1)

    def _begin(self, micro_batches: int) -> None:
        self._micro_batches = micro_batches
        self._trials = [_cut(micro_batches, -(-micro_batches // messages)) for messages in (1, _SEVERAL)] * _TRIALS
        self._found: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """By number of messages: seconds of the forward and of the backward passes of mini-batches."""
        self._plan: MessageTimes | None = None
        self._seconds: deque[float] = deque(maxlen=_MEASURED)

    @property
    def times(self) -> MessageTimes | None:
        """What was planned and measured; None if nothing was planned so far."""
        if self._plan is None or not self._seconds:
            return self._plan
        return replace(self._plan, measured_s=statistics.median(self._seconds))

    def __call__(self, micro_batches: int, forward: Forward, backward: Backward) -> None:
        """Do a mini-batch, see `p4sgd.sim.emulator.RemoteWorkers`.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C in any rank, in all of them.
        """
        if micro_batches != self._micro_batches:
            self._begin(micro_batches)
        if micro_batches == 1:
            self._do((1,), forward, backward)
            return
        if self._trials:
            lengths = self._trials[-1]
            self._found[len(lengths)].append(self._do(lengths, forward, backward))
            self._trials.pop()
            return
        if self._plan is None:
            self._plan = self._make_plan()
        begin = time.perf_counter()
        self._do(self._plan.messages, forward, backward)
        self._seconds.append(time.perf_counter() - begin)

    def _do(self, lengths: Sequence[int], forward: Forward, backward: Backward) -> tuple[float, float]:
        """Do a mini-batch with messages of these lengths; returns the seconds of forward and of backward passes."""
        ends = zip(itertools.accumulate(lengths), lengths, strict=True)
        parts = [range(stop - length, stop) for stop, length in ends]
        begin = time.perf_counter()
        started = [self._ranks.start_sum(forward(part), interruptible=part is parts[-1]) for part in parts]
        forward_s, backward_s = time.perf_counter() - begin, 0.0
        for part, each in zip(parts, started, strict=True):
            sums = each.wait()
            assert sums is not None
            begin = time.perf_counter()
            backward(part, sums)
            backward_s += time.perf_counter() - begin
        return forward_s, backward_s

    def _make_plan(self) -> MessageTimes:
        """Measure what has not been measured yet, and plan."""
        begin = time.perf_counter()
        count = self._micro_batches
        several = max(self._found)
        # Other programs can only add to a time, so that the shortest ones are the best for a small difference.
        more = np.min(self._found[several], axis=0) - np.min(self._found[1], axis=0)
        own = np.median(self._found[1], axis=0), np.maximum(more, 0) / (several - 1)
        one, message = np.max(self._ranks.all_gather(own), axis=0)  # the slowest rank counts
        start_s, take_s = message.tolist()
        forward, backward = (np.maximum(one - message, 0) / count).tolist()
        cost, latency_s = self._measure_messages()

        def passes(step: int) -> Passes:
            sizes = _cut(count, step)
            times = [size * forward for size in sizes], [size * backward for size in sizes]
            return Passes(*times, sizes, cost, start_s, take_s, latency_s)

        if self._merge is None:
            items = passes(-(-count // _MOST_ITEMS))
            sizes = iter(items.sizes)
            lengths = [sum(itertools.islice(sizes, length)) for length in items.best()]
        else:
            lengths = _cut(count, self._merge)
        exact = passes(1)
        times = MessageTimes(
            messages=tuple(lengths),
            predicted_s=exact.end(lengths),
            one_message_s=exact.end([count]),
            measured_s=None,
            planning_s=time.perf_counter() - begin,
        )
        return broadcast(self._ranks, times)

    def _measure_messages(self) -> tuple[CostTable, float]:
        """How long a message of so many micro-batches keeps the channel busy, and its latency."""

        def seconds(size: int, at_once: int) -> float:
            values, taken = np.zeros(BANKS * size, np.int64), []
            for _ in range(_REPEATS):
                self._ranks.all_gather(None)
                begin = time.perf_counter()
                for each in [self._ranks.start_sum(values) for _ in range(at_once)]:
                    each.wait()
                taken.append(time.perf_counter() - begin)
            return statistics.median(taken)

        count = self._micro_batches
        sizes = sorted({count, *(1 << power for power in range(0, count.bit_length(), 2) if 1 << power < count)})
        alone = [seconds(size, 1) for size in sizes]
        # What several at once take longer than one is how long each of them keeps the channel busy.
        busy = max(0.0, seconds(1, _AT_ONCE) - alone[0]) / (_AT_ONCE - 1)
        latency = max(0.0, alone[0] - busy)
        return CostTable(sizes, [max(0.0, each - latency) for each in alone]), latency


def _cut(count: int, length: int) -> list[int]:
    """Parts of so many micro-batches each, the last may have fewer."""
    return [min(length, count - first) for first in range(0, count, length)]
