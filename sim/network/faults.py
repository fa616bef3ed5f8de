"""Faults of links (``--fault``): their names, and how many copies of a frame between programs arrive.

`p4sgd.sim.cluster.link` has those of the simulated RTL.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping

DIRECTIONS = ("up", "down")
"""Directions of links: from a worker to the aggregator, and back."""

LINK_CHANCES = ("loss", "duplication", "reordering", "burst_begin", "burst_end", "burst_loss")
"""Chances of a frame. Bursts are those of the Gilbert-Elliott model: before a frame a link turns bad with the chance
``burst_begin`` and good with ``burst_end``; a bad one loses it with ``burst_loss``, too."""

LINK_FAULTS = tuple(f"{way}_{name}" for way in ("link", *DIRECTIONS) for name in LINK_CHANCES)
"""Names of ``--fault`` for links: in both directions, and in one of them."""

PROGRAM_CHANCES = (*LINK_CHANCES, "change")
"""Those and, between programs, that some bits are flipped where no checksum of the network is: in memory."""

PROGRAM_FAULTS = tuple(f"{way}_{name}" for way in ("link", *DIRECTIONS) for name in PROGRAM_CHANCES)


def chances_of(way: str, faults: Mapping[str, float], names: Iterable[str] = LINK_CHANCES) -> dict[str, float]:
    """Chances in a direction, 0 where not given. One of that direction takes the place of that of both."""
    return {name: faults.get(f"{way}_{name}", faults.get(f"link_{name}", 0.0)) for name in names}


class Losses:
    """One direction of a link, with all `LINK_CHANCES` but ``reordering``.

    ``counts`` are of ``packets``, and of ``duplicated`` and ``lost`` ones.
    """

    def __init__(self, rng: random.Random, counts: Counter[str], chances: Mapping[str, float]) -> None:
        self._draw, self._counts, self._chances = rng.random, counts, chances
        self._is_bad = False

    def copies(self) -> int:
        """Number of copies of the next frame that arrive."""
        self._counts["packets"] += 1
        sent = 1 + (self._draw() < self._chances["duplication"])
        self._counts["duplicated"] += sent - 1
        lost = sum(self._loses() for _ in range(sent))
        self._counts["lost"] += lost
        return sent - lost

    def _loses(self) -> bool:
        chances, chance = self._chances, self._chances["loss"]
        if chances["burst_begin"]:
            self._is_bad ^= self._draw() < chances["burst_end" if self._is_bad else "burst_begin"]
            if self._is_bad:
                chance += (1 - chance) * chances["burst_loss"]
        return self._draw() < chance
