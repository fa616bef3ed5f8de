"""Frames that are nearly right: good ones with something changed, cut, made longer, or nothing but noise."""

import random
from collections.abc import Sequence
from typing import Any

from cocotb.triggers import RisingEdge

from p4sgd.hw.spec.packet import FIELDS, FRAME_BYTES
from support.frames import beat
from support.signals import drive

BITS = 8 * FRAME_BYTES
WHOLE = (1 << FRAME_BYTES) - 1


def field_mask(name: str) -> int:
    """Bits of a field on the bus, where byte i of the frame is bits 8i to 8i + 7."""
    field = next(field for field in FIELDS if field.name == name)
    number = ((1 << field.bits) - 1) << (BITS - field.offset_bits - field.bits)
    return int.from_bytes(number.to_bytes(FRAME_BYTES, "big"), "little")


_MASKS = [field_mask(field.name) for field in FIELDS]


def mutated(frames: Sequence[int], rng: random.Random) -> list[tuple[int, int]]:
    """Beats of a frame made of one of these: ``(data, keep)`` each."""
    kind = rng.random()
    if kind < 0.1:
        return [(rng.getrandbits(BITS), WHOLE)]
    frame = rng.choice(frames)
    if kind < 0.4:  # bits
        for _ in range(rng.choice((1, 1, 2, 8))):
            frame ^= 1 << rng.randrange(BITS)
    elif kind < 0.9:  # fields
        for mask in rng.sample(_MASKS, rng.choice((1, 1, 2))):
            frame = frame & ~mask | rng.choice((0, mask, mask & rng.getrandbits(BITS), mask & (frame + mask)))
    elif kind < 0.95:  # cut
        return [(frame, WHOLE >> rng.randrange(1, FRAME_BYTES))]
    else:  # more
        return [(frame, WHOLE)] * rng.randint(2, 3)
    return [(frame, WHOLE)]


def read_frame(beats: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of a frame of one beat."""
    ((data, keep),) = beats
    frame = data.to_bytes(FRAME_BYTES, "little")
    return frame if keep == WHOLE else frame[: keep.bit_length()]


async def give(dut: Any, beats: Sequence[tuple[int, int]], port: int = 0) -> None:
    """Inside the simulator: the beats of a frame in ``rx``, which is always ready."""
    for left, (data, keep) in zip(reversed(range(len(beats))), beats, strict=True):
        drive(dut, rx__payload=beat(data, port, keep=keep, last=left == 0), rx__valid=1)
        await RisingEdge(dut.clk)
    drive(dut, rx__valid=0)
