"""The compiled loop over plain lines of sparse text.

At a line that is not plain it stops, and the reader in Python, which defines the format, parses it or says what is
wrong with it. Plain are in LIBSVM's format decimal numbers and ascending indices, perhaps a ``qid:`` and a comment; in
Vowpal Wabbit's decimal numbers and words as values, and before the first bar a label, an importance, a base and a tag.

Numbers are the nearest float64, as those of Python's ``float``. They are computed with integers, by the algorithm of D.
Lemire, "Number parsing at a gigabyte per second", Software: Practice and Experience 51 (2021); N. Mushtak and D.
Lemire, "Fast number parsing without fallback" (2023), prove that its 128 bits are enough.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import EXACT
from p4sgd.sim.compiled import compiled

_compiled = compiled("the reader of sparse text")

_TAB, _LINE_FEED, _RETURN, _SPACE = b"\t\n\r "
_COMMENT, _PLUS, _MINUS, _POINT, _ZERO, _COLON, _BAR, _QUOTE = b"#+-.0:|'"
_A, _D, _E, _F, _I, _N, _Q, _Z = b"adefinqz"
_LOWER = 0x20
"""The bit that makes a letter lower."""

_LEAST_POWER, _LARGEST_POWER = -342, 308
"""Powers of ten beyond which a 64-bit integer times the power is 0 or infinite."""


def _powers_of_five() -> npt.NDArray[np.uint64]:
    """The first 128 bits of 5^q, (powers, 2), high word first: truncated, but those of −27 ≤ q < 0 rounded up."""
    table = []
    for q in range(_LEAST_POWER, _LARGEST_POWER + 1):
        power = 5 ** abs(q)
        bits = power.bit_length()
        leading = power << 128 >> bits if q >= 0 else (1 << (bits + 127)) // power + (q >= -27)
        table.append((leading >> 64, leading & ((1 << 64) - 1)))
    return np.array(table, np.uint64)


_POWERS = _powers_of_five()

# Unsigned constants: with signed ones Numba would compute in float64.
_0, _1, _3, _9, _10, _32, _63 = (np.uint64(value) for value in (0, 1, 3, 9, 10, 32, 63))
_LOW_HALF = np.uint64((1 << 32) - 1)
_LAST_BITS = np.uint64((1 << 9) - 1)
_FULL = np.uint64(((1 << 64) - 10) // 10)
"""Largest integer to which a further digit can be appended in 64 bits."""

_FIRST, _SECOND, _ADDED = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)
_FINAL_FIRST, _FINAL_SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
"""Those of MurmurHash3."""


@_compiled
def parse_plain(
    text: Any, at: int, row: int, stored: int, limits: Any, mask: Any, labels_needed: bool, out: Any
) -> tuple[int, int, int]:
    """Parse lines up to the first one that is not plain.

    ``text``, uint8 (bytes,), ends with a line feed; ``at`` is the offset of the first line, ``row`` and ``stored`` are
    the numbers of samples and of values so far. ``limits`` are two uint64, the smallest and largest index of LIBSVM's
    format; ``None`` for Vowpal Wabbit's: Numba compiles the parser of one format only. ``mask``, uint64, has the bits
    that an index, or the hash of a name, keeps. If labels are not needed, they may be missing or texts, and are all 0.
    ``out``, a `p4sgd.host.data.formats.sparse_text.Parsed`, is written from ``stored`` and from ``row`` on.

    Returns the offset of the line that is not plain, or of the end; ``row`` and ``stored`` there.
    """
    values, indices, ends, labels, weights, offsets = out
    while at < text.size:
        line, begin = at, stored
        at = _skip_blanks(text, at)
        if text[at] != _LINE_FEED and (text[at] != _COMMENT or limits is None):
            label, weight, offset = 0.0, 1.0, 0.0
            if limits is not None:
                label, at, stored = _parse_numbers(text, at, stored, limits, mask, labels_needed, values, indices)
            if limits is None:
                about, at, stored = _parse_names(text, at, stored, mask, labels_needed, values, indices)
                label, weight, offset = about
            if at < 0:
                return line, row, begin
            ends[row], labels[row], weights[row], offsets[row] = stored, label, weight, offset
            row += 1
        while text[at] != _LINE_FEED:
            at += 1
        at += 1
    return at, row, stored


# -- characters and numbers --------------------------------------------------------------------------------------------


@_compiled
def _digit(text: Any, at: int) -> Any:
    return np.uint8(text[at] - _ZERO) < 10


@_compiled
def _blank(byte: int) -> bool:
    """Whether a byte is white space, other than a line feed."""
    return byte == _SPACE or (_TAB <= byte <= _RETURN and byte != _LINE_FEED)


@_compiled
def _skip_blanks(text: Any, at: int) -> int:
    while _blank(text[at]):
        at += 1
    return at


@_compiled
def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """High and low word of the product of two 64-bit integers."""
    a_high, a_low, b_high, b_low = a >> _32, a & _LOW_HALF, b >> _32, b & _LOW_HALF
    low = a_low * b_low
    middle = a_high * b_low + (low >> _32)
    other = a_low * b_high + (middle & _LOW_HALF)
    return a_high * b_high + (middle >> _32) + (other >> _32), a * b


@_compiled
def _nearest(w: Any, q: int) -> float:
    """The float64 nearest to w · 10^q, w a uint64; NaN if it is infinite or not normal."""
    if w == 0:
        return 0.0
    if not _LEAST_POWER <= q <= _LARGEST_POWER:
        return np.nan
    shifted = 0
    for bits in (32, 16, 8, 4, 2, 1):
        if w >> np.uint64(64 - bits) == 0:
            w <<= np.uint64(bits)
            shifted += bits
    high, low = _product(w, _POWERS[q - _LEAST_POWER, 0])
    if high & _LAST_BITS == _LAST_BITS:  # the other half of the power might carry into them
        carry, _ = _product(w, _POWERS[q - _LEAST_POWER, 1])
        low += carry
        if carry > low:
            high += _1
    top = high >> _63
    shift = top + _9
    mantissa = high >> shift  # 53 bits, and one to round by
    exponent = (217706 * q >> 16) + 63 + np.int64(top) - shifted + 1023
    if low <= _1 and -4 <= q <= 23 and mantissa & _3 == _1 and mantissa << shift == high:
        mantissa -= _1  # half way between two numbers: to the even one
    mantissa = (mantissa + (mantissa & _1)) >> _1
    if mantissa >> np.uint64(53):
        mantissa >>= _1
        exponent += 1
    if not 0 < exponent < 2047:
        return np.nan
    return np.uint64((np.uint64(exponent - 1) << np.uint64(52)) + mantissa).view(np.float64)


@_compiled
def _digits(text: Any, at: int, w: Any) -> tuple[Any, int]:
    """Append digits to an integer: the integer, and the offset of their end; that is −1 if they do not fit 64 bits."""
    while _digit(text, at):
        if w > _FULL:
            return w, -1
        w = w * _10 + np.uint64(text[at] - _ZERO)
        at += 1
    return w, at


@_compiled
def _number(text: Any, at: int) -> tuple[float, int]:
    """A decimal number whose digits fit 64 bits, and the offset of its end; that is −1 if there is no such number."""
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    w, q, first = np.uint64(0), 0, at
    w, at = _digits(text, at, w)
    if at < 0:
        return 0.0, -1
    digits = at - first
    if text[at] == _POINT:
        at += 1
        first = at
        w, at = _digits(text, at, w)
        if at < 0:
            return 0.0, -1
        q = first - at
        digits -= q
    if digits == 0:
        return 0.0, -1
    if text[at] | _LOWER == _E:
        at += 1
        down = text[at] == _MINUS
        if down or text[at] == _PLUS:
            at += 1
        first, exponent = at, 0
        while _digit(text, at) and at - first < 9:
            exponent = 10 * exponent + (text[at] - _ZERO)
            at += 1
        if at == first:
            return 0.0, -1
        q += -exponent if down else exponent
    value = _nearest(w, q)
    if np.isnan(value):
        return 0.0, -1
    return -value if negative else value, at


# -- LIBSVM's format ---------------------------------------------------------------------------------------------------


@_compiled
def _ends_item(byte: int) -> bool:
    return _blank(byte) or byte in (_LINE_FEED, _COMMENT)


@_compiled
def _parse_numbers(
    text: Any, at: int, stored: int, limits: Any, mask: Any, labels_needed: bool, values: Any, indices: Any
) -> tuple[float, int, int]:
    """Parse a line of LIBSVM's format that is not blank.

    Returns label, offset of the end of the line or of its comment, −1 if the line is not plain, and ``stored`` there.
    """
    label, begin, word = 0.0, stored, at
    if labels_needed:
        label, at = _number(text, at)
        if abs(label) >= EXACT or at < 0 or not _ends_item(text[at]):
            return label, -1, stored
    else:
        while not (_ends_item(text[at]) or text[at] == _COLON):
            at += 1
        if text[at] == _COLON:  # there is no label
            at = word
    after, largest = limits
    first = True
    while True:
        at = _skip_blanks(text, at)
        if text[at] in (_LINE_FEED, _COMMENT):
            return label, at if labels_needed or stored > begin else -1, stored
        if first and text[at] == _Q and text[at + 1] == _I and text[at + 2] == _D:
            first, colons = False, 0
            while not _ends_item(text[at]):
                colons += text[at] == _COLON
                at += 1
            if colons == 0 or (text[at - 1] == _COLON and text[at] not in (_LINE_FEED, _COMMENT)):
                return label, -1, stored  # what follows the blank may belong to it
            continue
        first = False
        word = at
        index, at = _digits(text, at, _0)
        if at <= word or text[at] != _COLON or not after <= index <= largest:
            return label, -1, stored
        value, at = _number(text, _skip_blanks(text, at + 1))
        if at < 0 or not _ends_item(text[at]):
            return label, -1, stored
        values[stored], indices[stored] = value, index & mask
        stored += 1
        after = index + _1  # which does not wrap: `_digits` reads no integer that large


# -- Vowpal Wabbit's format --------------------------------------------------------------------------------------------


@_compiled
def _mixed(value: Any, word: Any) -> Any:
    """A step of MurmurHash3 without the mixing of the sum; Numba multiplies uint32 to uint64."""
    k = np.uint32(word * _FIRST)
    k = np.uint32(np.uint32(k << 15) | (k >> 17))
    return np.uint32(value ^ np.uint32(k * _SECOND))


@_compiled
def _hash(text: Any, at: int, end: int, seed: Any) -> Any:
    """The hash of a name, which is not empty, as `p4sgd.host.data.formats.vw.hash_name` modulo 2^64."""
    if _digit(text, at):
        count, place = _0, at
        while place < end and _digit(text, place):
            count = count * _10 + np.uint64(text[place] - _ZERO)
            place += 1
        if place == end:
            return count + seed
    value, size = np.uint32(seed), np.uint32(end - at)
    while at + 4 <= end:
        word = np.uint32(text[at]) | np.uint32(text[at + 1]) << 8
        word |= np.uint32(text[at + 2]) << 16 | np.uint32(text[at + 3]) << 24
        value = _mixed(value, np.uint32(word))
        value = np.uint32(np.uint32(np.uint32(value << 13) | (value >> 19)) * np.uint32(5) + _ADDED)
        at += 4
    if at < end:
        word = np.uint32(text[at])
        if at + 1 < end:
            word |= np.uint32(text[at + 1]) << 8
        if at + 2 < end:
            word |= np.uint32(text[at + 2]) << 16
        value = _mixed(value, np.uint32(word))
    value ^= size
    value = np.uint32(np.uint32(value ^ (value >> 16)) * _FINAL_FIRST)
    value = np.uint32(np.uint32(value ^ (value >> 13)) * _FINAL_SECOND)
    return np.uint64(np.uint32(value ^ (value >> 16)))


@_compiled
def _ends_word(byte: int) -> bool:
    return _blank(byte) or byte in (_LINE_FEED, _BAR)


@_compiled
def _name_end(text: Any, at: int) -> int:
    """End of a name; −1 if there is none, or if it has control characters."""
    first = at
    while text[at] > _SPACE and text[at] != _COLON and text[at] != _BAR:
        at += 1
    return at if at > first and (text[at] == _COLON or _ends_word(text[at])) else -1


@_compiled
def _value(text: Any, at: int) -> tuple[float, int]:
    """The number after a name, 1 without a colon, and the offset of its end; that is −1 if it is not plain."""
    value = 1.0
    if text[at] == _COLON:
        value, at = _number(text, at + 1)
        if at < 0 or not _ends_word(text[at]):
            return value, -1
    return value, at


@_compiled
def _text_end(text: Any, at: int) -> int:
    """End of a text as a value; −1 if it does not begin with a letter, or if it may be an infinity or NaN."""
    first = at
    while text[at] > _SPACE and text[at] != _BAR:
        at += 1
    letter = text[first] | _LOWER
    if letter in (_I, _N) and at - first in (3, 8):
        second, third = text[first + 1] | _LOWER, text[first + 2] | _LOWER
        if second in (_A, _N) and third in (_F, _N):
            return -1
    return at if _A <= letter <= _Z and _ends_word(text[at]) else -1


@_compiled
def _label(text: Any, at: int) -> tuple[tuple[float, float, float], int]:
    """Label, importance and base; and the offset of the first bar, −1 if what is before it is not plain."""
    importance, base = 1.0, 0.0
    label, at = _number(text, at)
    if abs(label) >= EXACT or at < 0 or not _blank(text[at]):
        return (label, importance, base), -1
    at = _skip_blanks(text, at)
    second, end = _number(text, at)
    if end >= 0 and _blank(text[end]):
        if not 0 <= second < np.inf:
            return (label, importance, base), -1
        importance, at = second, _skip_blanks(text, end)
        third, end = _number(text, at)
        if end >= 0 and _blank(text[end]):
            if not abs(third) < np.inf:
                return (label, importance, base), -1
            base, at = third, _skip_blanks(text, end)
    word = at
    while not _ends_word(text[at]):
        at += 1
    if text[word] == _QUOTE:
        at = _skip_blanks(text, at)
    return (label, importance, base), at if text[at] == _BAR else -1


@_compiled
def _parse_names(
    text: Any, at: int, stored: int, mask: Any, labels_needed: bool, values: Any, indices: Any
) -> tuple[tuple[float, float, float], int, int]:
    """Parse a line of Vowpal Wabbit's format that is not blank.

    Returns label, importance and base; offset of the end of the line, −1 if it is not plain; and ``stored`` there.
    """
    about = 0.0, 1.0, 0.0
    if labels_needed:
        about, at = _label(text, at)
    else:
        while text[at] != _BAR and text[at] != _LINE_FEED:
            at += 1
    if at < 0 or text[at] != _BAR:
        return about, -1, stored
    seed, scale = _0, 1.0
    while text[at] != _LINE_FEED:
        if text[at] == _BAR:
            at += 1
            seed, scale = _0, 1.0
            if not _ends_word(text[at]):
                end = _name_end(text, at)
                if end < 0:
                    return about, -1, stored
                seed = _hash(text, at, end, _0)
                scale, at = _value(text, end)
                if at < 0:
                    return about, -1, stored
        elif _blank(text[at]):
            at += 1
        else:
            end = _name_end(text, at)
            if end < 0:
                return about, -1, stored
            column = _hash(text, at, end, seed)
            value, at = _value(text, end)
            if at < 0:
                at = _text_end(text, end + 1)
                if at < 0:
                    return about, -1, stored
                column, value = _hash(text, end + 1, at, column), 1.0
            value *= scale
            if not np.isfinite(value):
                return about, -1, stored
            values[stored], indices[stored] = value, column & mask
            stored += 1
    return about, at, stored
