"""Faults of packets between programs (``--fault``): their probabilities, and links that apply them.

Those of the simulated RTL are in `p4sgd.sim.cluster.link`.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

DIRECTIONS = ("up", "down")
"""Directions of links: from a worker to the aggregator, and back."""

LINK_CHANCES = ("loss", "duplication", "reordering", "burst_begin", "burst_end", "burst_loss")
"""Chances of faults of frames."""

LINK_FAULTS = tuple(f"{way}_{name}" for way in ("link", *DIRECTIONS) for name in LINK_CHANCES)
"""Names of ``--fault`` for links: in both directions, and in one of them."""


def chances_of(way: str, faults: Mapping[str, float]) -> dict[str, float]:
    """`LINK_CHANCES` in a direction, 0 where not given. One of that direction takes the place of that of both."""
    return {name: faults.get(f"{way}_{name}", faults.get(f"link_{name}", 0.0)) for name in LINK_CHANCES}


def between(rng: random.Random, bounds: tuple[int, int]) -> int:
    """A random integer between two bounds, both included; several times as fast as `randint`."""
    low, high = bounds
    return low + int(rng.random() * (high - low + 1))


def _check_chances(faults: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(faults, name) < 1:
            raise ValueError(f"{name} must be 0 to below 1, not {getattr(faults, name)}")


def check_bounds(name: str, bounds: tuple[int, int]) -> None:
    """Refuse a range that is not ascending and positive."""
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"{name} must be two ascending positive numbers, not {bounds}")


@dataclass(frozen=True)
class Bursts:
    """Loss in bursts (Gilbert-Elliott model): a link is in a good or a bad state and may change before each packet.

    ``begin`` and ``end`` are the chances that a good state turns bad, and a bad one good.
    """

    begin: float
    end: float
    loss: float = 0.9

    def __post_init__(self) -> None:
        _check_chances(self, "begin", "end", "loss")
        if self.begin and not self.end:
            raise ValueError("end must be above 0: bursts would never end")


@dataclass(frozen=True)
class Faults:
    """Faults of packets in one direction: chances, and delays in any unit of time."""

    loss: float = 0.0  # chance of a loss, independent of all others
    bursts: Bursts | None = None  # further loss in bursts
    corruption: float = 0.0
    """Chance that bits of a packet flip. The MAC drops such a frame, so the packet is lost, but counted separately.
    Errors that CRC-32 misses, more than four bits and over more than 32 bits, are not modelled."""
    duplication: float = 0.0  # chance that a packet is sent twice; each copy has its own loss and delay
    delay: tuple[int, int] = (10, 10)  # shortest and longest delay of a packet
    in_order: bool = False
    """Whether packets wait for those sent before; else the wider the range, the more overtake others."""
    straggle: float = 0.0  # chance that a packet takes `straggle_delay` longer
    straggle_delay: int = 1000

    def __post_init__(self) -> None:
        _check_chances(self, "loss", "corruption", "duplication", "straggle")
        check_bounds("delay", self.delay)


class Line:
    """One direction of a worker's link, with `Faults`.

    ``counts`` are of ``packets``, and of ``duplicated``, ``corrupted``, ``lost`` and ``reordered`` copies.
    """

    def __init__(self, faults: Faults, rng: random.Random, counts: Counter[str]) -> None:
        self._faults = faults
        self._rng = rng
        self._counts = counts
        self._is_bad = False
        self._latest = 0

    def arrivals(self, now: int) -> list[int]:
        """When each copy of a packet sent now arrives; empty if all are lost."""
        self._counts["packets"] += 1
        copies = 1
        if self._rng.random() < self._faults.duplication:
            self._counts["duplicated"] += 1
            copies = 2
        return [self._arrival(now) for _ in range(copies) if not self._is_lost()]

    def _is_lost(self) -> bool:
        faults, draw = self._faults, self._rng.random
        chance = faults.loss
        if faults.bursts is not None:
            if draw() < (faults.bursts.end if self._is_bad else faults.bursts.begin):
                self._is_bad = not self._is_bad
            if self._is_bad:
                chance += (1 - chance) * faults.bursts.loss
        if draw() < chance:
            self._counts["lost"] += 1
            return True
        if draw() < faults.corruption:
            self._counts["corrupted"] += 1
            return True
        return False

    def _arrival(self, now: int) -> int:
        faults = self._faults
        time = now + between(self._rng, faults.delay)
        if faults.straggle and self._rng.random() < faults.straggle:
            time += faults.straggle_delay
        if time >= self._latest:
            self._latest = time
        elif faults.in_order:
            return self._latest
        else:
            self._counts["reordered"] += 1
        return time
