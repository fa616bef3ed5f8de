"""A worker at the other end of a control socket."""

import socket

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.identification import read_configuration
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.messages import GREETING_BYTES, REPLY_BYTES, TEXT_LIMIT, Hello, Opcode, Outcome, Reply, Request
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["RemoteWorker"]


_TIMEOUT_S = 30.0
"""Longest time without an answer: a worker answers between two mini-batches."""


class RemoteWorker:
    """Registers and memory of a worker that is a process of its own (`p4sgd.host.serve.worker`).

    Parameters
    ----------
    index
        Its number, for messages.
    address
        Its control socket.

    Raises
    ------
    UserError
        If there is no such worker, or it has another client.
    P4sgdError
        Then and later, if it does not answer as a worker should.
    """

    def __init__(self, index: int, address: ControlAddress) -> None:
        self._name = f"worker {index} at {address}"
        self._address = address
        self._process: int | None = None
        self._connection: socket.socket | None = None
        self._end: str | None = None
        self._connect()
        try:
            self._config = read_configuration(RegisterClient(self.read_register, self.write_register))
        except P4sgdError as error:
            self.close()
            raise P4sgdError(f"{self._name} {error}") from None

    def __str__(self) -> str:
        return self._name

    @property
    def config(self) -> WorkerConfig:
        """Size of the worker, as it says."""
        return self._config

    def read_register(self, offset: int) -> int:
        """Read a word."""
        return int.from_bytes(self._ask(Request(Opcode.READ_REGISTER, address=offset), 4), "big")

    def write_register(self, offset: int, word: int) -> None:
        """Write a word."""
        self._ask(Request(Opcode.WRITE_REGISTER, address=offset, number=word), 0)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to a bank."""
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._ask(Request(Opcode.WRITE_MEMORY, bank, address, content.size), 0, content.data)

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Read bytes of a bank."""
        return np.frombuffer(self._ask(Request(Opcode.READ_MEMORY, bank, address, size), size), np.uint8)

    def await_end(self, within_s: float) -> bool:
        """Wait for the end of the run, for a time; returns whether no run is under way."""
        return self._ask(Request(Opcode.AWAIT_END, number=round(within_s * 1e3)), 1) == b"\1"

    def close(self) -> None:
        """Hang up. The worker stays as it is, for the next client."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the connection ------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        again = self._process is not None
        try:
            connection = self._address.connect(_TIMEOUT_S)
        except OSError as error:
            if again:
                raise self._lose(self._why_gone(error)) from error
            raise UserError(
                f"{self._name} is not there ({error.strerror or error}): start it: p4sgd worker --interface INTERFACE "
                f"--control {self._address}"
            ) from None
        self._connection = connection
        try:
            if self._address.path is None:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = Hello.from_bytes(bytes(self._receive(GREETING_BYTES)))
        except OSError as error:
            raise self._lose(self._why_gone(error)) from error
        except ValueError as error:
            raise self._lose(f"does not answer as a worker: {error}") from error
        if greeting.busy:
            self.close()
            told = f"{self._name} is in use by another program: wait until that has ended"
            raise P4sgdError(told) if again else UserError(told)
        if again and greeting.process != self._process:
            raise self._lose("was started anew meanwhile, and knows nothing of this job any more")
        self._process = greeting.process

    def _ask(self, request: Request, size: int, data: memoryview | None = None) -> bytearray:
        """Send a request, and then its data if they may come; returns the answer, of so many bytes."""
        if self._end is not None:
            raise P4sgdError(f"{self._name} {self._end}")
        if self._connection is None:
            self._connect()
        try:
            self._send(request.to_bytes())
            answer = self._take_reply(size)
            if data is not None:
                self._send(data)
                answer = self._take_reply(size)
        except P4sgdError:  # it refuses, and goes on
            raise
        except OSError as error:
            raise self._lose(self._why_gone(error)) from error
        except ValueError as error:
            raise self._lose(f"does not answer as a worker: {error}") from error
        except BaseException:  # what is still under way would be taken for the answer to the next request
            self.close()
            raise
        return answer

    def _take_reply(self, size: int) -> bytearray:
        reply = Reply.from_bytes(bytes(self._receive(REPLY_BYTES)))
        if reply.outcome is Outcome.REFUSED:
            if reply.size > TEXT_LIMIT:
                raise ValueError(f"a refusal of {reply.size} bytes")
            text = self._receive(reply.size).decode(errors="replace")
            raise P4sgdError(f"{self._name} refuses: {text}")
        if reply.size != size:
            raise ValueError(f"an answer of {reply.size} bytes, not {size}")
        return self._receive(size)

    def _send(self, data: bytes | memoryview) -> None:
        assert self._connection is not None
        self._connection.sendall(data)

    def _receive(self, size: int) -> bytearray:
        assert self._connection is not None
        data = bytearray(size)
        room = memoryview(data)
        while room:
            count = self._connection.recv_into(room)
            if not count:
                raise ConnectionResetError("it has hung up")
            room = room[count:]
        return data

    def _lose(self, why: str) -> P4sgdError:
        """Do without the worker from now on; the error says why, and so will later ones."""
        self.close()
        self._end = why
        return P4sgdError(f"{self._name} {why}")

    def _why_gone(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"has not answered for {_TIMEOUT_S:g} s"
        return (
            f"is gone ({error.strerror or error}): see why it ended and start it again: p4sgd worker "
            f"--interface INTERFACE --control {self._address}"
        )
