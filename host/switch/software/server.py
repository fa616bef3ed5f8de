"""The event loop of a software aggregator."""

import selectors
import socket
import time
from collections.abc import Mapping

from p4sgd.host.control.address import ControlAddress
from p4sgd.host.links.link import Link
from p4sgd.host.switch.software.control import ControlServer
from p4sgd.host.switch.software.requests import Requests
from p4sgd.sim.network.aggregator import Aggregator

__all__ = ["SoftwareAggregatorServer"]

_BATCH = 64
"""Frames of a port before others have their turn: a millisecond or two."""

_LOOK_S = 1.0
"""How often to look after links that are down, and idle connections."""


class SoftwareAggregatorServer:
    """Takes frames from links, sends the answers, and carries out what is asked over the control socket.

    Parameters
    ----------
    links
        The ports in order, by what they are called. They stay the caller's.
    control
        Where to listen for requests.
    slots
        Slots of each job.
    jobs
        Most jobs at a time.
    owner
        User and group that a Unix socket to listen at is to belong to; ourselves if None.

    Attributes
    ----------
    aggregator : Aggregator
        The state machine.
    requests : Requests
        What can be asked of it.

    Raises
    ------
    UserError
        If it cannot listen there.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        control: ControlAddress,
        *,
        slots: int,
        jobs: int,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self.aggregator = Aggregator(slots, jobs=jobs)
        self.requests = Requests(self.aggregator, links, slots=slots, places=jobs)
        self._links = list(links.values())
        self._selector = selectors.DefaultSelector()
        self._control = ControlServer(control, self.requests.carry_out, self._selector, owner)
        for port, link in enumerate(self._links):
            self._selector.register(link, selectors.EVENT_READ, lambda events, port=port: self._take(port))
        self._waker, self._alarm = socket.socketpair()
        self._selector.register(self._alarm, selectors.EVENT_READ, lambda events: self._alarm.recv(1))
        self._is_running = True

    def run(self) -> None:
        """Serve until `stop`."""
        look_at = time.monotonic() + _LOOK_S
        while self._is_running:
            for key, events in self._selector.select(max(0.0, look_at - time.monotonic())):
                key.data(events)
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_S
                self._control.close_idle()
                for port in range(len(self._links)):  # a link that was down may be up again without an event
                    self._take(port)

    def stop(self) -> None:
        """Have `run` return; may be called by a signal's handler."""
        self._is_running = False
        self._waker.send(b"\0")

    def close(self) -> None:
        """Serve nobody any more."""
        self._control.close()
        self._selector.close()
        self._waker.close()
        self._alarm.close()

    def _take(self, port: int) -> None:
        link = self._links[port]
        for _ in range(_BATCH):
            frame = link.receive()
            if frame is None:
                return
            answer = self.aggregator.receive_frame(frame, port)
            if answer is not None:
                self._send(answer.packet.to_bytes(), answer.ports)

    def _send(self, frame: bytes, ports: int) -> None:
        for port, link in enumerate(self._links):
            if ports >> port & 1:
                link.send(frame)
