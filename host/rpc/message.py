"""Messages of control sockets: a JSON object and bytes, such as the contents of a memory, over a stream.

Each begins with the lengths of both, of 4 and 8 bytes, big-endian, which receivers check before they allocate memory.
Functions are generators, for sockets that block or do not: they yield the event of `selectors` to wait for.
"""

import selectors
import socket
import ssl
import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

VERSION = 9
"""Changes whenever a message or the meaning of a request does."""

TOKEN_NEEDED = "serves only those who have its token: name a copy of the token's file in the cluster file (token = …)"
"""What a server with a token answers to a client without TLS."""

_T = TypeVar("_T")
_LENGTHS = struct.Struct("!IQ")
_HEAD_LIMIT = 256 << 10
_PIECE = 1 << 18  # most bytes that are sent or received at once. In TLS each call of the socket has 16 KiB at most


class RefusedError(Exception):
    """A request that is not carried out; the message says why, to the client."""


def send(connection: socket.socket, head: dict[str, Any], body: bytes | memoryview = b"") -> Generator[int, None, None]:
    """Send a message; raises OSError if the other side is gone."""
    text = msgspec.json.encode(head, enc_hook=lambda value: int(value) if isinstance(value, int) else str(value))
    first = _LENGTHS.pack(len(text), len(body)) + text
    if len(body) < _PIECE:
        first, body = first + body, b""
    for left in (memoryview(first), memoryview(body)):
        while left:
            piece, left = left[:_PIECE], left[_PIECE:]
            while piece:
                piece = piece[(yield from retry(partial(connection.send, piece), selectors.EVENT_WRITE)) :]
            if left:
                yield selectors.EVENT_WRITE


def receive(
    connection: socket.socket, most: int = 0, *, head_limit: int = _HEAD_LIMIT
) -> Generator[int, None, tuple[dict[str, Any], npt.NDArray[np.uint8]]]:
    """Receive a message with a body of at most ``most`` bytes.

    Raises OSError if the other side is gone, ValueError if what it sends is something else, MemoryError if there is no
    room for it.
    """
    head_bytes, body_bytes = _LENGTHS.unpack((yield from _read(connection, _LENGTHS.size)).data)
    if head_bytes > head_limit or body_bytes > most:
        raise ValueError(f"a message of {head_bytes:,} and {body_bytes:,} bytes is too long")
    text = yield from _read(connection, head_bytes)
    body = yield from _read(connection, body_bytes)
    try:
        return msgspec.json.decode(text.data, type=dict[str, Any]), body
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"this is no JSON object: {error}") from None


def _read(connection: socket.socket, size: int) -> Generator[int, None, npt.NDArray[np.uint8]]:
    data = np.empty(size, np.uint8)
    for first in range(0, size, _PIECE):
        if first and not (isinstance(connection, ssl.SSLSocket) and connection.pending()):
            yield selectors.EVENT_READ
        room = data.data[first : first + _PIECE]
        while room:
            count = yield from retry(partial(connection.recv_into, room), selectors.EVENT_READ)
            if not count:
                raise ConnectionResetError("it has hung up")
            room = room[count:]
    return data


def retry(call: Callable[[], _T], event: int) -> Generator[int, None, _T]:
    """Call a socket's method until it need not wait."""
    while True:
        try:
            return call()
        except ssl.SSLWantReadError:
            yield selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            yield selectors.EVENT_WRITE
        except BlockingIOError:
            yield event
