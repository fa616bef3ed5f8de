"""Things that happen one after the other, in order of time."""

import heapq
from collections.abc import Callable

__all__ = ["Events"]


class Events:
    """What will happen, and when; time is any integer.

    Attributes
    ----------
    now : int
        Time of the last event.
    """

    def __init__(self) -> None:
        self.now = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Have something happen. Events of one time happen in the order they were scheduled."""
        self._scheduled += 1
        heapq.heappush(self._queue, (time, self._scheduled, action))

    def step(self) -> None:
        """Go to the next event and let it happen."""
        self.now, _, action = heapq.heappop(self._queue)
        action()
