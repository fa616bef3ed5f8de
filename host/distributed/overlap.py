"""Sums of a mini-batch over ranks, in messages that travel while the ranks compute."""

import itertools
import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from p4sgd.host.distributed.communicator import Communicator, Started, broadcast
from p4sgd.host.distributed.planner import CostTable, Passes, cut
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray

Forward: TypeAlias = Callable[[range], IntArray]
Backward: TypeAlias = Callable[[range, IntArray], None]

_TRIALS = 5  # mini-batches that are measured with one message, and as many with several
_SEVERAL = 8  # messages: the more, the better do they show what a message takes the processor
_REPEATS = 5  # of the measurement of a message of each size
_AT_ONCE = 4  # messages under way at the same time when their latency is measured
_MEASURED = 4096  # most mini-batches whose times are kept
_SHOWN = 8  # most messages whose lengths are shown
_MOST_ITEMS = 32  # of a plan, to make it in milliseconds: of more micro-batches an item is several

_PIECE, _PIECE_S = 10, 2e-4
"""Least time that a rank computes before it lets messages that are under way move on: as many times what a message
takes the processor, and so many seconds. Some MPI libraries do not move messages without calls, but every piece that is
computed takes time of its own."""


@dataclass(frozen=True)
class MessageTimes:
    """How the sums of a mini-batch travel: micro-batches in each message, and times in seconds.

    ``one_message_s`` is predicted for a single message, None if that has no room or is not measured; ``measured_s`` is
    the median of the last 4096 mini-batches on this rank, or in packets of the means of the epochs.
    """

    messages: tuple[int, ...]
    predicted_s: float
    one_message_s: float | None
    measured_s: float | None
    planning_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        count = len(self.messages)
        lengths = " + ".join(map(str, self.messages)) if count <= _SHOWN else f"up to {max(self.messages)}"
        measured = "" if self.measured_s is None else f"measured {self.measured_s * 1e3:.2f} ms, "
        single = ""
        if count > 1 and self.one_message_s is not None:
            single = f", in one message {self.one_message_s * 1e3:.2f} ms"
        return (
            f"sums of a mini-batch in {count} message{'s' if count > 1 else ''} of {lengths} micro-batches: {measured}"
            f"predicted {self.predicted_s * 1e3:.2f} ms{single}"
        )


class MergedSums:
    """Does mini-batches with sums over all ranks, for `p4sgd.sim.emulator.RemoteWorkers`.

    The first mini-batches are measured with one message and with several, which tells what a micro-batch takes and what
    each message takes the processor besides. Then messages of several sizes are measured, and the lengths of all other
    messages are planned (`Passes.best`), unless ``merge`` says how many micro-batches a message has. All ranks use the
    plan of rank 0. With ``ahead`` a mini-batch is started before the one before it is finished."""

    def __init__(self, ranks: Communicator, merge: str = "auto", *, ahead: bool = False) -> None:
        self._ranks = ranks
        self._ahead = ahead
        self._merge = None if merge == "auto" else int(merge)
        self._latest: Started[IntArray | None] | None = None  # started last, if it is under way
        self._begin(1)

    def _begin(self, micro_batches: int) -> None:
        self._micro_batches = micro_batches
        self._trials = [cut(micro_batches, -(-micro_batches // messages)) for messages in (1, _SEVERAL)] * _TRIALS
        self._missing = len(self._trials)  # those that are not finished
        # By number of messages: seconds of the forward and of the backward passes of mini-batches.
        self._found: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._plan: MessageTimes | None = None
        self._piece = micro_batches
        self._seconds: deque[float] = deque(maxlen=_MEASURED)

    @property
    def times(self) -> MessageTimes | None:
        """None if nothing was planned so far."""
        if self._plan is None or not self._seconds:
            return self._plan
        return replace(self._plan, measured_s=statistics.median(self._seconds))

    def start(self, micro_batches: int, forward: Forward) -> Callable[[Backward], None]:
        """Start a mini-batch, see `p4sgd.sim.emulator.RemoteWorkers`; what is returned finishes it.

        Ctrl-C in any rank raises `KeyboardInterrupt` in all: when a mini-batch is finished, or messages are measured.
        """
        if micro_batches != self._micro_batches:
            self._begin(micro_batches)
        if self._plan is None and micro_batches > 1 and not self._missing:
            self._plan = self._make_plan()
        planned, lengths, trial = self._plan, [micro_batches], False
        if planned is not None:
            lengths = list(planned.messages)
        elif self._trials:
            lengths, trial = self._trials.pop(), True
        parts = [
            [range(first, min(first + self._piece, stop)) for first in range(stop - length, stop, self._piece)]
            for stop, length in zip(accumulate(lengths), lengths, strict=True)
        ]
        begin = time.perf_counter()
        started: list[Started[IntArray | None]] = []
        for part in parts:
            partials = [forward(piece) for piece in self._in_turn(part)]
            self._latest = self._ranks.start_sum(np.concatenate(partials), interruptible=part is parts[-1])
            started.append(self._latest)
        forward_s = time.perf_counter() - begin

        def finish(backward: Backward) -> None:
            begin, backward_s = time.perf_counter(), 0.0
            for part, message in zip(parts, started, strict=True):
                sums = message.wait()
                assert sums is not None
                if message is self._latest:
                    self._latest = None
                there = time.perf_counter()
                first = part[0].start
                for piece in self._in_turn(part):
                    backward(piece, sums[BANKS * (piece.start - first) : BANKS * (piece.stop - first)])
                backward_s += time.perf_counter() - there
            if planned is not None:
                self._seconds.append(forward_s + time.perf_counter() - begin)
            elif trial:
                self._found[len(lengths)].append((forward_s, backward_s))
                self._missing -= 1

        return finish

    def _in_turn(self, pieces: Sequence[range]) -> Iterator[range]:
        """The pieces of a part, between which messages that are under way move on."""
        for number, piece in enumerate(pieces):
            if number and self._latest is not None:
                self._latest.done()
            yield piece

    def _make_plan(self) -> MessageTimes:
        begin = time.perf_counter()
        count = self._micro_batches
        several = max(self._found)
        own = np.array([self._found[1], self._found[several]])
        few, many = np.max(self._ranks.all_gather(own), axis=0)  # in every mini-batch the slowest rank counts
        # Other programs can only add to a time: for a small difference the shortest ones are the best.
        message = np.maximum(many.min(axis=0) - few.min(axis=0), 0) / (several - 1)
        start_s, take_s = message.tolist()
        forward, backward = (np.maximum(np.median(few, axis=0) - message, 0) / count).tolist()
        cost, latency_s = self._measure_messages()

        def passes(step: int) -> Passes:
            sizes = cut(count, step)
            times = [size * forward for size in sizes], [size * backward for size in sizes]
            return Passes(*times, sizes, cost, start_s, take_s, latency_s, ahead=self._ahead)

        if self._merge is None:
            items = passes(-(-count // _MOST_ITEMS))
            sizes = iter(items.sizes)
            lengths = [sum(itertools.islice(sizes, length)) for length in items.best()]
        else:
            lengths = cut(count, self._merge)
        exact = passes(1)
        times = MessageTimes(
            messages=tuple(lengths),
            predicted_s=exact.end(lengths),
            one_message_s=exact.end([count]),
            measured_s=None,
            planning_s=time.perf_counter() - begin,
        )
        times = broadcast(self._ranks, times)
        if len(times.messages) > 1 or self._ahead:
            piece_s = max(_PIECE_S, _PIECE * max(start_s, take_s))
            self._piece = min(count, math.ceil(piece_s / max(min(forward, backward), piece_s / count)))
        return times

    def _measure_messages(self) -> tuple[CostTable, float]:
        """Time that a message of so many micro-batches keeps the channel busy, and its latency."""

        def seconds(size: int, at_once: int) -> float:
            values, taken = np.zeros(BANKS * size, np.int64), []
            for _ in range(_REPEATS):
                self._ranks.all_gather(None)
                started = [self._ranks.start_sum(values)]
                begin = time.perf_counter()  # to start it is not the channel's time
                started += [self._ranks.start_sum(values) for _ in range(1, at_once)]
                for each in started:
                    each.wait()
                taken.append(time.perf_counter() - begin)
            return statistics.median(taken)

        count = self._micro_batches
        sizes = sorted({count, *(1 << power for power in range(0, count.bit_length(), 2) if 1 << power < count)})
        # A message takes no longer than a larger one: what was measured so was disturbed.
        alone = list(accumulate([seconds(size, 1) for size in reversed(sizes)], min))[::-1]
        # What several at once take longer than one is how long each of them keeps the channel busy.
        busy = max(0.0, seconds(1, _AT_ONCE) - alone[0]) / (_AT_ONCE - 1)
        latency = max(0.0, alone[0] - busy)
        return CostTable(sizes, [max(0.0, each - latency) for each in alone]), latency
