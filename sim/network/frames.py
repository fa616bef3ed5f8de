"""Frames in loops that Numba compiles: their fields, values and check.

Everything is int64 except bytes and sums, because Numba computes with int64 and uint64 together in floating point.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.packet import (
    ETHERTYPE,
    FRAME_BYTES,
    KEYED_FIELDS,
    KEYED_VERSION,
    VALUES,
    VERSION,
    DropReason,
    KeyedDrop,
    PacketType,
    frame_bytes,
)
from p4sgd.sim.compiled import compiled

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Sums = npt.NDArray[np.int32]

_AT = {field.name: (field.offset_bits // 8, -(-field.bits // 8)) for field in KEYED_FIELDS}
DESTINATION, SOURCE, _ETHERTYPE, TYPE = _AT["destination"], _AT["source"], _AT["ethertype"], _AT["type"]
JOB, SLOT, ROUND, SHARD, WORKERS = _AT["job"], _AT["slot"], _AT["round"], _AT["shard"], _AT["workers"]
BITMAP, COUNT, _CHECK, KEY = _AT["bitmap"], _AT["micro_batches"], _AT["check"], _AT["key"]
"""Offset and size of fields, in bytes; type and version share one."""
KEYED_VALUES, PLAIN_VALUES = frame_bytes(0), FRAME_BYTES - 4 * VALUES

PURPOSE = "the aggregator's loop"
"""What all compiled loops of an aggregator are for `compiled`, which so tells of them once."""


@compiled(PURPOSE)
def load(frame: Bytes, field: tuple[int, int]) -> Any:
    """A big-endian field; one of eight bytes as int64 has them."""
    first, size = field
    value = np.int64(0)
    for byte in range(first, first + size):
        value = value << 8 | np.int64(frame[byte])
    return value


@compiled(PURPOSE)
def store(frame: Bytes, field: tuple[int, int], value: Any) -> None:
    """Write a field, modulo its size."""
    first, size = field
    for byte in range(size):
        frame[first + byte] = np.uint8(value >> 8 * (size - 1 - byte) & 0xFF)


@compiled(PURPOSE)
def version_of(frame: Bytes) -> Any:
    """Version of the packet format."""
    return load(frame, TYPE) >> 4


@compiled(PURPOSE)
def type_of(frame: Bytes) -> Any:
    """The number of a `PacketType`, or another."""
    return load(frame, TYPE) & 15


_POLYNOMIAL = 0xEDB88320  # reflected, without x^32 (IEEE 802.3, clause 3.2.9)
_ALL = 0xFFFF_FFFF


def _tables() -> npt.NDArray[np.uint32]:
    """In row k, by byte, the remainder of the byte with k zero bytes behind it: eight bytes are taken in one step."""
    row = list(range(256))
    for _ in range(8):
        row = [rest >> 1 ^ (rest & 1) * _POLYNOMIAL for rest in row]
    rows = [row]
    for _ in range(7):
        rows.append([rest >> 8 ^ row[rest & 0xFF] for rest in rows[-1]])
    return np.array(rows, np.uint32)


_T = _tables()


@compiled(PURPOSE)
def crc32(data: Bytes, first: int, end: int, before: int) -> Any:
    """CRC-32 of IEEE 802.3, as `zlib.crc32` has it, of bytes ``first`` to ``end`` - 1 behind others with ``before``."""
    rest, at = np.int64(before) ^ _ALL, first
    while at + 8 <= end:
        low = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        low = rest ^ (low | np.int64(data[at + 3]) << 24)
        rest = np.int64(
            (_T[7, low & 0xFF] ^ _T[6, low >> 8 & 0xFF] ^ _T[5, low >> 16 & 0xFF] ^ _T[4, low >> 24])
            ^ (_T[3, data[at + 4]] ^ _T[2, data[at + 5]] ^ _T[1, data[at + 6]] ^ _T[0, data[at + 7]])
        )
        at += 8
    for byte in range(at, end):
        rest = rest >> 8 ^ np.int64(_T[0, (rest ^ np.int64(data[byte])) & 0xFF])
    return rest ^ _ALL


@compiled(PURPOSE)
def check_of_values(frame: Bytes, size: int) -> Any:
    """The first part of the check of a frame of version 2: of key and values. 0 for version 1, which has no check."""
    if version_of(frame) != KEYED_VERSION:
        return np.int64(0)
    return crc32(frame, KEY[0], size, 0)


@compiled(PURPOSE)
def _check_of(frame: Bytes, of_values: Any) -> Any:
    return crc32(frame, TYPE[0], _CHECK[0], of_values)


@compiled(PURPOSE)
def put_check(frame: Bytes, of_values: Any) -> None:
    """Complete a frame by its check, of which `check_of_values` is given; one of version 1 has none."""
    if version_of(frame) == KEYED_VERSION:
        store(frame, _CHECK, _check_of(frame, of_values))


@compiled(PURPOSE)
def why_malformed(frame: Bytes, size: int, most: int) -> int:
    """The first check of its format that a frame fails, a `DropReason` or `KeyedDrop`; -1 if none."""
    if size < FRAME_BYTES:
        return DropReason.RUNT.value
    version, kind = version_of(frame), type_of(frame)
    is_probe = kind in (PacketType.PROBE, PacketType.ECHO)
    is_keyed = most > 0 and version == KEYED_VERSION and not is_probe
    has_values = is_keyed and kind in (PacketType.PARTIAL, PacketType.FULL)
    count = load(frame, COUNT)
    expected = FRAME_BYTES
    if has_values:
        expected = KEYED_VALUES + 4 * VALUES * count if 1 <= count <= most else 0
    if size != expected:
        return DropReason.RUNT.value if size < expected else DropReason.LONG.value
    if load(frame, _ETHERTYPE) != ETHERTYPE:
        return DropReason.ETHERTYPE.value
    if version != VERSION and not is_keyed and not is_probe:
        return DropReason.VERSION.value
    has_most = most > 0 and kind == PacketType.ECHO and version >= KEYED_VERSION
    check = load(frame, _CHECK)
    if (check != 0 and not is_keyed) or (count != 0 and not has_most and not has_values):
        return DropReason.RESERVED.value
    if is_keyed and check != _check_of(frame, check_of_values(frame, size)):
        return KeyedDrop.CHECK.value
    return -1


@compiled(PURPOSE)
def _swapped(word: Any) -> Any:
    """A word of 32 bits with its bytes in the other order, as int32: loops over many words become vector code.

    All machines that Numba compiles for are little-endian.
    """
    high = (word & 0xFF) << 24 | (word & 0xFF00) << 8
    return np.int32(high | word >> 8 & 0xFF00 | word >> 24 & 0xFF)


@compiled(PURPOSE)
def take_values(frame: Bytes, first: int, sums: Sums, count: int, begins: bool) -> None:
    """Set sums to the values of a frame, or add these, modulo 2^32."""
    words = frame[first : first + 4 * count].view(np.int32)
    if begins:
        for index in range(count):
            sums[index] = _swapped(words[index])
    else:
        for index in range(count):
            sums[index] += _swapped(words[index])


@compiled(PURPOSE)
def put_values(frame: Bytes, first: int, sums: Sums, count: int) -> None:
    """Write sums as the values of a frame."""
    words = frame[first : first + 4 * count].view(np.int32)
    for index in range(count):
        words[index] = _swapped(sums[index])
