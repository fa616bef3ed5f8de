"""The client of a control socket."""

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.token import OTHER_TOKEN, is_nonce, is_proof, new_nonce, prove
from p4sgd.sim.rpc import Channel, RefusedError


class RefusalError(P4sgdError):
    """A server that is well does not do what it was asked to."""


class GoneError(P4sgdError):
    """A server is gone, or does not answer in time."""


class TokenError(UserError):
    """A server and its client do not have the same token, or only one of them has any."""


_NOT_ASKED = "asks for no token, and the cluster file has one: give it --token"
_NOT_GIVEN = "serves only those who have its token: name a copy of the token's file in the cluster file (token = …)"
_STARTED_AGAIN = "was started again in the meantime and has lost the state of this job"

_TRIES = 5
"""Connections to a server that hangs up before it has answered, as one does that many strangers connect to."""

_GREETING_S = 0.2
"""Longest time that `ControlClient.check_process` waits; a process that runs greets within milliseconds."""


class ControlClient:
    """Calls methods of a server, over a connection that is made again after `close` or an interrupted call.

    Failures are final, as the server's state is unknown then: later calls raise the same error. Refusals are not, and
    neither is a server that hangs up before it has answered at all.

    Parameters
    ----------
    address
        Where the server listens.
    server
        Its kind, such as ``"worker"``.
    name
        What errors call it.
    command
        The command that starts it, without its token, for errors; an attribute, as more of it may be known later.
    timeout_s
        Longest time without an answer, in seconds.
    connect_s
        Longest time without a greeting; as ``timeout_s`` if None.
    token
        The token for a server over TCP, if it has one.
    timeout_is_final
        Whether a time-out is a failure like others. If not, the next call connects anew, which tells whether the server
        is still the same process.

    Attributes
    ----------
    process : int or None
        Tells the server's process from another one at the same address.

    Raises
    ------
    UserError
        If the server is not there or serves another client.
    TokenError
        If it has another token, or only one side has one.
    P4sgdError
        If it does not answer as it should, or not in time.
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
        timeout_is_final: bool = True,
    ) -> None:
        self._address, self._server, self._name, self.command = address, server, name, command
        self._token = token if address.path is None else None
        self._timeout_s, self._timeout_is_final = timeout_s, timeout_is_final
        self._connect_s = timeout_s if connect_s is None else connect_s
        self.process: int | None = None
        self._channel: Channel | None = None
        self._failure: str | None = None
        self._connect()

    def call(
        self, do: str, body: bytes | memoryview = b"", *, most: int = 0, **arguments: Any
    ) -> tuple[Any, npt.NDArray[np.uint8]]:
        """Call a method; returns its result, and the body of the answer, at most ``most`` bytes.

        Raises
        ------
        P4sgdError
            If the server refuses, is gone, was started again, serves another client meanwhile, or does not answer as it
            should, or not in time.
        """
        if self._failure is not None:
            raise P4sgdError(f"{self._name} {self._failure}")
        channel = self._channel or self._connect()
        try:
            return channel.call(do, body, most=most, **arguments)
        except RefusedError as error:
            raise RefusalError(f"{self._name} refuses: {error}") from None
        except (OSError, ValueError) as error:
            raise self._fail(error) from error
        except BaseException:  # the answer to this call would be taken for the answer to the next one
            self.close()
            raise

    def check_process(self) -> None:
        """Check by another connection that the server's process has not ended. One that is only paused passes.

        Raises
        ------
        P4sgdError
            If no process listens at its address any more, or another one; later calls fail, too.
        """
        try:
            with contextlib.closing(Channel(self._address.connect(_GREETING_S))) as channel:
                process = channel.receive_greeting(self._server).get("process", self.process)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise self._fail(error) from error
        except (OSError, ValueError):  # it does not go on at the moment
            return
        if process != self.process:
            raise self._fail(_STARTED_AGAIN)

    def close(self) -> None:
        """End the connection. The server goes on."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def _start(self) -> str:
        return self.command if self._token is None else f"{self.command} --token FILE"

    def _connect(self) -> Channel:
        for _ in range(_TRIES):
            try:
                return self._greet()
            except ConnectionError as error:
                self.close()
                hung_up = error
        raise GoneError(
            f"{self._name} hangs up before it has answered, as servers do while many programs connect that do not have "
            "their token: try again in a moment"
        ) from hung_up

    def _greet(self) -> Channel:
        """Connect once; raises ConnectionError if the server hangs up before it has answered."""
        again = self.process is not None
        try:
            connection = self._address.connect(self._connect_s)
        except OSError as error:
            if again:
                raise self._fail(error) from error
            reason = error.strerror or error
            raise UserError(f"{self._name} is not there ({reason}): start it: {self._start}") from error
        channel = self._channel = Channel(connection)
        try:
            greeting = channel.receive_greeting(self._server)
            refusal = greeting.get("error") or self._exchange_proofs(channel, greeting.get("nonce"))
            connection.settimeout(self._timeout_s)
        except ConnectionError:
            raise
        except (OSError, ValueError) as error:
            raise self._fail(error) from error
        except BaseException:
            self.close()
            raise
        if refusal is not None:
            self.close()
            text = f"{self._name} {refusal}"
            if again:
                raise P4sgdError(text)
            raise TokenError(text) if refusal in (_NOT_ASKED, _NOT_GIVEN, OTHER_TOKEN) else UserError(text)
        if again and greeting.get("process") != self.process:
            raise self._fail(_STARTED_AGAIN)
        self.process = greeting.get("process")
        return channel

    def _exchange_proofs(self, channel: Channel, nonce: Any) -> str | None:
        """Prove to have the token, and have the server prove it; what to say after its name if it cannot be used."""
        if nonce is None:
            return None if self._token is None else _NOT_ASKED
        if self._token is None:
            return _NOT_GIVEN
        if not is_nonce(nonce):
            raise ValueError("it sends something else than a nonce")
        nonces = nonce, new_nonce()
        own, theirs, key = (prove(self._token, side, self._server, nonces) for side in ("client", "server", "key"))
        try:
            proof, _ = channel.call("prove", nonce=nonces[1], proof=own.hex())
        except RefusedError as error:
            return str(error)
        if not is_proof(proof, theirs):
            raise ValueError("it does not have the token that it asks for")
        channel.sign(key, as_server=False)
        return None

    def _fail(self, reason: OSError | ValueError | str) -> P4sgdError:
        """Give the server up; returns the error that says why, as later calls do."""
        self.close()
        if isinstance(reason, TimeoutError):
            why = f"has not answered for {self._timeout_s:g} s"
            self._failure = why if self._timeout_is_final else None
            return GoneError(f"{self._name} {why}")
        if isinstance(reason, OSError):
            why = f"is gone ({reason.strerror or reason}): see why it ended and start it again: {self._start}"
        else:
            why = reason if isinstance(reason, str) else f"does not answer as it should: {reason}"
        self._failure = why
        return (GoneError if isinstance(reason, OSError) else P4sgdError)(f"{self._name} {why}")
