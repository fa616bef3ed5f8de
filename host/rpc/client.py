"""The client of a control socket."""

import secrets
import select
import socket
import ssl
from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.message import TOKEN_NEEDED, VERSION, receive, send
from p4sgd.host.rpc.token import tls_context


class RefusalError(P4sgdError):
    """A server does not do what it was asked to."""


class GoneError(P4sgdError):
    """A server is gone, or does not answer in time."""


class TokenError(UserError):
    """A server and its client do not have the same token, or only one of them has any."""


_T = TypeVar("_T")

_TRIES = 5  # connections to a server that hangs up before it has answered, as one does that many strangers connect to


class ControlClient:
    """Calls methods of a server, over a connection that is made again after `close` or an interrupted call.

    Failures but refusals are final, as the server's state is unknown then: later calls raise the same error.
    ``server`` is its kind, such as ``"worker"``, ``name`` what errors call it, and ``command`` what starts it, without
    its token. ``timeout_s`` is the longest time without progress, ``connect_s`` that until the first answer.
    ``process`` tells the server's process from another one at the same address.

    Raises UserError if the server is not there or serves another client, `TokenError` if only one of both has the token
    or another one, `GoneError` if it does not answer in time, P4sgdError if it does not answer as it should.
    """

    def __init__(
        self,
        address: ControlAddress,
        server: str,
        name: str,
        command: str,
        *,
        timeout_s: float,
        connect_s: float | None = None,
        token: bytes | None = None,
    ) -> None:
        self._address, self._server, self._name, self.command = address, server, name, command
        self._token = token if address.path is None else None
        self._timeout_s, self._connect_s = timeout_s, timeout_s if connect_s is None else connect_s
        self.process = 0
        self._number = secrets.randbits(63)  # by which the server knows it again
        self._connection: socket.socket | None = None
        self._failure: P4sgdError | None = None
        self._connect()

    def call(
        self, do: str, body: bytes | memoryview = b"", *, most: int = 0, **arguments: Any
    ) -> tuple[Any, npt.NDArray[np.uint8]]:
        """Call a method; returns its result, and the body of the answer, at most ``most`` bytes.

        Raises `RefusalError` if the server refuses, else as the class.
        """
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        connection = self._connection or self._connect()
        try:
            _complete(send(connection, {"do": do, **arguments}, body))
            answer, content = _complete(receive(connection, most))
            if "error" not in answer:
                return answer["ok"], content
        except (OSError, ValueError, KeyError) as error:
            raise self._fail(error) from error
        except BaseException:  # the answer to this call would be taken for the answer to the next one
            self.close()
            raise
        raise RefusalError(f"{self._name} refuses: {answer['error']}")

    def check_process(self) -> None:
        """Check that the server's process has not ended, but for a pause; raises P4sgdError, as later calls do."""
        poll = select.poll()
        if self._connection is not None:
            poll.register(self._connection, select.POLLRDHUP)
        if self._failure is not None or self._connection is None or poll.poll(0):
            self.close()
            self._connect()

    def close(self) -> None:
        """End the connection. The server goes on."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> socket.socket:
        for _ in range(_TRIES):
            try:
                return self._greet()
            except ConnectionError as error:
                self.close()
                hung_up = error
        raise GoneError(f"{self._name} hangs up before it has answered: try again in a moment") from hung_up

    def _greet(self) -> socket.socket:
        """Connect once; raises ConnectionError if the server hangs up before it has answered."""
        try:
            connection = self._connection = self._address.connect(self._connect_s)
        except OSError as error:
            if self.process:
                raise self._fail(error) from error
            reason = error.strerror or error
            raise UserError(f"{self._name} is not there ({reason}): start it: {self._start}") from error
        try:
            if self._token is not None:
                connection = tls_context(self._token, ssl.Purpose.SERVER_AUTH).wrap_socket(connection)
                self._connection = connection
            _complete(send(connection, {"server": self._server, "version": VERSION, "client": self._number}))
            answer, _ = _complete(receive(connection))
            connection.settimeout(self._timeout_s)
        except ssl.SSLCertVerificationError:
            raise TokenError(f"{self._name} has another token: give both sides the same file") from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise ConnectionResetError("it has hung up") from error
        except ssl.SSLError:
            raise TokenError(f"{self._name} asks for no token, and the cluster file has one: give it --token") from None
        except ConnectionError:
            raise
        except (OSError, ValueError) as error:
            raise self._fail(error) from error
        except BaseException:
            self.close()
            raise
        if "ok" not in answer:
            self.close()
            said = answer.get("error")
            kind = P4sgdError if self.process else TokenError if said == TOKEN_NEEDED else UserError
            raise kind(f"{self._name} {said}")
        if self.process not in (0, answer["ok"]):
            raise self._fail("was started again in the meantime and has lost the state of this job")
        self.process = answer["ok"]
        return connection

    @property
    def _start(self) -> str:
        return self.command if self._token is None else f"{self.command} --token FILE"

    def _fail(self, reason: Exception | str) -> P4sgdError:
        """Give the server up; returns the error that says why, as later calls do."""
        self.close()
        kind: type[P4sgdError] = GoneError if isinstance(reason, OSError) else P4sgdError
        if isinstance(reason, TimeoutError):
            reason = f"has not answered for {self._timeout_s:g} s"
        elif isinstance(reason, OSError):
            reason = f"is gone ({reason.strerror or reason}): see why it ended and start it again: {self._start}"
        elif not isinstance(reason, str):
            reason = f"does not answer as it should: {reason}"
        self._failure = kind(f"{self._name} {reason}")
        return self._failure


def _complete(conversation: Generator[int, None, _T]) -> _T:
    """Send or receive a message, on a socket that blocks."""
    while True:
        try:
            next(conversation)
        except StopIteration as end:
            result: _T = end.value
            return result
