"""The server of a control socket.

A thread for each client receives requests and sends answers. What clients ask for is done by the owner of the server
alone, which calls `ControlServer.turn` again and again: no call blocks because of a client, and nothing that a client
sends or leaves unsent ends the server.
"""

import contextlib
import errno
import inspect
import queue
import random
import select
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from p4sgd.host.rpc.address import ControlListener
from p4sgd.host.rpc.token import OTHER_TOKEN, is_nonce, is_proof, new_nonce, prove
from p4sgd.sim.rpc import HEADER_LIMIT, PREFIX, Channel, RefusedError, decode, greeting

if TYPE_CHECKING:
    from _typeshed import HasFileno

_STALL_S = 30.0
"""Longest time without progress within a message; then the client is given up."""

_TEXT_LIMIT = 2000
"""Most characters of the reason of a refusal."""

_NO_MEMORY = "there is not enough memory"

_PROOF_S = 10.0
"""Longest time until a client has proved to have the token, however it sends the proof."""

_PROOF_LIMIT = 4096
"""Most bytes of the request with the proof."""

_MOST_STRANGERS = 16
"""Most connected clients that have not proved anything yet; then one makes room (`_drop_stranger`)."""

_PAUSE_S = 0.1
"""Time to accept nobody while the process has no descriptors left."""

_LOOK_S = 0.1
"""Shortest time between two looks for clients that have hung up while they wait."""

_TELL_S = 10.0
"""Shortest time between two remarks on clients that were refused."""


def whole(value: Any, name: str, low: int, high: int) -> int:
    """Check that an argument is a whole number within bounds; raises RefusedError if it is anything else."""
    if type(value) is not int or not low <= value <= high:
        raise RefusedError(f"{name} must be a whole number, {low} to {high}")
    return value


class Methods:
    """The methods that clients may call, by name.

    A method is called with the arguments of a request, which it has to check, and with its body if it has a parameter
    ``body``. It returns plain data for JSON, a memoryview as the body of the answer, or an `Until`.
    """

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods = methods
        self._names = {name: inspect.signature(each).parameters.keys() for name, each in methods.items()}

    def call(self, request: Mapping[str, Any], body: Any = None) -> Any:
        """Call the method that a request names."""
        arguments = dict(request)
        do = arguments.pop("do", None)
        if not isinstance(do, str) or do not in self._methods:
            raise RefusedError(f"there is no method {str(do)[:40]!r}; there are {', '.join(self._methods)}")
        names = self._names[do]
        if arguments.keys() != names - {"body"}:
            wanted = ", ".join(sorted(names - {"body"})) or "(none)"
            raise RefusedError(f"{do} needs the arguments {wanted}, and no others")
        return self._methods[do](**arguments, **({"body": body} if "body" in names else {}))


@dataclass(frozen=True)
class Until:
    """Result of a method that waits for a condition until ``end``, by :func:`time.monotonic`: whether it holds then."""

    condition: Callable[[], bool]
    end: float


@dataclass(eq=False)
class _Client:
    """A connection. One over TCP is no client before it has proved to have the token."""

    channel: Channel
    peer: str
    is_client: bool

    def has_hung_up(self) -> bool:
        """Whether the client has closed the connection, even if requests of it are still to be read."""
        poll = select.poll()
        try:
            poll.register(self.channel.socket, select.POLLRDHUP)
            return bool(poll.poll(0))
        except (OSError, ValueError):  # closed here
            return True


class ControlServer:
    """Answers requests, in the event loop of its owner.

    Parameters
    ----------
    listener
        Where clients connect, and the token that they must have. It is closed with the server.
    server, methods
        Kind of the server, such as ``"worker"``, and what clients may call.
    refusals
        Exceptions of methods, besides `RefusedError`, whose messages are sent to the client.
    most_clients
        How many clients may be connected.
    busy
        What another client is told, after the server's name.
    body_limit
        Most bytes of the body of a request.
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
        body_limit: int = 0,
        idle_s: float | None = None,
        tell: Callable[[str], None] = lambda remark: None,
    ) -> None:
        self._listener, self._server, self._methods = listener, server, methods
        self._refusals: tuple[type[Exception], ...] = (RefusedError, *refusals)
        self._most_clients, self._busy, self._body_limit, self._idle_s = most_clients, busy, body_limit, idle_s
        self._tell, self._refused, self._told_at = tell, 0, -_TELL_S
        # A process that is started again has lost its state. Clients tell by this number.
        self._process = random.SystemRandom().getrandbits(64)
        self._clients: list[_Client] = []
        self._calls: queue.SimpleQueue[tuple[_Client, Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._waiting: list[tuple[_Client, Until, Future[Any]]] = []
        self._selector = selectors.DefaultSelector()
        self._waker, self._alarm = socket.socketpair()
        self._accepts_at: float | None = None  # None while it does
        self._looks_at = 0.0
        self._is_open = True
        for each in (listener.socket, self._waker, self._alarm):
            each.setblocking(False)
        self.watch(listener.socket, self._accept)
        self.watch(self._alarm, self._carry_out)

    @property
    def has_clients(self) -> bool:
        """Whether any client is connected."""
        return any(each.is_client and not each.has_hung_up() for each in list(self._clients))

    def watch(self, source: "HasFileno", on_readable: Callable[[], object]) -> None:
        """Have `turn` call a function whenever there is something to read."""
        self._selector.register(source, selectors.EVENT_READ, on_readable)

    def turn(self, seconds: float | None) -> None:
        """Wait for events, at most for so long, and do what they ask for.

        Exceptions of functions given to `watch`, and those of methods that are no refusals, pass through.
        """
        now = time.monotonic()
        if looks := now >= self._looks_at:
            self._looks_at = now + _LOOK_S
        for each in list(self._waiting):
            client, until, answer = each
            if (is_so := until.condition()) or now >= until.end:
                answer.set_result(is_so)
            elif client not in self._clients or (looks and client.has_hung_up()):
                answer.cancel()
            else:
                continue
            self._waiting.remove(each)
        if self._accepts_at is not None and now >= self._accepts_at:
            self._accepts_at = None
            self.watch(self._listener.socket, self._accept)
        ends = [until.end for _, until, _ in self._waiting]
        if self._accepts_at is not None:
            ends.append(self._accepts_at)
        waits = [*(end - now for end in ends), *([] if seconds is None else [seconds])]
        for key, _ in self._selector.select(max(0.0, min(waits)) if waits else None):
            key.data()

    def close(self) -> None:
        """Hang up, and listen no longer."""
        self._is_open = False
        for client in list(self._clients):
            self._drop(client)
        self._carry_out()
        for _, _, answer in self._waiting:
            answer.cancel()
        for each in (self._selector, self._listener, self._waker, self._alarm):
            each.close()

    # -- in the owner's thread -----------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            accepted, name = self._listener.socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the client still waits, and would be found at once again
                self._selector.unregister(self._listener.socket)
                self._accepts_at = time.monotonic() + _PAUSE_S
            return  # else it is gone again
        token = self._listener.token
        client = _Client(Channel(accepted), "" if accepted.family == socket.AF_UNIX else name[0], token is None)
        if token is not None:
            self._drop_stranger(client.peer)
        elif not self._has_room():
            with accepted, contextlib.suppress(OSError):
                accepted.setblocking(False)
                accepted.send(greeting(server=self._server, error=self._busy))
            return
        self._clients.append(client)
        try:
            if accepted.family != socket.AF_UNIX:
                notice_vanishing(accepted)
            threading.Thread(target=self._talk, args=(client, token), daemon=True).start()
        except (OSError, RuntimeError):  # it is gone, or there are too many threads
            self._clients.remove(client)
            accepted.close()

    def _drop_stranger(self, comer: str) -> None:
        """Make room for one more stranger: the oldest goes of the host that has most of them with the one that comes.

        The oldest of all may be a client whose proof is still under way, while one host connects again and again.
        """
        strangers = [each for each in list(self._clients) if not each.is_client]
        if len(strangers) >= _MOST_STRANGERS:
            hosts = Counter([*(each.peer for each in strangers), comer])
            most = max(hosts.values())
            self._drop(next(each for each in strangers if hosts[each.peer] == most))

    def _has_room(self) -> bool:
        """Whether another client may be served. Those that have hung up make room."""
        for client in list(self._clients):
            if client.is_client and client.has_hung_up():
                self._drop(client)
        return sum(each.is_client for each in list(self._clients)) < self._most_clients

    def _drop(self, client: _Client) -> None:
        """Hang up; the client's thread notices, and closes the socket."""
        with contextlib.suppress(ValueError):
            self._clients.remove(client)
        with contextlib.suppress(OSError):
            client.channel.socket.shutdown(socket.SHUT_RDWR)

    def _carry_out(self) -> None:
        """Do what clients' threads have asked for."""
        with contextlib.suppress(OSError):  # nobody has, or the server is closed
            self._alarm.recv(4096)
        for _ in range(self._calls.qsize()):  # those that come meanwhile are for the next turn: other events wait, too
            client, call, answer = self._calls.get()
            if client not in self._clients:  # dropped meanwhile
                answer.cancel()
                continue
            try:
                result = call()
            except self._refusals as error:
                text = str(error) or _NO_MEMORY
                answer.set_exception(RefusedError(text[:_TEXT_LIMIT]))
            except BaseException:
                answer.cancel()
                raise
            else:
                if isinstance(result, Until):
                    self._waiting.append((client, result, answer))
                else:
                    answer.set_result(result)

    def _judge(self, client: _Client, token: bytes, nonce: str, request: Mapping[str, Any]) -> tuple[str, bytes]:
        """Judge a stranger's proof, and take it as a client; returns this side's proof, and the key of the connection.

        Raises RefusedError for one who is no client.
        """
        theirs = request.get("nonce")
        if request.get("do") != "prove" or not is_nonce(theirs):
            raise self._refuse("serves only those who prove first that they have its token")
        nonces = nonce, str(theirs)
        if not is_proof(request.get("proof"), prove(token, "client", self._server, nonces)):
            raise self._refuse(OTHER_TOKEN)
        if not self._has_room():
            raise RefusedError(self._busy)
        client.is_client = True
        return prove(token, "server", self._server, nonces).hex(), prove(token, "key", self._server, nonces)

    def _refuse(self, why: str) -> RefusedError:
        """Note that a client was refused."""
        self._refused += 1
        if time.monotonic() >= self._told_at + _TELL_S:
            many = "a client was" if self._refused == 1 else f"{self._refused} clients were"
            self._tell(f"{many} refused: this {self._server} {why}")
            self._refused, self._told_at = 0, time.monotonic()
        return RefusedError(why)

    # -- in the thread of a client -------------------------------------------------------------------------------

    def _talk(self, client: _Client, token: bytes | None) -> None:
        channel = client.channel
        try:
            channel.socket.settimeout(_STALL_S)
            if token is None:
                channel.socket.sendall(greeting(server=self._server, process=self._process))
            else:
                self._ask_for_proof(client, token)
            while True:
                channel.socket.settimeout(self._idle_s)
                channel.socket.recv(1, socket.MSG_PEEK)
                channel.socket.settimeout(_STALL_S)
                self._answer(client)
        except ValueError as error:  # what it sends is no message
            with contextlib.suppress(OSError):
                channel.send({"error": str(error)[:_TEXT_LIMIT]})
        except (OSError, MemoryError, CancelledError):
            pass
        finally:
            with contextlib.suppress(ValueError):
                self._clients.remove(client)
            channel.close()
            self._wake()

    def _ask_for_proof(self, client: _Client, token: bytes) -> None:
        """Go on only with a client that has the token. Nothing else that it sends has an effect."""
        channel, nonce = client.channel, new_nonce()
        channel.deadline = time.monotonic() + _PROOF_S
        channel.socket.sendall(greeting(server=self._server, process=self._process, nonce=nonce))
        head, body_bytes = channel.receive_head(_PROOF_LIMIT)
        try:
            request = {} if body_bytes else decode(head[PREFIX.size :])
        except ValueError:
            request = {}
        try:
            proof, key = self._in_turn(client, partial(self._judge, client, token, nonce, request))
        except RefusedError as refusal:
            channel.send({"error": str(refusal)})
            raise ConnectionAbortedError("no client") from None
        channel.deadline = None
        channel.send({"ok": proof})
        channel.sign(key, as_server=True)

    def _answer(self, client: _Client) -> None:
        """Receive a request, have it carried out, and send the answer."""
        channel = client.channel
        head, unread = channel.receive_head(HEADER_LIMIT)
        try:
            try:
                request = decode(head[PREFIX.size :])
            except ValueError as error:
                raise RefusedError(f"this is not a request: {error}") from None
            if unread > self._body_limit:
                raise RefusedError(f"a body of {unread:,} bytes is too long: it has at most {self._body_limit:,}")
            try:
                body, unread = channel.receive_body(head, unread), 0
            except MemoryError:
                raise RefusedError(_NO_MEMORY) from None
            result = self._in_turn(client, partial(self._methods.call, request, body=body))
        except RefusedError as refusal:
            if unread:
                channel.skip_body(unread)
            channel.send({"error": str(refusal)})
            return
        if isinstance(result, memoryview):
            channel.send({"ok": None}, result)
        else:
            channel.send({"ok": result})

    def _in_turn(self, client: _Client, call: Callable[[], Any]) -> Any:
        """Have the owner's thread call a function; returns its result."""
        answer: Future[Any] = Future()
        self._calls.put((client, call, answer))
        self._wake()
        if not self._is_open:  # `close` may have carried out the last call before
            answer.cancel()
        return answer.result()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # many have done so already, or the server is closed
            self._waker.send(b"\0")


def notice_vanishing(connection: socket.socket) -> None:
    """Have the connection fail when the client's machine is gone.

    Keepalive asks only while nothing is under way: an answer that nobody acknowledges needs a limit of its own.
    """
    timeouts = (
        (socket.TCP_KEEPIDLE, 10),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 25_000),
    )
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_NODELAY, 1), *timeouts):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
