"""Ethernet frames on a bus of 64 bytes; beats are numbers, as payloads of `FrameBeat`."""

import random
from collections.abc import Iterable

KEEP = (1 << 64) - 1
"""Of a beat of 64 bytes."""

LAST = 1 << 576
"""Bit of the last beat of a frame."""


def beat(frame: bytes | int, port: int = 0, *, keep: int = KEEP, last: int = 1) -> int:
    """A beat, with a port if the bus has one."""
    data = int.from_bytes(frame, "little") if isinstance(frame, bytes) else frame
    return data | keep << 512 | last * LAST | port << 577


def frame_in(item: int) -> bytes:
    """The frame of one whole beat."""
    assert item >> 512 & (1 << 65) - 1 == KEEP | 1 << 64, "every frame is one beat of 64 bytes"
    return (item & (1 << 512) - 1).to_bytes(64, "little")


def random_frame(beats: int) -> list[int]:
    """Beats of a frame of noise."""
    return [random.getrandbits(576) | LAST * (left == 0) for left in reversed(range(beats))]


def frames_of(beats: Iterable[int]) -> list[list[int]]:
    """Beats as a list of frames, all of which have their end."""
    frames: list[list[int]] = [[]]
    for each in beats:
        frames[-1].append(each)
        if each & LAST:
            frames.append([])
    assert not frames.pop(), "the last frame has no end"
    return frames
