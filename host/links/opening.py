"""Links by the names that users give."""

import errno
from ipaddress import AddressValueError, IPv4Address

from p4sgd.host.errors import UserError
from p4sgd.host.links.ethernet import EthernetLink
from p4sgd.host.links.link import BatchLink
from p4sgd.host.links.udp import UdpLink, parse_udp_address
from p4sgd.hw.spec.udp import PROGRAM_PORTS, socket_address_of

UDP = "udp:"
"""How the names of links in UDP begin."""

_MOST_NAME_BYTES = 15
"""IFNAMSIZ of linux/if.h, without the zero at the end."""


def open_link(text: str) -> BatchLink:
    """Open a link; a `UserError` if the text does not name one, or it cannot be opened, which says what to do.

    The text is ``eth0`` or ``ethernet:eth0`` for an Ethernet interface; ``udp:10.0.0.1``, ``udp:10.0.0.1:51201`` or
    ``udp:10.0.0.1,group=239.1.2.3`` for UDP, with a local address, perhaps a port, and perhaps a multicast address to
    receive as well.
    """
    name = text.removeprefix("ethernet:")
    is_udp = text.startswith(UDP)
    if not is_udp and (not name or ":" in name or not name.isprintable()):
        raise UserError(f"{text!r} is not a link: give one such as eth0, ethernet:eth0 or udp:10.0.0.1")
    try:
        return _open_udp(text.removeprefix(UDP)) if is_udp else _open_ethernet(name)
    except UserError as error:
        raise UserError(f"{text}: {error}") from None
    except OSError as error:
        raise UserError(f"{text}: cannot open it: {error.strerror or error}") from None


def _open_ethernet(name: str) -> EthernetLink:
    if len(name.encode()) > _MOST_NAME_BYTES:
        raise UserError(
            f"a network interface's name has at most {_MOST_NAME_BYTES} bytes: ip link shows those there are"
        )
    try:
        return EthernetLink(name)
    except PermissionError:
        raise UserError(
            "raw sockets need the capability CAP_NET_RAW: run as root, or in a user namespace of your own, or take "
            "udp:ADDRESS, which needs none"
        ) from None
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise UserError("there is no such network interface: ip link shows those there are") from None
        raise


def _open_udp(text: str) -> UdpLink:
    local, *options = text.split(",")
    address, group = parse_udp_address(local), None
    for option in options:
        key, equals, value = option.partition("=")
        if key != "group" or not equals or group is not None:
            raise UserError(f"{option!r} is not an option of a UDP link: give group=239.1.2.3, once")
        try:
            group = IPv4Address(value)
        except AddressValueError:
            raise UserError(f"{value!r} is not an IPv4 address such as 239.1.2.3") from None
        if not group.is_multicast:
            raise UserError(f"{value} is not a multicast address: those are 224.0.0.0 to 239.255.255.255")
    try:
        return UdpLink(address, group)
    except OSError as error:
        ipv4, port = socket_address_of(address)
        if error.errno == errno.EADDRNOTAVAIL:
            raise UserError(f"{ipv4} is not an address of this machine: ip address shows those") from None
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"another program uses port {port} of {ipv4}: end it, or choose a port from {PROGRAM_PORTS[0]} to "
                f"{PROGRAM_PORTS[-1]}, as in udp:{ipv4}:{PROGRAM_PORTS[1]}"
            ) from None
        raise
