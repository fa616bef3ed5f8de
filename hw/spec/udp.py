"""The packet in UDP and IPv4, for networks with routers.

The payload of the UDP datagram is the frame of a packet (:mod:`p4sgd.hw.spec.packet`) after its EtherType. The
frame with the datagram is declared once, in `FIELDS`; the codec here, the RTL and the documents come from it.

Endpoint and aggregator work with 48-bit addresses whether packets travel in UDP or not. In UDP such an address stands
for an IPv4 address, and LOCAL_MAC, PEER_MAC, MEMBER_MAC, GROUP_MAC and the aggregator's MAC hold these numbers:

==========================================  ===================================
a.b.c.d                                     02:00:a:b:c:d
multicast, 224.0.0.0 to 239.255.255.255     03:00:a:b:c:d, with the group bit
255.255.255.255                             ff:ff:ff:ff:ff:ff
a.b.c.d at UDP port 51200 + p               06:p:a:b:c:d
==========================================  ===================================

The last is for programs, of which several may have the same IPv4 address; all others are at `PORT`. Nobody has 0.0.0.0
or another address from 240.0.0.0 on (RFC 1122, section 3.2.1.3; RFC 1112, section 4).
"""

import contextlib
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address

from p4sgd.hw.spec import packet
from p4sgd.hw.spec.packet import BROADCAST, layout

__all__ = [
    "ETHERNET_BYTES",
    "FIELDS",
    "FIRST_GROUP",
    "FRAME_BYTES",
    "GROUP_PREFIX",
    "HEADER",
    "HEADER_BYTES",
    "HOST_PREFIX",
    "MULTICAST_MAC",
    "MULTICAST_MAC_BITS",
    "PORT",
    "PROGRAM_PORTS",
    "PROGRAM_PREFIX",
    "REQUIRED",
    "SENT",
    "address_of",
    "decapsulate",
    "encapsulate",
    "ip_sum",
    "ipv4_of",
    "is_unicast",
    "socket_address_of",
]

ETHERNET_BYTES = 14
"""Bytes of a frame up to and including the EtherType, in UDP or not."""

_IP_BYTES = 20
_UDP_BYTES = 8

HEADER_BYTES = ETHERNET_BYTES + _IP_BYTES + _UDP_BYTES
"""Bytes of the frame before the packet's version."""

FRAME_BYTES = HEADER_BYTES + packet.FRAME_BYTES - ETHERNET_BYTES
"""Bytes of every frame, without the frame check sequence."""

PORT = 0xC8B5
"""UDP port of both sides, 51381: a dynamic port, free for any use (RFC 6335, section 6)."""

PROGRAM_PORTS = range(0xC800, 0xC900)
"""UDP ports that programs may have, 51200 to 51455; hardware has `PORT`."""

HOST_PREFIX = 0x0200
"""Bits 47..32 of the number that stands for the IPv4 address of a single host."""

PROGRAM_PREFIX = 0x0600
"""Bits 47..32 of the number that stands for address and port of a program; the port's low byte is added."""

GROUP_PREFIX = 0x0300
"""Bits 47..32 of the number that stands for a multicast address."""

FIRST_GROUP = 224 << 24
"""The first multicast address (RFC 1112, section 4). No address from here on is that of a single host."""

MULTICAST_MAC = 0x0100_5E00_0000
"""MAC address of group 224.0.0.0; other groups put their lowest `MULTICAST_MAC_BITS` bits into it (RFC 1112, 6.4)."""

MULTICAST_MAC_BITS = 23

FIELDS = layout(
    FRAME_BYTES,
    ("destination", 48, "destination MAC address"),
    ("source", 48, "source MAC address"),
    ("ethertype", 16, "0x0800, IPv4"),
    ("ip_version", 4, "4"),
    ("ip_header_words", 4, "5: no options"),
    ("ip_tos", 8, "DSCP and ECN; sent as 0"),
    ("ip_length", 16, "bytes from ip_version on, 78"),
    ("ip_id", 16, "sent as 0: it has a meaning only in fragments (RFC 6864)"),
    ("ip_reserved", 1, "0"),
    ("ip_dont_fragment", 1, "sent as 1"),
    ("ip_more_fragments", 1, "0"),
    ("ip_fragment_offset", 13, "0"),
    ("ip_ttl", 8, "sent as 64"),
    ("ip_protocol", 8, "17, UDP"),
    ("ip_checksum", 16, "of the ten words from ip_version on (RFC 1071)"),
    ("ip_source", 32, "source address, below 224.0.0.0"),
    ("ip_destination", 32, "destination address"),
    ("udp_source", 16, "source port; sent as 51381"),
    ("udp_destination", 16, "destination port, 51381"),
    ("udp_length", 16, "bytes from udp_source on, 58"),
    ("udp_checksum", 16, "0: no checksum (RFC 768)"),
    *((name, bits, text) for name, offset, bits, text in packet.FIELDS if offset >= 8 * ETHERNET_BYTES),
)
"""The fields of the frame in network order: Ethernet, IPv4 (RFC 791), UDP (RFC 768), the packet from its version on."""

HEADER = tuple(field for field in FIELDS if field.offset_bits < 8 * HEADER_BYTES)
"""The fields of `FIELDS` before the packet's own."""

REQUIRED = {
    "ethertype": 0x0800,
    "ip_version": 4,
    "ip_header_words": _IP_BYTES // 4,
    "ip_length": FRAME_BYTES - ETHERNET_BYTES,
    "ip_reserved": 0,
    "ip_more_fragments": 0,
    "ip_fragment_offset": 0,
    "ip_protocol": 17,
    "udp_destination": PORT,
    "udp_length": FRAME_BYTES - ETHERNET_BYTES - _IP_BYTES,
    "udp_checksum": 0,
}
"""Fields of the header that must have these values in received frames."""

SENT = REQUIRED | {"ip_tos": 0, "ip_id": 0, "ip_dont_fragment": 1, "ip_ttl": 64, "udp_source": PORT}
"""Fields of the header that have the same value in all frames sent: all but addresses and checksum."""


def is_unicast(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is that of a single host: not multicast, nor IPv4 from 240.0.0.0 on, which no host has."""
    return not (address.is_multicast or (address.version == 4 and address.is_reserved))


def address_of(ipv4: IPv4Address, port: int = PORT) -> int:
    """The 48-bit number that stands for an IPv4 address, and for the UDP port of a program.

    Raises
    ------
    ValueError
        If no number stands for this port.
    """
    if port != PORT:
        if port not in PROGRAM_PORTS or int(ipv4) >= FIRST_GROUP:
            raise ValueError(f"no number stands for port {port} of {ipv4}")
        return (PROGRAM_PREFIX | port & 0xFF) << 32 | int(ipv4)
    if int(ipv4) == (1 << 32) - 1:
        return BROADCAST
    return (GROUP_PREFIX if ipv4.is_multicast else HOST_PREFIX) << 32 | int(ipv4)


def socket_address_of(address: int) -> tuple[IPv4Address, int]:
    """The IPv4 address and the UDP port that a 48-bit number stands for.

    Raises
    ------
    ValueError
        If it stands for none, or for one that nobody can have.
    """
    ipv4, prefix = IPv4Address(address & 0xFFFFFFFF), address >> 32
    port = PROGRAM_PORTS[prefix & 0xFF] if prefix & 0xFF00 == PROGRAM_PREFIX else PORT
    with contextlib.suppress(ValueError):
        is_somebodys = not ipv4.is_unspecified and (not ipv4.is_reserved or address == BROADCAST)
        if is_somebodys and address_of(ipv4, port) == address:
            return ipv4, port
    raise ValueError(f"{address:#014x} stands for no IPv4 address")


def ipv4_of(address: int) -> IPv4Address:
    """The IPv4 address that a 48-bit number of the hardware stands for.

    Raises
    ------
    ValueError
        If it stands for none, or for a port of a program.
    """
    ipv4, port = socket_address_of(address)
    if port != PORT:
        raise ValueError(f"{address:#014x} stands for port {port} of {ipv4}: hardware has port {PORT}")
    return ipv4


def _header(values: Mapping[str, int]) -> bytes:
    """The header with these values of fields; other fields are 0."""
    number = 0
    for field in HEADER:
        number = number << field.bits | values.get(field.name, 0)
    return number.to_bytes(HEADER_BYTES, "big")


def ip_sum(values: Mapping[str, int]) -> int:
    """Sum of the ten 16-bit words of the IPv4 header with these values of fields; other fields are 0.

    Modulo 2^16 - 1 it is the ones' complement sum of RFC 1071: 0 for a header with a right checksum.
    """
    header = _header(values)[ETHERNET_BYTES : ETHERNET_BYTES + _IP_BYTES]
    return sum(int.from_bytes(header[byte : byte + 2], "big") for byte in range(0, _IP_BYTES, 2))


def encapsulate(frame: bytes, *, ethernet_source: int, next_hop: int) -> bytes:
    """The frame on the wire, with a UDP datagram, for a frame of the core.

    Parameters
    ----------
    frame
        64 bytes; its addresses stand for IPv4 addresses.
    ethernet_source
        The sender's real MAC address.
    next_hop
        MAC address that a frame to a single host goes to: that of a router, or of the host itself.

    Returns
    -------
    92 bytes.

    Raises
    ------
    ValueError
        If the frame has another length, or an address stands for no IPv4 address.
    """
    if len(frame) != packet.FRAME_BYTES:
        raise ValueError(f"a frame has {packet.FRAME_BYTES} bytes, not {len(frame)}")
    to, source = (ipv4_of(int.from_bytes(frame[first : first + 6], "big")) for first in (0, 6))
    if to.is_multicast:
        destination = MULTICAST_MAC | int(to) & ((1 << MULTICAST_MAC_BITS) - 1)
    else:
        destination = BROADCAST if address_of(to) == BROADCAST else next_hop
    values = {
        "destination": destination,
        "source": ethernet_source,
        "ip_source": int(source),
        "ip_destination": int(to),
    }
    values |= SENT
    values["ip_checksum"] = -ip_sum(values) % 0xFFFF
    return _header(values) + frame[ETHERNET_BYTES:]


def decapsulate(frame: bytes) -> bytes | None:
    """The core's 64-byte frame in a frame from the wire; None if there is none.

    There is one in a frame of 92 bytes with a whole datagram for `PORT` from a single host, without IPv4 options and
    UDP checksum. MAC addresses, the source port and header fields that routers may change are not checked.
    """
    if len(frame) != FRAME_BYTES:
        return None
    number = int.from_bytes(frame[:HEADER_BYTES], "big")
    end = 8 * HEADER_BYTES
    got = {name: number >> (end - offset - bits) & ((1 << bits) - 1) for name, offset, bits, _ in HEADER}
    source, destination = (address_of(IPv4Address(got[name])) for name in ("ip_source", "ip_destination"))
    is_ours = all(got[name] == value for name, value in REQUIRED.items())
    if not is_ours or ip_sum(got) % 0xFFFF or got["ip_source"] >= FIRST_GROUP:
        return None
    addresses = destination.to_bytes(6, "big") + source.to_bytes(6, "big")
    return addresses + packet.ETHERTYPE.to_bytes(2, "big") + frame[HEADER_BYTES:]
