"""Simulated links between programs: losses and duplicates as in the product, and delays, so that packets overtake."""

from dataclasses import dataclass

from p4sgd.sim.network.faults import Losses


def between(rng, bounds):
    """A random integer between two bounds, both included; several times as fast as `randint`."""
    low, high = bounds
    return low + int(rng.random() * (high - low + 1))


@dataclass(frozen=True)
class Faults:
    """Faults of packets in one direction: chances as in `LINK_CHANCES`, and delays in any unit of time."""

    loss: float = 0.0
    duplication: float = 0.0  # each copy has its own loss and delay
    burst_begin: float = 0.0
    burst_end: float = 0.5
    burst_loss: float = 0.9
    delay: tuple[int, int] = (10, 10)  # shortest and longest: the wider the range, the more packets overtake others
    straggle: float = 0.0  # chance that a packet takes `straggle_delay` longer
    straggle_delay: int = 1000


class Line:
    """One direction of a worker's link; ``counts`` are those of `Losses`, and of ``reordered`` copies."""

    def __init__(self, faults, rng, counts):
        self._faults, self._rng, self._counts, self._latest = faults, rng, counts, 0
        self._losses = Losses(rng, counts, vars(faults))

    def arrivals(self, now):
        """When each copy of a packet sent now arrives; empty if all are lost."""
        return [self._arrival(now) for _ in range(self._losses.copies())]

    def _arrival(self, now):
        faults = self._faults
        time = now + between(self._rng, faults.delay)
        if faults.straggle and self._rng.random() < faults.straggle:
            time += faults.straggle_delay
        self._counts["reordered"] += time < self._latest
        self._latest = max(self._latest, time)
        return time
