"""Compiled parser of plain lines of Vowpal Wabbit's text format.

They have decimal numbers and words as values, and nothing before the first bar but a label, an importance and a tag.
"""

from typing import Any

import numpy as np

from p4sgd.host.data.formats.libsvm_kernel import blank, digit, number
from p4sgd.host.data.raw_labels import EXACT
from p4sgd.sim.compiled import compiled

_compiled = compiled("the reader of sparse text")

_LINE_FEED, _SPACE, _QUOTE, _COLON, _BAR = b"\n ':|"
_ZERO = ord("0")
_LOWER_A, _LOWER_F, _LOWER_I, _LOWER_N, _LOWER_Z = b"afinz"
_LOWER = 0x20
"""The bit that makes a letter lower."""

# Unsigned constants: with signed ones Numba would compute in float64.
_0, _10 = np.uint64(0), np.uint64(10)
_FIRST, _SECOND, _ADDED = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)
_FINAL_FIRST, _FINAL_SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


@_compiled
def _mixed(value: Any, word: Any) -> Any:
    """A step of MurmurHash3 without the mixing of the sum; Numba multiplies uint32 to uint64."""
    k = np.uint32(word * _FIRST)
    k = np.uint32(np.uint32(k << 15) | (k >> 17))
    return np.uint32(value ^ np.uint32(k * _SECOND))


@_compiled
def _hash(text: Any, at: int, end: int, seed: Any) -> Any:
    """The hash of a name, which is not empty, as `p4sgd.host.data.formats.vw.hash_name` modulo 2^64."""
    if digit(text, at):
        count, place = _0, at
        while place < end and digit(text, place):
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
    return blank(byte) or byte in (_LINE_FEED, _BAR)


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
        value, at = number(text, at + 1)
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
    if letter in (_LOWER_I, _LOWER_N) and at - first in (3, 8):
        second, third = text[first + 1] | _LOWER, text[first + 2] | _LOWER
        if second in (_LOWER_A, _LOWER_N) and third in (_LOWER_F, _LOWER_N):
            return -1
    return at if _LOWER_A <= letter <= _LOWER_Z and _ends_word(text[at]) else -1


@_compiled
def _label(text: Any, at: int) -> tuple[float, float, int]:
    """Label, importance, and the offset of the first bar; that is −1 if what is before it is not plain."""
    importance = 1.0
    label, at = number(text, at)
    if abs(label) >= EXACT or at < 0 or not blank(text[at]):
        return label, importance, -1
    while blank(text[at]):
        at += 1
    second, end = number(text, at)
    if end >= 0 and blank(text[end]):
        if not 0 <= second < np.inf:
            return label, importance, -1
        importance, at = second, end
        while blank(text[at]):
            at += 1
    word = at
    while not _ends_word(text[at]):
        at += 1
    if text[word] == _QUOTE:
        while blank(text[at]):
            at += 1
    return label, importance, at if text[at] == _BAR else -1


@_compiled
def parse_line(
    text: Any, at: int, stored: int, mask: Any, labels_needed: bool, values: Any, indices: Any
) -> tuple[float, float, int, int]:
    """Parse a line that is not blank, as `p4sgd.host.data.formats.sparse_kernel.parse_plain`.

    Returns label, importance, offset of the end of the line, −1 if it is not plain, and ``stored`` there.
    """
    label, importance = 0.0, 1.0
    if labels_needed:
        label, importance, at = _label(text, at)
    else:
        while text[at] != _BAR and text[at] != _LINE_FEED:
            at += 1
    if at < 0 or text[at] != _BAR:
        return label, importance, -1, stored
    seed, scale = _0, 1.0
    while text[at] != _LINE_FEED:
        if text[at] == _BAR:
            at += 1
            seed, scale = _0, 1.0
            if not _ends_word(text[at]):
                end = _name_end(text, at)
                if end < 0:
                    return label, importance, -1, stored
                seed = _hash(text, at, end, _0)
                scale, at = _value(text, end)
                if at < 0:
                    return label, importance, -1, stored
        elif blank(text[at]):
            at += 1
        else:
            end = _name_end(text, at)
            if end < 0:
                return label, importance, -1, stored
            column = _hash(text, at, end, seed)
            value, at = _value(text, end)
            if at < 0:
                at = _text_end(text, end + 1)
                if at < 0:
                    return label, importance, -1, stored
                column, value = _hash(text, end + 1, at, column), 1.0
            value *= scale
            if not np.isfinite(value):
                return label, importance, -1, stored
            values[stored], indices[stored] = value, column & mask
            stored += 1
    return label, importance, at, stored
