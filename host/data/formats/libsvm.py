"""LIBSVM (svmlight) files: lines ``label index:value index:value …``, indices ascending, usually from 1.

scikit-learn parses them. If it rejects a line, or if a value is not finite, a second pass finds the line and reports
what is wrong with it. Comments after ``#`` and ``qid:`` are ignored.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import scipy.sparse

from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.formats.source import GrowingArray, TextSource
from p4sgd.host.data.formats.text_file import line_blocks, lines_before, open_data, open_share
from p4sgd.host.data.labels import RawLabels, number
from p4sgd.host.errors import UserError, shortened

__all__ = ["LibsvmSource"]


_BLOCK_BYTES = 1 << 22
"""Size of the blocks that are parsed, without the rest of the last line."""

_MAX_INDEX = (1 << 31) - 2
"""Largest feature index: scikit-learn's reader stores it as a C int."""


class LibsvmSource(TextSource):
    """A LIBSVM file, compressed or not, as sparse samples.

    If labels are not needed, they may be missing.
    """

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        zero_based = self._zero_based
        least, most, found = 1, -1, False  # of the indices
        samples = 0
        with open_data(self.path, self._watch) as file:
            for matrix, labels in self._parts(file):
                if matrix.nnz:
                    found = True
                    least, most = min(least, int(matrix.indices.min())), max(most, int(matrix.indices.max()))
                if space is not None:
                    if zero_based is None and not space.zero_based:
                        matrix.indices -= 1
                    if matrix.nnz and not 0 <= matrix.indices.min() <= matrix.indices.max() < space.count:
                        raise UserError(f"{self.name}: has changed while it was read")
                    matrix.resize(labels.size, space.count)
                yield self._block(matrix, self._wanted(labels), samples, zero_based=zero_based)
                samples += labels.size
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if not found:
            raise UserError(f"{self.name}: no sample has a feature")
        first = 0
        if zero_based is None:
            zero_based = least == 0
            first = 0 if zero_based else 1
        self._space = FeatureSpace(most + 1 - first, zero_based=zero_based)

    def _read(self) -> Dataset:
        ranks, like, zero_based = self.options.communicator, self.options.like, self._zero_based
        data, indices, ends, labels = (GrowingArray(kind) for kind in (np.float64, np.int32, np.int64, np.float64))
        ends.append(np.zeros(1, np.int64))
        stored, own, width = 0, 0, 0
        with open_share(self.path, ranks, on_open=self._watch) as file:
            for block, values in self._parts(file):
                data.append(block.data)
                indices.append(block.indices)
                ends.append(block.indptr[1:] + np.int64(stored))
                labels.append(values)
                stored, own, width = stored + block.nnz, own + values.size, max(width, block.shape[1])
        if sum(ranks.all_gather(own)) == 0:
            raise UserError(f"{self.name}: there are no samples")
        columns = indices.finish()
        extents = ranks.all_gather((int(columns.min()), width) if stored else None)
        there = [extent for extent in extents if extent is not None]
        width = max((columns for _, columns in there), default=0)
        if zero_based is None and there:
            zero_based = min(lowest for lowest, _ in there) == 0
            if not zero_based:
                columns -= 1
                width -= 1
        if like is None and not there:
            raise UserError(f"{self.name}: no sample has a feature")
        # Pointers and indices of one type, or SciPy copies them; int32 is half the memory.
        kind = np.int32 if stored <= np.iinfo(np.int32).max else np.int64
        matrix = scipy.sparse.csr_array((data.finish(), columns, ends.finish().astype(kind)), shape=(own, width))
        if like is not None:
            matrix.resize((own, like.count))  # type: ignore[arg-type]  # which scipy-stubs has as Never
        matrix.indices = matrix.indices.astype(np.int32, copy=False)
        matrix.indptr = matrix.indptr.astype(kind, copy=False)
        return self._join(matrix, self._wanted(labels.finish()), zero_based=zero_based)

    @property
    def _zero_based(self) -> bool | None:
        """Whether indices begin at 0; ``None`` if that is not known before the file is read."""
        known, like = self.options.zero_based, self.options.like
        return like.zero_based if known is None and like is not None else known

    def _wanted(self, labels: npt.NDArray[np.float64]) -> RawLabels | None:
        return RawLabels(labels) if self.options.labels_needed else None

    def _parts(self, file: BinaryIO) -> Iterator[tuple[Any, npt.NDArray[np.float64]]]:
        """Matrices from scikit-learn; indices are as in the file unless they are known to begin at 1."""
        for text in line_blocks(file, _BLOCK_BYTES):
            matrix, labels = _parse_lines(io.BytesIO(text), self.path, self._zero_based, self.options)
            if labels.size:
                yield matrix, labels


def _parse_lines(
    lines: BinaryIO, path: Path, zero_based: bool | None, options: ReadOptions
) -> tuple[Any, npt.NDArray[np.float64]]:
    """Parse some lines of a file.

    Parameters
    ----------
    lines
        Whole lines.
    path, options
        The file, and how to read it.
    zero_based
        Whether indices begin at 0; if that is not known, they are left as in the file.

    Returns
    -------
    A CSR matrix with the features of these lines, and the labels: float64 (samples,).

    Raises
    ------
    UserError
        For the first error in the file; the message names its line.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        given = lines if options.labels_needed else _Labelled(lines)
        matrix, labels = load_svmlight_file(given, dtype=np.float64, zero_based=zero_based is not False)
    except (ValueError, OverflowError) as error:
        _find_mistake(path, zero_based, options)
        raise UserError(f"{path}: cannot be read as LIBSVM: {error}") from error
    if not options.labels_needed:
        labels = np.zeros(labels.size)  # whatever they are
    if not (np.isfinite(matrix.data).all() and np.isfinite(labels).all()):
        _find_mistake(path, zero_based, options)
    return matrix, labels


class _Labelled:
    """A file in which lines without a label get the label 0. scikit-learn's reader only iterates over the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read = file.read  # which scikit-learn takes for the sign of a file

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            first = line.partition(b"#")[0].split(None, 1)[:1]
            yield b"0 " + line if first and b":" in first[0] else line


def _find_mistake(path: Path, zero_based: bool | None, options: ReadOptions) -> None:
    """Read line by line and raise a `UserError` for the first invalid line, if there is one."""
    least = 1 if zero_based is False else 0
    first = 1 + lines_before(path, options.communicator)
    with open_share(path, options.communicator) as file:
        for line, raw in enumerate(file, first):
            problem = _mistake(raw, least, options.labels_needed)
            if problem is not None:
                raise UserError(f"{path}, line {line}: {problem}")


def _mistake(raw: bytes, least: int, labels_needed: bool) -> str | None:
    """What is wrong with a line; ``None`` if it is valid."""
    if b"\0" in raw:
        return "holds a zero byte: this is no text file"
    try:
        words = raw.partition(b"#")[0].decode().split()
    except UnicodeDecodeError:
        return "is not UTF-8 text: this is no LIBSVM file"
    if not words:
        return None
    label, items = words[0], words[1:]
    if ":" in label and not labels_needed:
        label, items = "0", words
    if ":" in label:
        return f"begins with {shortened(label)}: the label is missing"
    value = number(label)
    if value is None:
        several = "," in label and all(number(part) is not None for part in label.split(","))
        hint = "several labels, one is needed" if several else "not a number (is this a LIBSVM file?)"
        return f"the label is {shortened(label)}: {hint}"
    if labels_needed and not np.isfinite(value):
        return f"the label is {label}: it must be finite"
    before = least - 1
    for item in items[1:] if items and items[0].startswith("qid") else items:
        text, colon, rest = item.partition(":")
        if not colon:
            return f"{shortened(item)} is not of the form index:value"
        try:
            index = int(text)
        except ValueError:
            return f"{shortened(item)} does not begin with a whole number"
        if index < least:
            hint = ": say --zero-based if that is the first one" if index == 0 else ""
            return f"feature {index} is below {least}{hint}"
        if index > _MAX_INDEX:
            return f"feature {index} is beyond {_MAX_INDEX}"
        if index <= before:
            return f"feature {index} comes after feature {before}: indices must ascend"
        before = index
        value = number(rest)
        if value is None:
            return f"the value of feature {index} is {shortened(rest)}: not a number"
        if not np.isfinite(value):
            return f"the value of feature {index} is {rest}: it must be finite"
    return None
