"""Frames in UDP, on loopback addresses."""

import contextlib
import select
import socket
import time
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether, getmacbyip
from scapy.packet import Raw
from support.batch import batch_of
from support.bench import default_seed
from support.corruption import CorruptingCable
from support.loopback import loopback
from support.namespace import Namespace
from support.switch import Workers, serving

from p4sgd.host.aggregators.membership import GROUP_MAC
from p4sgd.host.errors import UserError
from p4sgd.host.links import open_link
from p4sgd.host.links.batch import FrameBatch
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import most_micro_batches
from p4sgd.hw.spec.udp import ETHERNET_BYTES, HEADER_BYTES, PORT, address_of

ETHERTYPE = bytes.fromhex("88b5")
GROUP = IPv4Address("239.1.2.3")


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:
        yield lambda text: stack.enter_context(contextlib.closing(open_link(text)))


def frame_between(source, destination, payload):
    numbers = [address_of(destination), address_of(source)]
    return b"".join(number.to_bytes(6, "big") for number in numbers) + ETHERTYPE + payload


def receive(link, seconds=10.0):
    assert select.select([link], [], [], seconds)[0], "nothing comes"
    return link.receive()


def test_frames_of_version_2_in_batches(opened):
    """Of each number of micro-batches that a datagram has room for."""
    a, b = (opened(f"udp:{loopback(host)}") for host in (1, 2))
    assert most_micro_batches(a.most_bytes) == 45
    frames = [frame_between(loopback(1), loopback(2), bytes([count]) * (26 + 32 * count)) for count in range(1, 46)]
    a.send_batch(batch_of(*frames), np.arange(45))
    came = FrameBatch(64)
    assert select.select([b], [], [], 10.0)[0]
    assert b.receive_batch(came) == 45
    assert [came.frame(row) for row in range(45)] == frames
    assert b.receive_batch(came) == 0


def test_a_batch_of_what_goes_and_comes_one_by_one(opened):
    """Packets to several addresses, lost ones to addresses of Ethernet, and datagrams that are no packets."""
    hosts = [loopback(host) for host in (1, 2, 3)]
    a, b, c = (opened(f"udp:{host}") for host in hosts)
    frames = [frame_between(hosts[0], hosts[to], bytes([row]) * 50) for row, to in enumerate((1, 1, 2, 1, 1))]
    for row in (1, 4):
        frames[row] = bytes.fromhex("025034534700") + frames[row][6:]
    batch = batch_of(*frames)
    a.send_batch(batch, np.arange(5)[::-1])
    assert a.lost == 2
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((str(hosts[0]), 51_222))
        for size in (50, 49, 0, 1467, 58):
            other.sendto(b"x" * size, (str(hosts[1]), PORT))
    from_program = address_of(hosts[0], 51_222).to_bytes(6, "big") + ETHERTYPE
    to_b = address_of(hosts[1]).to_bytes(6, "big")
    expected = [batch.frame(3), batch.frame(0), to_b + from_program + b"x" * 50, *[bytes(64)] * 3]
    expected.append(to_b + from_program + b"x" * 58)
    came = FrameBatch(4)
    got = []
    while select.select([b], [], [], 0)[0]:
        got += [came.frame(row) for row in range(b.receive_batch(came))]
    assert got == expected
    assert receive(c) == batch.frame(2)


def test_what_a_link_reaches(opened):
    """Addresses that stand for one of IPv4; that nobody is there is no error."""
    link, other = (opened(f"udp:{loopback(host)}") for host in (1, 2))
    for to in (IPv4Address("127.0.0.9"), GROUP, IPv4Address("255.255.255.255")):
        assert link.reaches(address_of(to))
    for lost, to in enumerate((0x0250_3453_4700, 0x0100_5034_5347, 0x0200_EF01_0203), 1):
        assert not link.reaches(to)
        link.send(to.to_bytes(6, "big") + bytes(6) + ETHERTYPE + bytes(50))
        assert link.lost == lost
    batch = batch_of(*(frame_between(loopback(1), loopback(host), bytes(50)) for host in (9, 2)))
    for send in (lambda: link.send_batch(batch, np.array([0])), lambda: link.send(batch.frame(0))):
        send()
        time.sleep(0.01)
        assert link.receive_batch(FrameBatch(1)) == 0
        assert link.receive() is None
    link.send_batch(batch, np.array([1]))
    assert receive(other) == batch.frame(1)
    assert link.lost == 3


def test_several_programs_with_one_address(opened):
    host = loopback(1)
    ports = (PORT, 51200, 51455)
    links = [opened(f"udp:{host}" + (f":{port}" if port != PORT else "")) for port in ports]
    numbers = [address_of(host, port) for port in ports]
    assert [link.address for link in links] == numbers
    for sender, source in zip(links, numbers, strict=True):
        for receiver, destination in zip(links, numbers, strict=True):
            assert sender.reaches(destination)
            frame = destination.to_bytes(6, "big") + source.to_bytes(6, "big") + ETHERTYPE + bytes(50)
            sender.send(frame)
            assert receive(receiver) == frame
    assert [link.receive() for link in links] == [None] * 3


@pytest.fixture
def two_networks():
    """Interfaces s0 and s1 with the addresses 10.0.0.1 and 10.0.1.1, and what sends a frame into either network."""
    with contextlib.closing(Namespace()) as namespace, contextlib.ExitStack() as stack:
        wires = []
        for index in range(2):
            namespace.pair(f"s{index}", f"w{index}")
            namespace.ip("address", "add", f"10.0.{index}.1/24", "dev", f"s{index}")
            wire = namespace.call(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)
            stack.enter_context(wire).bind((f"w{index}", 0))
            wires.append(wire)

        def send(index, to, payload):
            frame = frame_between(IPv4Address(f"10.0.{index}.9"), to, payload)
            mac = getmacbyip(str(to)) if to.is_multicast else "ff:ff:ff:ff:ff:ff"
            datagram = IP(src=f"10.0.{index}.9", dst=str(to)) / UDP(sport=PORT, dport=PORT, chksum=0)
            wires[index].send(bytes(Ether(src="02:00:00:00:00:09", dst=mac) / datagram / Raw(frame[ETHERNET_BYTES:])))
            return frame

        yield namespace, send


@pytest.mark.parametrize("to", [IPv4Address("255.255.255.255"), GROUP])
def test_what_is_for_all_is_heard_by_the_interface_of_the_address_only(two_networks, to):
    """Also after the address has moved to another interface."""
    namespace, send = two_networks
    with contextlib.ExitStack() as stack:
        texts = [f"udp:10.0.{index}.1,group={GROUP}" for index in range(2)]
        links = [stack.enter_context(contextlib.closing(namespace.call(open_link, text))) for text in texts]
        for index, other in ((0, 1), (1, 0), (0, 1)):
            frame = send(index, to, bytes([index]) * 50)
            assert select.select([links[index]], [], [], 10.0)[0], "nothing comes"
            assert links[index].receive_batch(came := FrameBatch(8)) == 1
            assert came.frame(0) == frame
            assert links[other].receive() is None
        if not to.is_multicast:
            namespace.ip("address", "del", "10.0.0.1/24", "dev", "s0")
            namespace.ip("address", "add", "10.0.0.1/24", "dev", "s1", "label", "s1:7")
            frame = send(1, to, bytes(50))
            assert receive(links[0]) == frame


def test_datagrams_with_flipped_bits_are_dropped_and_counted(tmp_path):
    """Of one bit: the sums stay right. Linux counts what it has dropped for its checksum."""
    seed = default_seed()
    with contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(contextlib.closing(Namespace())) for _ in range(2))
        cable = stack.enter_context(contextlib.closing(CorruptingCable([here, there], 0.2, seed)))
        _, control = stack.enter_context(serving(here, tmp_path, ["udp:10.0.0.1"]))
        link = stack.enter_context(contextlib.closing(there.call(open_link, "udp:10.0.0.2")))
        peer, mac = (address_of(IPv4Address(f"10.0.0.{host}")) for host in (1, 2))
        control.set_mac(peer)
        control.begin(0, Job(1, (Member(mac, 0),), GROUP_MAC, 1), 1)
        got, right = Workers([link], seed=seed, macs=[mac], peer=peer).all_reduce(200)
        assert got == [right]
        dropped = 0
        for namespace in (here, there):
            names, counts, *_ = (
                line.split()
                for line in namespace.call(Path("/proc/thread-self/net/snmp").read_text).splitlines()
                if line.startswith("Udp:")
            )
            dropped += int(counts[names.index("InCsumErrors")])
        assert dropped >= cable.flips - 10 > 20, "but those on their way at the end"


def test_on_the_wire_it_is_what_the_hardware_takes_but_for_the_checksum():
    with contextlib.closing(Namespace()) as namespace:

        def listen():
            heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            heard.bind(("lo", 3))
            heard.settimeout(10)
            return heard

        with (
            contextlib.closing(namespace.call(open_link, "udp:127.0.0.1")) as a,
            contextlib.closing(namespace.call(listen)) as heard,
        ):
            for to in (IPv4Address("127.0.0.9"), GROUP, IPv4Address("255.255.255.255")):
                frame = frame_between(IPv4Address("127.0.0.1"), to, bytes(range(50)))
                a.send(frame)
                wire = heard.recv(2048)
                while wire[23] != 17:  # what it makes the kernel say, that nobody is there
                    wire = heard.recv(2048)
                assert wire[40:42] != bytes(2)
                assert (wire[26:34], wire[HEADER_BYTES:]) == (frame[8:12] + frame[2:6], frame[ETHERNET_BYTES:])
                assert wire[22] == 64, "time to live"
                while select.select([heard], [], [], 0.1)[0]:
                    heard.recv(2048)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("udp:", "'' is not an IPv4 address such as 10.0.0.1"),
        ("udp:127.0.0.1:", "'' is not a port for packets: those are 51200 to 51455; without one it is 51381"),
        ("udp:127.0.0.1:51456", "'51456' is not a port for packets"),
        ("udp:127.0.0.1,group", "'group' is not an option of a UDP link"),
        ("udp:127.0.0.1,group=239.0.0.1,group=239.0.0.2", "'group=239.0.0.2' is not an option of a UDP link: .*, once"),
        ("udp:127.0.0.1,group=10.0.0.1", "10.0.0.1 is not a multicast address"),
        ("udp:239.0.0.1", "239.0.0.1 is not the address of a single host"),
        ("udp:0.0.0.0", "0.0.0.0 is not the address of a single host"),
        ("udp:255.255.255.255", "255.255.255.255 is not the address of a single host"),
        ("udp:192.0.2.1", "192.0.2.1 is not an address of this machine"),
        pytest.param(
            f"udp:{loopback(1)}",
            f"another program uses port {PORT} of {loopback(1)}: .* as in udp:.*:51201",
            id="taken",
        ),
        pytest.param(
            f"udp:{loopback(1)}:51234",
            f"another program uses port 51234 of {loopback(1)}: .* as in udp:.*:51201",
            id="port taken",
        ),
    ],
)
def test_links_that_cannot_be(opened, text, says):
    opened(f"udp:{loopback(1)}")
    opened(f"udp:{loopback(1)}:51234")
    with pytest.raises(UserError, match=f"^{text}: {says}"):
        open_link(text)


@pytest.mark.parametrize("group", [False, True])
def test_a_switch_for_udp(tmp_path, group):
    """What is for all goes to a group or, without one, to each worker in UDP by itself and to all behind another port
    as it is."""
    seed, peer = default_seed(), address_of(IPv4Address("127.0.0.9"))
    with contextlib.closing(Namespace()) as namespace, contextlib.ExitStack() as stack:
        namespace.ip("link", "set", "lo", "multicast", "on")
        namespace.pair("s1", "w1")
        _, control = stack.enter_context(serving(namespace, tmp_path, ["udp:127.0.0.9", "s1"]))
        texts = [f"udp:127.0.0.{host}" + f",group={GROUP}" * group for host in (1, 2, 3, 4)]
        texts.insert(2, texts.pop() if group else "w1")
        links = [stack.enter_context(contextlib.closing(namespace.call(open_link, text))) for text in texts]
        macs = [0x0250_0000_0001 if link.address is None else link.address for link in links]
        control.set_mac(peer)
        to_all = address_of(GROUP) if group else GROUP_MAC
        ports = [int(text == "w1") for text in texts]
        for number, own in ((1, slice(0, 3)), (2, slice(3, None))):
            members = tuple(Member(mac, port) for mac, port in zip(macs[own], ports[own], strict=True))
            control.begin(number - 1, Job(number, members, to_all, sum(1 << port for port in set(ports[own]))), 1)
        for number, own in ((1, slice(0, 3)), (2, slice(3, None))):
            workers = Workers(links[own], number, seed=seed, loss=0.1, macs=macs[own], peer=peer)
            got, right = workers.all_reduce(20)
            assert got == [right] * len(links[own])
