"""Many frames with one system call: in order, whole, and counted when there is no room for them."""

import contextlib
import socket

import numpy as np
import pytest

from p4sgd.host.links.batch import ROOM, FrameBatch
from p4sgd.hw.spec.packet import MOST_BYTES


@pytest.fixture
def ends():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        other.setblocking(False)
        yield one, other


def batch_of(frames, rows=None):
    batch = FrameBatch(rows or len(frames))
    for row, frame in enumerate(frames):
        batch.put(row, frame)
    return batch


def test_frames_come_as_they_were_sent(ends):
    rng = np.random.default_rng(0)
    frames = [rng.bytes(size) for size in (64, 72, 1512, 1, 64)]
    assert batch_of(frames).send(ends[0].fileno(), np.array([4, 0, 2, 1, 3])) == 5
    received = FrameBatch(3)
    assert received.receive(ends[1].fileno()) == 3
    assert [received.frame(row) for row in range(3)] == [frames[4], frames[0], frames[2]]
    assert received.receive(ends[1].fileno()) == 2
    assert [received.frame(row) for row in range(2)] == [frames[1], frames[3]]
    assert received.receive(ends[1].fileno()) == 0


def test_a_batch_may_be_sent_and_received_again_and_again(ends):
    batch = FrameBatch(2)
    for size in (1500, 3, 64):
        ends[0].send(bytes([size % 256]) * size)
        assert batch.receive(ends[1].fileno()) == 1
        assert batch.send(ends[1].fileno(), np.array([0])) == 1
        assert ends[0].recv(2000) == bytes([size % 256]) * size


def test_of_a_frame_that_is_too_long_the_beginning_is_kept(ends):
    ends[0].send(b"x" * 4000)
    batch = FrameBatch(1)
    assert batch.receive(ends[1].fileno()) == 1
    assert batch.frame(0) == b"x" * ROOM
    assert ROOM > MOST_BYTES
    batch.put(0, b"y" * 4000)
    assert batch.frame(0) == b"y" * ROOM


def test_a_full_socket_takes_what_it_has_room_for(ends):
    batch = batch_of([bytes(1500)] * 2000)
    sent = batch.send(ends[0].fileno(), np.arange(2000))
    assert 0 < sent < 2000
    with pytest.raises(BlockingIOError):
        batch.send(ends[0].fileno(), np.arange(sent, 2000))
    count = 0
    with contextlib.suppress(BlockingIOError):
        while ends[1].recv(2000):
            count += 1
    assert count == sent


def test_errors_are_those_of_the_system(ends):
    batch = batch_of([bytes(64)])
    ends[1].close()
    with pytest.raises(ConnectionRefusedError):
        batch.send(ends[0].fileno(), np.array([0]))
    with socket.socket() as other, pytest.raises(OSError, match="not connected"):
        batch.receive(other.fileno())
