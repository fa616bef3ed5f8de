"""Links by the names that users give."""

import errno
from ipaddress import AddressValueError, IPv4Address

from p4sgd.host.errors import UserError
from p4sgd.host.links.ethernet import EthernetLink
from p4sgd.host.links.link import Link
from p4sgd.host.links.udp import UdpLink
from p4sgd.hw.spec.udp import PORT

__all__ = ["open_link"]

_MOST_NAME_BYTES = 15
"""IFNAMSIZ of linux/if.h, without the zero at the end."""


def open_link(text: str) -> Link:
    """Open a link.

    Parameters
    ----------
    text
        ``eth0`` or ``ethernet:eth0`` for an Ethernet interface; ``udp:10.0.0.1`` or ``udp:10.0.0.1,group=239.1.2.3``
        for UDP, with a local address and perhaps a multicast address to receive as well.

    Raises
    ------
    UserError
        If the text does not name a link, or the link cannot be opened; the message says what to do.
    """
    kind, _, rest = text.partition(":")
    if kind == "udp":
        return _open_udp(text, rest)
    name = rest if kind == "ethernet" else text
    if not name or ":" in name or not name.isprintable():
        raise UserError(f"{text!r} is not a link: give one such as eth0, ethernet:eth0 or udp:10.0.0.1")
    if len(name.encode()) > _MOST_NAME_BYTES:
        raise UserError(
            f"{text}: a network interface's name has at most {_MOST_NAME_BYTES} bytes: ip link shows those there are"
        )
    try:
        return EthernetLink(name)
    except PermissionError:
        raise UserError(
            f"{text}: raw sockets need the capability CAP_NET_RAW: run as root, or in a user namespace of your own"
        ) from None
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise UserError(f"{text}: there is no such network interface: ip link shows those there are") from None
        raise UserError(f"{text}: cannot open it: {error.strerror or error}") from None


def _open_udp(text: str, rest: str) -> UdpLink:
    local, *options = rest.split(",")
    group = None
    for option in options:
        key, equals, value = option.partition("=")
        if key != "group" or not equals or group is not None:
            raise UserError(f"{text}: {option!r} is not an option of a UDP link: give group=239.1.2.3, once")
        group = _address(text, value)
        if not group.is_multicast:
            raise UserError(f"{text}: {value} is not a multicast address: those are 224.0.0.0 to 239.255.255.255")
    address = _address(text, local)
    if address.is_multicast or address.is_unspecified or address == IPv4Address("255.255.255.255"):
        raise UserError(f"{text}: {local} is not the address of a single host")
    try:
        return UdpLink(address, group)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UserError(f"{text}: {local} is not an address of this machine: ip address shows those") from None
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"{text}: another program uses port {PORT} of {local}") from None
        raise UserError(f"{text}: cannot open it: {error.strerror or error}") from None


def _address(text: str, value: str) -> IPv4Address:
    try:
        return IPv4Address(value)
    except AddressValueError:
        raise UserError(f"{text}: {value!r} is not an IPv4 address such as 10.0.0.1") from None
