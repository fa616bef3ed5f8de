"""A board's side of the talk with its client."""

import contextlib
import selectors
import socket
import time
from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from p4sgd.host.board.messages import REQUEST_BYTES, TEXT_LIMIT, Greeting, Outcome, Reply, Request, What
from p4sgd.host.board.served import ServedWorker
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.register_map import ADDRESS_BITS
from p4sgd.sim.emulator import EmulatorError

__all__ = ["Conversation"]

_Steps = Generator[int, None, None]
"""Yields what to wait for: events of :mod:`selectors`, 0 for `Conversation.deadline` or the end of the run."""

_STALL_S = 30.0
"""Longest time in the middle of a message; then nobody is there."""

_AWAIT_MS = 10_000
"""Longest time that a client may have its answer wait."""


class _RefusedError(Exception):
    """What a client is told instead of an answer."""


class Conversation:
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
        As in `Greeting`.

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
        yield from self._send(Greeting(busy=False, process=process).to_bytes())
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
            case What.READ_REGISTER:
                yield from self._done(worker.read_register(_offset(request)).to_bytes(4, "big"))
            case What.WRITE_REGISTER:
                if request.number >> 32:
                    raise _RefusedError(f"{request.number:#x} is no word of 32 bits")
                worker.write_register(_offset(request), request.number)
                yield from self._done()
            case What.READ_MEMORY:
                self._check_memory(request)
                yield from self._done(worker.read_memory(request.bank, request.address, request.number).data)
            case What.WRITE_MEMORY:
                self._check_memory(request)
                data = self._room(request)
                yield from self._done()
                yield from self._receive(data.data)
                worker.write_memory(request.bank, request.address, data)
                yield from self._done()
            case What.AWAIT_END:
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
