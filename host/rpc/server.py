"""The server of a control socket, in the event loop of its owner, who calls `ControlServer.turn` again and again.

No call blocks because of a client, and nothing that a client sends or leaves unsent ends the server.
"""

import errno
import inspect
import math
import random
import select
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from p4sgd.host.rpc.address import ControlListener
from p4sgd.host.rpc.message import TOKEN_NEEDED, VERSION, RefusedError, receive, retry, send
from p4sgd.host.rpc.token import tls_context

if TYPE_CHECKING:
    from _typeshed import HasFileno

LEASE_S = 10.0
"""How long owners of servers keep what a client began when it is gone, for one that reconnects."""

_STALL_S = 30.0  # longest time without progress within a message; then the client is given up
_STRANGER_S = 10.0  # longest time until a stranger has become a client
_HELLO_LIMIT = 4096  # most bytes by which a stranger becomes one
_HANDSHAKE = b"\x16"  # by which a connection in TLS begins
_MOST_STRANGERS = 16  # most connections that are not clients' yet; then one makes room
_PAUSE_S = 0.1  # time to accept nobody while the process has no descriptors left
_TELL_S = 10.0  # shortest time between two remarks on strangers that were refused


class Methods:
    """The methods that clients may call, by name.

    Arguments are checked against the annotations of parameters; ``body``, if there is one, is the body of the request.
    A method returns plain data for JSON, a memoryview as the body of the answer, or an `Until`.
    """

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods: dict[str, tuple[Callable[..., Any], Any, bool]] = {}
        for name, method in methods.items():
            parameters = inspect.signature(method).parameters
            fields = [(each.name, each.annotation) for each in parameters.values() if each.name != "body"]
            arguments = msgspec.defstruct(name, fields, forbid_unknown_fields=True)
            self._methods[name] = method, arguments, "body" in parameters

    def call(self, request: dict[str, Any], body: npt.NDArray[np.uint8] | None = None) -> Any:
        """Carry out a request; raises RefusedError if there is no such method or its arguments are wrong."""
        do = request.pop("do", None)
        if not isinstance(do, str) or do not in self._methods:
            raise RefusedError(f"there is no method {do!r:.40}; there are {', '.join(self._methods)}")
        method, arguments, takes_body = self._methods[do]
        try:
            given = msgspec.structs.asdict(msgspec.convert(request, arguments))
        except msgspec.ValidationError as error:
            raise RefusedError(f"{do}: {error}") from None
        return method(**given, body=body) if takes_body else method(**given)


@dataclass(frozen=True)
class Until:
    """Result of a method that waits for a condition until ``end``, by :func:`time.monotonic`: whether it holds then."""

    condition: Callable[[], bool]
    end: float

    def is_over(self) -> bool:
        return self.condition() or time.monotonic() >= self.end


_Conversation: TypeAlias = Generator[int | Until | None, None, None]
"""What is said on a connection. It yields the event or the condition to go on after; None before a request."""


class _Connection:
    """A connection of a client, or of a stranger who has not said hello yet."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.socket, self.number, self.peer = connection, connection.fileno(), peer
        self.client: int | None = None  # its number; a client that connects again has the same. None: a stranger
        self.events = 0  # that the selector looks for
        self.conversation: _Conversation
        self.until: Until | None = None
        self.deadline = time.monotonic() + _STRANGER_S

    @property
    def is_client(self) -> bool:
        return self.client is not None

    def has_hung_up(self) -> bool:
        """Whether the other side has closed it, even if there is something to read."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))


class ControlServer:
    """Answers requests, in the event loop of its owner.

    ``listener`` is closed with the server. ``server`` is its kind, such as ``"worker"``. Messages of ``refusals``,
    exceptions of methods besides `RefusedError` and OSError, are sent to the client. At most ``most_clients`` may be
    connected; another one is told ``busy``, after the server's name. A request's body has ``body_limit`` bytes at most.
    ``tell`` is called with remarks on strangers that were refused for want of the token.
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
        body_limit: int = 0,
        tell: Callable[[str], None] = lambda remark: None,
    ) -> None:
        self._listener, self._server, self._methods = listener, server, methods
        self._refusals: tuple[type[Exception], ...] = (RefusedError, OSError, *refusals)
        self._most_clients, self._busy, self._body_limit = most_clients, busy, body_limit
        self._tell, self._refused, self._tells_at = tell, 0, -math.inf
        self._tls = None if listener.token is None else tls_context(listener.token, ssl.Purpose.CLIENT_AUTH)
        # A process that is started again has lost its state. Clients tell by this number.
        self._process = random.SystemRandom().getrandbits(63)
        self._connections: list[_Connection] = []  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._accepts_at = math.inf  # when it does again; while it does, never
        self.caller = 0
        """The number of the client whose request is carried out."""
        listener.socket.setblocking(False)
        self.watch(listener.socket, self._accept)

    @property
    def clients(self) -> set[int]:
        """The numbers of the clients that are connected."""
        return {each.client for each in self._connections if each.client is not None and not each.has_hung_up()}

    def watch(self, source: "HasFileno", on_readable: Callable[[], object]) -> None:
        """Have `turn` call a function whenever there is something to read."""
        self._selector.register(source, selectors.EVENT_READ, on_readable)

    def turn(self, seconds: float | None) -> None:
        """Wait for events, at most for so long, and do what they ask for.

        Exceptions of functions given to `watch`, and those of methods that are no refusals, pass through.
        """
        for each in list(self._connections):
            if each.until is not None and each.until.is_over():
                self._go_on(each)
        now = time.monotonic()
        if now >= self._accepts_at:
            self._accepts_at = math.inf
            self.watch(self._listener.socket, self._accept)
        ends = [each.deadline if each.until is None else each.until.end for each in self._connections]
        wait = min(math.inf if seconds is None else seconds, *(end - now for end in (self._accepts_at, *ends)))
        ready = self._selector.select(None if wait == math.inf else max(0.0, wait))
        now = time.monotonic()
        for key, _ in ready:
            key.data()
        for each in [each for each in self._connections if now >= each.deadline]:
            self._drop(each)  # after what has come while the owner was busy is read

    def close(self) -> None:
        """Hang up, and listen no longer."""
        for each in list(self._connections):
            self._drop(each)
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection = _Connection(*self._listener.accept())
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it still waits, and would be found at once again
                self._selector.unregister(self._listener.socket)
                self._accepts_at = time.monotonic() + _PAUSE_S
            return  # else it is gone again
        self._make_room(connection.peer)
        connection.conversation = self._talk(connection)
        self._connections.append(connection)
        self._look_for(connection, selectors.EVENT_READ)

    def _make_room(self, comer: str) -> None:
        """Drop the oldest stranger of the host that has most of them with the one that comes.

        The oldest of all may be a client whose hello is still under way, while one host connects again and again.
        """
        strangers = [each for each in self._connections if not each.is_client]
        if len(strangers) >= _MOST_STRANGERS:
            hosts = Counter([*(each.peer for each in strangers), comer])
            self._drop(next(each for each in strangers if hosts[each.peer] == max(hosts.values())))

    def _drop(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._look_for(connection, 0)
            connection.conversation.close()  # which may hold a large body
            connection.socket.close()

    def _go_on(self, connection: _Connection) -> None:
        """Continue a conversation until it has to wait."""
        if connection not in self._connections:  # dropped in this turn
            return
        try:
            awaited = next(connection.conversation)
        except (StopIteration, OSError, MemoryError):
            self._drop(connection)
            return
        connection.until = awaited if isinstance(awaited, Until) else None
        if connection.is_client:
            connection.deadline = time.monotonic() + _STALL_S if isinstance(awaited, int) else math.inf
        events = awaited if isinstance(awaited, int) else selectors.EVENT_READ
        self._look_for(connection, 0 if connection.until else events)

    def _look_for(self, connection: _Connection, events: int) -> None:
        """Have `turn` go on with a conversation at one of these events; 0 is none."""
        if events == connection.events:
            return
        if connection.events:
            self._selector.unregister(connection.number)
        if events:
            self._selector.register(connection.number, events, lambda: self._go_on(connection))
        connection.events = events

    def _talk(self, connection: _Connection) -> _Conversation:
        """What is said on a connection, from the beginning to the end."""
        if self._tls is not None:
            first = yield from retry(partial(connection.socket.recv, 1, socket.MSG_PEEK), selectors.EVENT_READ)
            if first == _HANDSHAKE:
                wrapped = self._tls.wrap_socket(connection.socket, server_side=True, do_handshake_on_connect=False)
                connection.socket = wrapped
                try:
                    yield from retry(wrapped.do_handshake, selectors.EVENT_READ)
                except ssl.SSLEOFError:  # it has hung up
                    raise
                except ssl.SSLError:
                    self._note_refusal(connection)
                    raise
        try:
            hello, _ = yield from receive(connection.socket, head_limit=_HELLO_LIMIT)
            yield from send(connection.socket, self._admit(connection, hello))
            while connection.is_client:
                yield None
                request, body = yield from receive(connection.socket, self._body_limit)
                self.caller = connection.client or 0
                answer, content = yield from self._carry_out(request, body)
                yield from send(connection.socket, answer, content)
        except ValueError as error:  # what it sends is no message
            yield from send(connection.socket, {"error": str(error)})

    def _admit(self, connection: _Connection, hello: dict[str, Any]) -> dict[str, Any]:
        """Answer a stranger, who may become a client. Those that have hung up make room."""
        if self._tls is not None and not isinstance(connection.socket, ssl.SSLSocket):
            self._note_refusal(connection)
            return {"error": TOKEN_NEEDED}
        client = hello.get("client")
        if hello != {"server": self._server, "version": VERSION, "client": client} or not isinstance(client, int):
            own = f"is a P4SGD {self._server} with version {VERSION} of the control protocol"
            return {"error": f"{own}, not {hello!r:.99}"}
        for each in list(self._connections):
            if each.is_client and each.has_hung_up():
                self._drop(each)
        if sum(each.is_client for each in self._connections) < self._most_clients:
            connection.client = client
        return {"ok": self._process} if connection.is_client else {"error": self._busy}

    def _note_refusal(self, connection: _Connection) -> None:
        self._refused += 1
        if time.monotonic() >= self._tells_at:
            many = "a client was" if self._refused == 1 else f"{self._refused} clients were"
            self._tell(f"{many} refused for want of this {self._server}'s token, the last from {connection.peer}")
            self._refused, self._tells_at = 0, time.monotonic() + _TELL_S

    def _carry_out(
        self, request: dict[str, Any], body: npt.NDArray[np.uint8]
    ) -> Generator[Until, None, tuple[dict[str, Any], bytes | memoryview]]:
        try:
            result = self._methods.call(request, body)
        except self._refusals as error:
            return {"error": str(error) or "there is not enough memory"}, b""
        if isinstance(result, Until):
            while not result.is_over():
                yield result
            result = result.condition()
        return ({"ok": None}, result) if isinstance(result, memoryview) else ({"ok": result}, b"")
