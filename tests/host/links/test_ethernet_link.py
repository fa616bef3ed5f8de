"""Frames on virtual Ethernet interfaces."""

import contextlib
import random
import select
import socket
import subprocess
import time

import numpy as np
import pytest
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


def test_frames_of_all_addresses_come_in_order(ends):
    seed = default_seed()
    pick = random.Random(seed)
    a, b = ends
    sent = [frame_of(destination=pick.randbytes(6), fill=pick.randbytes(1)) for _ in range(50)]
    for frame in sent:
        a.send(frame)
    assert [receive(b) for _ in sent] == sent
    b.send(sent[0])
    assert receive(a) == sent[0]
    assert (a.lost, b.lost) == (0, 0)


def test_many_frames_at_a_time(ends):
    a, b = ends
    sent = [frame_of(size, fill=bytes([size % 256])) for size in (64, 1514, 72, 1000, 65)]
    batch, came = FrameBatch(5), FrameBatch(3)
    for row, frame in enumerate(sent):
        batch.put(row, frame)
    a.send_batch(batch, np.array([4, 1, 0, 2, 3]))
    found = []
    while len(found) < 5:
        assert select.select([b], [], [], 10.0)[0], "nothing comes"
        found += [came.frame(row) for row in range(b.receive_batch(came))]
    assert found == [sent[4], sent[1], sent[0], sent[2], sent[3]]
    assert b.receive_batch(came) == 0
    assert a.lost == 0


def test_batches_are_lost_while_the_interface_is_down_and_come_again(namespace, ends):
    a, b = ends
    batch = FrameBatch(2)
    batch.put(0, frame_of())
    batch.put(1, frame_of())
    namespace.ip("link", "set", "left", "down")
    a.send_batch(batch, np.array([0, 1]))
    assert a.lost == 2
    assert a.receive_batch(FrameBatch(1)) == 0
    namespace.ip("link", "set", "left", "up")
    namespace.wait_until_up("left")
    a.send_batch(batch, np.array([1]))
    assert receive(b) == frame_of()


def test_a_frame_that_cannot_be_sent_takes_no_other_with_it(namespace, ends):
    """Answers to several jobs travel in a batch, and a network may have come to carry less than when it was opened."""
    a, b = ends
    sent = [frame_of(1514, fill=b"l"), frame_of(fill=b"1"), frame_of(1514, fill=b"l"), frame_of(fill=b"2")]
    batch = FrameBatch(4)
    for row, frame in enumerate(sent):
        batch.put(row, frame)
    namespace.ip("link", "set", "left", "mtu", "1000")
    a.send_batch(batch, np.arange(4))
    assert [receive(b), receive(b)] == [sent[1], sent[3]]
    assert a.lost == 2


def test_the_longest_frame_is_that_of_the_interface(namespace):
    for mtu, most in ((1500, 1514), (1000, 1014), (9000, 1514)):
        namespace.ip("link", "set", "left", "mtu", str(mtu))
        with contextlib.closing(namespace.call(open_link, "left")) as link:
            assert link.most_bytes == most


def test_nothing_waits_and_own_frames_do_not_come_back(ends):
    a, b = ends
    assert a.receive() is None
    a.send(frame_of())
    assert receive(b) == frame_of()
    assert (a.receive(), b.receive()) == (None, None)
    assert not select.select(ends, [], [], 0)[0]


def test_other_protocols_are_not_seen_and_other_lengths_are(ends):
    a, b = ends
    a.send(frame_of(ethertype=b"\x08\x00"))
    a.send(frame_of(ethertype=b"\x88\xb6"))
    for size in (20, 63, 65, 1400):
        a.send(frame_of(size))
    assert [len(receive(b)) for _ in range(4)] == [20, 63, 65, 1400]
    assert b.receive() is None


@pytest.mark.parametrize("tag", ["81000014", "81000000", "8100e000", "88a80014", "88a8001481000014"])
def test_frames_of_a_vlan_are_not_seen(ends, tag):
    """Linux takes the tag away, and what is left would pass for a frame of ours: another VLAN could play a worker."""
    a, b = ends
    a.send(frame_of()[:12] + bytes.fromhex(tag) + frame_of()[12:])
    a.send(frame_of(fill=b"y"))
    assert receive(b) == frame_of(fill=b"y")


def test_what_others_send_by_the_same_interface_is_not_seen(namespace, ends):
    a, b = ends
    with contextlib.closing(namespace.call(open_link, "left")) as other:
        other.send(frame_of())
        assert receive(b) == frame_of()
        assert a.receive() is None


def test_frames_before_the_link_was_opened_are_not_seen(namespace):
    with contextlib.closing(namespace.call(open_link, "left")) as a:
        a.send(frame_of())
        with contextlib.closing(namespace.call(open_link, "right")) as b:
            assert b.receive() is None
            a.send(frame_of(fill=b"y"))
            assert receive(b) == frame_of(fill=b"y")


def works(a, b, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        a.send(frame_of(fill=b"z"))
        if select.select([b], [], [], 0.05)[0] and b.receive() == frame_of(fill=b"z"):
            while b.receive() is not None:
                pass
            return True
    return False


def test_down_and_up_again(namespace, ends):
    a, b = ends
    namespace.ip("link", "set", "left", "down")
    for _ in range(3):
        a.send(frame_of())
        assert (a.receive(), b.receive()) == (None, None)
    assert a.lost == 3
    assert select.select([a], [], [], 0)[0] == [], "a link that is down keeps nobody busy"
    namespace.ip("link", "set", "left", "up")
    assert works(a, b)
    assert works(b, a)


def test_a_link_that_was_opened_while_it_is_down(namespace):
    namespace.ip("link", "set", "left", "down")
    with (
        contextlib.closing(namespace.call(open_link, "left")) as a,
        contextlib.closing(namespace.call(open_link, "right")) as b,
    ):
        assert a.receive() is None
        namespace.ip("link", "set", "left", "up")
        assert works(a, b)
        assert works(b, a)


def test_another_interface_of_the_same_name(namespace, ends):
    a, b = ends
    namespace.ip("link", "delete", "left")
    a.send(frame_of())
    assert (a.receive(), b.receive()) == (None, None)
    namespace.pair("left", "right")
    assert a.receive() is None
    assert b.receive() is None
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


def test_without_the_right_to_raw_sockets(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(UserError, match="lo: raw sockets need the capability CAP_NET_RAW: run as root"):
        open_link("lo")


def test_an_interface_that_is_not_there(namespace):
    with pytest.raises(UserError, match="nope: there is no such network interface: ip link shows those there are"):
        namespace.call(open_link, "nope")


def test_a_name_that_no_interface_can_have(namespace):
    """Cut to what Linux has room for it would be another's."""
    name = "longest-name-15"
    namespace.pair(name, "other")
    namespace.call(open_link, name).close()
    for text in (f"ethernet:{name}x", "é" * 8):
        with pytest.raises(UserError, match="a network interface's name has at most 15 bytes: ip link shows those"):
            namespace.call(open_link, text)
    namespace.ip("link", "delete", name)


@pytest.mark.parametrize("text", ["", "ethernet:", "ethernet:a:b", "tcp:a", "a\0b", "\udcff"])
def test_texts_that_are_no_links(text):
    with pytest.raises(UserError, match=r"is not a link: give .*eth0, ethernet:eth0 or udp:"):
        open_link(text)
