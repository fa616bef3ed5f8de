"""Placement of factors on ranks: which rank inverts a factor and sends the result, and which factors all ranks invert.

The model, after SPD-KFAC (S. Shi, L. Zhang, B. Li, ICDCS 2021, arXiv:2107.06533):

- A factor is inverted by its owner, which then broadcasts the inverse, or by all ranks, which need not send anything.
  In the end all ranks have all inverses.
- A rank inverts one factor after another: those that it owns first, then those that all ranks invert.
- All broadcasts share one channel, which carries one at a time while the ranks compute. SPD-KFAC counts for each rank
  only the broadcasts of its own factors. But every rank's link carries all of them, and the authors' measurements say
  so too: the 108 broadcasts of ResNet-50 between 64 GPUs took 134 ms (MPD-KFAC, whole matrices, in
  scripts/time_breakdown.py of github.com/shyhuai/kfac_pytorch); by their cost of a broadcast, all of them take 141 ms,
  those of the busiest owner 16 ms.

To find the best placement is NP-hard: with free broadcasts it is scheduling on parallel machines.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Placement", "PlacementProblem"]


Owners: TypeAlias = "tuple[int | None, ...]"
"""The owner of each factor, None for one that all ranks invert."""


@dataclass(frozen=True)
class Placement:
    """Where factors are inverted, and in which order the inverses are sent.

    Attributes
    ----------
    owners
        The owner of each factor, None for one that all ranks invert.
    sends
        Numbers of the factors with an owner in the order of their broadcasts, which is also the order in which an owner
        inverts its own.
    makespan
        Predicted time until all ranks have all inverses, in seconds.
    """

    owners: Owners
    sends: tuple[int, ...]
    makespan: float


class PlacementProblem:
    """Factors to invert, ranks that do it, and what it costs; finds placements and predicts their times.

    All methods are deterministic. Ranks that shall agree on a placement must use the same costs: those of rank 0.

    Parameters
    ----------
    sizes
        Rows of each factor, in the order in which the factors are ready.
    invert, send
        Time to invert a factor of a size, and to broadcast its inverse, in seconds; any functions, such as a
        `p4sgd.host.distributed.merging.CostTable`.
    ranks
        Number of ranks, at least 1.
    """

    def __init__(
        self, sizes: Sequence[int], invert: Callable[[int], float], send: Callable[[int], float], ranks: int
    ) -> None:
        self.sizes = tuple(sizes)
        self.ranks = ranks
        self._most_owners = max(1, min(ranks, len(sizes)))
        self._invert = [invert(size) for size in sizes]
        self._send = [send(size) for size in sizes]
        self._longest_first = sorted(range(len(sizes)), key=lambda factor: (-self._invert[factor], factor))
        # Those that spare the ranks the most for the time on the channel come first.
        self._worth_sending = sorted(
            (factor for factor in self._longest_first if self._invert[factor] > 0),
            key=lambda factor: self._send[factor] / self._invert[factor],
        )

    def by_all(self) -> Placement:
        """All ranks invert all factors."""
        return self._timed((None,) * len(self.sizes), ())

    def round_robin(self) -> Placement:
        """One rank after the other gets a factor, in the order of the factors, as in MPD-KFAC."""
        factors = range(len(self.sizes))
        return self._timed(tuple(factor % self.ranks for factor in factors), factors)

    def balanced_sizes(self) -> Placement:
        """The rank with the least sum of sizes gets the next factor, largest first, as in SPD-KFAC's repository."""
        factors = sorted(range(len(self.sizes)), key=lambda factor: (-self.sizes[factor], factor))
        return self._timed(self._dealt(factors, self.sizes), factors)

    def best(self) -> Placement:
        """A placement that is at least as fast as all of the others here.

        Factors with an owner are dealt longest inversion first, each to the rank that is free first. Which ones these
        are begins with the solution of the relaxed problem (see `lower_bound`) and is improved by one factor at a time,
        to be sent or not, as long as that helps; factors of the same size are interchangeable.
        """
        if self.ranks == 1:
            return self.by_all()
        count, _ = self._relaxed()
        starts = [frozenset(self._worth_sending[:sent]) for sent in (count, count + 1, len(self.sizes))]
        placement, sent = min(((self._placed(start), start) for start in starts), key=lambda pair: pair[0].makespan)
        while True:
            changes = ((self._placed(change), change) for change in self._neighbours(sent))
            better, change = min(changes, key=lambda pair: pair[0].makespan, default=(placement, sent))
            if better.makespan >= placement.makespan:
                break
            placement, sent = better, change
        others = (self.by_all(), self.round_robin(), self.balanced_sizes())
        return min((placement, *others), key=lambda each: each.makespan)

    def lower_bound(self) -> float:
        """Time in seconds that no placement can beat.

        The longest inversion; and either the time of all inversions, by all ranks, or the solution of a relaxed
        problem: any fraction of a factor may be sent, ranks share what is sent evenly, and the channel only waits for
        the shortest inversion. Where the channel costs nothing this is max(total / ranks, longest).
        """
        total = sum(self._invert)
        if self.ranks == 1:
            return total
        return min(total, max([*self._invert, self._relaxed()[1]]))

    def _relaxed(self) -> tuple[int, float]:
        """How many of the factors worth sending the relaxed problem sends as a whole, and its time in seconds.

        While factors are sent one after another, the time of the ranks falls and that of the channel rises. They meet
        within a factor, unless the ranks take longer even when all are sent.
        """
        computing, channel = sum(self._invert), min(self._invert, default=0.0)
        for count, factor in enumerate(self._worth_sending):
            saved = self._invert[factor] * (1 - 1 / self.ranks)
            fraction = (computing - channel) / (saved + self._send[factor])
            if fraction < 1:
                return count, computing - max(0.0, fraction) * saved
            computing -= saved
            channel += self._send[factor]
        return len(self._worth_sending), computing

    def _neighbours(self, sent: frozenset[int]) -> list[frozenset[int]]:
        """The sets of factors to send that have one factor more or less, one for each size."""
        more = {self.sizes[factor]: factor for factor in self._worth_sending if factor not in sent}
        less = {self.sizes[factor]: factor for factor in self._worth_sending if factor in sent}
        return [*(sent | {factor} for factor in more.values()), *(sent - {factor} for factor in less.values())]

    def _placed(self, sent: frozenset[int]) -> Placement:
        """The given factors dealt to owners, in the best of several orders.

        Longest first keeps the ranks busy to the end, but the channel is idle until the first inverse is there. So some
        of the shortest come before them: 0, 1, 2, 4, … or all.
        """
        factors = [factor for factor in self._longest_first if factor in sent]
        owners = self._dealt(factors, self._invert)
        counts = {0, *(1 << power for power in range(len(factors).bit_length())), len(factors)}
        orders = (factors[::-1][:count] + factors[: len(factors) - count] for count in sorted(counts))
        return min((self._timed(owners, order) for order in orders), key=lambda each: each.makespan)

    def _dealt(self, factors: Iterable[int], weights: Sequence[float]) -> Owners:
        """Owners of these factors: each the rank with the least weight so far, the first one if there are several."""
        loads = [(0.0, rank) for rank in range(self._most_owners)]  # a heap
        owners: list[int | None] = [None] * len(self.sizes)
        for factor in factors:
            load, owner = loads[0]
            heapq.heapreplace(loads, (load + weights[factor], owner))
            owners[factor] = owner
        return tuple(owners)

    def _timed(self, owners: Owners, order: Iterable[int]) -> Placement:
        """The placement with these owners, which invert their factors in this order."""
        busy = [0.0] * self._most_owners
        inverted: list[tuple[float, int]] = []
        for factor in order:
            owner = owners[factor]
            assert owner is not None
            busy[owner] += self._invert[factor]
            inverted.append((busy[owner], factor))
        inverted.sort(key=lambda each: each[0])
        channel = 0.0
        for ready, factor in inverted:
            channel = max(channel, ready) + self._send[factor]
        by_all = sum(seconds for seconds, owner in zip(self._invert, owners, strict=True) if owner is None)
        return Placement(owners, tuple(factor for _, factor in inverted), max(channel, max(busy) + by_all))
