"""A link with faults, to try out what programs do when the network loses, repeats, reorders or changes frames."""

import random
from collections import Counter, deque
from collections.abc import Mapping

from p4sgd.host.errors import UserError
from p4sgd.host.links.link import Link
from p4sgd.hw.spec.packet import KEYED_VERSION
from p4sgd.hw.spec.udp import ETHERNET_BYTES
from p4sgd.sim.network.faults import DIRECTIONS, PROGRAM_CHANCES, Losses, chances_of


class _Direction:
    """Faults of one direction. They depend on the seed and the order of frames, not on time."""

    def __init__(self, chances: Mapping[str, float], rng: random.Random) -> None:
        if chances["burst_begin"] and not chances["burst_end"]:
            raise UserError("--fault burst_begin without burst_end: bursts would never end")
        self._losses = Losses(rng, Counter(), chances)
        self._reordering, self._change = chances["reordering"], chances["change"]
        self._rng = rng
        self._held: list[bytes] = []

    def pass_on(self, frame: bytes) -> list[bytes]:
        """The frames that arrive when one is sent."""
        copies = [self._changed(frame) for _ in range(self._losses.copies())]
        if not self._held and self._rng.random() < self._reordering:
            self._held = copies  # until the next frame has overtaken them
            return []
        copies += self._held
        self._held = []
        return copies

    def _changed(self, frame: bytes) -> bytes:
        """A frame of which perhaps one to eight bits behind the addresses are flipped, if it has a check."""
        has_check = len(frame) > ETHERNET_BYTES and frame[ETHERNET_BYTES] >> 4 == KEYED_VERSION
        if not has_check or not self._change or self._rng.random() >= self._change:
            return frame
        changed = bytearray(frame)
        for bit in self._rng.sample(range(8 * ETHERNET_BYTES, 8 * len(frame)), self._rng.randint(1, 8)):
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


class FaultyLink:
    """A worker's link that loses, repeats, reorders and changes frames in both directions.

    ``chances`` are those of some of `p4sgd.sim.network.faults.PROGRAM_FAULTS`. A `UserError` if bursts of losses begin
    and never end.
    """

    def __init__(self, link: Link, chances: Mapping[str, float], seed: int) -> None:
        self._link = link
        rng = random.Random(seed)
        self._up, self._down = (_Direction(chances_of(way, chances, PROGRAM_CHANCES), rng) for way in DIRECTIONS)
        self._arrived: deque[bytes] = deque()
        self.fileno, self.reaches, self.close = link.fileno, link.reaches, link.close
        self.address, self.most_bytes = link.address, link.most_bytes

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
