"""A software aggregator: its event loop and its control socket.

A control socket: lines of JSON from whoever may connect, each answered by one, in an event loop.

The event loop of a software aggregator.
"""

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from p4sgd.host.aggregators.software import RequestError, Requests
from p4sgd.host.links.link import Link
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.sim.network.aggregator import Aggregator

__all__ = ["MOST_BYTES", "ControlServer", "SoftwareAggregatorServer"]


MOST_BYTES = 64 << 10
"""Longest request."""

_MOST_CONNECTIONS = 32
_FULL = f"{_MOST_CONNECTIONS} others are connected, which is the most: try again in a moment"
_IDLE_S = 30.0
"""Who says nothing for so long makes room for others."""


class ControlServer:
    """Listens where it is told, for as many as `_MOST_CONNECTIONS` at a time; others are refused.

    Nothing that they do or send stops it.

    Parameters
    ----------
    address
        Where to listen, see `ControlListener`.
    carry_out
        Called with a request; what it returns is the answer, and `RequestError` is told too.
    selector
        Of the event loop, which calls what is registered as data with the events.
    owner
        User and group that a Unix socket is to belong to; ourselves if None.

    Raises
    ------
    UserError
        If it cannot listen there, or another program does.
    """

    def __init__(
        self,
        address: ControlAddress,
        carry_out: Callable[[Any], Any],
        selector: selectors.BaseSelector,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._selector = selector
        self._connections: set[_Connection] = set()
        self._listener = ControlListener(address, owner)
        self._listener.socket.setblocking(False)
        selector.register(self._listener.socket, selectors.EVENT_READ, self._accept)

    def close_idle(self) -> None:
        """Close connections that have been idle for long; to be called now and then."""
        now = time.monotonic()
        for connection in [each for each in self._connections if now - each.active_at > _IDLE_S]:
            self._drop(connection)

    def close(self) -> None:
        """Listen no longer, and remove the socket's file if it is still ours."""
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.unregister(self._listener.socket)
        self._listener.close()

    def _accept(self, events: int) -> None:
        try:
            accepted, _ = self._listener.socket.accept()
        except OSError:
            return  # gone again, or out of descriptors
        accepted.setblocking(False)
        if len(self._connections) >= _MOST_CONNECTIONS:
            with accepted, contextlib.suppress(OSError):
                accepted.send(_line({"error": _FULL}))
            return
        connection = _Connection(accepted, self._carry_out)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, lambda events: self._serve(connection, events))

    def _serve(self, connection: "_Connection", events: int) -> None:
        wants = connection.go_on(events)
        if wants:
            self._selector.modify(connection.socket, wants, lambda events: self._serve(connection, events))
        else:
            self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()


class _Connection:
    """Somebody who is connected. At each event one request is answered at most, so that packets need not wait."""

    def __init__(self, connected: socket.socket, carry_out: Callable[[Any], Any]) -> None:
        self.socket = connected
        self.active_at = time.monotonic()
        self._carry_out = carry_out
        self._received = bytearray()
        self._unsent = b""
        self._is_last = False

    def go_on(self, events: int) -> int:
        """Read, answer, write, as far as that goes; returns the events to wait for, 0 if the connection is over."""
        self.active_at = time.monotonic()
        try:
            if events & selectors.EVENT_READ:
                received = self.socket.recv(MOST_BYTES)
                if not received:
                    return 0
                self._received += received
            if not self._unsent:
                self._unsent = self._answer_next()
            if self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            return 0
        if self._unsent:
            return selectors.EVENT_WRITE
        if self._is_last:
            return 0
        return selectors.EVENT_WRITE if b"\n" in self._received else selectors.EVENT_READ

    def _answer_next(self) -> bytes:
        line, newline, rest = self._received.partition(b"\n")
        if len(line) > MOST_BYTES:
            self._is_last = True
            return _line({"error": f"a request has at most {MOST_BYTES} bytes"})
        if not newline:
            return b""
        self._received = rest
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _line({"error": "a request is a line of JSON"})
        try:
            return _line({"ok": self._carry_out(request)})
        except RequestError as error:
            return _line({"error": str(error)})


def _line(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


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
