"""The server of a control socket: an event loop that answers requests.

The owner of a `ControlServer` calls `ControlServer.turn` again and again, and does its own work in between. No call of
the server blocks because of a client, and nothing that a client sends or leaves unsent ends it.
"""

import contextlib
import errno
import inspect
import random
import select
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from p4sgd.host.rpc.address import ControlListener
from p4sgd.host.rpc.token import OTHER_TOKEN, is_nonce, is_proof, new_nonce, prove
from p4sgd.sim.rpc import HEADER_LIMIT, PREFIX, RefusedError, decode, encode, greeting

if TYPE_CHECKING:
    from _typeshed import HasFileno

__all__ = ["ControlServer", "Methods", "notice_vanishing", "whole"]

_STALL_S = 30.0
"""Longest time without progress within a message; then the client is given up."""

_TEXT_LIMIT = 2000
"""Most characters of the reason of a refusal."""

_PIECE = 64 << 10
"""Most bytes of an unwanted body that are read at a time."""

_DONE = encode({"ok": None})


def whole(value: Any, name: str, low: int, high: int) -> int:
    """Check that an argument is a whole number within bounds, and return it.

    Raises
    ------
    RefusedError
        If it is anything else.
    """
    if type(value) is not int or not low <= value <= high:
        raise RefusedError(f"{name} must be a whole number, {low} to {high}")
    return value


class Methods:
    """The methods that clients may call, by name.

    A method is called with the arguments of a request, which it has to check. It returns plain data for JSON, or a
    memoryview, which is sent as the body of the answer. It may be a generator: yielding a memoryview fills it with the
    body of the request, which must have this length; yielding a time of :func:`time.monotonic` waits for the next turn
    of the event loop, but not longer.

    Parameters
    ----------
    methods
        The methods.
    """

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods = {
            name: (inspect.signature(method).parameters.keys(), method) for name, method in methods.items()
        }

    def call(self, request: dict[str, Any]) -> Any:
        """Call the method that a request names.

        Raises
        ------
        RefusedError
            If there is none, or its arguments have other names; or as the method.
        """
        arguments = dict(request)
        do = arguments.pop("do", None)
        if not isinstance(do, str) or do not in self._methods:
            raise RefusedError(f"there is no method {str(do)[:40]!r}; there are {', '.join(self._methods)}")
        names, method = self._methods[do]
        if arguments.keys() != names:
            raise RefusedError(f"{do} needs the arguments {', '.join(sorted(names)) or '(none)'}, and no others")
        return method(**arguments)


def _request(header: bytes | bytearray) -> dict[str, Any]:
    try:
        return decode(header)
    except ValueError as error:
        raise RefusedError(f"this is not a request: {error}") from None


_Steps = Generator[int, None, None]
"""Yields the events of :mod:`selectors` to wait for; 0 for none, but the next turn."""


_PROOF_S = 10.0
"""Longest time until a client has proved to have the token, however it sends the proof."""

_PROOF_LIMIT = 4096
"""Most bytes of the request with the proof."""

_MOST_STRANGERS = 16
"""How many clients that have not proved anything yet may be connected; then one makes room (`_drop_stranger`)."""

_PAUSE_S = 0.1
"""How long to accept nobody while the process has no descriptors left."""

_TELL_S = 10.0
"""Shortest time between two remarks on clients that were refused."""


class _Connection:
    """One client, whose requests are answered one after the other.

    Parameters
    ----------
    connected
        The socket.
    peer
        The client's host; for Unix sockets empty.
    server
        The server that it belongs to.
    nonce
        The server's nonce if the client must prove to have the token; else None.

    Attributes
    ----------
    is_client
        Whether it is served: it has proved to have the token, or need not.
    events
        What to wait for before `go_on`; 0 for the next turn.
    deadline
        When to call `go_on` in any case, by :func:`time.monotonic`; None for never.
    """

    def __init__(self, connected: socket.socket, peer: str, server: "ControlServer", nonce: str | None) -> None:
        self.socket = connected
        self.peer = peer
        self.is_client = nonce is None
        self.events = 0
        self.deadline: float | None = None
        self._server = server
        self._end = None if nonce is None else time.monotonic() + _PROOF_S
        self._unread = 0
        self._steps = self._talk(nonce)

    def go_on(self) -> bool:
        """Do what can be done now; returns whether the client is still there."""
        try:
            self.events = next(self._steps)
        except OSError:
            return False
        return True

    def has_hung_up(self) -> bool:
        """Whether the client has closed the connection, even if requests of it are still to be read."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _talk(self, nonce: str | None) -> _Steps:
        yield from self._send(self._server.greeting(nonce))
        if nonce is not None:
            yield from self._ask_for_proof(nonce)
        while True:
            # Even if the next request is there already, so that others have their turn before it.
            yield from self._wait(selectors.EVENT_READ, self._server.idle_s)
            header = yield from self._receive_header(HEADER_LIMIT)
            body: bytes | memoryview = b""
            try:
                result = self._server.methods.call(_request(header))
                if isinstance(result, GeneratorType):
                    result = yield from self._follow(result)
                if isinstance(result, memoryview):
                    body = result
                    answer = encode({"ok": None}, len(body))
                else:
                    answer = _DONE if result is None else encode({"ok": result})
            except self._server.refusals as error:
                text = str(error) or "there is not enough memory"
                answer = encode({"error": text[:_TEXT_LIMIT]})
            while self._unread:  # a body that was not wanted; the next request follows it
                piece = bytearray(min(self._unread, _PIECE))
                yield from self._receive(piece)
                self._unread -= len(piece)
            yield from self._send(answer)
            if body:
                yield from self._send(body)

    def _ask_for_proof(self, nonce: str) -> _Steps:
        """Go on only with a client that has the token. Nothing else that it sends has an effect."""
        header = yield from self._receive_header(_PROOF_LIMIT)
        answer, refusal = self._server.judge(nonce, header if not self._unread else b"")
        if refusal is not None:
            yield from self._send(encode({"error": refusal}))
            raise ConnectionAbortedError("no client")
        self.is_client, self._end = True, None
        yield from self._send(encode({"ok": answer}))

    def _receive_header(self, most: int) -> Generator[int, None, bytearray]:
        prefix = bytearray(PREFIX.size)
        yield from self._receive(prefix)
        header_bytes, self._unread = PREFIX.unpack(prefix)
        if header_bytes > most:
            yield from self._send(encode({"error": f"a header has at most {most} bytes"}))
            raise ConnectionAbortedError("no message of this protocol")
        header = bytearray(header_bytes)
        yield from self._receive(header)
        return header

    def _follow(self, method: Generator[memoryview | float, None, Any]) -> Generator[int, None, Any]:
        """Do what a method yields, until it returns."""
        while True:
            try:
                wanted = next(method)
            except StopIteration as end:
                return end.value
            if isinstance(wanted, memoryview):
                if len(wanted) != self._unread:
                    raise RefusedError(f"the body has {self._unread:,} bytes, not {len(wanted):,}")
                yield from self._receive(wanted)
                self._unread = 0
            else:
                self.deadline = wanted
                yield 0
                self.deadline = None
                if self.has_hung_up():
                    raise ConnectionResetError("the client has hung up")

    def _receive(self, room: bytearray | memoryview) -> _Steps:
        """Fill a buffer. Others have their turn between the pieces."""
        rest = memoryview(room)
        while rest:
            try:
                count = self.socket.recv_into(rest)
                if not count:
                    raise ConnectionResetError("the client has hung up")
                rest = rest[count:]
            except BlockingIOError:
                pass
            if rest:
                yield from self._wait(selectors.EVENT_READ, _STALL_S)

    def _send(self, data: bytes | memoryview) -> _Steps:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                yield from self._wait(selectors.EVENT_WRITE, _STALL_S)

    def _wait(self, events: int, seconds: float | None) -> _Steps:
        limits = [] if seconds is None else [time.monotonic() + seconds]
        if self._end is not None:
            limits.append(self._end)
        self.deadline = min(limits, default=None)
        yield events
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimeoutError("the client does not go on")
        self.deadline = None


class ControlServer:
    """Answers requests, in the event loop of its owner.

    Parameters
    ----------
    listener
        Where clients connect, and the token that they must have. It is closed with the server.
    server
        What the server is, such as ``"worker"``.
    methods
        What clients may call.
    refusals
        Exceptions of methods, besides `RefusedError`, whose messages are sent to the client.
    most_clients
        How many clients may be connected.
    busy
        What another client is told, after the server's name.
    idle_s
        How long a client may be connected without a request; None for any time.
    tell
        Called with a remark on clients that were refused for want of the token.
    """

    def __init__(
        self,
        listener: ControlListener,
        server: str,
        methods: Methods,
        *,
        refusals: Sequence[type[Exception]] = (),
        most_clients: int,
        busy: str,
        idle_s: float | None = None,
        tell: Callable[[str], None] = lambda remark: None,
    ) -> None:
        self.methods = methods
        self.refusals: tuple[type[Exception], ...] = (RefusedError, *refusals)
        self.idle_s = idle_s
        self._listener = listener
        self._server = server
        self._busy = busy
        self._tell = tell
        self._refused, self._told_at = 0, -_TELL_S
        self._most_clients = most_clients
        # A process that is started again has lost its state. Clients tell by this number.
        self._process = random.SystemRandom().getrandbits(64)
        self._connections: dict[_Connection, int] = {}  # with the events that the selector looks for
        self._selector = selectors.DefaultSelector()
        self._accepts_at: float | None = None  # None while it does
        listener.socket.setblocking(False)
        self.watch(listener.socket, self._accept)

    @property
    def has_clients(self) -> bool:
        """Whether any client is connected."""
        return any(each.is_client for each in self._connections)

    # -- for connections -----------------------------------------------------------------------------------------

    def greeting(self, nonce: str | None) -> bytes:
        """What is sent first, with the nonce if the client must prove something."""
        asked = {} if nonce is None else {"nonce": nonce}
        return greeting(server=self._server, process=self._process, **asked)

    def judge(self, nonce: str, header: bytes | bytearray) -> tuple[str, str | None]:
        """Judge a stranger's proof; returns this side's own proof, and why the stranger is refused, or None."""
        token = self._listener.token
        assert token is not None
        try:
            request = _request(header)
        except RefusedError:
            request = {}
        theirs = request.get("nonce")
        if request.get("do") != "prove" or not is_nonce(theirs):
            return "", self._refuse("serves only those who prove first that they have its token")
        nonces = nonce, str(theirs)
        if not is_proof(request.get("proof"), prove(token, "client", self._server, nonces)):
            return "", self._refuse(OTHER_TOKEN)
        if not self._has_room():
            return "", self._busy
        return prove(token, "server", self._server, nonces), None

    # -- for the owner -------------------------------------------------------------------------------------------

    def watch(self, source: "HasFileno", on_readable: Callable[[], object]) -> None:
        """Have `turn` call a function whenever there is something to read."""
        self._selector.register(source, selectors.EVENT_READ, on_readable)

    def turn(self, seconds: float | None) -> None:
        """Wait for events, at most for so long, and do what they ask for.

        Exceptions of functions given to `watch`, and those of methods that are no refusals, pass through.
        """
        now = time.monotonic()
        for connection in list(self._connections):
            if not connection.events or (connection.deadline is not None and now >= connection.deadline):
                self._go_on(connection)
        now = time.monotonic()  # a request may have taken long
        if self._accepts_at is not None and now >= self._accepts_at:
            self._accepts_at = None
            self.watch(self._listener.socket, self._accept)
        waits = [each.deadline - now for each in self._connections if each.deadline is not None]
        if seconds is not None:
            waits.append(seconds)
        if self._accepts_at is not None:
            waits.append(self._accepts_at - now)
        for key, _ in self._selector.select(max(0.0, min(waits)) if waits else None):
            key.data()

    def close(self) -> None:
        """Hang up, and listen no longer."""
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            accepted, name = self._listener.socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the client still waits, and would be found at once again
                self._selector.unregister(self._listener.socket)
                self._accepts_at = time.monotonic() + _PAUSE_S
            return  # else it is gone again
        accepted.setblocking(False)
        peer = "" if accepted.family == socket.AF_UNIX else name[0]
        nonce = None if self._listener.token is None else new_nonce()
        if nonce is not None:
            self._drop_stranger(peer)
        elif not self._has_room():
            with accepted, contextlib.suppress(OSError):
                accepted.send(greeting(server=self._server, error=self._busy))
            return
        try:
            if accepted.family != socket.AF_UNIX:
                notice_vanishing(accepted)
        except OSError:
            accepted.close()
            return
        connection = _Connection(accepted, peer, self, nonce)
        self._connections[connection] = 0
        self._go_on(connection)

    def _drop_stranger(self, comer: str) -> None:
        """Make room for one more stranger: the oldest goes of the host that has most of them with the one that comes.

        The oldest of all may be a client whose proof is still under way, while one host connects again and again.
        """
        strangers = [each for each in self._connections if not each.is_client]
        if len(strangers) >= _MOST_STRANGERS:
            hosts = Counter([*(each.peer for each in strangers), comer])
            most = max(hosts.values())
            self._drop(next(each for each in strangers if hosts[each.peer] == most))

    def _has_room(self) -> bool:
        """Whether another client may be served. Those that have hung up make room."""
        clients = [each for each in self._connections if each.is_client]
        if len(clients) < self._most_clients:
            return True
        gone = [each for each in clients if each.has_hung_up()]
        for connection in gone:
            self._drop(connection)
        return bool(gone)

    def _refuse(self, why: str) -> str:
        """Note that a client was refused, and return why."""
        self._refused += 1
        if time.monotonic() >= self._told_at + _TELL_S:
            many = "a client was" if self._refused == 1 else f"{self._refused} clients were"
            self._tell(f"{many} refused: this {self._server} {why}")
            self._refused, self._told_at = 0, time.monotonic()
        return why

    def _go_on(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return  # dropped by another event of this turn
        if connection.go_on():
            self._look_for(connection, connection.events)
        else:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._look_for(connection, 0)
        del self._connections[connection]
        connection.socket.close()

    def _look_for(self, connection: _Connection, events: int) -> None:
        before = self._connections[connection]
        if events == before:
            return
        if before:
            self._selector.unregister(connection.socket)
        if events:
            self._selector.register(connection.socket, events, lambda: self._go_on(connection))
        self._connections[connection] = events


def notice_vanishing(connection: socket.socket) -> None:
    """Have the connection fail when the client's machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Keepalive asks only while nothing is under way: an answer that nobody acknowledges needs a limit of its own.
    timeouts = (
        (socket.TCP_KEEPIDLE, 10),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 25_000),
    )
    for option, value in timeouts:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
