"""Merging of messages: which of a sequence of messages travel together, by an exact plan on measured costs.

`plan_messages` is for a chain of messages, of which the last is to end early. `Passes` is for a mini-batch, in which
the backward pass needs what the messages bring: its messages may be of any lengths, as those of MPI, or all of the same
number of micro-batches, as frames are (`Passes.uniform`).
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from p4sgd.host.errors import UserError

__all__ = ["CostTable", "Message", "Passes", "plan_messages", "schedule"]


@dataclass(frozen=True)
class CostTable:
    """Measured time by size, as a function: ``table(size)`` in seconds.

    It is linear between two sizes that were measured, and constant below the first one. Beyond the last one it
    continues the line through the last two. A jump, such as the eager limit of an MPI library, is two neighbouring
    sizes: 8192 and 8193.

    Attributes
    ----------
    sizes
        Sizes that were measured, in any unit: whole numbers from 0 to 2^62, increasing.
    seconds
        A time for each, from 0 to 1e9.

    Raises
    ------
    UserError
        If the table is empty or not as described; the message names the entry, counted from 1.
    """

    sizes: Sequence[int]
    seconds: Sequence[float]

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.seconds):
            raise UserError(f"{len(self.sizes)} sizes and {len(self.seconds)} times: give one time for each size")
        for entry, (size, seconds) in enumerate(zip(self.sizes, self.seconds, strict=True), 1):
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 62:
                raise UserError(f"entry {entry}: a size must be a whole number from 0 to 2^62, not {size!r}")
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 1e9:
                raise UserError(f"entry {entry}: a time must be a number of seconds from 0 to 1e9, not {seconds!r}")
        for entry, (before, size) in enumerate(pairwise(self.sizes), 2):
            if size <= before:
                raise UserError(f"entry {entry}: size {size} follows {before}: sort the entries by size, each once")

    def __call__(self, size: int) -> float:
        """Time for a size, in seconds, at least 0."""
        if size <= self.sizes[0] or len(self.sizes) == 1:
            return self.seconds[0]
        left = min(bisect_right(self.sizes, size), len(self.sizes) - 1) - 1
        run = self.sizes[left + 1] - self.sizes[left]
        rise = self.seconds[left + 1] - self.seconds[left]
        return max(0.0, self.seconds[left] + rise * (size - self.sizes[left]) / run)


@dataclass(frozen=True)
class Message:
    """A message of a schedule.

    Attributes
    ----------
    items
        Numbers of the items that travel in it.
    size
        Sum of their sizes.
    start, end
        When the channel is busy with it, in seconds.
    """

    items: range
    size: int
    start: float
    end: float


def schedule(
    lengths: Sequence[int], ready: Sequence[float], sizes: Sequence[int], cost: Callable[[int], float]
) -> list[Message]:
    """Times of given messages on a channel that carries one after another.

    Parameters
    ----------
    lengths
        Number of items in each message, in the order of the items; their sum is the number of items.
    ready, sizes, cost
        See `plan_messages`.
    """
    latest = list(accumulate(ready, max))
    messages: list[Message] = []
    for stop, length in zip(accumulate(lengths), lengths, strict=True):
        items = range(stop - length, stop)
        size = sum(sizes[item] for item in items)
        start = max(messages[-1].end if messages else 0.0, latest[stop - 1])
        messages.append(Message(items, size, start, start + cost(size)))
    return messages


def plan_messages(ready: Sequence[float], sizes: Sequence[int], cost: Callable[[int], float]) -> list[Message]:
    """The messages with which a channel is done first, when it carries items in their order.

    With f(k) the earliest end of the messages of the first k items, f(0) = 0 and

        f(k) = min over i < k of max(f(i), latest(k)) + cost(size of the items i … k-1),

    where latest(k) is the time when all of the first k items are ready. This is exact for any cost: an earlier end of
    the first i items never delays what follows. It takes O(n²) steps. Ranks that shall send the same messages must use
    the same numbers: those of rank 0.

    Parameters
    ----------
    ready
        When each item may be sent, in seconds from the time when the channel is free.
    sizes
        Size of each item, in the unit of ``cost``.
    cost
        Time that a message of a size takes, in seconds; any function, such as a `CostTable`.

    Returns
    -------
    The messages, in order. Where plans end at the same time, the one with the longest last message.
    """
    latest = list(accumulate(ready, max))
    before = [0, *accumulate(sizes)]
    ends, starts = [0.0], [0]  # by k: f(k), and the first item of the last message
    for k in range(1, len(sizes) + 1):
        end, first = min((max(ends[i], latest[k - 1]) + cost(before[k] - before[i]), i) for i in range(k))
        ends.append(end)
        starts.append(first)
    lengths: list[int] = []
    stop = len(sizes)
    while stop:
        lengths.append(stop - starts[stop])
        stop = starts[stop]
    return schedule(lengths[::-1], ready, sizes, cost)


class _State(NamedTuple):
    """What a plan for the first items of `Passes` leads to: the smaller its first three numbers are, the better."""

    channel: float
    """When the channel is free, in seconds."""
    backward: float
    """When the backward passes of these items are done, as far as messages to be started do not delay them."""
    messages: int
    length: int = 0
    """Items in the last message."""
    before: "_State | None" = None
    """The state before that message."""


@dataclass(frozen=True)
class Passes:
    """The passes of a worker through a mini-batch, and the messages between them.

    The model:

    - The forward passes of the items, which are micro-batches or several of them, follow each other in order. A message
      has the results of consecutive items. It is started when those of all of them are there, and to start it takes the
      processor ``start_s``, in which it computes nothing else.
    - The channel carries one message after another, each for the time ``cost(size)``. Its sums are there ``latency_s``
      after that, while the channel may already carry the next one.
    - To take the sums of a message takes the processor ``take_s``; then follow the backward passes of its items, in
      order.
    - One processor computes both passes, the backward passes after all forward passes. This is what software does,
      because it keeps one copy of the weights, and all forward passes of a mini-batch read those from before it.
      With ``side_by_side`` there is a processor for each kind of pass, as in the hardware.
    - With ``ahead`` the one processor computes the forward passes of the next mini-batch before the backward passes of
      this one, as staleness allows. Then what ends is a period: the time from one mini-batch to the next, in the long
      run.

    Messages move on by themselves here. An MPI library may need calls for that.

    Attributes
    ----------
    forward, backward
        Times of the passes of each item, in seconds or any unit that is the same for all times.
    sizes
        Size of each item, in the unit of ``cost``.
    cost
        Time for which a message of a size keeps the channel busy; any function, such as a `CostTable`.
    start_s, take_s
        Time of the processor for each message, to start it and to take its sums.
    latency_s
        Time from the end of a message on the channel to its sums.
    side_by_side
        Whether forward and backward passes run at the same time.
    ahead
        Whether forward passes are one mini-batch ahead; not with ``side_by_side``.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    sizes: Sequence[int]
    cost: Callable[[int], float]
    start_s: float = 0.0
    take_s: float = 0.0
    latency_s: float = 0.0
    side_by_side: bool = False
    ahead: bool = False

    @cached_property
    def _sums(self) -> tuple[list[float], list[float], list[int]]:
        """Times of forward passes, times of backward passes and sizes of the first k items."""
        return (
            list(accumulate(self.forward, initial=0.0)),
            list(accumulate(self.backward, initial=0.0)),
            list(accumulate(self.sizes, initial=0)),
        )

    @property
    def _begin(self) -> _State:
        forward, _, _ = self._sums
        return _State(0.0, 0.0 if self.side_by_side else forward[-1], 0)

    def end(self, lengths: Sequence[int]) -> float:
        """When the last backward pass ends, or with ``ahead`` the period, with messages of so many items each."""
        if self.ahead:
            return self._period(lengths)
        state = self._begin
        for first, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
            state = self._after(state, first, length)
        return self._end(state)

    def _after(self, state: _State, first: int, length: int) -> _State:
        """The state with one more message, of so many items from ``first`` on."""
        forward, backward, sizes = self._sums
        stop, messages = first + length, state.messages + 1
        computed = forward[stop] + messages * self.start_s
        channel = max(state.channel, computed) + self.cost(sizes[stop] - sizes[first])
        done = max(state.backward, channel + self.latency_s) + self.take_s + backward[stop] - backward[first]
        return _State(channel, done, messages, length, state)

    def _end(self, state: _State) -> float:
        """When the passes end with the messages of a state, which has all items.

        On one processor the state has backward passes begin after all forward passes, but without the time to start
        messages. That puts off the end only if the processor never waits for sums.
        """
        forward, backward, _ = self._sums
        computing = forward[-1] + backward[-1] + state.messages * (self.start_s + self.take_s)
        return state.backward if self.side_by_side else max(state.backward, computing)

    def _period(self, lengths: Sequence[int]) -> float:
        """Time from one mini-batch to the next.

        The longest of what the processor does, of what the channel does, and of half of any way from the first forward
        pass to the start of a message, over the channel to that message or a later one of the mini-batch, and from the
        sums of the latter to the last backward pass: then the next mini-batch but one begins.
        """
        forward, backward, sizes = self._sums
        stops, count = list(accumulate(lengths)), len(lengths)
        busy, way, started = 0.0, 0.0, -math.inf
        for message, (stop, length) in enumerate(zip(stops, lengths, strict=True)):
            started = max(started, forward[stop] + (message + 1) * self.start_s - busy)
            busy += self.cost(sizes[stop] - sizes[stop - length])
            left = (count - message) * self.take_s + backward[-1] - backward[stop - length]
            way = max(way, started + busy + self.latency_s + left)
        computing = forward[-1] + backward[-1] + count * (self.start_s + self.take_s)
        return max(computing, busy, way / 2)

    def best(self) -> list[int]:
        """The lengths of the messages with which the passes end first; the fewest messages of those.

        For the first k items all states are kept that are not worse than another one: an earlier time or fewer messages
        never delay what follows, so one of them leads to the best end. A state that cannot lead to an earlier end than
        the best messages of equal lengths is left out. This is exact for any cost. With ``ahead`` the best messages of
        equal lengths are returned.
        """
        count = len(self.forward)
        if not count:
            return []
        _, backward, sizes = self._sums
        known = min(self._equal(count), key=lambda lengths: (self.end(lengths), len(lengths)))
        if self.ahead:
            return known
        limit = self.end(known)
        costs = {size: self.cost(size) for size in {sizes[k] - sizes[i] for k in range(count + 1) for i in range(k)}}
        planner = replace(self, cost=costs.__getitem__)
        states = [[self._begin]]
        for k in range(1, count + 1):
            found = (planner._after(state, i, k - i) for i in range(k) for state in states[i])
            left = backward[-1] - backward[k]
            states.append(_undominated(state for state in found if state.backward + left <= limit))
        best = min(states[-1], key=lambda state: (self._end(state), state.messages), default=None)
        lengths: list[int] = []
        while best is not None and best.before is not None:
            lengths.append(best.length)
            best = best.before
        # A sum that is rounded otherwise may have left out all that are as good as the known ones.
        return min((lengths[::-1] or known, known), key=lambda each: (self.end(each), len(each)))

    def uniform(self, most: int | None = None) -> int:
        """The number of items in every message but the last, which may have fewer, with which the passes end first.

        That is n, the micro-batches of a frame. Of several that end at the same time it is the smallest.

        Parameters
        ----------
        most
            Most items of a message; by default any number.
        """
        return min(self._equal(min(most or len(self.forward), len(self.forward))), key=self.end)[0]

    def _equal(self, most: int) -> Iterator[list[int]]:
        """Messages of 1, 2, … or so many items each, the last may have fewer."""
        count = len(self.forward)
        for each in range(1, most + 1):
            yield [each] * (count // each) + [count % each] * (count % each > 0)


def _undominated(states: Iterable[_State]) -> list[_State]:
    """Those states than which no other is better or equal in all of channel, backward and messages."""
    kept: list[_State] = []
    least: list[float] = []  # by messages - 1: the least `backward` so far of states with so many messages or fewer
    for state in sorted(states, key=lambda state: state[:3]):
        least += [least[-1] if least else math.inf] * (state.messages - len(least))
        if state.backward < least[state.messages - 1]:
            kept.append(state)
            for messages in range(state.messages - 1, len(least)):
                least[messages] = min(least[messages], state.backward)
    return kept
