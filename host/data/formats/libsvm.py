"""LIBSVM (svmlight) files: lines ``label index:value index:value …``, indices ascending, usually from 1.

Comments after ``#`` and ``qid:`` are ignored. `_parse_line` defines the format. In larger files a compiled kernel
parses the lines that are plain; see `p4sgd.host.data.formats.libsvm_kernel`.
"""

import math
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.formats.source import GrowingArray, TextSource
from p4sgd.host.data.formats.text_file import line_blocks, lines_before, open_data, open_share
from p4sgd.host.data.labels import RawLabels, number
from p4sgd.host.errors import UserError, shortened

__all__ = ["LibsvmSource"]


_BLOCK_BYTES = 1 << 21
"""Size of the blocks that are parsed, without the rest of the last line."""

_COMPILED_BYTES = 1 << 19
"""Size of a first block from which the kernel is used. Smaller files are parsed before it is loaded."""

_MAX_INDEX = (1 << 31) - 1
"""Largest feature index, for int32."""


class _Part(NamedTuple):
    """Some samples of a file.

    Parameters
    ----------
    values, indices
        float64 and int32 (values,): stored values and their indices, as in the file.
    ends
        int64 (samples,): number of values up to the end of each sample.
    labels
        float64 (samples,); zeros if they are not needed.
    """

    values: npt.NDArray[np.float64]
    indices: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float64]


class LibsvmSource(TextSource):
    """A LIBSVM file, compressed or not, as sparse samples.

    If labels are not needed, they may be missing.
    """

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        zero_based = self._zero_based
        from_one = zero_based is False if zero_based is not None or space is None else not space.zero_based
        least, most, samples = _MAX_INDEX, -1, 0
        with open_data(self.path, self._watch) as file:
            for values, indices, ends, labels in self._parts(file):
                width = 1
                if values.size:
                    first, last = int(indices.min()), int(indices.max())
                    least, most, width = min(least, first), max(most, last), last + 1 - from_one
                if from_one:
                    indices -= 1
                if space is not None:
                    if values.size and (first < from_one or width > space.count):
                        raise UserError(f"{self.name}: has changed while it was read")
                    width = space.count
                matrix = _matrix(values, indices, np.append(0, ends), width)
                yield self._block(matrix, self._wanted(labels), samples, zero_based=zero_based)
                samples += labels.size
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if most < least:
            raise UserError(f"{self.name}: no sample has a feature")
        if zero_based is None:
            zero_based = least == 0
        self._space = FeatureSpace(most + zero_based, zero_based=zero_based)

    def _read(self) -> Dataset:
        ranks, like, zero_based = self.options.communicator, self.options.like, self._zero_based
        data, indices, pointers, labels = (GrowingArray(kind) for kind in (np.float64, np.int32, np.int64, np.float64))
        pointers.append(np.zeros(1, np.int64))
        stored, own = 0, 0
        with open_share(self.path, ranks, on_open=self._watch) as file:
            for part in self._parts(file):
                data.append(part.values)
                indices.append(part.indices)
                pointers.append(part.ends + stored)
                labels.append(part.labels)
                stored, own = stored + part.values.size, own + part.labels.size
        if sum(ranks.all_gather(own)) == 0:
            raise UserError(f"{self.name}: there are no samples")
        columns = indices.finish()
        extents = ranks.all_gather((int(columns.min()), int(columns.max())) if stored else None)
        there = [extent for extent in extents if extent is not None]
        if like is None and not there:
            raise UserError(f"{self.name}: no sample has a feature")
        if zero_based is None and there:
            zero_based = min(least for least, _ in there) == 0
        width = max((most + 1 for _, most in there), default=0)
        if there and not zero_based:
            columns -= 1
            width -= 1
        matrix = _matrix(data.finish(), columns, pointers.finish(), width)
        if like is not None:
            matrix.resize((own, like.count))
        return self._join(matrix, self._wanted(labels.finish()), zero_based=zero_based)

    @property
    def _zero_based(self) -> bool | None:
        """Whether indices begin at 0; ``None`` if that is not known before the file is read."""
        known, like = self.options.zero_based, self.options.like
        return like.zero_based if known is None and like is not None else known

    def _wanted(self, labels: npt.NDArray[np.float64]) -> RawLabels | None:
        return RawLabels(labels) if self.options.labels_needed else None

    def _parts(self, file: BinaryIO) -> Iterator[_Part]:
        """The samples of this rank, block by block.

        Raises
        ------
        UserError
            For the first invalid line; the message names it.
        """
        lines, compiled = 0, False
        for text in line_blocks(file, _BLOCK_BYTES):
            compiled |= len(text) >= _COMPILED_BYTES
            part, count = self._parse(text if text.endswith(b"\n") else text + b"\n", lines, compiled=compiled)
            lines += count
            if part.labels.size:
                yield part

    def _parse(self, text: bytes, lines: int, *, compiled: bool) -> tuple[_Part, int]:
        """The samples of some lines, and how many lines they are. ``lines`` lines of this rank come before them."""
        least, labels_needed = 1 if self._zero_based is False else 0, self.options.labels_needed
        values, count = len(text) // 4 + 1, text.count(b"\n")  # a value takes at least 4 bytes, as 1:2 and a blank
        part = _Part(np.empty(values), np.empty(values, np.int32), np.empty(count, np.int64), np.empty(count))
        at, row, stored = 0, 0, 0
        while at < len(text):
            if compiled:
                from p4sgd.host.data.formats.libsvm_kernel import parse_plain

                limits = (least, _MAX_INDEX, labels_needed)
                at, row, stored = parse_plain(np.frombuffer(text, np.uint8), at, row, stored, *limits, *part)
                if at == len(text):
                    break
            end = text.index(b"\n", at) + 1
            try:
                parsed = _parse_line(text[at:end], least, labels_needed)
            except UserError as error:
                line = 1 + lines_before(self.path, self.options.communicator) + lines + text.count(b"\n", 0, at)
                raise UserError(f"{self.path}, line {line}: {_unreadable(text[at:end]) or error}") from None
            if parsed is not None:
                label, items = parsed
                part.values[stored : stored + len(items)] = list(items.values())
                part.indices[stored : stored + len(items)] = list(items)
                stored += len(items)
                part.ends[row], part.labels[row] = stored, label if labels_needed else 0
                row += 1
            at = end
        return _Part(part.values[:stored], part.indices[:stored], part.ends[:row], part.labels[:row]), count


def _matrix(
    values: npt.NDArray[np.float64], columns: npt.NDArray[np.int32], pointers: npt.NDArray[np.int64], width: int
) -> Any:
    """A `csr_array` with int32 indices. It has ``width`` columns."""
    # Pointers and indices of one type, or SciPy copies them; int32 is half the memory.
    kind = np.int32 if values.size <= np.iinfo(np.int32).max else np.int64
    matrix = scipy.sparse.csr_array((values, columns, pointers.astype(kind)), shape=(pointers.size - 1, width))
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(kind, copy=False)
    return matrix


def _parse_line(raw: bytes, least: int, labels_needed: bool) -> tuple[float, dict[int, float]] | None:
    """Parse a line.

    Parameters
    ----------
    raw
        The line.
    least
        Smallest index, 0 or 1.
    labels_needed
        Whether the label must be there and finite.

    Returns
    -------
    The label, and values by index; ``None`` if the line is empty.

    Raises
    ------
    UserError
        If the line is invalid; the message says why.
    """
    words = raw.partition(b"#")[0].split()
    if not words:
        return None
    label, items = words[0], words[1:]
    if b":" in label and not labels_needed:
        label, items = b"0", words
    value = _number(label)
    if value is None:
        raise UserError(_label_mistake(label.decode(errors="replace")))
    if labels_needed and not math.isfinite(value):
        raise UserError(f"the label is {label.decode()}: it must be finite")
    if items and items[0].startswith(b"qid") and b":" in items[0]:
        del items[0]
    values: dict[int, float] = {}
    before = least - 1
    for item in items:
        text, colon, rest = item.partition(b":")
        if not colon:
            raise UserError(f"{_shown(item)} is not of the form index:value")
        try:
            index = int(text)
        except ValueError:
            raise UserError(f"{_shown(item)} does not begin with a whole number") from None
        if not before < index <= _MAX_INDEX:
            raise UserError(_index_mistake(index, before, least))
        feature = _number(rest)
        if feature is None:
            raise UserError(f"the value of feature {index} is {_shown(rest)}: not a number")
        if not math.isfinite(feature):
            raise UserError(f"the value of feature {index} is {rest.decode()}: it must be finite")
        values[index] = feature
        before = index
    return value, values


def _number(word: bytes) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _shown(word: bytes) -> str:
    return shortened(word.decode(errors="replace"))


def _label_mistake(label: str) -> str:
    """Why a label is no number."""
    if ":" in label:
        return f"begins with {shortened(label)}: the label is missing"
    several = "," in label and all(number(part) is not None for part in label.split(","))
    hint = "several labels, one is needed" if several else "not a number (is this a LIBSVM file?)"
    return f"the label is {shortened(label)}: {hint}"


def _index_mistake(index: int, before: int, least: int) -> str:
    """What is wrong with an index that comes after the index ``before``."""
    if index < least:
        hint = ": say --zero-based if that is the first one" if index == 0 else ""
        return f"feature {index} is below {least}{hint}"
    if index > _MAX_INDEX:
        return f"feature {index} is beyond {_MAX_INDEX}"
    return f"feature {index} comes after feature {before}: indices must ascend"


def _unreadable(raw: bytes) -> str:
    """Why a line is no text; empty if it is."""
    if b"\0" in raw:
        return "holds a zero byte: this is no text file"
    try:
        raw.partition(b"#")[0].decode()
    except UnicodeDecodeError:
        return "is not UTF-8 text: this is no LIBSVM file"
    return ""
