"""A board that is a process: a worker between a link and a control socket."""

import contextlib
import random
import selectors
import socket
import time

from p4sgd.host.board.conversation import Conversation
from p4sgd.host.board.messages import Greeting
from p4sgd.host.board.served import ServedWorker
from p4sgd.host.links.link import Link
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.clock import CLOCK_NS
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["BoardServer", "cycles_now"]

_FRAMES = 64
"""Most frames taken in one turn, so that the client has one too."""

_ORPHAN_S = 10.0
"""A run whose client is gone goes on so long, as on a board, for a client that comes back; then it is aborted."""


def cycles_now() -> int:
    """This machine's time in cycles of a board."""
    return time.monotonic_ns() // CLOCK_NS


class BoardServer:
    """Serves a worker to one client at a time; another one is told that it is busy.

    Parameters
    ----------
    worker
        Whom to serve.
    link
        Where its packets come from; it sends by itself.
    listener
        Socket that clients connect to, listening.
    memory_limit
        Bytes that the worker's memories may keep, together; a run under way may hold what was written over besides.
    """

    def __init__(self, worker: ServedWorker, link: Link, listener: socket.socket, memory_limit: int) -> None:
        self._worker = worker
        self._link = link
        self._listener = listener
        self._memory_limit = memory_limit
        self._process = random.SystemRandom().getrandbits(64)
        self._client: Conversation | None = None
        self._waits_for = 0  # events of the client that the selector looks at
        self._orphan_ends_at: float | None = None
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(link, selectors.EVENT_READ, self._take_frames)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> None:
        """Serve until an exception, `KeyboardInterrupt` usually, ends it."""
        try:
            while True:
                for key, _ in self._selector.select(self._timeout()):
                    key.data()
                self._worker.work()
                self._look_after_client()
        finally:
            self._hang_up()
            self._selector.close()

    def _timeout(self) -> float | None:
        """Seconds until there is something to do though nothing comes; None if there is nothing."""
        times = [self._orphan_ends_at, self._client.deadline if self._client is not None else None]
        waits = [end - time.monotonic() for end in times if end is not None]
        if self._worker.next_work is not None:
            waits.append((self._worker.next_work - cycles_now()) * CLOCK_NS / 1e9)
        return max(0.0, min(waits)) if waits else None

    def _take_frames(self) -> None:
        for _ in range(_FRAMES):
            frame = self._link.receive()
            if frame is None:
                return
            self._worker.receive(frame)

    # -- the client ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if self._client is not None:
                self._talk()  # it may have hung up, to come back by this connection
            if self._client is not None:
                with connection:
                    connection.send(Greeting(busy=True, process=self._process).to_bytes())
                return
            if connection.family != socket.AF_UNIX:
                _notice_vanishing(connection)
            self._client = Conversation(connection, self._worker, self._memory_limit, self._process)
            self._orphan_ends_at = None
            self._talk()

    def _talk(self) -> None:
        """Let the client go on."""
        client = self._client
        if client is None:
            return
        descriptor = client.fileno()
        if not client.go_on():
            self._watch(descriptor, 0)
            self._client = None
            if not self._worker.idle:
                self._orphan_ends_at = time.monotonic() + _ORPHAN_S
        else:
            self._watch(descriptor, client.events)

    def _watch(self, descriptor: int, events: int) -> None:
        if events == self._waits_for:
            return
        if self._waits_for:
            self._selector.unregister(descriptor)
        if events:
            self._selector.register(descriptor, events, self._talk)
        self._waits_for = events

    def _look_after_client(self) -> None:
        """Tell a client that awaits the end of a run, and end the run of one that has gone."""
        now = time.monotonic()
        client = self._client
        if client is not None:
            awaits_end = not client.events and self._worker.idle
            if awaits_end or (client.deadline is not None and now >= client.deadline):
                self._talk()
        if self._orphan_ends_at is not None and (self._worker.idle or now >= self._orphan_ends_at):
            self._orphan_ends_at = None
            if not self._worker.idle:
                board = RegisterClient(self._worker.read_register, self._worker.write_register)
                board.write(registers.ABORT, abort=1)

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _notice_vanishing(connection: socket.socket) -> None:
    """Have the connection fail when the client's machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
