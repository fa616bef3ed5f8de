"""Frames on the bus beat by beat, and UDP datagrams that are nearly right."""

import random
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address

from p4sgd.hw.spec.packet import ETHERTYPE
from p4sgd.hw.spec.udp import FIELDS, FRAME_BYTES, address_of
from support.aggregator import beat

BEAT_BYTES = 64
IP = slice(14, 34)
"""Bytes of a frame that are the IPv4 header."""


def beats(frame: bytes, tag: int = 0) -> list[int]:
    """Payloads of a frame; bytes that are not there are noise."""
    parts = [frame[first : first + BEAT_BYTES] for first in range(0, len(frame), BEAT_BYTES)]
    return [
        beat(
            part + random.randbytes(BEAT_BYTES - len(part)),
            tag,
            keep=(1 << len(part)) - 1,
            last=int(index == len(parts) - 1),
        )
        for index, part in enumerate(parts)
    ]


def frames(payloads: Iterable[int]) -> list[tuple[bytes, int]]:
    """Frames that payloads make up, each with its tag; undoes `beats`."""
    found: list[tuple[bytes, int]] = []
    frame, tag = b"", 0
    for payload in payloads:
        size = (payload >> 512 & ((1 << BEAT_BYTES) - 1)).bit_count()
        assert payload >> 512 & ((1 << BEAT_BYTES) - 1) == (1 << size) - 1, "bytes have holes"
        assert not frame or payload >> 577 == tag, "a frame has two tags"
        tag = payload >> 577
        frame += (payload & ((1 << 512) - 1)).to_bytes(BEAT_BYTES, "little")[:size]
        if payload >> 576 & 1:
            found.append((frame, tag))
            frame = b""
        else:
            assert size == BEAT_BYTES, "only the last beat may be short"
    assert not frame, "a frame without an end"
    return found


def random_address(rng: random.Random, *, host: bool = False) -> int:
    """The number of an IPv4 address: any host's, or a group's or everybody's."""
    kind = 0.0 if host else rng.random()
    if kind < 0.6:
        return address_of(IPv4Address(rng.randrange(1, 224 << 24)))
    return address_of(IPv4Address(rng.randrange(224 << 24, 240 << 24) if kind < 0.9 else "255.255.255.255"))


def random_core_frame(rng: random.Random) -> bytes:
    """A frame of the core with any addresses; its packet is noise, and often all bits set or clear."""
    body = rng.choice([rng.randbytes(50), rng.randbytes(50), bytes(50), b"\xff" * 50])
    addresses = random_address(rng).to_bytes(6, "big") + random_address(rng, host=True).to_bytes(6, "big")
    return addresses + ETHERTYPE.to_bytes(2, "big") + body


def with_field(frame: bytes, name: str, value: int) -> bytes:
    """A frame with another value of one field of `FIELDS`."""
    _, offset, bits, _ = next(field for field in FIELDS if field.name == name)
    low = 8 * FRAME_BYTES - offset - bits
    mask = ((1 << bits) - 1) << low
    return (int.from_bytes(frame, "big") & ~mask | value << low).to_bytes(FRAME_BYTES, "big")


def with_checksum(frame: bytes) -> bytes:
    """A frame with the right checksum of its IPv4 header, step by step as RFC 1071 has it."""
    frame = with_field(frame, "ip_checksum", 0)
    total = sum(struct.unpack(">10H", frame[IP]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return with_field(frame, "ip_checksum", ~total & 0xFFFF)
