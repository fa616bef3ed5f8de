"""The packet in UDP and IPv4, for networks with routers.

What is behind the EtherType of a packet's frame (:mod:`p4sgd.hw.spec.packet`) becomes the payload of a UDP datagram.
The frame of that is declared once, in `FIELDS`; the codec here, the RTL and the documents come from it.

Endpoint and aggregator know nothing of it. To them an IPv4 address is a number of 48 bits, like a MAC address, and such
numbers are what LOCAL_MAC, PEER_MAC, MEMBER_MAC, GROUP_MAC and the aggregator's MAC hold:

==========================================  ===================================
a.b.c.d                                     02:00:a:b:c:d
multicast, 224.0.0.0 to 239.255.255.255     03:00:a:b:c:d, so with the group bit
255.255.255.255                             ff:ff:ff:ff:ff:ff
==========================================  ===================================
"""

from collections.abc import Mapping
from ipaddress import IPv4Address

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
    "REQUIRED",
    "SENT",
    "address_of",
    "decapsulate",
    "encapsulate",
    "ip_sum",
    "ipv4_of",
]

ETHERNET_BYTES = 14
"""Bytes of a frame, in UDP or not, from its beginning to behind the EtherType."""

_IP_BYTES = 20
_UDP_BYTES = 8

HEADER_BYTES = ETHERNET_BYTES + _IP_BYTES + _UDP_BYTES
"""Bytes of the frame before the packet's version."""

FRAME_BYTES = HEADER_BYTES + packet.FRAME_BYTES - ETHERNET_BYTES
"""Bytes of every frame, without the frame check sequence."""

PORT = 0xC8B5
"""UDP port of both sides, 51381: one of the dynamic ports, which anybody may use (RFC 6335, section 6)."""

HOST_PREFIX = 0x0200
"""What stands before an IPv4 address in its number, bits 47..32."""

GROUP_PREFIX = 0x0300
"""The same before a multicast address."""

FIRST_GROUP = 224 << 24
"""The first multicast address (RFC 1112, section 4). None from here on is that of a single host."""

MULTICAST_MAC = 0x0100_5E00_0000
"""MAC address of 224.0.0.0; those of others have their lowest `MULTICAST_MAC_BITS` bits (RFC 1112, section 6.4)."""

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
    ("ip_id", 16, "sent as 0: without fragments it says nothing (RFC 6864)"),
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
    ("udp_checksum", 16, "0: there is none (RFC 768)"),
    *((name, bits, text) for name, offset, bits, text in packet.FIELDS if offset >= 8 * ETHERNET_BYTES),
)
"""The frame, field by field, in network order: Ethernet, IPv4 (RFC 791), UDP (RFC 768), the packet from version on."""

HEADER = tuple(field for field in FIELDS if field.offset_bits < 8 * HEADER_BYTES)
"""The fields before the packet's."""

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
"""Fields of the header that must have these values."""

SENT = REQUIRED | {"ip_tos": 0, "ip_id": 0, "ip_dont_fragment": 1, "ip_ttl": 64, "udp_source": PORT}
"""Fields that are always sent with these values: all but addresses and checksum."""


def address_of(ipv4: IPv4Address) -> int:
    """The number of 48 bits that stands for an IPv4 address."""
    if int(ipv4) == (1 << 32) - 1:
        return BROADCAST
    return (GROUP_PREFIX if ipv4.is_multicast else HOST_PREFIX) << 32 | int(ipv4)


def ipv4_of(address: int) -> IPv4Address:
    """The IPv4 address that a number of 48 bits stands for.

    Raises
    ------
    ValueError
        If it stands for none.
    """
    ipv4 = IPv4Address(address & 0xFFFFFFFF)
    if address_of(ipv4) != address:
        raise ValueError(f"{address:#014x} stands for no IPv4 address")
    return ipv4


def _header(values: Mapping[str, int]) -> bytes:
    """The header with these fields, the others 0."""
    number = 0
    for field in HEADER:
        number = number << field.bits | values.get(field.name, 0)
    return number.to_bytes(HEADER_BYTES, "big")


def ip_sum(values: Mapping[str, int]) -> int:
    """Sum of the IPv4 header's ten words of 16 bits, with these values of `HEADER`, other fields 0.

    Sums are right modulo 2^16 - 1 (RFC 1071, ones' complement): that of a whole header with its checksum is 0.
    """
    header = _header(values)[ETHERNET_BYTES : ETHERNET_BYTES + _IP_BYTES]
    return sum(int.from_bytes(header[byte : byte + 2], "big") for byte in range(0, _IP_BYTES, 2))


def encapsulate(frame: bytes, *, ethernet_source: int, next_hop: int) -> bytes:
    """The frame on the wire for a frame of the core.

    Parameters
    ----------
    frame
        64 bytes; its addresses are numbers that stand for IPv4 addresses.
    ethernet_source
        The sender's MAC address.
    next_hop
        MAC address that a frame for a single host goes to: that of a router, or of the host itself.

    Returns
    -------
    bytes
        92 of them.

    Raises
    ------
    ValueError
        If the frame has another length, or an address that is none.
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
    """The core's frame of 64 bytes that is in a frame from the wire; None if there is none.

    None is what it says to all but whole datagrams, in 92 bytes, of a single host, for `PORT`, without IPv4 options and
    without a UDP checksum. MAC addresses, the source port and what routers may change are not looked at.
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
