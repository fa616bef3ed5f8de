"""Many frames at a time: buffers for them, and the system calls that send and receive them."""

import ctypes
import errno
import os
import socket
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.packet import MOST_BYTES

__all__ = ["FrameBatch"]

ROOM = -(-(MOST_BYTES + 1) // 64) * 64
"""Bytes of a row: more than those of any packet, so that a frame that is cut is still too long."""


class _Vector(ctypes.Structure):
    """struct iovec of readv(2); pointers are numbers here, as arrays know none."""

    _fields_ = (("base", ctypes.c_size_t), ("size", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct msghdr of recvmsg(2)."""

    _fields_ = (
        ("name", ctypes.c_size_t),
        ("name_size", ctypes.c_uint),
        ("vectors", ctypes.c_size_t),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_size_t),
        ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """struct mmsghdr of recvmmsg(2)."""

    _fields_ = (("header", _Header), ("size", ctypes.c_uint))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int)


class FrameBatch:
    """A buffer for frames, and what the system has to know of it.

    Parameters
    ----------
    rows
        Most frames in it.

    Attributes
    ----------
    frames
        Their bytes, uint8 (rows, `ROOM`).
    sizes
        Their sizes in bytes, int64 (rows,).
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.frames = np.zeros((rows, ROOM), np.uint8)
        self.sizes = np.zeros(rows, np.int64)
        places = self.frames.ctypes.data + ROOM * np.arange(rows, dtype=np.uint64)
        self._places = places
        self._to_receive, self._room = _describe(places)
        self._to_send, self._content = _describe(places)
        self._at_receive, self._at_send = self._to_receive.ctypes.data, self._to_send.ctypes.data

    def frame(self, row: int) -> bytes:
        """A frame's bytes."""
        return self.frames[row, : self.sizes[row]].tobytes()

    def put(self, row: int, frame: bytes) -> None:
        """Set a frame. Of one that is longer than a row the beginning is kept."""
        size = min(len(frame), ROOM)
        self.frames[row, :size] = np.frombuffer(frame, np.uint8, size)
        self.sizes[row] = size

    def receive(self, descriptor: int) -> int:
        """Receive the frames that wait at a socket, as many as there are rows; returns how many came.

        Raises
        ------
        OSError
            As recvmmsg(2), but not if no frame waits.
        """
        count = int(_libc.recvmmsg(descriptor, self._at_receive, self.rows, socket.MSG_DONTWAIT, None))
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return 0
            raise OSError(number, os.strerror(number))
        self.sizes[:count] = self._to_receive["size"][:count]
        return count

    def send(self, descriptor: int, rows: npt.NDArray[np.int64]) -> int:
        """Send rows through a socket, in this order; returns how many it has taken before one could not be sent.

        Raises
        ------
        OSError
            As sendmmsg(2), if the first row cannot be sent: `BlockingIOError` if the socket is full.
        """
        self._content["base"][: rows.size] = self._places[rows]
        self._content["size"][: rows.size] = self.sizes[rows]
        count = int(_libc.sendmmsg(descriptor, self._at_send, rows.size, socket.MSG_DONTWAIT))
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return count


def _describe(places: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Messages of one vector each, and their vectors, for rows at these places."""
    vectors, messages = np.zeros(places.size, np.dtype(_Vector)), np.zeros(places.size, np.dtype(_Message))
    vectors["base"], vectors["size"] = places, ROOM
    messages["header"]["vectors"] = vectors.ctypes.data + vectors.itemsize * np.arange(places.size, dtype=np.uint64)
    messages["header"]["vector_count"] = 1
    return messages, vectors
