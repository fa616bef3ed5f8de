"""The interface of network links."""

import contextlib
import socket
from typing import Protocol

__all__ = ["Link", "enlarge_receive_buffer"]


class Link(Protocol):
    """Sends and receives frames of the protocol: 64 bytes, as in `p4sgd.hw.spec.packet`.

    Calls neither block nor raise errors of the network. Frames that cannot be sent are lost, as the protocol allows.

    Attributes
    ----------
    lost : int
        Frames that `send` could not send.
    """

    lost: int

    def fileno(self) -> int:
        """File descriptor for :mod:`selectors`, readable when a frame waits."""
        ...

    def reaches(self, address: int) -> bool:
        """Whether the link can send frames to an address of 48 bits; other frames are lost."""
        ...

    def send(self, frame: bytes) -> None:
        """Send a frame of 64 bytes. It is lost if the transmit queue is full or the link is down."""
        ...

    def receive(self) -> bytes | None:
        """The next frame, of any length; None if none waits."""
        ...

    def close(self) -> None:
        """Close the link."""
        ...


_SO_RCVBUFFORCE = 33
"""From asm-generic/socket.h; :mod:`socket` does not have it."""

_BYTES = 4 << 20
"""Some 5,000 small frames, as Linux counts them."""


def enlarge_receive_buffer(receiver: socket.socket) -> None:
    """Enlarge a socket's receive buffer, to the system's limit where only root may exceed that."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BYTES)
    with contextlib.suppress(PermissionError):
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BYTES)
