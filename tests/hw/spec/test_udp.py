"""The packet in UDP, against scapy's view of the frame and scapy's frames."""

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether, getmacbyip
from scapy.packet import Raw

from p4sgd.hw.spec import packet
from p4sgd.hw.spec.packet import BROADCAST, GROUP_BIT
from p4sgd.hw.spec.udp import (
    FIELDS,
    FRAME_BYTES,
    PORT,
    address_of,
    decapsulate,
    encapsulate,
    ipv4_of,
    socket_address_of,
)

macs = st.integers(0, (1 << 48) - 1)
bodies = st.binary(min_size=50, max_size=50)
hosts = st.integers(1, (224 << 24) - 1).map(IPv4Address)
anybody = st.one_of(hosts, st.integers(224 << 24, (240 << 24) - 1).map(IPv4Address), st.just(IPv4Address(2**32 - 1)))
numbers = st.integers(0, 0xFFFF)


def core_frame(to, source, body):
    return b"".join(address_of(ipv4).to_bytes(6, "big") for ipv4 in (to, source)) + b"\x88\xb5" + body


def text(mac):
    return mac.to_bytes(6, "big").hex(":")


def datagram(to, source, body, ip=None, udp=None):
    """What scapy makes; it computes lengths and the header's checksum where they are not given."""
    return bytes(
        Ether(dst=text(1), src=text(2))
        / IP(**{"src": str(source), "dst": str(to), "flags": "DF", "id": 0} | (ip or {}))
        / UDP(**{"sport": PORT, "dport": PORT, "chksum": 0} | (udp or {}))
        / Raw(body)
    )


@given(anybody, hosts, bodies, macs, macs)
def test_frames_are_those_of_scapy(to, source, body, ethernet_source, next_hop):
    frame = encapsulate(core_frame(to, source, body), ethernet_source=ethernet_source, next_hop=next_hop)
    assert len(frame) == FRAME_BYTES == 92
    assert frame[12:] == datagram(to, source, body)[12:]
    ether = Ether(frame)
    assert ether.src == text(ethernet_source)
    if to.is_multicast:
        assert ether.dst == getmacbyip(str(to))
    else:
        assert ether.dst == ("ff:ff:ff:ff:ff:ff" if str(to) == "255.255.255.255" else text(next_hop))


@given(anybody, hosts, bodies, st.integers(0, 255), st.integers(0, 255), numbers, st.sampled_from(["DF", ""]), numbers)
def test_what_may_differ_on_the_way(to, source, body, tos, ttl, number, flags, port):
    frame = datagram(to, source, body, {"tos": tos, "ttl": ttl, "id": number, "flags": flags}, {"sport": port})
    assert decapsulate(frame) == core_frame(to, source, body)


@pytest.mark.parametrize(
    ("ip", "udp"),
    [
        ({"version": 6}, {}),
        ({"ihl": 6}, {}),
        ({"len": 79}, {}),
        ({"len": 77}, {}),
        ({"flags": "MF"}, {}),
        ({"flags": "evil"}, {}),
        ({"frag": 1}, {}),
        ({"proto": 6}, {}),
        ({"src": "224.0.0.0"}, {}),
        ({"src": "255.255.255.255"}, {}),
        ({"chksum": 0}, {}),
        ({"chksum": 0xFFFF}, {}),
        ({}, {"dport": PORT + 1}),
        ({}, {"len": 57}),
        ({}, {"chksum": 1}),
        ({}, {"chksum": None}),  # one that scapy computes: the hardware would not
    ],
)
def test_other_datagrams_are_refused(ip, udp):
    """Each with the right checksum of the header, but where that is what is wrong."""
    to, source, body = IPv4Address("10.0.0.2"), IPv4Address("10.0.0.1"), bytes(range(50))
    assert decapsulate(datagram(to, source, body)) == core_frame(to, source, body)
    assert decapsulate(datagram(to, source, body, ip, udp)) is None


def test_other_frames_are_refused():
    to, source, body = IPv4Address("10.0.0.2"), IPv4Address("10.0.0.1"), bytes(50)
    right = datagram(to, source, body)
    assert decapsulate(right) == core_frame(to, source, body)
    for wrong in (right[:-1], right + b"\0", right[:64], b"", right[:12] + b"\x88\xb5" + right[14:]):
        assert decapsulate(wrong) is None
    for byte in range(14, 34):  # no bit of the header is without the checksum
        for bit in range(8):
            broken = bytearray(right)
            broken[byte] ^= 1 << bit
            assert decapsulate(bytes(broken)) is None, (byte, bit)


@pytest.mark.parametrize(
    ("ipv4", "address"),
    [
        ("10.1.2.3", 0x02000A010203),
        ("223.255.255.255", 0x0200DFFFFFFF),
        ("224.0.0.0", 0x0300E0000000),
        ("239.255.255.255", 0x0300EFFFFFFF),
        ("255.255.255.255", BROADCAST),
    ],
)
def test_numbers_of_addresses(ipv4, address):
    assert address_of(IPv4Address(ipv4)) == address
    assert ipv4_of(address) == IPv4Address(ipv4)
    assert address >> GROUP_BIT & 1 == (ipv4.startswith(("224", "239")) or ipv4.endswith("255.255.255.255"))


@pytest.mark.parametrize(
    "address", [0, 0x02010A010203, 0x03000A010203, 0x0200E0000000, 0x0200FFFFFFFF, 1 << 41, 0x0200F0000000]
)
def test_other_numbers_are_no_addresses(address):
    with pytest.raises(ValueError, match="stands for no IPv4 address"):
        ipv4_of(address)
    frame = address.to_bytes(6, "big") + core_frame(IPv4Address(1), IPv4Address(1), bytes(50))[6:]
    with pytest.raises(ValueError, match="stands for no IPv4 address"):
        encapsulate(frame, ethernet_source=0, next_hop=0)


@pytest.mark.parametrize(
    ("port", "address"),
    [(51200, 0x06000A010203), (51201, 0x06010A010203), (51380, 0x06B40A010203), (51455, 0x06FF0A010203)],
)
def test_numbers_of_programs_with_a_port(port, address):
    assert address_of(IPv4Address("10.1.2.3"), port) == address
    assert socket_address_of(address) == (IPv4Address("10.1.2.3"), port)
    assert not address >> GROUP_BIT & 1
    with pytest.raises(ValueError, match=f"port {port} of 10.1.2.3: hardware has port {PORT}"):
        ipv4_of(address)


@pytest.mark.parametrize("address", [0x06B50A010203, 0x0700E0000000, 0x0600E0000000, 0x060000000000])
def test_numbers_of_ports_are_unique(address):
    """The usual port has no second number, a group none at another port, and nobody is 0.0.0.0."""
    with pytest.raises(ValueError, match="stands for no IPv4 address"):
        socket_address_of(address)


@pytest.mark.parametrize("port", [0, 51199, 51456])
def test_other_ports_have_no_number(port):
    with pytest.raises(ValueError, match=f"no number stands for port {port}"):
        address_of(IPv4Address("10.1.2.3"), port)


def test_frames_of_another_length_are_not_sent():
    with pytest.raises(ValueError, match="64 bytes, not 63"):
        encapsulate(bytes(63), ethernet_source=0, next_hop=0)


def test_the_packet_is_the_same():
    """Every field behind the EtherType, in the same order, 28 bytes later."""
    packets = packet.FIELDS[3:]
    assert [(f.name, f.bits, f.help, f.offset_bits - 8 * 28) for f in FIELDS[-len(packets) :]] == [
        (f.name, f.bits, f.help, f.offset_bits) for f in packets
    ]
    assert len({field.name for field in FIELDS}) == len(FIELDS)
