"""Any aggregator with a controller and real network interfaces as a subject."""

import selectors
import time
from collections.abc import Sequence

from support.namespace import Namespace

from conformance.frames import MAC
from conformance.runner import Abilities, State
from conformance.vectors import Geometry
from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.links.ethernet import EthernetLink
from p4sgd.hw.spec.job import Job

_PATIENCE_S = 5.0


def abilities_of(geometry: Geometry, *, looks: bool = True) -> Abilities:
    """Of a switch behind interfaces: Linux sends frames of 14 to 1514 bytes, and they are bound to one EtherType."""
    return Abilities(geometry, 14, 1514, sees_other_protocols=False, keeps_order=False, looks=looks)


def cables(space: Namespace, ports: int) -> tuple[list[str], list[str]]:
    """Pairs of virtual Ethernet interfaces in a namespace, up, through which the kernel itself sends nothing.

    Returns the names of the suite's ends and of the switch's, port 0 first.
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


class ControlledSubject:
    """Jobs and counters go through the controller, frames over ``interfaces``, the far ends of the switch's cables.

    All of our EtherType that comes in through them is taken to come from the switch. ``settle_s`` is how long to look
    for frames that should not come; a switch that does not count FRAMES needs so long for each.
    """

    def __init__(
        self, controller: Controller, interfaces: Sequence[str], abilities: Abilities, *, settle_s: float
    ) -> None:
        self.abilities = abilities
        self._controller = controller
        self._settle_s = settle_s
        controller.set_mac(MAC)
        self._expected = controller.counters().get("FRAMES")
        self._selector = selectors.DefaultSelector()
        self._links = [EthernetLink(interface) for interface in interfaces]
        for port, link in enumerate(self._links):
            self._selector.register(link, selectors.EVENT_READ, port)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self._controller.end(place)
        self._controller.begin(place, job, first_round)

    def end(self, place: int) -> None:
        self._controller.end(place)

    def exchange(self, frames: Sequence[tuple[int, bytes]], answers: int) -> list[tuple[int, bytes]]:
        for port, frame in frames:
            self._links[port].send(frame)
        end = time.monotonic() + _PATIENCE_S
        if self._expected is not None:
            self._expected += len(frames)
            while (missing := self._expected - self._controller.counters()["FRAMES"]) > 0:
                if time.monotonic() > end:
                    self._expected -= missing  # those that it does not count are waited for once
                    break
                time.sleep(0.0002)
        found: list[tuple[int, bytes]] = []
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

    def look(self, place: int, slot: int) -> State:
        (view,) = self._controller.read_slots(place, range(slot, slot + 1))
        return State(view.round, view.aggregated, view.acknowledged)

    def counters(self) -> dict[str, int]:
        return self._controller.counters()

    def close(self) -> None:
        self._selector.close()
        for link in self._links:
            link.close()
        self._controller.close()
