"""What every link offers.

What every link offers.

Room for frames that come faster than they are read.
"""

import contextlib
import socket
from typing import Protocol

__all__ = ["Link", "enlarge_receive_buffer"]


class Link(Protocol):
    """A way to send and receive the frames of the protocol: 64 bytes, as `p4sgd.hw.spec.packet` has them.

    No call blocks, and none fails because the network does: what cannot be sent is lost, which the protocol stands.

    Attributes
    ----------
    lost : int
        Frames that `send` could not hand to the network.
    """

    lost: int

    def fileno(self) -> int:
        """A descriptor that is readable when a frame waits, for :mod:`selectors`."""
        ...

    def reaches(self, address: int) -> bool:
        """Whether frames can be sent to an address of 48 bits at all; others are lost."""
        ...

    def send(self, frame: bytes) -> None:
        """Send a frame of 64 bytes; if the transmit queue is full or the link down, it is lost."""
        ...

    def receive(self) -> bytes | None:
        """The next frame, of whatever length; None if none waits."""
        ...

    def close(self) -> None:
        """Give the link back. It is not used any more."""
        ...


_SO_RCVBUFFORCE = 33
"""From asm-generic/socket.h; :mod:`socket` does not have it."""

_BYTES = 4 << 20
"""Some 5,000 small frames, as Linux counts them."""


def enlarge_receive_buffer(receiver: socket.socket) -> None:
    """Give a socket a large receive buffer: where we may not go beyond the system's limit, as large as that."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BYTES)
    with contextlib.suppress(PermissionError):
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BYTES)
