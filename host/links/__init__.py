"""Network links that send and receive frames of the protocol over Ethernet or UDP, on Linux."""

from p4sgd.host.links.link import Link
from p4sgd.host.links.opening import open_link

__all__ = ["Link", "open_link"]
