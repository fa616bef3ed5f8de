"""Frames on virtual Ethernet interfaces."""

import contextlib
import random
import select
import socket
import subprocess
import time

import numpy as np
import pytest
from support.batch import batch_of
from support.bench import default_seed
from support.namespace import Namespace

from p4sgd.host.errors import UserError
from p4sgd.host.links import open_link
from p4sgd.host.links.batch import FrameBatch

ETHERTYPE = bytes.fromhex("88b5")


@pytest.fixture(scope="module")
def shared():
    with contextlib.closing(Namespace()) as opened:
        yield opened


@pytest.fixture
def namespace(shared):
    """With a cable from left to right."""
    shared.pair("left", "right")
    yield shared
    shared.ip("link", "delete", "left")


@pytest.fixture
def ends(namespace):
    opened = [namespace.call(open_link, name) for name in ("left", "ethernet:right")]
    yield opened
    for link in opened:
        link.close()


def frame_of(size=64, destination=b"\x02\0\0\0\0\1", ethertype=ETHERTYPE, fill=b"x"):
    return destination + bytes(6) + ethertype + fill * (size - 14)


def receive(link, seconds=10.0):
    assert select.select([link], [], [], seconds)[0], "nothing comes"
    return link.receive()


def works(a, b, seconds=10.0):
    """Whether frames come from a to b, after a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        a.send(frame_of(fill=b"z"))
        if select.select([b], [], [], 0.05)[0] and b.receive() == frame_of(fill=b"z"):
            while b.receive() is not None:
                pass
            return True
    return False


def test_frames_of_all_addresses_and_lengths_come_in_order(ends):
    """One by one and in batches, and own frames do not come back."""
    pick = random.Random(default_seed())
    a, b = ends
    sizes = [20, 63, 64, 65, 72, 1000, 1514, *[64] * 40]
    sent = [frame_of(size, destination=pick.randbytes(6), fill=pick.randbytes(1)) for size in sizes]
    for frame in sent:
        a.send(frame)
    assert [receive(b) for _ in sent] == sent
    order = np.array(pick.sample(range(len(sent)), len(sent)))
    a.send_batch(batch_of(*sent), order)
    came, found = FrameBatch(30), []
    while len(found) < len(sent):
        assert select.select([b], [], [], 10.0)[0], "nothing comes"
        found += [came.frame(row) for row in range(b.receive_batch(came))]
    assert found == [sent[row] for row in order]
    b.send(sent[0])
    assert receive(a) == sent[0]
    assert [link.receive() for link in ends] == [None, None]
    assert b.receive_batch(came) == 0
    assert not select.select(ends, [], [], 0)[0]
    assert (a.lost, b.lost) == (0, 0)


def test_frames_longer_than_the_interface_carries(namespace, ends):
    """They take no others of a batch with them; a network may have come to carry less than when it was opened."""
    a, b = ends
    long = frame_of(1514, fill=b"l")
    for mtu, most in ((9000, 1514), (1000, 1014)):
        namespace.ip("link", "set", "left", "mtu", str(mtu))
        with contextlib.closing(namespace.call(open_link, "left")) as link:
            assert link.most_bytes == most
    a.send_batch(batch_of(long, frame_of(fill=b"1"), long, frame_of(fill=b"2")), np.arange(4))
    assert [receive(b), receive(b)] == [frame_of(fill=b"1"), frame_of(fill=b"2")]
    assert a.lost == 2


def test_what_is_not_for_the_link_is_not_seen(namespace, ends):
    """Linux takes the tag of a VLAN away, and what is left would pass for a frame of ours: another VLAN could play a
    worker."""
    a, b = ends
    for ethertype in (b"\x08\x00", b"\x88\xb6"):
        a.send(frame_of(ethertype=ethertype))
    for tag in ("81000014", "81000000", "8100e000", "88a80014", "88a8001481000014"):
        a.send(frame_of()[:12] + bytes.fromhex(tag) + frame_of()[12:])
    a.send(frame_of(fill=b"y"))
    assert receive(b) == frame_of(fill=b"y")
    with contextlib.closing(namespace.call(open_link, "left")) as other:
        other.send(frame_of())
        assert receive(b) == frame_of()
        assert a.receive() is None, "it was sent by the same interface"
    with contextlib.closing(namespace.call(open_link, "right")) as late:
        assert late.receive() is None, "it came before the link was opened"


def test_down_and_up_again(namespace, ends):
    a, b = ends
    namespace.ip("link", "set", "left", "down")
    for _ in range(3):
        a.send(frame_of())
        assert (a.receive(), b.receive()) == (None, None)
    a.send_batch(batch_of(frame_of(), frame_of()), np.arange(2))
    assert a.receive_batch(FrameBatch(1)) == 0
    assert a.lost == 5
    assert select.select([a], [], [], 0)[0] == [], "a link that is down keeps nobody busy"
    with contextlib.closing(namespace.call(open_link, "left")) as another:
        assert another.receive() is None
        namespace.ip("link", "set", "left", "up")
        for left in (a, another):
            assert works(left, b)
            assert works(b, left)


def test_another_interface_of_the_same_name(namespace, ends):
    a, b = ends
    namespace.ip("link", "delete", "left")
    a.send(frame_of())
    assert (a.receive(), b.receive()) == (None, None)
    namespace.pair("left", "right")
    assert (a.receive(), b.receive()) == (None, None)
    assert works(a, b)
    assert works(b, a)


def test_a_flood_is_lost_in_part_and_the_link_works_on(ends):
    a, b = ends
    for _ in range(20_000):
        a.send(frame_of())
    count = 0
    while b.receive() is not None:
        count += 1
    assert 250 < count <= 20_000
    assert works(a, b)


def test_the_interface_is_promiscuous_as_long_as_the_link_is_open(namespace):
    def promiscuity():
        show = ["ip", "-d", "link", "show", "left"]
        text = namespace.call(subprocess.run, show, capture_output=True, text=True, check=True).stdout.split()
        return int(text[text.index("promiscuity") + 1])

    link = namespace.call(open_link, "left")
    assert promiscuity() == 1
    link.close()
    assert promiscuity() == 0


def test_links_that_cannot_be_opened(namespace, monkeypatch):
    """A name cut to what Linux has room for would be another's."""
    name = "longest-name-15"
    namespace.pair(name, "other")
    namespace.call(open_link, name).close()
    for text, says in (
        *(
            (text, "is not a link: give .*eth0")
            for text in ("", "ethernet:", "ethernet:a:b", "tcp:a", "a\0b", "\udcff")
        ),
        *((text, "name has at most 15 bytes: ip link shows those") for text in (f"ethernet:{name}x", "é" * 8)),
        ("nope", "nope: there is no such network interface: ip link shows those there are"),
    ):
        with pytest.raises(UserError, match=says):
            namespace.call(open_link, text)
    namespace.ip("link", "delete", name)

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(UserError, match="lo: raw sockets need the capability CAP_NET_RAW: run as root"):
        open_link("lo")
