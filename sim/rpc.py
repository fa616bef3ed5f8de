"""Messages of control sockets: a JSON header and bytes, over a stream.

Every message has a header, an object of JSON, and a body, such as the contents of a memory::

    bytes 0-3    length of the header, big-endian, at most `HEADER_LIMIT`
    bytes 4-11   length of the body, big-endian
    then         the header
    then         the body

A server begins with `MAGIC`, `VERSION` and a message. Its header names the kind of server (``server``) and its process
(``process``), or says why it takes no more clients (``error``). If it also has a ``nonce``, the first request must be
``prove``, with the client's ``nonce`` and ``proof`` (`p4sgd.host.rpc.token`); the result is the server's proof. Only
the simulator sends no such greeting, because its client is its parent. Then the client sends requests, each after the
answer to the previous one. A request names a method in ``do``, beside its arguments. An answer has either the result in
``ok`` or the reason for a refusal in ``error``. Receivers check lengths before they allocate memory, and nothing that
is received is executed or unpickled.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HEADER_LIMIT", "PREFIX", "VERSION", "Channel", "RefusedError", "decode", "encode", "greeting"]

MAGIC = b"P4SGDrpc"

VERSION = 5
"""Changes whenever a message or the meaning of a request does."""

HEADER_LIMIT = 256 << 10
"""Most bytes of a header."""

PREFIX = struct.Struct("!IQ")
"""Lengths of the header and of the body."""

_GREETING = struct.Struct("!8sH")

_PIECE = 1 << 20
"""Bytes of a body that are sent within one time-out."""

# Prepared once, as registers are accessed one by one.
_encoder = json.JSONEncoder(separators=(",", ":"))
_decoder = json.JSONDecoder()
_NO_BODY = np.empty(0, np.uint8)


class RefusedError(Exception):
    """A request that is not carried out; the message says why, to the client."""


def encode(header: Mapping[str, Any], body_bytes: int = 0) -> bytes:
    """A message without its body."""
    text = _encoder.encode(header).encode()
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"a header has at most {HEADER_LIMIT:,} bytes, not {len(text):,}")
    return PREFIX.pack(len(text), body_bytes) + text


def decode(text: bytes | bytearray) -> dict[str, Any]:
    """Read a header.

    Raises
    ------
    ValueError
        If it is not a JSON object.
    """
    try:
        characters = text.decode()
        header, end = _decoder.raw_decode(characters)
    except RecursionError:
        raise ValueError("a header is nested too deeply") from None
    if not isinstance(header, dict) or end < len(characters):
        raise ValueError("a header must be a JSON object")
    return header


def greeting(**header: Any) -> bytes:
    """What a server sends first."""
    return _GREETING.pack(MAGIC, VERSION) + encode(header)


class Channel:
    """A blocking connection.

    All methods raise OSError if the other side is gone or exceeds the socket's time-out, ValueError if what it sends is
    not a message. The connection cannot be used any more then.

    Parameters
    ----------
    connection
        Connected socket, closed by `close`.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")

    def send(self, header: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Send a message."""
        head = encode(header, len(body))
        if len(body) < _PIECE:
            self._connection.sendall(head + body)
            return
        self._connection.sendall(head)
        for first in range(0, len(body), _PIECE):
            self._connection.sendall(body[first : first + _PIECE])

    def receive(self, most: int = 0) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
        """Receive a message: its header, and its body of at most ``most`` bytes."""
        header_bytes, body_bytes = PREFIX.unpack(self._read(PREFIX.size))
        if header_bytes > HEADER_LIMIT or body_bytes > most:
            raise ValueError(f"a message of {header_bytes:,} and {body_bytes:,} bytes is too long")
        header = decode(self._read(header_bytes))
        if not body_bytes:
            return header, _NO_BODY
        body = np.empty(body_bytes, np.uint8)
        if self._stream.readinto(body.data) != body_bytes:
            raise ConnectionResetError("it has hung up")
        return header, body

    def receive_greeting(self, server: str) -> dict[str, Any]:
        """Receive what a server sends first, and check that it is of this version and this kind."""
        magic, version = _GREETING.unpack(self._read(_GREETING.size))
        if magic != MAGIC:
            raise ValueError("another program is there")
        if version != VERSION:
            raise ValueError(f"it has version {version} of the control protocol, not {VERSION}")
        header, _ = self.receive()
        if header.get("server") != server:
            raise ValueError(f"it is {header.get('server')!r}, not {server!r}")
        return header

    def call(
        self, do: str, body: bytes | memoryview = b"", *, most: int = 0, **arguments: Any
    ) -> tuple[Any, npt.NDArray[np.uint8]]:
        """Send a request and wait for its answer: the result, and a body of at most ``most`` bytes.

        Raises
        ------
        RefusedError
            If the server refuses. The connection can still be used.
        """
        self.send({"do": do, **arguments}, body)
        header, content = self.receive(most)
        if "error" in header:
            raise RefusedError(str(header["error"]))
        if "ok" not in header:
            raise ValueError("it sends something else than an answer")
        return header["ok"], content

    def close(self) -> None:
        """End the connection."""
        self._stream.close()
        self._connection.close()

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionResetError("it has hung up")
        return data
