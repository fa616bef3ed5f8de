"""CRC-32 of IEEE 802.3 as `zlib.crc32` computes it, for loops that Numba compiles."""

from typing import Any

import numpy as np
import numpy.typing as npt

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


def crc32(data: npt.NDArray[np.uint8], first: int, end: int, before: int) -> Any:
    """CRC-32 of bytes ``first`` to ``end`` - 1, behind others whose CRC-32 is ``before``; that of none is 0."""
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
