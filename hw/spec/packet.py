"""The packet: one 64-byte Ethernet frame, one beat of a 512-bit bus.

The frame is declared once, in `FIELDS`; the codec here, the RTL layout and the switch's headers come from it.
Multi-byte fields are big-endian, the first byte of the frame is the lowest byte of the bus. The frame check sequence
is not part of the 64 bytes: the MAC adds and checks it.
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "ETHERTYPE",
    "FIELDS",
    "FRAME_BYTES",
    "ROUND_BITS",
    "VALUES",
    "VERSION",
    "Field",
    "MalformedPacketError",
    "Packet",
    "PacketType",
]

FRAME_BYTES = 64
"""Bytes of every frame, without the frame check sequence."""

ETHERTYPE = 0x88B5
"""IEEE 802 local experimental EtherType 1 (IEEE 802-2014, table 4)."""

VERSION = 1
"""Version of this packet format."""

VALUES = 8
"""Integers a packet carries, one for each sample of a micro-batch."""

ROUND_BITS = 16
"""Bits of a round number; rounds compare modulo 2**16."""


class PacketType(IntEnum):
    """What a packet says."""

    PARTIAL = 1
    """Worker to aggregator: my partial sums of this slot and round."""
    FULL = 2
    """Aggregator to workers: the sums over all workers."""
    ACK = 3
    """Worker to aggregator: I have the sums."""
    CLEAR = 4
    """Aggregator to workers: all have the sums, the slot is free for the next round."""


class Field(NamedTuple):
    """One field of the frame: ``bits`` bits, the first of them ``offset_bits`` bits into the frame in network order."""

    name: str
    offset_bits: int
    bits: int
    help: str


def _layout(*columns: tuple[str, int, str]) -> tuple[Field, ...]:
    result = []
    offset = 0
    for name, bits, text in columns:
        result.append(Field(name, offset, bits, text))
        offset += bits
    if offset != FRAME_BYTES * 8:
        raise AssertionError(f"the frame has {offset} bits")
    return tuple(result)


FIELDS = _layout(
    ("destination", 48, "destination MAC address"),
    ("source", 48, "source MAC address"),
    ("ethertype", 16, "0x88B5, local experimental"),
    ("version", 4, "packet format version, 1"),
    ("type", 4, "1 PARTIAL, 2 FULL, 3 ACK, 4 CLEAR"),
    ("job", 8, "job number"),
    ("slot", 16, "slot of the AllReduce operation"),
    ("round", ROUND_BITS, "how often the slot has been used, modulo 2^16"),
    ("shard", 8, "shard index of the worker (0 when sent by the aggregator to all)"),
    ("workers", 8, "workers in the job"),
    ("bitmap", 32, "shards: the sender's bit (PARTIAL, ACK), all that count (FULL, CLEAR)"),
    ("reserved", 48, "0"),
    *((f"value{i}", 32, f"activation of sample {i}, int32") for i in range(VALUES)),
)
"""The frame, field by field, in network order."""


class MalformedPacketError(ValueError):
    """Bytes that are no packet of this format."""


@dataclass(frozen=True)
class Packet:
    """A packet as values; ``values`` holds eight int32 in two's complement."""

    type: PacketType
    job: int
    slot: int
    round: int
    shard: int
    workers: int
    bitmap: int
    values: tuple[int, ...] = (0,) * VALUES
    destination: int = 0
    source: int = 0

    def __post_init__(self) -> None:
        if len(self.values) != VALUES:
            raise ValueError(f"a packet carries {VALUES} values, not {len(self.values)}")

    def to_bytes(self) -> bytes:
        """The 64 bytes of the frame.

        Raises
        ------
        ValueError
            If a value does not fit its field.
        """
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "values"}
        known |= {"ethertype": ETHERTYPE, "version": VERSION, "reserved": 0}
        known |= {f"value{i}": value for i, value in enumerate(self.values)}
        frame = 0
        for name, _, bits, _ in FIELDS:
            value = int(known[name])
            signed = name.startswith("value")
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
            frame = frame << bits | (value & ((1 << bits) - 1))
        return frame.to_bytes(FRAME_BYTES, "big")

    @classmethod
    def from_bytes(cls, frame: bytes) -> "Packet":
        """Decode a frame.

        Raises
        ------
        MalformedPacketError
            If the length, EtherType, version, type or reserved bytes are not this format's.
        """
        if len(frame) != FRAME_BYTES:
            raise MalformedPacketError(f"a frame has {FRAME_BYTES} bytes, not {len(frame)}")
        number = int.from_bytes(frame, "big")
        total = FRAME_BYTES * 8
        got = {name: number >> (total - offset - bits) & ((1 << bits) - 1) for name, offset, bits, _ in FIELDS}
        for name, expected in (("ethertype", ETHERTYPE), ("version", VERSION), ("reserved", 0)):
            if got[name] != expected:
                raise MalformedPacketError(f"{name} is {got[name]:#x}, not {expected:#x}")
        try:
            kind = PacketType(got["type"])
        except ValueError:
            raise MalformedPacketError(f"type {got['type']} is unknown") from None
        values = tuple((got[f"value{i}"] ^ 1 << 31) - (1 << 31) for i in range(VALUES))
        names = ("job", "slot", "round", "shard", "workers", "bitmap", "destination", "source")
        return cls(type=kind, values=values, **{name: got[name] for name in names})
