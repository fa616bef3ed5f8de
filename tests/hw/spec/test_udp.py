"""Numbers that stand for addresses of packets in UDP."""

from ipaddress import IPv4Address

import pytest

from p4sgd.hw.spec.packet import BROADCAST, GROUP_BIT
from p4sgd.hw.spec.udp import PORT, address_of, socket_address_of


@pytest.mark.parametrize(
    ("ipv4", "port", "address"),
    [
        ("10.1.2.3", PORT, 0x02000A010203),
        ("223.255.255.255", PORT, 0x0200DFFFFFFF),
        ("224.0.0.0", PORT, 0x0300E0000000),
        ("239.255.255.255", PORT, 0x0300EFFFFFFF),
        ("255.255.255.255", PORT, BROADCAST),
        ("10.1.2.3", 51200, 0x06000A010203),
        ("10.1.2.3", 51201, 0x06010A010203),
        ("10.1.2.3", 51380, 0x06B40A010203),
        ("10.1.2.3", 51455, 0x06FF0A010203),
    ],
)
def test_numbers_of_addresses(ipv4, port, address):
    assert address_of(IPv4Address(ipv4), port) == address
    assert socket_address_of(address) == (IPv4Address(ipv4), port)
    assert address >> GROUP_BIT & 1 == (ipv4.startswith(("224", "239")) or ipv4.endswith("255.255.255.255"))


@pytest.mark.parametrize(
    "address",
    [
        *(0, 0x02010A010203, 0x03000A010203, 0x0200E0000000, 0x0200FFFFFFFF, 1 << 41, 0x0200F0000000),
        # The usual port has no second number, a group none at another port, and nobody is 0.0.0.0.
        *(0x06B50A010203, 0x0700E0000000, 0x0600E0000000, 0x060000000000),
    ],
)
def test_other_numbers_are_no_addresses(address):
    with pytest.raises(ValueError, match="stands for no IPv4 address"):
        socket_address_of(address)


@pytest.mark.parametrize(
    ("ipv4", "port"), [("10.1.2.3", 0), ("10.1.2.3", 51199), ("10.1.2.3", 51456), ("224.0.0.1", 51200)]
)
def test_other_ports_have_no_number(ipv4, port):
    with pytest.raises(ValueError, match=f"no number stands for port {port}"):
        address_of(IPv4Address(ipv4), port)
