"""Many frames at a time: in a batch, and through an aggregator."""

import numpy as np

from p4sgd.host.links.batch import FrameBatch

ROOM = 1536


def batch_of(*frames):
    """Frames, one in each row, to be sent."""
    batch = FrameBatch(len(frames))
    for row, frame in enumerate(frames):
        batch.put(row, frame)
    return batch


def answers_of(aggregator, frames, port):
    """What it answers to frames into a port: bytes, and the bitmap of ports, of each answer."""
    count = len(frames)
    rows, sizes = np.zeros((count, ROOM), np.uint8), np.zeros(count, np.int64)
    for row, frame in enumerate(frames):
        sizes[row] = min(len(frame), ROOM)
        rows[row, : sizes[row]] = np.frombuffer(frame[:ROOM], np.uint8)
    answers, answer_sizes, ports = (
        np.full((count, ROOM), 0xA5, np.uint8),
        np.zeros(count, np.int64),
        np.zeros(count, int),
    )
    written = aggregator.receive_batch(rows, sizes, count, port, answers, answer_sizes, ports)
    return [(answers[row, : answer_sizes[row]].tobytes(), int(ports[row])) for row in range(written)]
