"""The packet: one Ethernet frame; and why one may be dropped.

Version 1 is 64 bytes, one beat of a 512-bit bus, declared in `FIELDS`. Version 2, of programs, is a longer frame with
the sums of several micro-batches, the key of the job and a check, which begins with `KEYED_FIELDS`. Fields are
big-endian; the first byte of the frame is the lowest byte of the bus. The frame check sequence is not part of a frame's
bytes.
"""

import functools
import itertools
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias


class _Reason(IntEnum):
    """A check that a frame may fail, and the fault of such a frame."""

    help: str

    def __new__(cls, value: int, text: str) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.help = text
        return member


class DropReason(_Reason):
    """The first check that a frame fails, in the order of the checks. Worker and aggregator have a counter for each."""

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


class KeyedDrop(_Reason):
    """A check of programs only, for which hardware has no counter: CHECK comes after RESERVED, KEY after SOURCE."""

    KEY = 14, "without the key of its job and round: stray, forged, of an earlier job, or 65,536 rounds late"
    CHECK = 15, "changed on the way, by their check: memory or a device there is faulty"


Drop: TypeAlias = DropReason | KeyedDrop

VERDICT = (DropReason.JOB, DropReason.WORKERS, DropReason.SHARD, DropReason.SLOT, DropReason.SOURCE)
"""The checks that depend on an aggregator's settings: bit i of a probe's verdict says that check i failed. If the job
is unknown, nothing else is checked; if the shard is wrong, its source is not."""

FRAME_BYTES = 64  # every frame of version 1, the shortest of version 2; without the frame check sequence
ETHERTYPE = 0x88B5  # IEEE 802 local experimental EtherType 1 (IEEE 802-2014, table 4)
VERSION = 1  # version of the packet format that all speak, hardware included
KEYED_VERSION = 2  # version of packets with the key of the job and several micro-batches, for programs
BROADCAST = (1 << 48) - 1  # the broadcast address; probes may be sent to it
GROUP_BIT = 40  # the bit of a MAC address, taken as a number, that marks a group address (IEEE 802)
VALUES = 8  # integers that a packet carries, one for each sample of a micro-batch
ROUND_BITS = 16  # bits of a round number in packets; those of version 1 compare modulo 2**16
KEY_BITS = 64  # bits of a job's key
_KEYS = (1 << KEY_BITS) - 1  # a constant, as 1 << 64 is none for compiled code


def round_near(sent: int, now: int) -> int:
    """The round of a packet, counted on past 2^16: of those whose last 16 bits were ``sent`` the nearest to ``now``."""
    half = 1 << ROUND_BITS - 1
    return now + (sent - now + half) % (2 * half) - half


def key_in_round(key: int, round_: int) -> int:
    """The key in packets of a round, counted on past 2^16, of a job with this key.

    It has the bits of the round for which there is no room elsewhere: packets of another round are never taken for its.
    """
    return key ^ round_ >> ROUND_BITS & _KEYS  # rounds before 0 are late, too


def mac_text(mac: int) -> str:
    """A MAC address in the usual notation, ``02:50:34:53:47:00``."""
    return mac.to_bytes(6, "big").hex(":")


class PacketType(IntEnum):
    """Types of packets."""

    PARTIAL = 1  # worker to aggregator: my partial sums of this slot and round
    FULL = 2  # aggregator to workers: the sums over all workers
    ACK = 3  # worker to aggregator: I have the sums
    CLEAR = 4  # aggregator to workers: all have the sums, the slot is free for the next round
    PROBE = 5  # worker to aggregator: which checks do my packets fail, and what is the state of this slot?
    ECHO = 6  # aggregator to worker: the answer to PROBE


class EchoValue(IntEnum):
    """Indices of the values of ECHO, whose layout and PROBE's are the same in every version.

    ``round`` and ``bitmap`` of ECHO are the slot's round, and the shards whose partials it has; they and ACKNOWLEDGED
    are 0 if there is no such slot. A probe's value 0 is a number that its sender chooses, the others are 0.
    """

    NUMBER = 0  # the probe's number
    VERDICT = 1  # bitmap of the checks that packets of the probe's sender fail: :data:`VERDICT`
    PORT = 2  # the port that the probe came in through
    ACKNOWLEDGED = 3  # shards that have acknowledged the slot's sums
    WORKERS = 4  # the job's number of workers; 0 if there is no such job
    SLOTS = 5  # slots of a job
    MAC_HIGH = 6  # MAC address noted for the probe's shard, bits 47..32; 0 if there is no such shard
    MAC_LOW = 7  # bits 31..0 of that address


class Field(NamedTuple):
    """A field of the frame, in network order."""

    name: str
    offset_bits: int
    bits: int
    help: str


def layout(frame_bytes: int, *columns: tuple[str, int, str]) -> tuple[Field, ...]:
    """The fields of a frame from their names, widths in bits and help texts, in network order."""
    offsets = list(itertools.accumulate((bits for _, bits, _ in columns), initial=0))
    assert offsets.pop() == frame_bytes * 8
    return tuple(Field(name, at, bits, text) for at, (name, bits, text) in zip(offsets, columns, strict=True))


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
_KEYED_BYTES = 40

KEYED_FIELDS = layout(
    _KEYED_BYTES,
    *((name, bits, text) for name, _, bits, text in FIELDS[: -1 - VALUES]),
    ("micro_batches", 16, "micro-batches in the frame (PARTIAL, FULL); the most that a frame may have (ECHO); else 0"),
    ("check", 32, "CRC-32 of bytes 32 to the last, then 14 to 27"),
    ("key", KEY_BITS, "key of the job, exclusive-or with the bits of the round from 16 on"),
)
"""The beginning of a frame of version 2. Values follow in PARTIAL and FULL, zeros up to `FRAME_BYTES` in ACK and CLEAR.
PROBE and ECHO have no key: their values are where version 1 has them."""

_MTU = 1500
_ETHERNET_BYTES = 14

MOST_BYTES = _ETHERNET_BYTES + _MTU  # bytes of the longest frame


def frame_bytes(micro_batches: int) -> int:
    """Bytes of a PARTIAL or FULL of version 2."""
    return _KEYED_BYTES + 4 * VALUES * micro_batches


def most_micro_batches(size: int) -> int:
    """Micro-batches for which a frame of ``size`` bytes has room."""
    return max(0, min(size, MOST_BYTES) - _KEYED_BYTES) // (4 * VALUES)


MOST_MICRO_BATCHES = most_micro_batches(MOST_BYTES)  # micro-batches of the longest frame


def _format(fields: tuple[Field, ...]) -> str:
    """The :mod:`struct` format of fields: those that share a byte are one item, addresses are bytes, values signed."""
    codes = {8: "B", 16: "H", 32: "I", 48: "6s", 64: "Q"}
    text = ">"
    for _, shared in itertools.groupby(fields, lambda field: field.offset_bits // 8):
        first, *others = shared
        code = codes[sum(field.bits for field in (first, *others))]
        text += code.lower() if first.name.startswith("value") else code
    return text


_STRUCT = struct.Struct(_format(FIELDS))
_HEADER = struct.Struct(_format(KEYED_FIELDS[:-1]))
_KEY = struct.Struct(">Q")
_COUNT, _CHECK = slice(26, 28), slice(28, 32)
_PADDING = bytes(FRAME_BYTES - _KEYED_BYTES)
_TYPES = {kind.value: kind for kind in PacketType}
_WITH_VALUES = (PacketType.PARTIAL, PacketType.FULL)
_PROBES = (PacketType.PROBE, PacketType.ECHO)


def _check_of(frame: bytes) -> int:
    """The check of a frame of version 2; values come first, so that answers to several workers share that part."""
    return zlib.crc32(frame[_ETHERNET_BYTES : _CHECK.start], zlib.crc32(frame[_CHECK.stop :]))


@functools.cache
def _values(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")


class MalformedPacketError(ValueError):
    """Bytes that are no packet of this format; ``reason`` is the first check that they fail."""

    def __init__(self, reason: Drop, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Packet:
    """A packet by field; ``type`` may be an unknown one."""

    type: PacketType | int
    job: int
    slot: int
    round: int
    shard: int
    workers: int
    bitmap: int
    # Int32: eight in version 1, PROBE and ECHO. In version 2 eight for each micro-batch in PARTIAL and FULL, else none.
    values: tuple[int, ...] = (0,) * VALUES
    destination: int = 0
    source: int = 0
    version: int = VERSION
    key: int | None = None  # of job and round, in version 2; None in version 1, PROBE and ECHO
    most: int = 0  # in ECHO of version 2, the most micro-batches that the aggregator takes; else 0

    def __post_init__(self) -> None:
        micro_batches, rest = divmod(len(self.values), VALUES)
        first, last = (1, 1) if self.key is None else (1, MOST_MICRO_BATCHES) if self.type in _WITH_VALUES else (0, 0)
        if rest or not first <= micro_batches <= last:
            raise ValueError(f"a packet carries {VALUES} values for each of {first} to {last} micro-batches")

    @property
    def micro_batches(self) -> int:
        return len(self.values) // VALUES

    def to_bytes(self) -> bytes:
        """The bytes of the frame; ValueError if a value does not fit."""
        try:
            if self.version >> 4 or self.type >> 4:
                self._refuse()
            addresses = int(self.destination).to_bytes(6, "big"), int(self.source).to_bytes(6, "big")
            kind, who = self.version << 4 | self.type, (self.shard, self.workers, self.bitmap)
            head = (*addresses, ETHERTYPE, kind, self.job, self.slot, self.round, *who)
            if self.key is None:
                return _STRUCT.pack(*head, self.most.to_bytes(2, "big") if self.most else b"", *self.values)
            values = _values(len(self.values)).pack(*self.values) if self.values else _PADDING
            frame = _HEADER.pack(*head, self.micro_batches, 0) + _KEY.pack(self.key) + values
            return frame[: _CHECK.start] + _check_of(frame).to_bytes(4, "big") + frame[_CHECK.stop :]
        except (OverflowError, struct.error):
            self._refuse()

    def _refuse(self) -> NoReturn:
        """Raise ValueError for the first field whose value does not fit."""
        known: dict[str, Any] = vars(self) | {"key": self.key or 0, "micro_batches": self.most}
        numbers = [(name, known.get(name, 0), 0, bits) for name, _, bits, _ in KEYED_FIELDS]
        numbers += [(f"value{index}", value, -(1 << 31), 32) for index, value in enumerate(self.values)]
        for name, value, low, bits in numbers:
            if not low <= value < low + (1 << bits):
                raise ValueError(f"{name} must be {low} to {low + (1 << bits) - 1}, not {int(value)}")
        raise AssertionError("all values fit")

    @classmethod
    def from_bytes(cls, frame: bytes, most: int = 0) -> "Packet":
        """Decode a frame; ``most`` is the most micro-batches in a packet of version 2, 0 to take version 1 only.

        MalformedPacketError if length, EtherType, version, reserved bytes or, in version 2, the check are wrong, looked
        at in this order. PROBE and ECHO may have any version.
        """
        size = len(frame)
        version, kind = divmod(frame[14], 16) if size >= FRAME_BYTES else (VERSION, 0)
        is_keyed = bool(most) and version == KEYED_VERSION and kind not in _PROBES
        expected = FRAME_BYTES
        if is_keyed and kind in _WITH_VALUES:
            count = int.from_bytes(frame[_COUNT], "big")
            expected = frame_bytes(count) if 1 <= count <= most else 0  # so many make a frame that is too long
        if size != expected:
            reason = DropReason.RUNT if size < expected else DropReason.LONG
            raise MalformedPacketError(reason, f"a frame has {expected} bytes, not {size}")
        destination, source, ethertype, _, *numbers = _HEADER.unpack_from(frame)
        job, slot, round_, shard, workers, bitmap, count, last = numbers
        if ethertype != ETHERTYPE:
            raise MalformedPacketError(DropReason.ETHERTYPE, f"ethertype is {ethertype:#x}, not {ETHERTYPE:#x}")
        if version != VERSION and not is_keyed and kind not in _PROBES:
            versions = f"{VERSION} or {KEYED_VERSION}" if most else f"{VERSION}"
            raise MalformedPacketError(DropReason.VERSION, f"version is {version:#x}, not {versions}")
        has_most = bool(most) and kind == PacketType.ECHO and version >= KEYED_VERSION
        if (last and not is_keyed) or (count and not has_most and not (is_keyed and kind in _WITH_VALUES)):
            raise MalformedPacketError(DropReason.RESERVED, f"reserved is 0x{frame[26:32].hex()}, not 0")
        if is_keyed and last != _check_of(frame):
            raise MalformedPacketError(KeyedDrop.CHECK, f"check is {last:#010x}, not {_check_of(frame):#010x}")
        key = None
        values: tuple[int, ...] = ()
        if not is_keyed:
            values = _values(VALUES).unpack_from(frame, _HEADER.size)
        else:
            (key,) = _KEY.unpack_from(frame, _HEADER.size)
            if kind in _WITH_VALUES:
                values = _values(VALUES * count).unpack_from(frame, _KEYED_BYTES)
        addresses = int.from_bytes(destination, "big"), int.from_bytes(source, "big")
        most_taken = count if has_most else 0
        header = (job, slot, round_, shard, workers, bitmap)
        return cls(_TYPES.get(kind, kind), *header, values, *addresses, version, key, most_taken)
