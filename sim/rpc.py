"""Messages of control sockets: a JSON header and bytes, over a stream.

Every message has a header, an object of JSON, and a body, such as the contents of a memory::

    bytes 0-3    length of the header, big-endian, at most `HEADER_LIMIT`
    bytes 4-11   length of the body, big-endian
    then         the header
    then         the body
    then         a tag of 32 bytes, if both sides have a key (`Channel.sign`)

A server begins with `MAGIC`, `VERSION` and a message: the kind of server (``server``), its process (``process``), and
perhaps why it takes no more clients (``error``), or a ``nonce`` if clients must prove to have its token
(`p4sgd.host.rpc.token`). Only the simulator sends no such greeting, because its client is its parent. A request names a
method in ``do``, beside its arguments; the answer has the result in ``ok`` or the reason for a refusal in ``error``.
Receivers check lengths before they allocate memory, and nothing that is received is executed or unpickled.
"""

import hmac
import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"P4SGDrpc"

VERSION = 6
"""Changes whenever a message or the meaning of a request does."""

HEADER_LIMIT = 256 << 10
"""Most bytes of a header."""

PREFIX = struct.Struct("!IQ")
"""Lengths of the header and of the body."""

_GREETING = struct.Struct("!8sH")
_TAG_BYTES = 32
_PIECE = 1 << 20
"""Bytes of a body that are sent within one time-out."""

_encoder = json.JSONEncoder(separators=(",", ":"))
_decoder = json.JSONDecoder()


class RefusedError(Exception):
    """A request that is not carried out; the message says why, to the client."""


def encode(header: Mapping[str, Any], body_bytes: int = 0) -> bytes:
    """A message without its body."""
    text = _encoder.encode(header).encode()
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"a header has at most {HEADER_LIMIT:,} bytes, not {len(text):,}")
    return PREFIX.pack(len(text), body_bytes) + text


def decode(text: bytes | bytearray) -> dict[str, Any]:
    """Read a header; raises ValueError if it is not a JSON object."""
    try:
        header = _decoder.decode(text.decode())
    except RecursionError:
        raise ValueError("a header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("a header must be a JSON object")
    return header


def greeting(**header: Any) -> bytes:
    """What a server sends first."""
    return _GREETING.pack(MAGIC, VERSION) + encode(header)


class Channel:
    """A blocking connection, closed by `close`.

    All methods raise OSError if the other side is gone or exceeds a time-out, ValueError if what it sends is not a
    message. The connection cannot be used any more then.

    Attributes
    ----------
    deadline
        When to give up, by :func:`time.monotonic`, besides the time-out of the socket for each piece; None for never.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.deadline: float | None = None
        self._key = b""
        self._counts = {"sent": 0, "received": 0}
        self._names = {"sent": b"", "received": b""}

    def sign(self, key: bytes, *, as_server: bool) -> None:
        """From now on, sign what is sent and check what is received, so that nothing can be changed on its way."""
        self._key = key
        sides = (b"server", b"client") if as_server else (b"client", b"server")
        self._names = dict(zip(("sent", "received"), sides, strict=True))

    def send(self, header: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Send a message."""
        head = encode(header, len(body))
        tag = self._tag("sent", head, body)
        if len(body) < _PIECE:
            self.socket.sendall(head + body + tag)
            return
        self.socket.sendall(head)
        for first in range(0, len(body), _PIECE):
            self.socket.sendall(body[first : first + _PIECE])
        self.socket.sendall(tag)

    def receive(self, most: int = 0) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
        """Receive a message: its header, and its body of at most ``most`` bytes."""
        head, body_bytes = self.receive_head()
        if body_bytes > most:
            raise ValueError(f"a message with a body of {body_bytes:,} bytes is too long")
        body = self.receive_body(head, body_bytes)
        return decode(head[PREFIX.size :]), body

    def receive_head(self, limit: int = HEADER_LIMIT) -> tuple[bytearray, int]:
        """Receive the beginning of a message, lengths and header, and say how long its body is."""
        prefix = self._read(PREFIX.size)
        header_bytes, body_bytes = PREFIX.unpack(prefix)
        if header_bytes > limit:
            raise ValueError(f"a header of {header_bytes:,} bytes is too long: it has at most {limit} bytes")
        return prefix + self._read(header_bytes), body_bytes

    def receive_body(self, head: bytearray, size: int) -> npt.NDArray[np.uint8]:
        """Receive the rest of a message that begins with ``head``."""
        body = np.empty(size, np.uint8)
        self._fill(body.data)
        if self._key and not hmac.compare_digest(self._tag("received", head, body.data), self._read(_TAG_BYTES)):
            raise ValueError("a message was changed on its way")
        return body

    def skip_body(self, size: int) -> None:
        """Receive the rest of a message, and forget it."""
        rest, piece = size + _TAG_BYTES * bool(self._key), memoryview(bytearray(min(size + _TAG_BYTES, _PIECE)))
        if self._key:
            self._counts["received"] += 1
        while rest:
            self._fill(piece[:rest])
            rest -= min(rest, len(piece))

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
        self.socket.close()

    def _tag(self, way: str, head: bytes | bytearray, body: bytes | memoryview) -> bytes:
        """The signature of the next message of a direction; empty without a key."""
        if not self._key:
            return b""
        made = hmac.new(self._key, b"%s %d " % (self._names[way], self._counts[way]), "sha256")
        self._counts[way] += 1
        made.update(head)
        made.update(body)
        return made.digest()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        self._fill(memoryview(data))
        return data

    def _fill(self, room: memoryview) -> None:
        while room:
            if self.deadline is not None:
                self.socket.settimeout(max(self.deadline - time.monotonic(), 1e-6))
            count = self.socket.recv_into(room)
            if not count:
                raise ConnectionResetError("it has hung up")
            room = room[count:]
