"""Base class of the readers of data files, which give samples in blocks, and data sets made of these."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.cells import TRUTH, LabelError, RawLabels
from p4sgd.host.data.columns import Columns, ReadOptions
from p4sgd.host.data.dataset import Dataset, LabelledSamples, with_features
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.text_file import check_compression
from p4sgd.host.data.matrix import Features, find_not_finite
from p4sgd.host.data.sample_numbers import OFFSET, ROLES, WEIGHT, check_numbers, offsets_of
from p4sgd.host.data.table import Table
from p4sgd.host.errors import UserError

BLOCK_VALUES = 1 << 19
"""Approximate number of values in a block of dense samples; 4 MB of float64."""


class SparseRows(NamedTuple):
    """Arrays of a `csr_array`, which is made when all blocks are there; ``indices`` may still be those of the file."""

    data: npt.NDArray[np.float64]
    indices: npt.NDArray[np.int32]
    indptr: npt.NDArray[Any]


class Rows(NamedTuple):
    """Some samples: their features, or columns of a table; labels of each target, if needed; and numbers by role
    (`p4sgd.host.data.sample_numbers.ROLES`), float64 (samples,)."""

    features: Any
    labels: tuple[RawLabels, ...] = ()
    beside: Mapping[str, npt.NDArray[np.float64]] = MappingProxyType({})


class NotNumbersError(Exception):
    """A table may not hold numbers alone, so that `Source.survey` has to look at its columns."""


class Source(ABC):
    """A data file, of which only the first bytes are read before `blocks`. Each format is a subclass.

    ``name`` is what messages call it, by default the path, and ``guessed`` the name of the format, if it was only
    guessed.
    ``space``, the features, and ``remarks`` for the user are known once all blocks have been read; ``table``, the
    contents of the columns of a table, after the first pass. ``ids`` are header, or number, and texts of the column
    ``id_column``, if it is chosen; empty for missing ones.
    """

    fills_gaps = False
    """Whether the format is a table, whose missing values can be filled."""

    def __init__(self, path: Path, options: ReadOptions, guessed: str | None = None, name: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        self.options = options
        self.guessed = guessed
        self.space: FeatureSpace | None = None
        self.table: Table | None = None
        self.remarks: tuple[str, ...] = ()
        self.ids: tuple[str, list[str]] = "", []
        self._raw: BinaryIO | None = None
        self._done = 0.0

    @property
    def columns(self) -> Columns | None:
        """The columns of a table; ``None`` if the format is none."""
        return None

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def position(self) -> int:
        """Approximate number of bytes that have been read, before decompression."""
        if self._raw is not None:
            return 0 if self._raw.closed else self._raw.tell()
        return int(self._done * self.size)

    def _watch(self, raw: BinaryIO) -> None:
        self._raw = raw

    @abstractmethod
    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        """The samples in order, in bounded memory unless the file is read as a ``whole``.

        Raises `UserError`, which names file and line, or row and column, or `NotNumbersError` if the columns of a table
        are not known yet, and may not hold numbers alone.
        """

    def survey(self) -> Table:
        """Find out what the columns hold, from all rows."""
        raise NotImplementedError

    @abstractmethod
    def settle(self) -> FeatureSpace:
        """The features of the samples, from all blocks; may add remarks."""

    def finish(self, features: Any) -> Features:
        """The features of all blocks as those of `settle`; may add remarks."""
        return cast("Features", features)

    def label_place(self, sample: int, target: int) -> str | None:
        """Where a label of a sample is, for messages, if the format has lines."""
        return None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add to an error that the format was guessed. Damage in compressed data, which may show as an error in the
        text before the checksum is reached, comes first."""
        try:
            yield
        except UserError as error:
            if self.path.is_file():
                check_compression(self.path)
            if self.guessed is not None:
                raise UserError(f"{error} (it looks like {self.guessed}; if it is not, use --format)") from error
            raise


@dataclass(frozen=True, eq=False)
class Scan:
    """Findings of a pass over all rows of a file.

    ``samples`` are labels and weights of all samples, in the order of the file, and ``space`` their features, or the
    columns of a ``table``, if features have to be made of these. ``dtype`` is the type of the ``stored`` values.
    """

    samples: LabelledSamples
    space: FeatureSpace
    stored: int
    sparse: bool
    dtype: np.dtype[Any]
    table: Table | None = None
    remarks: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return self.samples.labels.size


def read(source: Source, **more: Any) -> Dataset:
    """All samples of a file as one data set; ``more`` are fields of it."""
    with source.explained():
        joined = _Joined(source, keep=True)
        space = source.settle()
        features = source.finish(joined.features())
        samples = joined.labelled(features.shape[0])
        table = source.table if source.options.like is None else None
        return with_features(samples, features, space, remarks=source.remarks, table=table, **more)


def scan(source: Source, on_block: Callable[[], None] = lambda: None) -> Scan:
    """Read all samples once, of which only labels and weights are kept; `Source.blocks` reads them again.

    There is one column of labels.
    """
    with source.explained():
        joined = _Joined(source, keep=False, on_block=on_block)
        space, samples = source.settle(), joined.labelled(joined.samples)
        source.space, table = replace(space, offset=samples.offset_kind), source.table
        if table is not None and table.plain and source.options.missing == "error":
            table = None
        dtype = joined.dtype.newbyteorder("<")
        return Scan(samples, source.space, joined.stored, joined.sparse, dtype, table, source.remarks)


class _Joined:
    """The blocks of a source, one after another; their features only if they are to be kept."""

    def __init__(self, source: Source, *, keep: bool, on_block: Callable[[], None] = lambda: None) -> None:
        self._source = source
        while not self._read(keep, on_block):
            source.table = source.survey()

    def _read(self, keep: bool, on_block: Callable[[], None]) -> bool:
        """Read all blocks; false if the columns of a table have to be surveyed first."""
        self.samples = self.stored = 0
        self.sparse, self.dtype = False, np.dtype(np.float64)
        self._only: Any = None
        self._arrays: list[GrowingArray] = []
        self._labels: list[tuple[RawLabels, ...]] = []
        self._beside: list[tuple[int, Mapping[str, npt.NDArray[np.float64]]]] = []
        try:
            for rows in self._source.blocks(whole=keep):
                self._add(rows)
                if keep:
                    self._keep(rows.features)
                on_block()
        except NotNumbersError:
            return False
        return True

    def _add(self, rows: Rows) -> None:
        self.sparse = not isinstance(rows.features, np.ndarray)
        values = rows.features.data if self.sparse else rows.features
        samples = rows.features.indptr.size - 1 if self.sparse else rows.features.shape[0]
        self.dtype = values.dtype
        self.samples += samples
        self.stored += values.size
        if rows.labels:  # of which views would keep the whole block
            self._labels.append(tuple(RawLabels(np.array(each.values), each.texts) for each in rows.labels))
        self._beside.append((samples, {role: np.array(values) for role, values in rows.beside.items()}))

    def _keep(self, features: Any) -> None:
        if self._only is None and not self._arrays:
            self._only = features  # which is all, if the file is read as one block
            return
        for each in (features,) if self._only is None else (self._only, features):
            parts: list[npt.NDArray[Any]] = [each]
            if self.sparse:
                ends = each.indptr.astype(np.int64) + sum(array.size for array in self._arrays[:1])
                parts = [each.data, each.indices, ends[1:] if self._arrays else ends]
            self._arrays = self._arrays or [GrowingArray(part.dtype) for part in parts]
            for array, part in zip(self._arrays, parts, strict=True):
                array.append(part)
        self._only = None

    def features(self) -> Any:
        """The features of all blocks; to be called once."""
        if not self._arrays:
            return self._only
        parts = [array.finish() for array in self._arrays]
        return SparseRows(*parts) if self.sparse else parts[0].reshape(self.samples, -1)

    def labelled(self, samples: int) -> LabelledSamples:
        """Labels, weights and offsets of all samples, of which there are so many."""
        source = self._source
        own: dict[str, Any] = {}
        for role in ROLES:
            if any(role in beside for _, beside in self._beside):
                usual = 0.0 if role == OFFSET else 1.0  # of those that name none
                parts = (beside.get(role, np.full(count, usual)) for count, beside in self._beside)
                values = np.concatenate([np.empty(0), *parts])
                if role == WEIGHT:
                    own["sample_weights"] = check_numbers(values, role, source.name)
                else:
                    own |= {"offsets": offsets_of(values, role, source.name), "offset_kind": role}
        encoded = []
        for target, of_blocks in enumerate(zip(*self._labels, strict=True)):
            try:
                encoded.append(RawLabels.join(of_blocks).encode())
            except LabelError as error:
                place = source.label_place(error.sample, target)
                raise UserError(f"{place}: the label {error.problem}" if place else f"{source.name}: {error}") from None
        if not encoded:
            return LabelledSamples(source.name, np.zeros(samples), labelled=False, **own)
        values, names = encoded[0]
        if len(encoded) > 1:
            assert source.columns is not None
            titles = source.columns.label_titles
            labels = np.column_stack(list(map(_target, encoded, titles, [source.name] * len(titles))))
            return LabelledSamples(source.name, labels, target_names=titles, **own)
        targets = values.shape[1] if values.ndim == 2 else 0
        titles = tuple(f"target {place + 1}" for place in range(targets))
        return LabelledSamples(source.name, values, names, target_names=titles, **own)


def _target(encoded: tuple[npt.NDArray[np.float64], tuple[str, ...]], title: str, source: str) -> Any:
    """The labels of one of several columns, of which texts may be true and false only."""
    values, names = encoded
    if not names:
        return values
    truths = [name.lower() for name in names]
    if not set(truths) <= TRUTH.keys():
        remedy = "write 0 and 1 for two classes, or train on one column at a time"
        raise UserError(
            f"{source}: the labels of {title} are texts, those of several targets must be numbers: {remedy}"
        )
    return np.array([TRUTH[name] for name in truths])[values.astype(int)]


class GrowingArray:
    """A vector to which blocks are appended.

    It is enlarged in place, for which the system moves the pages of a large array without copying them. The values are
    in memory once; collecting blocks and concatenating them would take twice as much.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._values: npt.NDArray[Any] = np.empty(0, dtype)
        self.size = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        end = self.size + values.size
        if end > self._values.size:
            self._values.resize(max(end, self._values.size * 9 // 8), refcheck=False)
        self._values[self.size : end] = values.reshape(-1)
        self.size = end

    def finish(self) -> npt.NDArray[Any]:
        """Return all values. Nothing can be appended afterwards."""
        self._values.resize(self.size, refcheck=False)
        return self._values


def csr(data: npt.NDArray[Any], columns: npt.NDArray[Any], pointers: npt.NDArray[Any], width: int) -> Any:
    """A `csr_array` of so many columns, with int32 indices."""
    # Pointers and indices of one type, or SciPy copies them; int32 is half the memory.
    kind = np.int32 if data.size <= np.iinfo(np.int32).max else np.int64
    matrix = scipy.sparse.csr_array((data, columns, pointers.astype(kind)), shape=(pointers.size - 1, width))
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(kind, copy=False)
    return matrix


def check_finite(features: Features, name: str, first: int = 0) -> None:
    """Refuse NaN and infinity, naming row and column; ``first`` rows of the file come before these."""
    strange = find_not_finite(features)
    if strange is not None:
        row, column = strange
        value, place = features[row, column], f"row {first + row + 1}, feature {column + 1}"
        raise UserError(f"{name}, {place}: the value is {value}: it must be finite")
