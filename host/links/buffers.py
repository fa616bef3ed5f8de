"""Room for frames that come faster than they are read."""

import contextlib
import socket

__all__ = ["enlarge_receive_buffer"]

_SO_RCVBUFFORCE = 33
"""From asm-generic/socket.h; :mod:`socket` does not have it."""

_BYTES = 4 << 20
"""Some 5,000 small frames, as Linux counts them."""


def enlarge_receive_buffer(receiver: socket.socket) -> None:
    """Give a socket a large receive buffer: where we may not go beyond the system's limit, as large as that."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BYTES)
    with contextlib.suppress(PermissionError):
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BYTES)
