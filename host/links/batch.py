"""Many frames at a time: buffers for them, the system calls that send and receive them, and their addresses in UDP.

The loops are compiled by Numba, so only programs that move frames in batches import this module.
"""

import ctypes
import errno
import os
import socket
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.packet import BROADCAST, ETHERTYPE, FRAME_BYTES, MOST_BYTES
from p4sgd.hw.spec.udp import (
    ETHERNET_BYTES,
    FIRST_GROUP,
    GROUP_PREFIX,
    HOST_PREFIX,
    PACKET_BYTES,
    PORT,
    PROGRAM_PORTS,
    PROGRAM_PREFIX,
)
from p4sgd.sim.compiled import compiled
from p4sgd.sim.network.frames import PURPOSE, Bytes, Numbers

Places = npt.NDArray[np.uint64]
"""Pointers, and sizes beside them."""

ROOM = -(-(MOST_BYTES + 1) // 64) * 64
"""Bytes of a row: more than those of any packet, so that a frame that is cut is still too long."""

_NAME_BYTES, _NAME_PORT, _NAME_HOST = 16, 2, 4
"""Bytes of struct sockaddr_in of ip(7), and where its port and address begin, which are as they are on the wire."""

_VECTOR = np.dtype([("base", np.uintp), ("size", np.uintp)])
"""struct iovec of readv(2); pointers are numbers here."""

_HEADER = np.dtype(
    [
        ("name", np.uintp),
        ("name_size", np.uint32),
        ("vectors", np.uintp),
        ("vector_count", np.uintp),
        ("control", np.uintp),
        ("control_size", np.uintp),
        ("flags", np.int32),
    ],
    align=True,
)
"""struct msghdr of recvmsg(2)."""

_MESSAGE = np.dtype([("header", _HEADER), ("size", np.uint32)], align=True)
"""struct mmsghdr of recvmmsg(2)."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int)


class FrameBatch:
    """A buffer for ``rows`` frames, and what the system has to know of it: ``frames_in`` and ``frames_out`` move whole
    frames, ``datagrams_in`` and ``datagrams_out`` what follows the EtherType of each, with its socket address."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.frames = np.zeros((rows, ROOM), np.uint8)
        self.sizes = np.zeros(rows, np.int64)  # in bytes
        self.names = np.zeros((rows, _NAME_BYTES), np.uint8)  # struct sockaddr_in of ip(7), of datagrams
        self.names[:, :2] = np.array([socket.AF_INET], np.uint16).view(np.uint8)
        self.frames_in, self.frames_out = (_Messages(self.frames, self.sizes, 0) for _ in range(2))
        self.datagrams_in, self.datagrams_out = (
            _Messages(self.frames, self.sizes, ETHERNET_BYTES, self.names) for _ in range(2)
        )

    def frame(self, row: int) -> bytes:
        return self.frames[row, : self.sizes[row]].tobytes()

    def put(self, row: int, frame: bytes) -> None:
        """Set a frame; of one that is longer than a row, its beginning."""
        size = min(len(frame), ROOM)
        self.frames[row, :size] = np.frombuffer(frame, np.uint8, size)
        self.sizes[row] = size

    def put_heads(self, count: int, destination: int) -> None:
        """Complete the first rows, datagrams from `names`, to frames to a 48-bit address. One that is no packet, or not
        from a single host, becomes a frame of zeros, whose EtherType is nobody's."""
        _put_heads(self.frames, self.sizes, self.names, count, destination)

    def put_names(self, rows: Numbers) -> Numbers:
        """Set `names` to the destinations of rows; returns those rows whose destination stands for an IPv4 address."""
        named: Numbers = _put_names(self.frames, rows, self.names)
        return named

    def warm_up(self) -> None:
        """Compile, or load what was compiled before."""
        self.put_heads(0, 0)
        nothing = np.zeros(0, np.int64)
        self.put_names(nothing)
        self.frames_out.choose(nothing)


class _Messages:
    """Messages for the system, of one vector each: the bytes of a frame after its first ``head``, which count in
    ``sizes``, and perhaps its socket address."""

    def __init__(self, frames: Bytes, sizes: Numbers, head: int, names: Bytes | None = None) -> None:
        rows, size = frames.shape
        vectors, messages = np.zeros(rows, _VECTOR), np.zeros(rows, _MESSAGE)
        self._places = _places(frames) + np.uint64(head)
        vectors["base"], vectors["size"] = self._places, size - head
        headers = messages["header"]
        headers["vectors"], headers["vector_count"] = _places(vectors), 1
        if names is not None:
            headers["name"], headers["name_size"] = _places(names), names.shape[1]
        self._names = headers["name"].copy()
        self._chosen = vectors["base"], vectors["size"], headers["name"]
        self._came, self._sizes, self._head = messages["size"], sizes, head
        self._at, self._rows = messages.ctypes.data, rows

    def receive(self, descriptor: int) -> int:
        """Receive what waits at a socket, as many as there are rows; returns how many came. Raises OSError as
        recvmmsg(2), but not if nothing waits. The size of a name stays: all are of the same family."""
        count = int(_libc.recvmmsg(descriptor, self._at, self._rows, socket.MSG_DONTWAIT, None))
        if count < 0:
            if (error := _error()).errno not in (errno.EAGAIN, errno.EINTR):
                raise error
            return 0
        self._sizes[:count] = self._came[:count]
        self._sizes[:count] += self._head
        return count

    def choose(self, rows: Numbers) -> None:
        """Let the first messages be those of rows."""
        _choose(*self._chosen, self._places, self._names, rows, self._sizes, self._head)

    def send(self, descriptor: int, rows: Numbers) -> list[OSError]:
        """Send rows through a socket, in this order; returns an error of sendmmsg(2) for each that could not be sent:
        `BlockingIOError` for all the rest if the socket is full."""
        errors: list[OSError] = []
        while rows.size:
            self.choose(rows)
            count = int(_libc.sendmmsg(descriptor, self._at, rows.size, socket.MSG_DONTWAIT))
            if count < 0:  # of the first row; the next ones may be sent
                errors.append(error := _error())
                if isinstance(error, BlockingIOError):
                    return errors + [error] * (rows.size - 1)
                count = 1
            rows = rows[count:]
        return errors


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _places(rows: npt.NDArray[Any]) -> Places:
    """Where each row of an array is in memory."""
    return rows.ctypes.data + rows.strides[0] * np.arange(len(rows), dtype=np.uint64)


_IS_PACKET = np.isin(np.arange(ROOM + 1), list(PACKET_BYTES))
_FIRST_PORT, _END_OF_PORTS, _FIRST_GROUP_BYTE = PROGRAM_PORTS.start, PROGRAM_PORTS.stop, FIRST_GROUP >> 24
_END_OF_GROUPS_BYTE = _FIRST_GROUP_BYTE + 16
"""Multicast addresses are 224.0.0.0/4."""


@compiled(PURPOSE)
def _choose(
    bases: Places,
    lengths: Places,
    addresses: Places,
    places: Places,
    names: Places,
    rows: Numbers,
    sizes: Numbers,
    head: int,
) -> None:
    for message in range(rows.size):
        row = rows[message]
        bases[message], addresses[message] = places[row], names[row]
        lengths[message] = sizes[row] - head


@compiled(PURPOSE)
def _put_heads(frames: Bytes, sizes: Numbers, names: Bytes, count: int, destination: int) -> None:
    for row in range(count):
        frame, name = frames[row], names[row]
        if name[_NAME_HOST] >= _FIRST_GROUP_BYTE or not _IS_PACKET[sizes[row]]:
            frame[:FRAME_BYTES] = 0
            sizes[row] = FRAME_BYTES
            continue
        port = np.int64(name[_NAME_PORT]) << 8 | np.int64(name[_NAME_PORT + 1])
        is_programs = _FIRST_PORT <= port < _END_OF_PORTS and port != PORT
        prefix = PROGRAM_PREFIX | port & 0xFF if is_programs else HOST_PREFIX
        for byte in range(6):
            frame[byte] = destination >> 8 * (5 - byte) & 0xFF
        frame[6], frame[7] = prefix >> 8, prefix & 0xFF
        for byte in range(4):
            frame[8 + byte] = name[_NAME_HOST + byte]
        frame[12], frame[13] = ETHERTYPE >> 8, ETHERTYPE & 0xFF


@compiled(PURPOSE)
def _put_names(frames: Bytes, rows: Numbers, names: Bytes) -> Numbers:
    found = np.empty_like(rows)
    count = 0
    for row in rows:
        frame, name = frames[row], names[row]
        prefix = np.int64(frame[0]) << 8 | np.int64(frame[1])
        is_host = frame[2] < _FIRST_GROUP_BYTE and (frame[2] | frame[3] | frame[4] | frame[5]) != 0
        is_group = _FIRST_GROUP_BYTE <= frame[2] < _END_OF_GROUPS_BYTE
        is_everybody = frame[2] & frame[3] & frame[4] & frame[5] == 0xFF
        port = np.int64(PORT)
        if prefix & 0xFF00 == PROGRAM_PREFIX:
            port = np.int64(_FIRST_PORT + (prefix & 0xFF))
            is_found = is_host and port != PORT
        elif prefix == HOST_PREFIX:
            is_found = is_host
        else:
            is_found = (prefix == GROUP_PREFIX and is_group) or (prefix == BROADCAST >> 32 and is_everybody)
        if is_found:
            name[_NAME_PORT], name[_NAME_PORT + 1] = port >> 8, port & 0xFF
            for byte in range(4):
                name[_NAME_HOST + byte] = frame[2 + byte]
            found[count] = row
            count += 1
    return found[:count]
