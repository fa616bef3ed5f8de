"""Merging of messages: which of a sequence of messages travel together, by an exact plan on measured costs."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from p4sgd.host.errors import UserError

__all__ = ["CostTable", "Message", "plan_messages", "schedule"]


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
