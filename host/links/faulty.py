"""A link with faults, to try out what programs do when the network loses, repeats or reorders frames."""

import random
from collections import Counter, deque
from collections.abc import Mapping

from p4sgd.host.errors import UserError
from p4sgd.host.links.link import Link
from p4sgd.sim.network.faults import Bursts, Faults, Line

_WAYS = ("up", "down")
"""Directions of a worker's link: frames that it sends, and frames that it receives."""

_KINDS = ("loss", "duplication", "reordering", "burst_begin", "burst_end", "burst_loss")

FAULTS = tuple(f"{way}_{kind}" for way in ("link", *_WAYS) for kind in _KINDS)
"""Names of the faults, those of the simulated cluster's links: in both directions, and in one of them."""


class _Direction:
    """Faults of one direction. They depend on the seed and the order of frames, not on time."""

    def __init__(self, chances: Mapping[str, float], rng: random.Random) -> None:
        bursts = None
        if chances["burst_begin"]:
            if not chances["burst_end"]:
                raise UserError("--fault burst_begin without burst_end: bursts would never end")
            bursts = Bursts(chances["burst_begin"], chances["burst_end"], chances["burst_loss"])
        self._line = Line(Faults(chances["loss"], bursts, duplication=chances["duplication"]), rng, Counter())
        self._reordering = chances["reordering"]
        self._rng = rng
        self._held: list[bytes] = []

    def pass_on(self, frame: bytes) -> list[bytes]:
        """The frames that arrive when one is sent."""
        copies = [frame] * len(self._line.arrivals(0))
        if not self._held and self._rng.random() < self._reordering:
            self._held = copies  # until the next frame has overtaken them
            return []
        copies += self._held
        self._held = []
        return copies


class FaultyLink:
    """A worker's link that loses, repeats and reorders frames in both directions.

    ``chances`` are those of some of `FAULTS`: one for a single direction takes the place of that for both. Raises
    UserError if bursts of losses begin and never end.
    """

    def __init__(self, link: Link, chances: Mapping[str, float], seed: int) -> None:
        self._link = link
        rng = random.Random(seed)
        self._up, self._down = (
            _Direction({kind: chances.get(f"{way}_{kind}", chances.get(f"link_{kind}", 0.0)) for kind in _KINDS}, rng)
            for way in _WAYS
        )
        self._arrived: deque[bytes] = deque()

    @property
    def most_bytes(self) -> int:
        return self._link.most_bytes

    @property
    def address(self) -> int | None:
        return self._link.address

    def fileno(self) -> int:
        return self._link.fileno()

    def reaches(self, address: int) -> bool:
        return self._link.reaches(address)

    def close(self) -> None:
        self._link.close()

    @property
    def lost(self) -> int:
        """See `Link`; frames lost on purpose do not count."""
        return self._link.lost

    def send(self, frame: bytes) -> None:
        for each in self._up.pass_on(frame):
            self._link.send(each)

    def receive(self) -> bytes | None:
        while not self._arrived:
            frame = self._link.receive()
            if frame is None:
                return None
            self._arrived.extend(self._down.pass_on(frame))
        return self._arrived.popleft()
