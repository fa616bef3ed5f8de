"""The packet: one 64-byte Ethernet frame, one beat of a 512-bit bus; and what can become of it.

The frame is declared once, in `FIELDS`; the codec here, the RTL layout and the switch's headers come from it.
Fields are big-endian; the first byte of the frame is the lowest byte of the bus. The frame check sequence is not part
of the 64 bytes: the MAC adds and checks it. A dropped frame is counted by its `DropReason`; a P4 switch counts every
other frame by its `Outcome`.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Any, NamedTuple, NoReturn, Self

__all__ = [
    "BROADCAST",
    "ETHERTYPE",
    "FIELDS",
    "FRAME_BYTES",
    "GROUP_BIT",
    "OUTCOME_BITS",
    "ROUND_BITS",
    "VALUES",
    "VERDICT",
    "VERSION",
    "DropReason",
    "EchoValue",
    "Field",
    "MalformedPacketError",
    "Outcome",
    "Packet",
    "PacketType",
    "counters_by_place",
    "counters_of",
    "layout",
    "mac_text",
]


class DropReason(IntEnum):
    """The first check that a frame fails, in the order of the checks. Worker and aggregator have a counter for each.

    Attributes
    ----------
    help : str
        What is wrong with the frame.
    """

    help: str

    def __new__(cls, value: int, text: str) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.help = text
        return member

    RUNT = 0, "shorter than a packet"
    LONG = 1, "longer than a packet"
    ETHERTYPE = 2, "of another protocol"
    VERSION = 3, "of another version of the packet format"
    RESERVED = 4, "with reserved bits that are not 0"
    ADDRESS = 5, "addressed to somebody else"
    TYPE = 6, "of an unknown type, or of a type that only the other side receives"
    JOB = 7, "of another job, or of a job that is not served"
    WORKERS = 8, "of a job with another number of workers"
    SHARD = 9, "of a shard that is another or not in the job, or with a bitmap that does not match"
    SLOT = 10, "of a slot that does not exist"
    SOURCE = 11, "from another MAC address than the shard's or the aggregator's, or from another port"
    STALE = 12, "of a round that is over or cannot have begun"
    DUPLICATE = 13, "repeating what is already known"


VERDICT = (DropReason.JOB, DropReason.WORKERS, DropReason.SHARD, DropReason.SLOT, DropReason.SOURCE)
"""The checks of an aggregator that depend on its settings; bit i of a probe's verdict is set if check i failed.

If the job is unknown, nothing else is checked; if the shard is wrong, its source is not.
"""


FRAME_BYTES = 64
"""Bytes of every frame, without the frame check sequence."""

ETHERTYPE = 0x88B5
"""IEEE 802 local experimental EtherType 1 (IEEE 802-2014, table 4)."""

VERSION = 1
"""Version of this packet format."""

BROADCAST = (1 << 48) - 1
"""The broadcast address; probes may be sent to it."""

GROUP_BIT = 40
"""The bit of a MAC address, taken as a number, that marks a group address (IEEE 802)."""

VALUES = 8
"""Integers that a packet carries, one for each sample of a micro-batch."""

ROUND_BITS = 16
"""Bits of a round number; rounds compare modulo 2**16."""


def mac_text(mac: int) -> str:
    """A MAC address in the usual notation, ``02:50:34:53:47:00``."""
    return mac.to_bytes(6, "big").hex(":")


class PacketType(IntEnum):
    """Types of packets."""

    PARTIAL = 1
    """Worker to aggregator: my partial sums of this slot and round."""
    FULL = 2
    """Aggregator to workers: the sums over all workers."""
    ACK = 3
    """Worker to aggregator: I have the sums."""
    CLEAR = 4
    """Aggregator to workers: all have the sums, the slot is free for the next round."""
    PROBE = 5
    """Worker to aggregator: which checks do my packets fail, and what is the state of this slot?"""
    ECHO = 6
    """Aggregator to worker: the answer to PROBE."""


class EchoValue(IntEnum):
    """Indices of the values of ECHO. A probe's value 0 is a number that its sender chooses, the others are 0.

    ``round`` and ``bitmap`` of ECHO are the slot's round, and the shards whose partials it has. They and ACKNOWLEDGED
    are 0 if there is no such slot. PROBE and ECHO have this layout in every version of the format, so that versions
    which cannot work together can say so.
    """

    NUMBER = 0
    """The probe's number."""
    VERDICT = 1
    """Bitmap of the checks that packets of the probe's sender fail: :data:`p4sgd.hw.spec.packet.VERDICT`."""
    PORT = 2
    """The port that the probe came in through."""
    ACKNOWLEDGED = 3
    """Shards that have acknowledged the slot's sums."""
    WORKERS = 4
    """The job's number of workers; 0 if there is no such job."""
    SLOTS = 5
    """Slots of a job."""
    MAC_HIGH = 6
    """MAC address noted for the probe's shard, bits 47..32; 0 if there is no such shard."""
    MAC_LOW = 7
    """Bits 31..0 of that address."""


class Field(NamedTuple):
    """A field of the frame: ``bits`` bits, starting ``offset_bits`` bits into the frame in network order."""

    name: str
    offset_bits: int
    bits: int
    help: str


def layout(frame_bytes: int, *columns: tuple[str, int, str]) -> tuple[Field, ...]:
    """The fields of a frame from their names, widths in bits and help texts, in network order."""
    result = []
    offset = 0
    for name, bits, text in columns:
        result.append(Field(name, offset, bits, text))
        offset += bits
    if offset != frame_bytes * 8:
        raise AssertionError(f"the frame has {offset} bits")
    return tuple(result)


FIELDS = layout(
    FRAME_BYTES,
    ("destination", 48, "destination MAC address"),
    ("source", 48, "source MAC address"),
    ("ethertype", 16, "0x88B5, local experimental"),
    ("version", 4, "packet format version, 1"),
    ("type", 4, "1 PARTIAL, 2 FULL, 3 ACK, 4 CLEAR, 5 PROBE, 6 ECHO"),
    ("job", 8, "job number"),
    ("slot", 16, "slot of the AllReduce operation"),
    ("round", ROUND_BITS, "how often the slot has been used, modulo 2^16"),
    ("shard", 8, "shard index of the worker (0 when sent by the aggregator to all)"),
    ("workers", 8, "workers in the job"),
    ("bitmap", 32, "shards: the sender (PARTIAL, ACK, PROBE), all of the job (FULL, CLEAR), those added so far (ECHO)"),
    ("reserved", 48, "0"),
    *((f"value{i}", 32, f"activation of sample {i}, int32") for i in range(VALUES)),
)
"""The frame, field by field, in network order."""


def _format() -> str:
    """The frame's :mod:`struct` format: fields that share a byte are one item, addresses are bytes, values signed."""
    codes = {8: "B", 16: "H", 32: "I", 48: "6s"}
    items = []
    for _, shared in groupby(FIELDS, lambda field: field.offset_bits // 8):
        together = list(shared)
        code = codes[sum(field.bits for field in together)]
        items.append(code.lower() if together[0].name.startswith("value") else code)
    return ">" + "".join(items)


_STRUCT = struct.Struct(_format())
_TYPES = {kind.value: kind for kind in PacketType}


class MalformedPacketError(ValueError):
    """Bytes that are no packet of this format; ``reason`` is the first check that they fail."""

    def __init__(self, reason: DropReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Packet:
    """A packet by field; ``values`` are eight int32, ``type`` may be an unknown one."""

    type: PacketType | int
    job: int
    slot: int
    round: int
    shard: int
    workers: int
    bitmap: int
    values: tuple[int, ...] = (0,) * VALUES
    destination: int = 0
    source: int = 0
    version: int = VERSION

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
        try:
            if self.version >> 4 or self.type >> 4:
                self._refuse()
            return _STRUCT.pack(
                int(self.destination).to_bytes(6, "big"),
                int(self.source).to_bytes(6, "big"),
                ETHERTYPE,
                self.version << 4 | self.type,
                self.job,
                self.slot,
                self.round,
                self.shard,
                self.workers,
                self.bitmap,
                b"",
                *self.values,
            )
        except (OverflowError, struct.error):
            self._refuse()

    def _refuse(self) -> NoReturn:
        """Raise ValueError for the first field whose value does not fit."""
        known: dict[str, Any] = vars(self) | {f"value{i}": value for i, value in enumerate(self.values)}
        for name, _, bits, _ in FIELDS:
            value = int(known.get(name, 0))
            signed = name.startswith("value")
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
        raise AssertionError("all values fit")

    @classmethod
    def from_bytes(cls, frame: bytes) -> "Packet":
        """Decode a frame.

        Raises
        ------
        MalformedPacketError
            If length, EtherType, version or reserved bytes are not this format's, checked in this order. PROBE and ECHO
            may have any version.
        """
        if len(frame) != FRAME_BYTES:
            reason = DropReason.RUNT if len(frame) < FRAME_BYTES else DropReason.LONG
            raise MalformedPacketError(reason, f"a frame has {FRAME_BYTES} bytes, not {len(frame)}")
        (
            destination,
            source,
            ethertype,
            version_and_type,
            job,
            slot,
            round_,
            shard,
            workers,
            bitmap,
            reserved,
            *values,
        ) = _STRUCT.unpack(frame)
        version, kind = version_and_type >> 4, version_and_type & 0xF
        if ethertype != ETHERTYPE:
            raise MalformedPacketError(DropReason.ETHERTYPE, f"ethertype is {ethertype:#x}, not {ETHERTYPE:#x}")
        if version != VERSION and kind not in (PacketType.PROBE, PacketType.ECHO):
            raise MalformedPacketError(DropReason.VERSION, f"version is {version:#x}, not {VERSION:#x}")
        if any(reserved):
            raise MalformedPacketError(DropReason.RESERVED, f"reserved is 0x{reserved.hex()}, not 0")
        return cls(
            _TYPES.get(kind, kind),
            job,
            slot,
            round_,
            shard,
            workers,
            bitmap,
            tuple(values),
            int.from_bytes(destination, "big"),
            int.from_bytes(source, "big"),
            version,
        )


OUTCOME_BITS = 5
"""Bits of an outcome."""


class Outcome(IntEnum):
    """What became of a frame that was not dropped. Numbers below 16 are those of `DropReason`, for dropped frames."""

    ADDED = 16
    """A PARTIAL was added; others are missing."""
    FULL_TO_ALL = 17
    """The last PARTIAL was added; FULL went to all."""
    FULL_TO_ONE = 18
    """A PARTIAL was repeated; FULL went to its worker again."""
    ACKNOWLEDGED = 19
    """An ACK was new; others are missing."""
    CLEAR_TO_ALL = 20
    """The last ACK was new; CLEAR went to all."""
    CLEAR_TO_ONE = 21
    """An ACK was repeated or late; CLEAR went to its worker again."""
    ECHOED = 22
    """A PROBE was answered."""


_COUNTED = {
    "PARTIALS": (Outcome.ADDED, Outcome.FULL_TO_ALL),
    "ACKS": (Outcome.ACKNOWLEDGED, Outcome.CLEAR_TO_ALL),
    "FULLS_TO_ALL": (Outcome.FULL_TO_ALL,),
    "FULLS_TO_ONE": (Outcome.FULL_TO_ONE,),
    "CLEARS_TO_ALL": (Outcome.CLEAR_TO_ALL,),
    "CLEARS_TO_ONE": (Outcome.CLEAR_TO_ONE,),
    "ECHOES": (Outcome.ECHOED,),
}
"""The outcomes whose sum each counter of an aggregator is."""


def counters_of(outcomes: Mapping[int, int]) -> dict[str, int]:
    """Counters of an aggregator, named as in :func:`p4sgd.hw.spec.aggregator.counters`, from counts of outcomes.

    Parameters
    ----------
    outcomes
        Number of frames by `Outcome` or `DropReason`.

    Returns
    -------
    FRAMES, counts of packets taken and answers sent, and counts of drops by reason, but for DROPPED_ETHERTYPE: a switch
    forwards frames of other protocols.
    """
    counted = {name: sum(outcomes.get(outcome, 0) for outcome in parts) for name, parts in _COUNTED.items()}
    dropped = {f"DROPPED_{drop.name}": outcomes.get(drop, 0) for drop in DropReason if drop is not DropReason.ETHERTYPE}
    return {"FRAMES": sum(outcomes.values()), **counted, **dropped}


def counters_by_place(frames: Mapping[int, int], jobs: int) -> dict[str, int]:
    """Counters of a switch that counts the frames of each job separately.

    Parameters
    ----------
    frames
        Number of frames by index: the outcome in the lowest `OUTCOME_BITS` bits; above it 1 + the place of the frames'
        job, or 0 for frames of no job.
    jobs
        Number of places.

    Returns
    -------
    The counters of `counters_of`, and JOB<place>_ACCEPTED and JOB<place>_DROPPED.
    """
    outcomes: dict[int, int] = {}
    by_place = {f"JOB{place}_{end}": 0 for place in range(jobs) for end in ("ACCEPTED", "DROPPED")}
    for index, count in frames.items():
        owner, outcome = divmod(index, 1 << OUTCOME_BITS)
        outcomes[outcome] = outcomes.get(outcome, 0) + count
        if owner:
            by_place[f"JOB{owner - 1}_{'ACCEPTED' if outcome in set(Outcome) else 'DROPPED'}"] += count
    return counters_of(outcomes) | by_place
