"""NumPy matrices (.npy) whose columns are features and a label."""

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from p4sgd.host.data.cells import RawLabels
from p4sgd.host.data.columns import Columns, choose_columns
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.source import BLOCK_VALUES, Rows, Source, check_finite
from p4sgd.host.data.matrix import checked
from p4sgd.host.errors import UserError

DAMAGE = (
    *(EOFError, KeyError, RuntimeError, SyntaxError, ValueError, lzma.LZMAError, struct.error),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""Exceptions of NumPy and `zipfile` about a content; RuntimeError if it is encrypted, or of an unknown kind of zip."""


class NpySource(Source):
    """A matrix of samples and columns, of which the last is the label by default.

    To read it as a whole it is memory-mapped, which copies nothing if its type is float64 or float32. Blocks are copied
    from maps of their own, because pages of a map that have been read count as memory of the process.
    """

    def _map(self) -> Any:
        mapped = load_numpy(self.path, mmap=True)
        if not isinstance(mapped, np.memmap):
            raise UserError(f"{self.name}: is an .npz file by its contents: name it so")
        if mapped.ndim != 2:
            shape = mapped.shape
            raise UserError(f"{self.name}: must hold a matrix of samples and columns, not an array of shape {shape}")
        check_numbers(mapped.dtype, self.name)
        return mapped

    @cached_property
    def columns(self) -> Columns:
        return choose_columns(self._map().shape[1], None, self.options, self.name)

    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        mapped, columns = self._map(), self.columns
        self._samples = len(mapped)
        step = max(1, self._samples if whole else BLOCK_VALUES // columns.count)
        for first in range(0, self._samples, step) or (0,):
            count = min(step, self._samples - first)
            part = mapped[first : first + count] if whole else np.array(self._map()[first : first + count])
            beside = {role: part[:, place].astype(np.float64) for role, place in columns.beside.items()}
            labels = tuple(RawLabels(part[:, place]) for place in columns.labels)
            begin, end = columns.features[0], columns.features[-1] + 1
            side_by_side = end - begin == len(columns.features)
            features = checked(part[:, begin:end] if side_by_side else part[:, columns.features], self.name)
            check_finite(features, self.name, first)
            yield Rows(features, labels, beside)
            self._done = (first + count) / max(1, self._samples)

    def settle(self) -> FeatureSpace:
        if self._samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        self.remarks, columns = self.columns.remarks, self.columns
        return FeatureSpace(len(columns.features), reading=columns.reading)


def load_numpy(path: Path, *, mmap: bool) -> Any:
    """The array in a file, memory-mapped if ``mmap``, or the open archive; `UserError` if it cannot be read."""
    try:
        return np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except DAMAGE as error:
        pickled = any(words in str(error) for words in ("Object arrays", "Python objects"))
        why = "it holds Python objects, not numbers" if pickled else "damaged, or no NumPy file"
        raise UserError(f"{path}: cannot be read as NumPy arrays: {why}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from error


def check_numbers(dtype: np.dtype[Any], place: str) -> None:
    """Refuse a type that is not boolean, integer or floating-point."""
    if dtype.kind not in "buif":
        raise UserError(f"{place}: must hold numbers, not {dtype}")
