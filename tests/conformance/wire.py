"""Frames into a switch and out of it over real network interfaces, one at each of its ports."""

import selectors
import time
from collections.abc import Callable, Sequence

from support.namespace import Namespace

from p4sgd.host.links.ethernet import EthernetLink

SHORTEST, LONGEST = 14, 1514
"""Bytes of frames that Linux sends: an Ethernet header at least, and what an MTU of 1500 has room for."""


def cables(space: Namespace, ports: int) -> tuple[list[str], list[str]]:
    """Pairs of virtual Ethernet interfaces in a namespace, up, through which the kernel itself sends nothing.

    Returns
    -------
    far, near
        Names of the ends that are the suite's, and of those that are the switch's, port 0 first.
    """
    far, near = ([f"{side}{port}" for port in range(ports)] for side in ("far", "near"))
    for one, other in zip(far, near, strict=True):
        space.ip("link", "add", one, "type", "veth", "peer", "name", other)
        for interface in (one, other):
            space.ip("link", "set", interface, "addrgenmode", "none", "arp", "off")
            space.ip("link", "set", interface, "up")
    for interface in (*far, *near):
        space.wait_until_up(interface)
    return far, near


class Wire:
    """The far ends of a switch's cables.

    Parameters
    ----------
    interfaces
        Their names, port 0 first. All of our EtherType that comes in through them is taken to come from the switch.
    settled
        Called with the number of frames sent so far; returns when the switch has acted on as many. Without one it is
        given ``settle_s`` for each.
    settle_s
        How long to look for frames that should not come, and without ``settled`` for what the switch does in silence.
    patience_s
        How long to wait for frames that should come.
    """

    def __init__(
        self,
        interfaces: Sequence[str],
        *,
        settled: Callable[[int], None] | None = None,
        settle_s: float = 0.02,
        patience_s: float = 5.0,
    ) -> None:
        self._settled = settled
        self._settle_s = settle_s
        self._patience_s = patience_s
        self._sent = 0
        self._selector = selectors.DefaultSelector()
        self._links = [EthernetLink(interface) for interface in interfaces]
        for port, link in enumerate(self._links):
            self._selector.register(link, selectors.EVENT_READ, port)

    def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        """As a subject does: send frames into ports, return what comes out of them."""
        for port, frame in frames:
            self._links[port].send(frame)
        self._sent += len(frames)
        if self._settled is not None:
            self._settled(self._sent)
        found: list[tuple[int, bytes]] = []
        end = time.monotonic() + self._patience_s
        while len(found) < answers and (left := end - time.monotonic()) > 0:
            found += self._received(left)
        while late := self._received(self._settle_s):
            found += late
        return found

    def _received(self, wait_s: float) -> list[tuple[int, bytes]]:
        """All that is there, of one port after the other, or that comes first."""
        found = []
        for key, _ in self._selector.select(wait_s):
            while frame := self._links[key.data].receive():
                found.append((key.data, frame))
        return found

    def close(self) -> None:
        self._selector.close()
        for link in self._links:
            link.close()
