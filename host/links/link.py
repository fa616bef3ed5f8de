"""What every link offers."""

from typing import Protocol

__all__ = ["Link"]


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
