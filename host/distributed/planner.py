"""Exact plans on measured costs: which sums travel in one message, and which factors an owner inverts for all ranks."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

_MOST_ITEMS = 64  # of a plan of sums, to keep it short: with more factors an item is several of them


@dataclass(frozen=True)
class CostTable:
    """Measured time by size, in seconds: linear between increasing sizes, constant below the first, and continued
    beyond the last; at least 0."""

    sizes: Sequence[int]
    seconds: Sequence[float]

    def __call__(self, size: int) -> float:
        if size <= self.sizes[0] or len(self.sizes) == 1:
            return self.seconds[0]
        left = min(bisect_right(self.sizes, size), len(self.sizes) - 1) - 1
        run = self.sizes[left + 1] - self.sizes[left]
        rise = self.seconds[left + 1] - self.seconds[left]
        return max(0.0, self.seconds[left] + rise * (size - self.sizes[left]) / run)


def cut(count: int, length: int) -> list[int]:
    """Lengths of messages of ``length`` items each; the last may have fewer."""
    return [min(length, count - first) for first in range(0, count, length)]


class _State(NamedTuple):
    """After the messages of the first items: when the channel is free, and when the backward passes of these are done,
    as far as the start of messages does not delay them."""

    channel: float
    backward: float
    messages: int
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Passes:
    """The forward and backward passes of a mini-batch, and the messages with sums between them; times in seconds.

    - The forward passes of the items, which are micro-batches or several of them, follow each other. A message has the
      results of consecutive items, and takes the processor ``start_s`` when they are there.
    - The channel carries one message after another, each for the time ``cost`` of the sum of the ``sizes`` of its
      items. Its sums are there ``latency_s`` after that, while the channel may already carry the next one.
    - To take the sums of a message takes the processor ``take_s``; then follow the backward passes of its items.
    - One processor computes all backward passes after all forward passes, which read the weights from before them.
    - With ``ahead`` it computes the forward passes of the next mini-batch before the backward passes of this one, as
      staleness allows. Then what ends is a period: the time from one mini-batch to the next, in the long run.

    Without backward passes this is a chain of sums, such as those of layers (MG-WFBP, S. Shi et al., INFOCOM 2019).
    """

    forward: Sequence[float]
    backward: Sequence[float]
    sizes: Sequence[int]
    cost: Callable[[int], float]
    start_s: float = 0.0
    take_s: float = 0.0
    latency_s: float = 0.0
    ahead: bool = False

    @cached_property
    def _sums(self) -> tuple[list[float], list[float], list[int]]:
        return (
            list(accumulate(self.forward, initial=0.0)),
            list(accumulate(self.backward, initial=0.0)),
            list(accumulate(self.sizes, initial=0)),
        )

    def end(self, lengths: Sequence[int]) -> float:
        """When the last backward pass ends, or with ``ahead`` the period, with messages of so many items each."""
        if self.ahead:
            return self._period(lengths)
        forward, backward, _ = self._sums
        state = _State(0.0, forward[-1], 0)
        for first, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
            state = self._after(state, first, length)
        computing = forward[-1] + backward[-1] + state.messages * (self.start_s + self.take_s)
        return max(state.backward, computing)

    def _after(self, state: _State, first: int, length: int) -> _State:
        """One more message, of so many items from ``first`` on."""
        forward, backward, sizes = self._sums
        stop, messages = first + length, state.messages + 1
        channel = max(state.channel, forward[stop] + messages * self.start_s) + self.cost(sizes[stop] - sizes[first])
        done = max(state.backward, channel + self.latency_s) + self.take_s + backward[stop] - backward[first]
        return _State(channel, done, messages, (*state.lengths, length))

    def _period(self, lengths: Sequence[int]) -> float:
        """The longest of what the processor does, of what the channel does, and of half of any way from the first
        forward pass to the start of a message, over the channel to that message or a later one, and from its sums to
        the last backward pass: then the next mini-batch but one begins."""
        forward, backward, sizes = self._sums
        count, busy, way, started, first = len(lengths), 0.0, 0.0, -math.inf, 0
        for message, length in enumerate(lengths):
            stop = first + length
            started = max(started, forward[stop] + (message + 1) * self.start_s - busy)
            busy += self.cost(sizes[stop] - sizes[first])
            left = (count - message) * self.take_s + backward[-1] - backward[first]
            way, first = max(way, started + busy + self.latency_s + left), stop
        computing = forward[-1] + backward[-1] + count * (self.start_s + self.take_s)
        return max(computing, busy, way / 2)

    def best(self) -> list[int]:
        """The lengths of the messages with which the passes end first; the fewest messages of those.

        A search over states of the first k items, of which those are kept that no other dominates: an earlier time or
        fewer messages never delay what follows. A state that cannot end before the best messages of equal lengths is
        left out. This is exact for any cost. With ``ahead`` it is the best of equal lengths.
        """
        count = len(self.forward)
        equal = (cut(count, length) for length in range(1, count + 1))
        known = min(equal, key=lambda lengths: (self.end(lengths), len(lengths)), default=[])
        if self.ahead or not known:
            return known
        limit, (_, backward, sizes) = self.end(known), self._sums
        costs = {size: self.cost(size) for size in {sizes[k] - sizes[i] for k in range(count + 1) for i in range(k)}}
        planner = replace(self, cost=costs.__getitem__)
        states = [[_State(0.0, self._sums[0][-1], 0)]]
        for k in range(1, count + 1):
            found = (planner._after(state, i, k - i) for i in range(k) for state in states[i])
            left = backward[-1] - backward[k]
            states.append(_undominated(state for state in found if state.backward + left <= limit))
        # A sum that is rounded otherwise may have left out all that are as good as the known ones.
        choices = [known, *(list(state.lengths) for state in states[-1])]
        return min(choices, key=lambda lengths: (self.end(lengths), len(lengths)))


def _undominated(states: Iterable[_State]) -> list[_State]:
    """Those than which no other is better or equal in all of channel, backward and messages."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda state: state[:3]):
        if not any(each.backward <= state.backward and each.messages <= state.messages for each in kept):
            kept.append(state)
    return kept


@dataclass(frozen=True)
class FactorCosts:
    """Seconds to compute a rank's part of a factor, to invert it, to broadcast the inverse, and to add up the parts of
    a number of factors over the ranks in one message."""

    compute: float
    invert: float
    send: float
    add: Callable[[int], float]


@dataclass(frozen=True)
class FactorPlan:
    """Plan of who inverts which factors, all of one size.

    The first ``owned`` have an owner each, ranks in turn, which inverts them and sends the inverses in their order;
    then all ranks invert the others. ``messages`` has the numbers of the factors whose parts are added up together. The
    times are until all ranks have all inverses, as predicted, and at least if all parts are computed first.
    """

    owned: int
    messages: tuple[tuple[int, ...], ...]
    predicted_s: float
    lower_bound_s: float


def plan_factors(count: int, ranks: int, costs: FactorCosts) -> FactorPlan:
    """Plan the inversion of factors by ranks, after SPD-KFAC (S. Shi, L. Zhang, B. Li, ICDCS 2021, arXiv:2107.06533).

    All broadcasts share one channel: every rank's link carries all of them. Factors are alike, so for each number with
    an owner the best owners take turns, and the number with which all inverses are there first is found by trying all.
    Sums are planned as a chain for each owner (`Passes`), as if all were there before the first inversion.
    """
    channel = own = 0.0
    spans = [count * costs.invert]  # by number of factors with an owner
    for sent in range(1, (count if ranks > 1 else 0) + 1):
        own = -(-sent // ranks) * costs.invert  # of the rank that inverts the last of them
        channel = max(channel, own) + costs.send
        spans.append(max(channel, own + (count - sent) * costs.invert))
    owned = spans.index(min(spans))
    messages: list[tuple[int, ...]] = []
    computed = channel = 0.0
    # What all ranks get is added up last, because they invert it last.
    for part in (*(range(rank, owned, ranks) for rank in range(ranks)), range(owned, count)):
        step = max(1, -(-len(part) // _MOST_ITEMS))
        items = [part[first : first + step] for first in range(0, len(part), step)]
        ready = list(accumulate((len(item) * costs.compute for item in items), initial=computed))[1:]
        before = [channel, *(max(channel, each) for each in ready)]  # an item cannot travel before the channel is free
        gaps = [later - earlier for earlier, later in pairwise(before)]
        chain = Passes(gaps, [0.0] * len(items), [len(item) for item in items], costs.add)
        lengths = chain.best()
        for stop, length in zip(accumulate(lengths), lengths, strict=True):
            messages.append(tuple(factor for item in items[stop - length : stop] for factor in item))
        if items:
            computed, channel = ready[-1], channel + chain.end(lengths)
    return FactorPlan(owned, tuple(messages), channel + min(spans), count * costs.compute + min(spans))
