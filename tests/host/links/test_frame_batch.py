"""Many frames with one system call: in order, whole, and counted when there is no room for them.

Addresses are translated as `p4sgd.hw.spec.udp` says.
"""

import contextlib
import random
import socket
import struct
from ipaddress import IPv4Address

import numpy as np
import pytest
from support.batch import batch_of
from support.bench import default_seed

from p4sgd.host.links.batch import ROOM, FrameBatch
from p4sgd.hw.spec.packet import ETHERTYPE, MOST_BYTES, MOST_MICRO_BATCHES, frame_bytes
from p4sgd.hw.spec.udp import PORT, PROGRAM_PORTS, address_of, socket_address_of


def test_sockets_that_are_full_or_gone_and_frames_that_are_too_long():
    """A full socket takes what it has room for; of a long frame the beginning is kept."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        other.setblocking(False)
        one.send(b"x" * 4000)
        batch = FrameBatch(1)
        assert batch.frames_in.receive(other.fileno()) == 1
        assert batch.frame(0) == b"x" * ROOM
        assert ROOM > MOST_BYTES
        batch.put(0, b"y" * 4000)
        assert batch.frame(0) == b"y" * ROOM
        batch = batch_of(*[bytes(1500)] * 2000)
        lost = batch.frames_out.send(one.fileno(), np.arange(2000))
        assert {type(error) for error in lost} == {BlockingIOError}
        count = 0
        with contextlib.suppress(BlockingIOError):
            while other.recv(2000):
                count += 1
        assert 0 < count == 2000 - len(lost)
        other.close()
        assert list(map(type, batch.frames_out.send(one.fileno(), np.array([0])))) == [ConnectionRefusedError]
    with socket.socket() as none, pytest.raises(OSError, match="not connected"):
        batch.frames_in.receive(none.fileno())


HOSTS = ["0.0.0.0", "10.1.2.3", "223.255.255.255", "224.0.0.0", "239.255.255.255", "240.0.0.0", "255.255.255.255"]
"""At the limits of the addresses of single hosts and of groups."""

NAME = struct.Struct("=H2s4s8x")
"""struct sockaddr_in of ip(7)."""


@pytest.fixture
def pick():
    return random.Random(default_seed())


def test_destinations_are_named(pick):
    """Those that stand for no IPv4 address are left out."""
    ends = [int(IPv4Address(host)) for host in HOSTS]
    prefixes = [0x0000, 0x0100, 0x0200, 0x0201, 0x0300, 0x0301, 0x06B4, 0x06B5, 0x0600, 0x06FF, 0x0700, 0xFFFF]
    addresses = [prefix << 32 | end for prefix in prefixes for end in ends]
    addresses += [pick.choice(prefixes) << 32 | pick.getrandbits(32) for _ in range(2000)]
    pick.shuffle(addresses)
    batch = batch_of(*(address.to_bytes(6, "big") for address in addresses))
    rows = np.array(pick.sample(range(len(addresses)), len(addresses) // 2))
    expected = {}
    for row in rows.tolist():
        with contextlib.suppress(ValueError):
            expected[row] = socket_address_of(addresses[row])
    assert batch.put_names(rows).tolist() == list(expected)
    for row, (host, port) in expected.items():
        assert batch.names[row].tobytes() == NAME.pack(socket.AF_INET, port.to_bytes(2, "big"), host.packed)
    assert 200 < len(expected) < len(rows) - 200


def test_datagrams_become_frames(pick):
    """From a port that is none of programs they come as from the hardware's."""
    hosts = [IPv4Address(pick.choice(HOSTS) if pick.random() < 0.3 else pick.getrandbits(32)) for _ in range(3000)]
    first, last = PROGRAM_PORTS[0], PROGRAM_PORTS[-1]
    ends = [0, PORT - 1, PORT, PORT + 1, first - 1, first, last, last + 1]
    sizes = [14, 63, 64, 65, 1512, *map(frame_bytes, range(1, MOST_MICRO_BATCHES + 1)), ROOM]
    to, expected, batch = pick.getrandbits(48), [], FrameBatch(len(hosts) + 1)
    for row, host in enumerate(hosts):
        port = pick.choice(ends) if pick.random() < 0.5 else pick.choice(PROGRAM_PORTS)
        payload = pick.randbytes(pick.choice(sizes) - 14)
        batch.put(row, bytes(14) + payload)
        batch.names[row] = np.frombuffer(NAME.pack(socket.AF_INET, port.to_bytes(2, "big"), host.packed), np.uint8)
        is_host = host < IPv4Address("224.0.0.0")
        source = address_of(host, port if port in PROGRAM_PORTS and is_host else PORT)
        head = b"".join(part.to_bytes(size, "big") for part, size in ((to, 6), (source, 6), (ETHERTYPE, 2)))
        is_packet = len(payload) == 50 or ((len(payload) - 26) % 32 == 0 and 58 <= len(payload) <= 26 + 32 * 45)
        expected.append(head + payload if is_packet and is_host else bytes(64))
    batch.put(len(hosts), b"x" * 64)
    batch.put_heads(len(hosts), to)
    assert [batch.frame(row) for row in range(len(hosts))] == expected
    assert batch.frame(len(hosts)) == b"x" * 64, "only the first rows are changed"
    assert 100 < expected.count(bytes(64)) < len(hosts) - 100
