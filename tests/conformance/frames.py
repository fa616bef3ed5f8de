"""The frame once more, straight from its table, so that no mistake in the codec of hw/spec can hide here."""

import struct
from dataclasses import dataclass, replace

PARTIAL, FULL, ACK, CLEAR, PROBE, ECHO = range(1, 7)
NAMES = ("type 0", "PARTIAL", "FULL", "ACK", "CLEAR", "PROBE", "ECHO", *(f"type {kind}" for kind in range(7, 16)))

BYTES = 64
VALUES = 8
BROADCAST = 0xFFFF_FFFF_FFFF

# destination, source, EtherType, version and type, job, slot, round, shard, workers, bitmap, reserved, values
_LAYOUT = struct.Struct(">6s6sHBBHHBBI6s8I")


@dataclass(frozen=True)
class Frame:
    """A frame of 64 bytes, of this format or not; ``values`` are eight numbers modulo 2^32."""

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

    def but(self, **fields: int) -> "Frame":
        """The same frame with other fields."""
        return replace(self, **fields)

    def to_bytes(self) -> bytes:
        return _LAYOUT.pack(
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
            self.reserved.to_bytes(6, "big"),
            *(value & 0xFFFF_FFFF for value in self.values),
        )

    @classmethod
    def from_bytes(cls, frame: bytes) -> "Frame":
        """Of 64 bytes, whatever they are."""
        destination, source, ethertype, first, job, slot, round_, shard, workers, bitmap, reserved, *values = (
            _LAYOUT.unpack(frame)
        )
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
            values=tuple(values),
            version=first >> 4,
            ethertype=ethertype,
            reserved=int.from_bytes(reserved, "big"),
        )

    def __str__(self) -> str:
        text = f"{NAMES[self.kind]} job {self.job} slot {self.slot} round {self.round} shard {self.shard}"
        return f"{text} of {self.workers} bitmap {self.bitmap:#x}"


def describe(frame: bytes) -> str:
    """A frame in a few words, for those who read vectors."""
    return str(Frame.from_bytes(frame)) if len(frame) == BYTES else f"{len(frame)} bytes"


def mac_text(mac: int) -> str:
    return mac.to_bytes(6, "big").hex(":")


def mac_number(text: str) -> int:
    return int(text.replace(":", ""), 16)
