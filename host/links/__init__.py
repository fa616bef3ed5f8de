"""Ways for the frames of the protocol into a real network and out of it: Ethernet and UDP, on Linux."""

from p4sgd.host.links.link import Link
from p4sgd.host.links.opening import open_link

__all__ = ["Link", "open_link"]
