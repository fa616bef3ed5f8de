"""Vowpal Wabbit's text format: lines ``label 'tag |namespace name:value name … |namespace …``, with hashed names.

A line is ``[label [importance [base]]] [tag]|[namespace[:scale]] feature feature …|…``. A feature is ``name:value``,
``name`` with the value 1, or ``name:text``, whose text belongs to the name. The tag begins with ``'`` or touches the
first ``|``; it is ignored. Values are multiplied by the scale of their namespace, and values in the same column are
added. The importance is the weight of the sample, at least 0, and the base its offset. Lines without a label, which
Vowpal Wabbit only predicts, are left out; if labels are not needed, what is before the first ``|`` is ignored, but for
bases if the model was trained with offsets.

**Columns** are those of Vowpal Wabbit with ``-b N``: MurmurHash3 (x86, 32 bits) of the bytes of the name, modulo 2^N
with N = ``hash_bits``. Values keep their sign. The seed is the hash of the namespace's name with seed 0, and 0 for
features without a namespace; for ``name:text`` the hash of the name is the seed of that of the text. The "hash" of
a name of nothing but digits is that number plus the seed, so that ``| 7:1`` is column 7.

Unlike Vowpal Wabbit, which may warn and go on, this reader refuses features and namespaces without a name, and values
that are neither a number nor a text, such as ``2x``.
"""

import math

from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.sparse_text import ParsedLine, SparseTextSource, finite, label_of, shown
from p4sgd.host.data.notation import number
from p4sgd.host.data.sample_numbers import OFFSET
from p4sgd.host.errors import UserError

_WORD = (1 << 32) - 1


class VwSource(SparseTextSource):
    """A file in Vowpal Wabbit's text format, compressed or not, as sparse samples."""

    _LEAST_BYTES = 2  # as a and a blank
    _DEFAULT_HASH_BITS = 18
    _limits = None

    def settle(self) -> FeatureSpace:
        left_out = self._unlabelled
        if left_out and not self._samples:
            raise UserError(f"{self.name}: no line has a label")
        if left_out:
            self.remarks = (f"{left_out:,} line{'s have' if left_out > 1 else ' has'} no label: left out",)
        return super().settle()

    @property
    def _has_offsets(self) -> bool:
        return self.options.like is not None and self.options.like.offset == OFFSET

    def _parse_line(self, raw: bytes) -> ParsedLine | None:
        head, bar, rest = raw.partition(b"|")
        if not bar and not head.strip():
            return None
        if not bar:
            raise UserError("there is no | before the features (is this a file for Vowpal Wabbit?)")
        if b"\0" in rest:
            raise UserError("holds a zero byte")
        mask = self._mask
        about: tuple[float | None, float, float] = 0.0, 1.0, 0.0
        if self.options.labels_needed or (self._has_offsets and len(head.split()) > 2):
            about = _parse_label(head)
        label, importance, base = about
        if label is None:
            self._unlabelled += 1
            return None
        sample = ParsedLine(label, [], [], importance, base)
        for part in rest.split(b"|"):
            items, seed, scale = part.split(), 0, 1.0
            if part[:1].strip():  # a word that touches the bar is the namespace
                space = items.pop(0)
                name, colon, text = space.partition(b":")
                if not name:
                    raise UserError(f"the namespace {shown(space)} has no name")
                seed = hash_name(name, 0)
                scale = finite(text, "the scale of namespace", name) if colon else 1.0
            for item in items:
                name, colon, text = item.partition(b":")
                if not name:
                    raise UserError(f"the feature {shown(item)} has no name")
                index, value = hash_name(name, seed), 1.0
                if colon and _is_text(text):
                    index = hash_name(text, index)
                elif colon:
                    value = finite(text, "the value of feature", name)
                value *= scale
                if not math.isfinite(value):
                    raise UserError(f"the value of feature {shown(name)} times its namespace's scale is too large")
                sample.indices.append(index & mask)
                sample.values.append(value)
        return sample


def hash_name(name: bytes, seed: int) -> int:
    """The hash of a name: MurmurHash3 (x86, 32 bits), or the seed plus the number if there are only digits."""
    if name.isdigit():
        return int(name[-64:]) + seed  # 10^64 is divisible by 2^64: digits before these change no column
    value = seed & _WORD
    for first in range(0, len(name), 4):
        word = name[first : first + 4]
        k = int.from_bytes(word, "little") * 0xCC9E2D51 & _WORD
        value ^= _rotated(k, 15) * 0x1B873593 & _WORD
        if len(word) == 4:
            value = (_rotated(value, 13) * 5 + 0xE6546B64) & _WORD
    value ^= len(name)
    value = (value ^ value >> 16) * 0x85EBCA6B & _WORD
    value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD
    return value ^ value >> 16


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD


def _parse_label(head: bytes) -> tuple[float | None, float, float]:
    """Label, ``None`` if there is none, importance and base, from what is before the first bar."""
    words = head.split()
    touching = b""
    if words and (words[-1].startswith(b"'") or not head[-1:].isspace()):
        touching = words.pop()
    if not words and number(touching) is not None:
        raise UserError(f"the label is missing: {shown(touching)} touches the | and is a tag")
    if not words:
        return None, 1.0, 0.0
    if len(words) > 3:
        raise UserError(f"{shown(b' '.join(words))} before the | is more than label, importance and base")
    label = label_of(words[0])
    importance = finite(words[1], "the importance") if len(words) > 1 else 1.0
    if importance < 0:
        raise UserError(f"the importance is {words[1].decode()}: it must be at least 0")
    return label, importance, finite(words[2], "the base") if len(words) > 2 else 0.0


def _is_text(word: bytes) -> bool:
    """Whether the value of a feature is a text: no number, and it does not begin like one."""
    return word != b"" and word[:1] not in b"+-.0123456789" and number(word) is None
