"""Interface of network links, and what they ask of Linux."""

import contextlib
import fcntl
import socket
import struct
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from p4sgd.host.links.batch import FrameBatch


class Link(Protocol):
    """Sends and receives frames of the protocol, `p4sgd.hw.spec.packet`.

    Calls neither block nor raise network errors. Frames that cannot be sent are lost, which the protocol allows for.
    """

    @property
    def lost(self) -> int:
        """Frames that `send` could not send."""

    @property
    def address(self) -> int | None:
        """The 48-bit address that frames are sent from, whatever their source, and received at; None if it is any."""

    @property
    def most_bytes(self) -> int:
        """Bytes of the longest frame that the network carries."""

    def fileno(self) -> int:
        """File descriptor for :mod:`selectors`, readable when a frame is waiting."""

    def reaches(self, address: int) -> bool:
        """Whether the link can send frames to a 48-bit address; frames to other addresses are lost."""

    def send(self, frame: bytes) -> None:
        """Send a frame. It is lost if the transmit queue is full or the link is down."""

    def receive(self) -> bytes | None:
        """The next frame, of any length; None if none is waiting."""

    def close(self) -> None:
        """Close the link."""


class BatchLink(Link, Protocol):
    """A link that moves many frames at a time, too, for an aggregator whose frames never become objects.

    To workers, whose do, it is no use: of 8 frames each takes 1 µs to send one by one on Ethernet, 2 µs in a batch.
    """

    def send_batch(self, batch: "FrameBatch", rows: npt.NDArray[np.int64]) -> None:
        """Send rows of a batch, as `send` does."""

    def receive_batch(self, batch: "FrameBatch") -> int:
        """Receive the next frames, as many as there are rows; returns how many were waiting."""


_SO_RCVBUFFORCE = 33
SIOCGIFMTU = 0x8921
SIOCGIFINDEX = 0x8933
"""From asm-generic/socket.h and linux/sockios.h; :mod:`socket` does not have them."""

_BYTES = 4 << 20
"""Some 5,000 small frames, as Linux counts them."""


def enlarge_receive_buffer(receiver: socket.socket) -> None:
    """Enlarge a socket's receive buffer; without root only up to the system's limit."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BYTES)
    with contextlib.suppress(PermissionError):
        receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BYTES)


def ask_interface(opened: socket.socket, interface: str, request: int) -> int:
    """A number of a network interface in the namespace of a socket, `SIOCGIFMTU` or `SIOCGIFINDEX`; raises OSError if
    there is no such interface."""
    answer = fcntl.ioctl(opened, request, struct.pack("16si", interface.encode(), 0))
    return int(struct.unpack_from("16si", answer)[1])
