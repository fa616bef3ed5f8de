"""A worker process: a worker between a link and a control socket.

What a board server needs of a worker.

A board's side of the talk with its client.

A board that is a process: a worker between a link and a control socket.
"""

import contextlib
import random
import selectors
import socket
import time
from collections.abc import Generator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
from p4sgd.host.links.link import Link
from p4sgd.host.rpc.messages import REQUEST_BYTES, TEXT_LIMIT, Hello, Opcode, Outcome, Reply, Request
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.register_map import ADDRESS_BITS, RegisterClient
from p4sgd.sim.emulator import EmulatorError

__all__ = ["BoardServer", "ClientConnection", "ServedWorker", "cycles_now"]


class ServedWorker(Protocol):
    """Registers, memory and packets of a worker that does nothing by itself: whoever serves it calls `work`."""

    @property
    def config(self) -> WorkerConfig:
        """Size of the worker."""

    @property
    def idle(self) -> bool:
        """Whether no run is wanted or under way."""

    @property
    def next_work(self) -> int | None:
        """When to call `work` though nothing came, in the cycles of `cycles_now`; None for never."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that all memories keep, if that depends on what is written; else 0."""

    def work(self) -> None:
        """Go on, for a moment; to be called after every frame and request."""

    def receive(self, frame: bytes) -> None:
        """Take a frame, of whatever length."""

    def read_register(self, offset: int) -> int:
        """Read a word."""

    def write_register(self, offset: int, word: int) -> None:
        """Write a word."""

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of bytes of a bank."""

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Put bytes into a bank. The array may be kept: it must not be changed afterwards."""

    def forget_memory(self, bank: int, address: int, size: int) -> None:
        """Let go of bytes of a bank that are about to be written, or refuse them."""


_Steps = Generator[int, None, None]
"""Yields what to wait for: events of :mod:`selectors`, 0 for `ClientConnection.deadline` or the end of the run."""

_STALL_S = 30.0
"""Longest time in the middle of a message; then nobody is there."""

_AWAIT_MS = 10_000
"""Longest time that a client may have its answer wait."""


class _RefusedError(Exception):
    """What a client is told instead of an answer."""


class ClientConnection:
    """Answers one client's requests, as far as they have come and as its socket takes answers; never blocks.

    Parameters
    ----------
    connection
        To the client; closed at the end.
    worker
        Whom the requests are for.
    memory_limit
        Bytes that the worker's memories may keep, together.
    process
        As in `Hello`.

    Attributes
    ----------
    events
        What to wait for before `go_on`, of :mod:`selectors`; 0 if for no event.
    deadline
        When to call `go_on` in any case, by :func:`time.monotonic`; None for never.
    """

    def __init__(self, connection: socket.socket, worker: ServedWorker, memory_limit: int, process: int) -> None:
        connection.setblocking(False)
        self.events = 0
        self.deadline: float | None = None
        self._connection = connection
        self._worker = worker
        self._memory_limit = memory_limit
        self._steps = self._talk(process)

    def fileno(self) -> int:
        """The connection's descriptor."""
        return self._connection.fileno()

    def go_on(self) -> bool:
        """Do what can be done now; returns whether the client is still there."""
        try:
            self.events = next(self._steps)
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _talk(self, process: int) -> _Steps:
        yield from self._send(Hello(busy=False, process=process).to_bytes())
        while True:
            head = bytearray(REQUEST_BYTES)
            yield from self._receive(memoryview(head), patient=True)
            try:
                yield from self._answer(Request.from_bytes(bytes(head)))
            except (_RefusedError, EmulatorError, UserError, MemoryError, ValueError) as error:
                text = (str(error) or "out of memory").encode()[:TEXT_LIMIT]
                yield from self._send(Reply(Outcome.REFUSED, len(text)).to_bytes() + text)

    def _answer(self, request: Request) -> _Steps:
        worker = self._worker
        match request.what:
            case Opcode.READ_REGISTER:
                yield from self._done(worker.read_register(_offset(request)).to_bytes(4, "big"))
            case Opcode.WRITE_REGISTER:
                if request.number >> 32:
                    raise _RefusedError(f"{request.number:#x} is no word of 32 bits")
                worker.write_register(_offset(request), request.number)
                yield from self._done()
            case Opcode.READ_MEMORY:
                self._check_memory(request)
                yield from self._done(worker.read_memory(request.bank, request.address, request.number).data)
            case Opcode.WRITE_MEMORY:
                self._check_memory(request)
                data = self._room(request)
                yield from self._done()
                yield from self._receive(data.data)
                worker.write_memory(request.bank, request.address, data)
                yield from self._done()
            case Opcode.AWAIT_END:
                if request.number > _AWAIT_MS:
                    raise _RefusedError(f"to wait {request.number} ms is too long: {_AWAIT_MS} is the most")
                yield from self._await_end(request.number / 1e3)

    def _await_end(self, seconds: float) -> _Steps:
        end = time.monotonic() + seconds
        self.deadline = end
        while not self._worker.idle and time.monotonic() < end:
            yield 0
            self._check_presence()
        self.deadline = None
        yield from self._done(bytes([self._worker.idle]))

    def _check_memory(self, request: Request) -> None:
        memories = self._worker.config.memories
        if request.bank >= memories:
            raise _RefusedError(f"there is no memory {request.bank}, there are {memories}")
        if request.number < 1:
            raise _RefusedError("no bytes are asked for")

    def _room(self, request: Request) -> npt.NDArray[np.uint8]:
        """Where bytes for the memory go first; those that are in their place are forgotten."""
        if request.number <= self._memory_limit:
            self._worker.forget_memory(request.bank, request.address, request.number)
        if request.number > self._memory_limit - self._worker.memory_bytes:
            raise _RefusedError(
                f"{request.number:,} bytes are too many: the memory is limited to {self._memory_limit:,}, of which "
                f"{self._worker.memory_bytes:,} are taken: start the worker with a larger --memory-limit"
            )
        return np.empty(request.number, np.uint8)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def _done(self, data: bytes | memoryview = b"") -> _Steps:
        yield from self._send(Reply(Outcome.DONE, len(data)).to_bytes())
        yield from self._send(data)

    def _receive(self, room: memoryview, *, patient: bool = False) -> _Steps:
        """Fill a buffer; with patience the first byte may come at any time. Others have a turn between the pieces."""
        filled = 0
        while filled < len(room):
            with contextlib.suppress(BlockingIOError):
                count = self._connection.recv_into(room[filled:])
                if not count:
                    raise ConnectionResetError("the client has hung up")
                filled += count
                if filled == len(room):
                    return
            yield from self._wait(selectors.EVENT_READ, None if patient and not filled else _STALL_S)

    def _send(self, data: bytes | memoryview) -> _Steps:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:
                yield from self._wait(selectors.EVENT_WRITE, _STALL_S)

    def _check_presence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if not self._connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("the client has hung up")

    def _wait(self, events: int, seconds: float | None) -> _Steps:
        self.deadline = None if seconds is None else time.monotonic() + seconds
        yield events
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimeoutError("the client does not go on")
        self.deadline = None


def _offset(request: Request) -> int:
    if request.address % 4 or request.address >> ADDRESS_BITS:
        raise _RefusedError(f"{request.address:#x} is no address of a register")
    return request.address


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
        self._client: ClientConnection | None = None
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
                    connection.send(Hello(busy=True, process=self._process).to_bytes())
                return
            if connection.family != socket.AF_UNIX:
                _notice_vanishing(connection)
            self._client = ClientConnection(connection, self._worker, self._memory_limit, self._process)
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
