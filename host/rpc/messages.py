"""What goes over a board's control socket.

The server greets. Then the client asks and the server answers, one after the other. All numbers are big-endian; every
length is bounded, and nothing that comes is ever executed or unpickled.

``WRITE_MEMORY`` is answered twice: first whether the bytes may come, then, when they have come, that they are there.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

__all__ = [
    "GREETING_BYTES",
    "REPLY_BYTES",
    "REQUEST_BYTES",
    "TEXT_LIMIT",
    "Hello",
    "Opcode",
    "Outcome",
    "Reply",
    "Request",
]


_MAGIC = b"P4SGDwrk"
_VERSION = 1

_GREETING = struct.Struct("!8sHBQ")
_REQUEST = struct.Struct("!BBQQ")
_REPLY = struct.Struct("!BQ")

GREETING_BYTES, REQUEST_BYTES, REPLY_BYTES = _GREETING.size, _REQUEST.size, _REPLY.size

TEXT_LIMIT = 2000
"""Most bytes of a refusal's text."""


class Opcode(IntEnum):
    """What a client asks for."""

    READ_REGISTER = 1
    """The word at ``address``: 4 bytes."""
    WRITE_REGISTER = 2
    """``number`` is the word for ``address``."""
    READ_MEMORY = 3
    """``number`` bytes of ``bank`` from ``address`` on."""
    WRITE_MEMORY = 4
    """``number`` bytes for ``bank`` from ``address`` on."""
    AWAIT_END = 5
    """The answer comes when no run is under way, or after ``number`` ms: a byte, whether none is."""


class Outcome(IntEnum):
    """How a request went."""

    DONE = 0
    """What follows is the answer."""
    REFUSED = 1
    """What follows is the reason, as text."""


@dataclass(frozen=True)
class Hello:
    """What a server says to who connects.

    Attributes
    ----------
    busy
        Whether it has another client. Then it hangs up.
    process
        A random number of the process: another one has other registers.
    """

    busy: bool
    process: int

    def to_bytes(self) -> bytes:
        """The greeting as it is sent."""
        return _GREETING.pack(_MAGIC, _VERSION, self.busy, self.process)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a greeting.

        Raises
        ------
        ValueError
            If it is none of a board, or of another version.
        """
        magic, version, busy, process = _GREETING.unpack(data)
        if magic != _MAGIC:
            raise ValueError("it is no worker: the greeting is another's")
        if version != _VERSION:
            raise ValueError(f"it speaks version {version} of the control protocol, not {_VERSION}")
        return cls(bool(busy), process)


@dataclass(frozen=True)
class Request:
    """A request; what the numbers are is said at `Opcode`."""

    what: Opcode
    bank: int = 0
    address: int = 0
    number: int = 0

    def to_bytes(self) -> bytes:
        """The request as it is sent."""
        return _REQUEST.pack(self.what, self.bank, self.address, self.number)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a request.

        Raises
        ------
        ValueError
            If nobody knows what is asked for.
        """
        what, bank, address, number = _REQUEST.unpack(data)
        return cls(Opcode(what), bank, address, number)


@dataclass(frozen=True)
class Reply:
    """The head of an answer, of which ``size`` bytes follow."""

    outcome: Outcome
    size: int

    def to_bytes(self) -> bytes:
        """The head as it is sent."""
        return _REPLY.pack(self.outcome, self.size)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a head.

        Raises
        ------
        ValueError
            If there is no such outcome.
        """
        outcome, size = _REPLY.unpack(data)
        return cls(Outcome(outcome), size)
