"""The frame once more, straight from its table, so that no mistake in the codec of hw/spec can hide here."""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any

PARTIAL, FULL, ACK, CLEAR, PROBE, ECHO = range(1, 7)
NAMES = ("type 0", "PARTIAL", "FULL", "ACK", "CLEAR", "PROBE", "ECHO", *(f"type {kind}" for kind in range(7, 16)))

BYTES = 64
VALUES = 8
MOST = 46
"""Micro-batches in the longest frame of version 2."""

KEYED_BYTES = 40
"""Bytes of a frame of version 2 before its values."""

BROADCAST = 0xFFFF_FFFF_FFFF

MAC = 0x0250_3453_47FF
"""The aggregator's address."""

ROUNDS = 1 << 16

# destination, source, EtherType, version and type, job, slot, round, shard, workers, bitmap, reserved; then the values
_HEADER = struct.Struct(">6s6sHBBHHBBI6s")
_KEY = struct.Struct(">Q")
_RESERVED_BITS = 48
_COUNT_SHIFT = 32


@dataclass(frozen=True)
class Frame:
    """A frame, of this format or not; ``values`` are numbers modulo 2^32.

    Without a key it has 64 bytes and eight values. With one, the layout is that of version 2: ``values`` are as many as
    there are behind the key, ``reserved`` begins with the number of micro-batches, unless ``count`` says otherwise, and
    its other bits are those of the check that are wrong.
    """

    kind: int
    destination: int = 0
    source: int = 0
    job: int = 0
    slot: int = 0
    round: int = 0
    shard: int = 0
    workers: int = 0
    bitmap: int = 0
    values: tuple[int, ...] = (0,) * VALUES
    version: int = 1
    ethertype: int = 0x88B5
    reserved: int = 0
    key: int | None = None
    count: int | None = None

    def but(self, **fields: Any) -> "Frame":
        """The same frame with other fields."""
        return replace(self, **fields)

    def to_bytes(self) -> bytes:
        count = (len(self.values) // VALUES if self.key is not None else 0) if self.count is None else self.count
        header = _HEADER.pack(
            self.destination.to_bytes(6, "big"),
            self.source.to_bytes(6, "big"),
            self.ethertype,
            self.version << 4 | self.kind,
            self.job,
            self.slot,
            self.round,
            self.shard,
            self.workers,
            self.bitmap,
            (self.reserved | count << _COUNT_SHIFT).to_bytes(_RESERVED_BITS // 8, "big"),
        )
        key = b"" if self.key is None else _KEY.pack(self.key)
        values = b"".join((value & 0xFFFF_FFFF).to_bytes(4, "big") for value in self.values)
        frame = (header + key + values).ljust(BYTES, b"\0")
        return frame if self.key is None else with_check(frame)

    @classmethod
    def from_bytes(cls, frame: bytes, *, keyed: bool = False) -> "Frame":
        """Of 64 bytes or more, whatever they are; with a key and a check if that is asked for."""
        frame = with_check(frame) if keyed else frame
        destination, source, ethertype, first, job, slot, round_, shard, workers, bitmap, reserved = (
            _HEADER.unpack_from(frame)
        )
        rest = frame[KEYED_BYTES if keyed else _HEADER.size :]
        return cls(
            kind=first & 15,
            destination=int.from_bytes(destination, "big"),
            source=int.from_bytes(source, "big"),
            job=job,
            slot=slot,
            round=round_,
            shard=shard,
            workers=workers,
            bitmap=bitmap,
            values=struct.unpack(f">{len(rest) // 4}I", rest),
            version=first >> 4,
            ethertype=ethertype,
            reserved=int.from_bytes(reserved, "big"),
            key=_KEY.unpack_from(frame, _HEADER.size)[0] if keyed else None,
            count=0,  # it is in what is reserved
        )

    def __str__(self) -> str:
        text = f"{NAMES[self.kind]} job {self.job} slot {self.slot} round {self.round} shard {self.shard}"
        return f"{text} of {self.workers} bitmap {self.bitmap:#x}"


def with_check(frame: bytes) -> bytes:
    """The frame with its check added to the bits there; twice makes the same frame."""
    check = zlib.crc32(frame[32:] + frame[14:28]) ^ int.from_bytes(frame[28:32], "big")
    return frame[:28] + check.to_bytes(4, "big") + frame[32:]


def is_keyed(frame: bytes) -> bool:
    """Whether a frame says that it is of version 2, and no probe or echo."""
    return len(frame) >= BYTES and frame[14] >> 4 == 2 and frame[14] & 15 not in (PROBE, ECHO)


def describe(frame: bytes) -> str:
    """A frame in a few words, for those who read vectors."""
    if len(frame) == BYTES or (is_keyed(frame) and not (len(frame) - KEYED_BYTES) % (4 * VALUES)):
        return str(Frame.from_bytes(frame)) if len(frame) == BYTES else f"{Frame.from_bytes(frame)}, {len(frame)} bytes"
    return f"{len(frame)} bytes"


def mac_text(mac: int) -> str:
    return mac.to_bytes(6, "big").hex(":")


def mac_number(text: str) -> int:
    return int(text.replace(":", ""), 16)
