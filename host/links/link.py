"""Interface of network links."""

import contextlib
import socket
from typing import Protocol

__all__ = ["Link", "enlarge_receive_buffer"]


class Link(Protocol):
    """Sends and receives frames of the protocol: 64 bytes, as in `p4sgd.hw.spec.packet`.

    Calls neither block nor raise network errors. Frames that cannot be sent are lost, which the protocol allows for.
    """

    @property
    def lost(self) -> int:
        """Frames that `send` could not send."""
        ...

    @property
    def address(self) -> int | None:
        """The 48-bit address that frames are sent from, whatever their source, and received at; None if it is any."""
        ...

    def fileno(self) -> int:
        """File descriptor for :mod:`selectors`, readable when a frame is waiting."""
        ...

    def reaches(self, address: int) -> bool:
        """Whether the link can send frames to a 48-bit address; frames to other addresses are lost."""
        ...

    def send(self, frame: bytes) -> None:
        """Send a frame of 64 bytes. It is lost if the transmit queue is full or the link is down."""
        ...

    def receive(self) -> bytes | None:
        """The next frame, of any length; None if none is waiting."""
        ...

    def close(self) -> None:
        """Close the link."""
        ...


_SO_RCVBUFFORCE = 33
"""From asm-generic/socket.h; :mod:`socket` does not have it."""

_BYTES = 4 << 20
"""Some 5,000 small frames, as Linux counts them."""


def enlarge_receive_buffer(receiver: socket.socket) -> None:
    """Enlarge a socket's receive buffer; without root only up to the system's limit."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BYTES)
    with contextlib.suppress(PermissionError):
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BYTES)
