"""Addresses of packets in UDP and IPv4, which programs speak.

The payload of a datagram is the frame of a packet (:mod:`p4sgd.hw.spec.packet`) after its EtherType. All parts work
with 48-bit addresses; in UDP such a number stands for an IPv4 address and a port:

==========================================  ===================================
a.b.c.d, at UDP port `PORT`                 02:00:a:b:c:d
a.b.c.d at UDP port 51200 + p               06:p:a:b:c:d
multicast, 224.0.0.0 to 239.255.255.255     03:00:a:b:c:d, with the group bit
255.255.255.255                             ff:ff:ff:ff:ff:ff
==========================================  ===================================

Nobody has 0.0.0.0 or another address from 240.0.0.0 on (RFC 1122, section 3.2.1.3; RFC 1112, section 4).
"""

import contextlib
from ipaddress import IPv4Address, IPv6Address

from p4sgd.hw.spec.packet import BROADCAST, FRAME_BYTES, MOST_BYTES, frame_bytes, most_micro_batches

ETHERNET_BYTES = 14  # bytes of a frame up to and including the EtherType
HEADER_BYTES = ETHERNET_BYTES + 20 + 8  # the headers of Ethernet, IPv4 and UDP before a datagram's payload
LONGEST_PAYLOAD = MOST_BYTES - HEADER_BYTES  # most bytes of a datagram's payload

PACKET_BYTES = {FRAME_BYTES, *map(frame_bytes, range(1, most_micro_batches(ETHERNET_BYTES + LONGEST_PAYLOAD) + 1))}
"""Bytes of the packets that a datagram has room for."""

PORT = 0xC8B5  # default UDP port, 51381: a dynamic port, free for any use (RFC 6335, section 6)
PROGRAM_PORTS = range(0xC800, 0xC900)  # 51200 to 51455, of programs that share an IPv4 address
HOST_PREFIX, PROGRAM_PREFIX, GROUP_PREFIX = 0x0200, 0x0600, 0x0300  # bits 47..32
FIRST_GROUP = 224 << 24  # multicast (RFC 1112, section 4); no host's address is from here on


def is_unicast(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is that of a single host: not multicast, nor IPv4 from 240.0.0.0 on, which no host has."""
    return not (address.is_multicast or (address.version == 4 and address.is_reserved))


def address_of(ipv4: IPv4Address, port: int = PORT) -> int:
    """The 48-bit number that stands for an IPv4 address and a UDP port; ValueError if none stands for this port."""
    if port != PORT:
        if port not in PROGRAM_PORTS or int(ipv4) >= FIRST_GROUP:
            raise ValueError(f"no number stands for port {port} of {ipv4}")
        return (PROGRAM_PREFIX | port & 0xFF) << 32 | int(ipv4)
    if int(ipv4) == (1 << 32) - 1:
        return BROADCAST
    return (GROUP_PREFIX if ipv4.is_multicast else HOST_PREFIX) << 32 | int(ipv4)


def socket_address_of(address: int) -> tuple[IPv4Address, int]:
    """The IPv4 address and UDP port that a number stands for; ValueError if for none, or one that nobody can have."""
    ipv4, prefix = IPv4Address(address & 0xFFFFFFFF), address >> 32
    port = PROGRAM_PORTS[prefix & 0xFF] if prefix & 0xFF00 == PROGRAM_PREFIX else PORT
    with contextlib.suppress(ValueError):
        is_somebodys = not ipv4.is_unspecified and (not ipv4.is_reserved or address == BROADCAST)
        if is_somebodys and address_of(ipv4, port) == address:
            return ipv4, port
    raise ValueError(f"{address:#014x} stands for no IPv4 address")
