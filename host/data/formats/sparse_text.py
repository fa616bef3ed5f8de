"""Base class of the readers of sparse text: files with a sample in each line, whose features have numbers or names.

``_parse_line`` of a format's class defines the format. `p4sgd.host.data.formats.sparse_kernel` is compiled and parses
the lines that are plain, at any other it stops. Small files are parsed in Python alone.

**Hashing.** With ``hash_bits`` N the samples have 2^N columns, and the format says which of them a feature belongs to.
Values of features that share a column are added.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.formats.source import GrowingArray, TextSource
from p4sgd.host.data.formats.text_file import line_blocks, lines_before, open_data, open_share
from p4sgd.host.data.raw_labels import RawLabels, check_exact
from p4sgd.host.errors import UserError, shortened

__all__ = ["MAX_INDEX", "ParsedLine", "SparseTextSource", "finite", "label_of", "parse_number", "shown"]


_BLOCK_BYTES = 1 << 21
"""Size of the blocks that are parsed, without the rest of the last line."""

_COMPILED_BYTES = 1 << 19
"""Size of a first block from which the kernel is used. Smaller files are parsed before it is loaded."""

MAX_INDEX = (1 << 31) - 1
"""Largest feature index, for int32."""


class _Part(NamedTuple):
    """Some samples of a file.

    Parameters
    ----------
    values, indices
        float64 and int32 (values,): stored values and their indices, as in the file, or their columns by the hash.
    ends
        int64 (samples,): number of values up to the end of each sample.
    labels
        float64 (samples,); zeros if they are not needed.
    weights
        float64 (samples,); ones if there are none or labels are not needed.
    """

    values: npt.NDArray[np.float64]
    indices: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]


class ParsedLine(NamedTuple):
    """A sample: its label, indices and values of its features as in `_Part`, and its weight."""

    label: float
    indices: list[int]
    values: list[float]
    weight: float = 1.0


class SparseTextSource(TextSource):
    """A file of sparse samples, compressed or not.

    Parameters
    ----------
    path, options, guessed
        See `p4sgd.host.data.formats.source.Source`.

    Raises
    ------
    UserError
        If the options contradict each other or the features that the samples must have.
    """

    _LEAST_BYTES: ClassVar[int]
    """Smallest number of bytes that a value takes in the text."""

    _DEFAULT_HASH_BITS: ClassVar[int | None]
    """``hash_bits`` if neither the options nor known features say anything; with ``None`` features have numbers."""

    def __init__(self, path: Path, options: ReadOptions, guessed: str | None = None) -> None:
        super().__init__(path, options, guessed)
        given, like = options.hash_bits, options.like
        hashed = given or self._DEFAULT_HASH_BITS
        self._hash_bits = hashed if like is None else like.hash_bits
        if hashed and not self._hash_bits:
            raise UserError(f"{path}: features are hashed, but those of the training data were not")
        if given and given != self._hash_bits:
            raise UserError(
                f"{path}: --hash-bits is {given}, but was {self._hash_bits} for the training data: leave it out"
            )
        if self._hash_bits and options.zero_based is not None:
            raise UserError(f"{path}: with --hash-bits numbers begin at 0: leave --zero-based/--one-based out")

    @property
    @abstractmethod
    def _limits(self) -> tuple[int, int] | None:
        """Smallest and largest index; ``None`` if features have names."""

    @property
    def _mask(self) -> int:
        """The bits of an index, or of the hash of a name, that make the column."""
        return (1 << self._hash_bits) - 1 if self._hash_bits else MAX_INDEX

    @abstractmethod
    def _parse_line(self, raw: bytes) -> ParsedLine | None:
        """Parse a line; ``None`` if it is empty. Indices have the bits of ``_mask`` only.

        Raises
        ------
        UserError
            If the line is invalid; the message says why.
        """

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        zero_based = self._zero_based
        from_one = zero_based is False if zero_based is not None or space is None else not space.zero_based
        least, most, samples = MAX_INDEX, -1, 0
        with open_data(self.path, self._watch) as file:
            for values, indices, ends, labels, weights in self._parts(file):
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
                matrix = _matrix(values, indices, np.append(0, ends), self._width(width))
                yield self._block(matrix, self._wanted(labels), samples, _unequal(weights), **self._about(zero_based))
                samples += labels.size
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if most < least:
            raise UserError(f"{self.name}: no sample has a feature")
        if zero_based is None:
            zero_based = least == 0
        self._space = FeatureSpace(self._width(most + zero_based), **self._about(zero_based))

    def _read(self) -> Dataset:
        ranks, like, zero_based = self.options.communicator, self.options.like, self._zero_based
        data, indices, pointers = (GrowingArray(kind) for kind in (np.float64, np.int32, np.int64))
        labels, weights = GrowingArray(np.float64), GrowingArray(np.float64)
        pointers.append(np.zeros(1, np.int64))
        stored, own = 0, 0
        with open_share(self.path, ranks, on_open=self._watch) as file:
            for part in self._parts(file):
                data.append(part.values)
                indices.append(part.indices)
                pointers.append(part.ends + stored)
                labels.append(part.labels)
                weights.append(part.weights)
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
        about = self._about(zero_based)
        if like is not None and width > like.count:  # hashed features are all there
            about["remarks"] = (_left_out(ranks.all_gather(_unknown(columns, like.count)), like.count),)
        matrix = _matrix(data.finish(), columns, pointers.finish(), self._width(width))
        if like is not None:
            matrix.resize((own, like.count))
        own_weights = _unequal(weights.finish())
        return self._join(matrix, self._wanted(labels.finish()), own_weights, **about)

    @property
    def _zero_based(self) -> bool | None:
        """Whether indices begin at 0; ``None`` if that is not known before the file is read."""
        known, like = self.options.zero_based, self.options.like
        if self._hash_bits:
            return True
        return like.zero_based if known is None and like is not None else known

    def _width(self, seen: int) -> int:
        """Number of columns, if ``seen`` are known from the file."""
        return 1 << self._hash_bits if self._hash_bits else seen

    def _about(self, zero_based: bool | None) -> dict[str, Any]:
        """What the features are, as in `FeatureSpace`."""
        return {"zero_based": zero_based, "hash_bits": self._hash_bits}

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
                yield part if self._hash_bits is None else _add_collisions(part, 1 << self._hash_bits)

    def _parse(self, text: bytes, lines: int, *, compiled: bool) -> tuple[_Part, int]:
        """The samples of some lines, and how many lines they are. ``lines`` lines of this rank come before them."""
        values, count = len(text) // self._LEAST_BYTES + 1, text.count(b"\n")
        part = _Part(np.empty(values), np.empty(values, np.int32), np.empty(count, np.int64), *np.ones((2, count)))
        at, row, stored = 0, 0, 0
        if compiled:
            from p4sgd.host.data.formats.sparse_kernel import parse_plain

            array = np.frombuffer(text, np.uint8)
            form = (None, True) if self._limits is None else (tuple(map(np.uint64, self._limits)), None)
            how = *form, np.uint64(self._mask), self.options.labels_needed
        while at < len(text):
            if compiled:
                at, row, stored = parse_plain(array, at, row, stored, *how, *part)
                if at == len(text):
                    break
            end = text.index(b"\n", at) + 1
            try:
                parsed = self._parse_line(text[at:end])
            except UserError as error:
                line = 1 + lines_before(self.path, self.options.communicator) + lines + text.count(b"\n", 0, at)
                reason = "holds a zero byte: this is no text file" if b"\0" in text[at:end] else error
                raise UserError(f"{self.path}, line {line}: {reason}") from None
            if parsed is not None:
                own = slice(stored, stored + len(parsed.values))
                part.values[own], part.indices[own] = parsed.values, parsed.indices
                stored = own.stop
                part.ends[row], part.labels[row], part.weights[row] = stored, parsed.label, parsed.weight
                row += 1
            at = end
        samples = part.ends[:row], part.labels[:row], part.weights[:row]
        return _Part(part.values[:stored], part.indices[:stored], *samples), count


def _unknown(columns: npt.NDArray[np.int32], known: int) -> tuple[int, npt.NDArray[np.int32]]:
    """The number of values beyond ``known`` columns, and the columns that have them: int32 (columns,)."""
    beyond = columns[columns >= known]
    return beyond.size, np.unique(beyond)


def _left_out(parts: Sequence[tuple[int, npt.NDArray[np.int32]]], known: int) -> str:
    """A remark on the values beyond ``known`` columns, from what `_unknown` has found in each rank."""
    values, columns = sum(count for count, _ in parts), np.unique(np.concatenate([each for _, each in parts])).size
    return (
        f"{values:,} value{'s' * (values > 1)} of {columns:,} feature{'s' * (columns > 1)} beyond the {known:,} that "
        f"the model knows: left out"
    )


def _add_collisions(part: _Part, width: int) -> _Part:
    """The samples with ascending columns, each of them once."""
    matrix = _matrix(part.values, part.indices, np.append(0, part.ends), width)
    if not matrix.has_canonical_format:
        matrix.has_sorted_indices = False  # sort every row, so that a sum does not depend on the rows beside it
        matrix.sum_duplicates()
    return _Part(matrix.data, matrix.indices, matrix.indptr[1:].astype(np.int64), part.labels, part.weights)


def _unequal(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """Weights, unless all are 1."""
    return None if (weights == 1).all() else weights


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


def parse_number(word: bytes) -> float | None:
    """The number that a word stands for, also NaN or infinite; ``None`` if it is none, such as ``1_0``."""
    try:
        return None if b"_" in word else float(word)
    except ValueError:
        return None


def finite(word: bytes, what: str, name: bytes | int | None = None) -> float:
    """The finite number that a word stands for.

    Raises
    ------
    UserError
        If it stands for none; the message says what of which feature it is.
    """
    value = parse_number(word)
    if value is not None and math.isfinite(value):
        return value
    if name is not None:
        what += f" {shown(name) if isinstance(name, bytes) else name}"
    if value is None:
        raise UserError(f"{what} is {shown(word)}: not a number")
    raise UserError(f"{what} is {word.decode()}: it must be finite")


def label_of(word: bytes) -> float:
    """The label that a word stands for.

    Raises
    ------
    UserError
        If it is no finite number, or an integer that float64 may not tell from others.
    """
    value = finite(word, "the label")
    check_exact(word.decode())
    return value


def shown(word: bytes) -> str:
    """A word in a message."""
    return shortened(word.decode(errors="replace"))
