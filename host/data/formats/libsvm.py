"""LIBSVM (svmlight) files: lines ``label index:value index:value …``, indices ascending, usually from 1.

There may be blanks before a value. Comments after ``#`` and ``qid:`` are ignored. With ``hash_bits`` N the column of a
feature is its index modulo 2^N, as that of a numeric name in Vowpal Wabbit.
"""

from p4sgd.host.data.formats.sparse_text import MAX_INDEX, ParsedLine, SparseTextSource, finite, label_of, shown
from p4sgd.host.data.formats.text_file import one_word_each
from p4sgd.host.data.notation import number
from p4sgd.host.errors import UserError

_MAX_HASHED = (1 << 64) - 1
"""Largest index of a feature that is hashed."""


class LibsvmSource(SparseTextSource):
    """A LIBSVM file, compressed or not, as sparse samples.

    If labels are not needed, they may be missing, or anything without a colon.
    """

    _LEAST_BYTES = 4  # as 1:2 and a blank
    _DEFAULT_HASH_BITS = None

    @property
    def _limits(self) -> tuple[int, int]:
        return (0, _MAX_HASHED) if self._hash_bits else (int(self._zero_based is False), MAX_INDEX)

    def _parse_line(self, raw: bytes) -> ParsedLine | None:
        line = raw.partition(b"#")[0]
        try:
            return self._parse_words(one_word_each(line).split())
        except UserError:
            try:
                line.decode()
            except UnicodeDecodeError:
                raise UserError("is not UTF-8 text: this is no LIBSVM file") from None
            raise

    def _parse_words(self, words: list[bytes]) -> ParsedLine | None:
        if not words:
            return None
        (least, largest), mask, labels_needed = self._limits, self._mask, self.options.labels_needed
        items = words if b":" in words[0] and not labels_needed else words[1:]
        if (labels_needed or not items) and number(words[0]) is None:
            raise UserError(_label_mistake(words[0]))
        sample = ParsedLine(label_of(words[0]) if labels_needed else 0.0, [], [])
        if items and items[0].startswith(b"qid") and b":" in items[0]:
            del items[0]
        before = least - 1
        for item in items:
            text, colon, rest = item.partition(b":")
            if not colon:
                raise UserError(f"{shown(item)} is not of the form index:value")
            try:
                index = int(text.replace(b"_", b"?"))
            except ValueError:
                raise UserError(f"{shown(item)} does not begin with a whole number") from None
            if not before < index <= largest:
                raise UserError(_index_mistake(index, before, least, largest))
            sample.values.append(finite(rest, "the value of feature", index))
            sample.indices.append(index & mask)
            before = index
        return sample


def _label_mistake(label: bytes) -> str:
    if b":" in label:
        return f"begins with {shown(label)}: the label is missing"
    if b"," in label and all(number(part) is not None for part in label.split(b",")):
        targets = "several labels, one is needed: several targets are columns of a table, a --label-column each"
        return f"the label is {shown(label)}: {targets}"
    return f"the label is {shown(label)}: not a number (is this a LIBSVM file?)"


def _index_mistake(index: int, before: int, least: int, largest: int) -> str:
    if index < least:
        hint = ": say --zero-based if that is the first one" if index == 0 else ""
        return f"feature {index} is below {least}{hint}"
    if index > largest:
        hint = ": --hash-bits takes larger ones" if largest < _MAX_HASHED else ""
        return f"feature {index} is beyond {largest}{hint}"
    return f"feature {index} comes after feature {before}: indices must ascend"
