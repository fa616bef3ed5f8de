"""Base class of the readers of sparse text: files with a sample in each line, whose features have numbers or names.

``_parse_line`` of a format's class defines the format. `p4sgd.host.data.formats.sparse_kernel` is compiled and parses
the lines that are plain, at any other it stops. Small files are parsed in Python alone.

**Hashing.** With ``hash_bits`` N the samples have 2^N columns, and the format says which of them a feature belongs to.
Values of features that share a column are added.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import TOO_LARGE, RawLabels, is_too_large
from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.source import Rows, Source, SparseRows, csr
from p4sgd.host.data.formats.text_file import line_blocks, open_data
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.notation import number
from p4sgd.host.data.sample_numbers import OFFSET, WEIGHT
from p4sgd.host.errors import UserError, shortened

_BLOCK_BYTES = 1 << 21
"""Size of the blocks that are parsed, without the rest of the last line."""

_COMPILED_BYTES = 1 << 19
"""Size of a first block from which the kernel is used. Smaller files are parsed before it is loaded."""

MAX_INDEX = (1 << 31) - 1
"""Largest feature index, for int32."""


class ParsedLine(NamedTuple):
    """A sample: its label, indices and values of its features, its weight and its offset."""

    label: float
    indices: list[int]
    values: list[float]
    weight: float = 1.0
    offset: float = 0.0


class Parsed(NamedTuple):
    """Arrays for samples of several lines: of their values, and for each sample the end of its values and the rest."""

    values: npt.NDArray[np.float64]
    indices: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]
    offsets: npt.NDArray[np.float64]


class SparseTextSource(Source):
    """A file of sparse samples, compressed or not; `UserError` if the options contradict each other or known features.

    Until `settle` was called, columns are indices as in the file.
    """

    _LEAST_BYTES: ClassVar[int]
    """Smallest number of bytes that a value takes in the text."""

    _DEFAULT_HASH_BITS: ClassVar[int | None]
    """``hash_bits`` if neither the options nor known features say anything; with ``None`` features have numbers."""

    def __init__(self, path: Path, options: ReadOptions, guessed: str | None = None, name: str | None = None) -> None:
        super().__init__(path, options, guessed, name)
        given, like = options.hash_bits, options.like
        hashed = given or self._DEFAULT_HASH_BITS
        self._hash_bits = hashed if like is None else like.hash_bits
        if hashed and not self._hash_bits:
            raise UserError(f"{self.name}: features are hashed, but those of the training data were not")
        if given and given != self._hash_bits:
            was = f"was {self._hash_bits} for the training data"
            raise UserError(f"{self.name}: --hash-bits is {given}, but {was}: leave it out")
        if self._hash_bits and options.zero_based is not None:
            raise UserError(f"{self.name}: with --hash-bits numbers begin at 0: leave --zero-based/--one-based out")
        self._zero_based = True if self._hash_bits else options.zero_based
        if self._zero_based is None and like is not None:
            self._zero_based = like.zero_based

    @property
    @abstractmethod
    def _limits(self) -> tuple[int, int] | None:
        """Smallest and largest index; ``None`` if features have names."""

    @property
    def _has_offsets(self) -> bool:
        """Whether offsets are needed, even if all are 0."""
        return False

    @property
    def _mask(self) -> int:
        """The bits of an index, or of the hash of a name, that make the column."""
        return (1 << self._hash_bits) - 1 if self._hash_bits else MAX_INDEX

    @abstractmethod
    def _parse_line(self, raw: bytes) -> ParsedLine | None:
        """Parse a line; ``None`` if it is empty. Indices have the bits of ``_mask`` only.

        Raises `UserError` if the line is invalid; the message says why.
        """

    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        known, lines, compiled = self.space, 0, False
        self._samples, self._unlabelled, self._least, self._most = 0, 0, MAX_INDEX, -1
        with open_data(self.path, self._watch) as file:
            for text in line_blocks(file, _BLOCK_BYTES):
                compiled |= len(text) >= _COMPILED_BYTES
                text += b"" if text.endswith(b"\n") else b"\n"
                count = text.count(b"\n")
                rows = self._parse(text, count, lines, compiled=compiled)
                lines += count
                data, columns, pointers = rows.features
                samples = pointers.size - 1
                if not samples:
                    continue
                self._samples += samples
                least, most = int(columns.min(initial=MAX_INDEX)), int(columns.max(initial=-1))
                self._least, self._most = min(self._least, least), max(self._most, most)
                if known is not None:
                    from_one = not known.zero_based
                    if least < from_one or most - from_one >= known.count:
                        raise UserError(f"{self.name}: has changed while it was read")
                    columns -= int(from_one)
                    rows = rows._replace(features=csr(data, columns, pointers, known.count))
                yield rows
        if not self._samples:
            yield Rows(SparseRows(np.empty(0), np.empty(0, np.int32), np.zeros(1, np.int64)))

    def settle(self) -> FeatureSpace:
        like, least, most = self.options.like, self._least, self._most
        if not self._samples:
            raise UserError(f"{self.name}: there are no samples")
        if like is None and most < least:
            raise UserError(f"{self.name}: no sample has a feature")
        if self._zero_based is None and most >= least:
            self._zero_based = least == 0
        self._width = 1 << self._hash_bits if self._hash_bits else most + bool(self._zero_based)
        count = self._width if like is None else like.count
        return FeatureSpace(count, zero_based=self._zero_based, hash_bits=self._hash_bits)

    def finish(self, features: SparseRows) -> Features:
        """See `Source.finish`: columns from 0, without those that known features lack."""
        columns, like = features.indices, self.options.like
        if not self._zero_based:
            columns -= 1
        if like is not None and self._width > like.count:  # hashed features are all there
            beyond = columns[columns >= like.count]
            values, different = beyond.size, np.unique(beyond).size
            self.remarks = (
                f"{values:,} value{'s' * (values > 1)} of {different:,} feature{'s' * (different > 1)} beyond the "
                f"{like.count:,} that the model knows: left out",
            )
        matrix = csr(features.data, columns, features.indptr, max(0, self._width))
        if like is not None:
            matrix.resize((matrix.shape[0], like.count))
        return cast("Features", matrix)

    def _parse(self, text: bytes, count: int, lines: int, *, compiled: bool) -> Rows:
        """The samples of so many lines, which come after others."""
        most = len(text) // self._LEAST_BYTES + 1
        of_each = np.empty(count), np.ones(count), np.zeros(count)
        out = Parsed(np.empty(most), np.empty(most, np.int32), np.empty(count, np.int64), *of_each)
        at, row, stored = 0, 0, 0
        if compiled:
            from p4sgd.host.data.formats.sparse_kernel import parse_plain
        array = np.frombuffer(text, np.uint8)
        limits = None if self._limits is None else tuple(map(np.uint64, self._limits))
        how = limits, np.uint64(self._mask), self.options.labels_needed or self._has_offsets
        while at < len(text):
            if compiled:
                at, row, stored = parse_plain(array, at, row, stored, *how, out)
                if at == len(text):
                    break
            end = text.index(b"\n", at) + 1
            try:
                parsed = self._parse_line(text[at:end])
            except UserError as error:
                line = 1 + lines + text.count(b"\n", 0, at)
                reason = "holds a zero byte: this is no text file" if b"\0" in text[at:end] else error
                raise UserError(f"{self.name}, line {line}: {reason}") from None
            if parsed is not None:
                own = slice(stored, stored + len(parsed.values))
                out.values[own], out.indices[own] = parsed.values, parsed.indices
                stored = own.stop
                out.ends[row], out.labels[row], out.weights[row] = stored, parsed.label, parsed.weight
                out.offsets[row] = parsed.offset
                row += 1
            at = end
        sparse = SparseRows(out.values[:stored], out.indices[:stored], np.append(0, out.ends[:row]))
        if self._hash_bits:
            sparse = _add_collisions(sparse, 1 << self._hash_bits)
        beside = {} if (out.weights[:row] == 1).all() else {WEIGHT: out.weights[:row]}
        if self._has_offsets or out.offsets[:row].any():
            beside[OFFSET] = out.offsets[:row]
        return Rows(sparse, (RawLabels(out.labels[:row]),) if self.options.labels_needed else (), beside)


def _add_collisions(rows: SparseRows, width: int) -> SparseRows:
    """The samples with ascending columns, each of them once: values of features that share a column are added."""
    matrix = csr(*rows, width)
    if not matrix.has_canonical_format:
        matrix.has_sorted_indices = False  # sort every row, so that a sum does not depend on the rows beside it
        matrix.sum_duplicates()
    return SparseRows(matrix.data, matrix.indices, matrix.indptr)


def finite(word: bytes, what: str, name: bytes | int | None = None) -> float:
    """The finite number that a word stands for; else a `UserError` that says what it is, of which feature."""
    value = number(word)
    if value is not None and math.isfinite(value):
        return value
    if name is not None:
        what += f" {shown(name) if isinstance(name, bytes) else name}"
    if value is None:
        raise UserError(f"{what} is {shown(word)}: not a number")
    raise UserError(f"{what} is {word.decode()}: it must be finite")


def label_of(word: bytes) -> float:
    """The label that a word stands for; `UserError` for an integer that float64 may not tell from others."""
    value = finite(word, "the label")
    if is_too_large(word.decode()):
        raise UserError(f"the label is {word.decode()}, {TOO_LARGE}")
    return value


def shown(word: bytes) -> str:
    """A word in a message."""
    return shortened(word.decode(errors="replace"))
