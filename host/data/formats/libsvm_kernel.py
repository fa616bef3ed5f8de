"""Compiled parser of plain LIBSVM lines: decimal numbers and ascending indices, perhaps a ``qid:`` and a comment.

Values are the nearest float64, as those of Python's ``float``. They are computed with integers, by the algorithm of D.
Lemire, "Number parsing at a gigabyte per second", Software: Practice and Experience 51 (2021); N. Mushtak and D.
Lemire, "Fast number parsing without fallback" (2023), prove that its 128 bits are enough.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.raw_labels import EXACT
from p4sgd.sim.compiled import compiled

_compiled = compiled("the reader of sparse text")

_TAB, _LINE_FEED, _RETURN, _SPACE = b"\t\n\r "
_COMMENT, _PLUS, _MINUS, _POINT, _ZERO, _COLON = b"#+-.0:"
_UPPER_E, _LOWER_E = b"Ee"
_Q, _I, _D = b"qid"

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
_0, _1, _3, _9, _10, _11, _32, _63 = (np.uint64(value) for value in (0, 1, 3, 9, 10, 11, 32, 63))
_LOW_HALF = np.uint64((1 << 32) - 1)
_LAST_BITS = np.uint64((1 << 9) - 1)
_FULL = np.uint64(((1 << 64) - 10) // 10)
"""Largest integer to which a further digit can be appended in 64 bits."""


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
def digit(text: Any, at: int) -> Any:
    """Whether a byte is a digit."""
    return np.uint8(text[at] - _ZERO) < 10


@_compiled
def blank(byte: int) -> bool:
    """Whether a byte is white space, other than a line feed."""
    return byte == _SPACE or (_TAB <= byte <= _RETURN and byte != _LINE_FEED)


@_compiled
def _ends_line(byte: int) -> bool:
    return byte in (_LINE_FEED, _COMMENT)


@_compiled
def _digits(text: Any, at: int, w: Any) -> tuple[Any, int]:
    """Append digits to an integer: the integer, and the offset of their end; that is −1 if they do not fit 64 bits."""
    while digit(text, at):
        if w > _FULL:
            return w, -1
        w = w * _10 + np.uint64(text[at] - _ZERO)
        at += 1
    return w, at


@_compiled
def number(text: Any, at: int) -> tuple[float, int]:
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
    if text[at] == _LOWER_E or text[at] == _UPPER_E:
        at += 1
        down = text[at] == _MINUS
        if down or text[at] == _PLUS:
            at += 1
        first, exponent = at, 0
        while digit(text, at) and at - first < 9:
            exponent = 10 * exponent + (text[at] - _ZERO)
            at += 1
        if at == first:
            return 0.0, -1
        q += -exponent if down else exponent
    value = _nearest(w, q)
    if np.isnan(value):
        return 0.0, -1
    return -value if negative else value, at


@_compiled
def parse_line(
    text: Any,
    at: int,
    stored: int,
    least: Any,
    largest: Any,
    mask: Any,
    labels_needed: bool,
    values: Any,
    indices: Any,
) -> tuple[float, int, int]:
    """Parse a line that is not blank, as `p4sgd.host.data.formats.sparse_kernel.parse_plain`.

    Returns label, offset of the end of the line or of its comment, −1 if the line is not plain, and ``stored`` there.
    """
    label, begin, word = 0.0, stored, at
    if labels_needed:
        label, at = number(text, at)
        if abs(label) >= EXACT or at < 0 or not (blank(text[at]) or _ends_line(text[at])):
            return label, -1, stored
    else:
        while not (blank(text[at]) or _ends_line(text[at]) or text[at] == _COLON):
            at += 1
        if text[at] == _COLON:  # there is no label
            at = word
    after, first = least, True
    while True:
        while blank(text[at]):
            at += 1
        if _ends_line(text[at]):
            return label, at if labels_needed or stored > begin else -1, stored
        if first and text[at] == _Q and text[at + 1] == _I and text[at + 2] == _D:
            first, colons = False, 0
            while not (blank(text[at]) or _ends_line(text[at])):
                colons += text[at] == _COLON
                at += 1
            if colons == 0:
                return label, -1, stored
            continue
        first = False
        word = at
        index, at = _digits(text, at, _0)
        if at <= word or text[at] != _COLON or not after <= index <= largest:
            return label, -1, stored
        value, at = number(text, at + 1)
        if at < 0 or not (blank(text[at]) or _ends_line(text[at])):
            return label, -1, stored
        values[stored], indices[stored] = value, index & mask
        stored += 1
        after = index + _1  # which does not wrap: `_digits` reads no integer that large
