"""Features of samples, and how a model makes them of the columns of a table with texts and gaps.

The training rows decide which features there are (`EncodingFit`), and a `TableEncoding` makes these of the rows of any
table with the same columns. The model file has it.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.matrix import Features
from p4sgd.host.data.statistics import is_sparse
from p4sgd.host.data.table import GAP, Column, Table
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import listed, on_command_line

FILLINGS = ("error", "mean", "indicator")
"""Ways to deal with missing values."""

_DISTINCT, _FEW = 0.5, 20
"""A column of more different texts than this part of the samples tells samples apart and does not describe them, if
there are more than a few."""

_UNIT = 1126
"""Every float64 is a multiple of 2^-1074, and with a mantissa of 53 bits an integer times 2^-1126 or more."""

_BLOCK_VALUES = 1 << 18
"""Values that are added up at once; columns have fewer than 2^26 rows then, as `_exact_sum` needs."""

_SHOWN = 5
"""Most columns that a message names."""


class EncodingFit:
    """Counts and sums over the training rows of a table, from which an encoding follows, however rows are divided.

    ``missing`` is one of `FILLINGS`.
    """

    def __init__(self, table: Table, missing: str) -> None:
        self._table = table
        self._missing = missing
        # Of texts how many rows have each, of numbers how many are known; the last one counts gaps.
        kinds = [1 if column.values is None else len(column.values) for column in table.columns]
        self._counts = [np.zeros(count + 1, np.int64) for count in kinds]
        self._sums = [0] * len(table.columns)

    def add(self, rows: Features) -> None:
        """Take some training rows into account: float64 (rows, columns), as `Table.rows` gives them."""
        step = max(1, _BLOCK_VALUES // rows.shape[1])
        for first in range(0, rows.shape[0], step):
            block = _dense(rows[first : first + step])
            for place, column in enumerate(self._table.columns):
                values, counts = block[:, place], self._counts[place]
                known = values[~np.isnan(values)]
                counts[-1] += values.size - known.size
                if column.values is not None:
                    counts[:-1] += np.bincount(known.astype(np.intp), minlength=counts.size - 1)
                else:
                    counts[0] += known.size
                    if self._missing != "error":
                        self._sums[place] += _exact_sum(known)

    def finish(self, ranks: Communicator = SINGLE_PROCESS) -> "TableEncoding":
        counts = np.split(ranks.all_sum(np.concatenate(self._counts)), np.cumsum([each.size for each in self._counts]))
        sums = list(map(sum, zip(*ranks.all_gather(self._sums), strict=True)))
        columns = []
        for column, count, total in zip(self._table.columns, counts[:-1], sums, strict=True):
            gaps = self._missing == "indicator" and bool(count[-1])
            if column.values is not None:
                kept = tuple(text for text, rows in zip(column.values, count[:-1].tolist(), strict=True) if rows)
                columns.append(Column(column.name, kept, gaps=gaps))
            else:
                known = int(count[0])
                mean = total / (known << _UNIT) if known else 0.0  # Python rounds it correctly
                filled = None if self._missing == "error" else mean
                columns.append(Column(column.name, None, column.truth, filled, gaps))
        return TableEncoding(tuple(columns), self._missing)


def _exact_sum(values: npt.NDArray[np.float64]) -> int:
    """Σ values · 2^1126, an integer: sums of float64 would depend on the order and the division of the rows."""
    if not values.size:
        return 0
    mantissas, exponents = np.frexp(values)
    lowest = int(exponents.min())
    integers = (mantissas * 2.0**53).astype(np.int64)
    total = 0
    for part, shift in ((integers >> 27, 27), (integers & ((1 << 27) - 1), 0)):  # so that sums fit 53 bits
        sums = np.bincount(exponents - lowest, weights=part)
        total += sum(int(each) << (place + shift) for place, each in enumerate(sums.tolist()) if each)
    return total << (lowest - 53 + _UNIT)


@dataclass(frozen=True)
class TableEncoding:
    """The features that a model makes of the ``columns`` of a table, fitted to its training rows.

    A column of numbers is a feature, and with the filling ``indicator`` another one, 0 or 1, says where values were
    missing. A column of texts becomes a feature for each text of the training rows, 1 for the samples that have it; of
    two texts the second one has the only feature. Other texts are all zeros, and so are gaps with the filling ``mean``.
    With ``indicator`` a gap is a text of its own. ``missing`` is one of `FILLINGS`.
    """

    columns: tuple[Column, ...]
    missing: str

    def __post_init__(self) -> None:
        if self.missing not in FILLINGS:
            raise ValueError(f"there is no filling {self.missing!r}")
        for column in self.columns:
            if column.values is not None:
                fits = list(column.values) == sorted(set(column.values)) and column.mean is None
            else:
                fits = (column.mean is None) == (self.missing == "error") and math.isfinite(column.mean or 0.0)
            if not fits:
                raise ValueError(f"the texts of {column.name} are out of order, or its mean is {column.mean}")

    @classmethod
    def widest(cls, table: Table, missing: str) -> Self:
        """An encoding with at least the features that any training rows call for; ``missing`` is one of `FILLINGS`."""
        mean, indicated = None if missing == "error" else 0.0, missing == "indicator"
        columns = (
            dataclasses.replace(column, mean=mean if column.values is None else None, gaps=indicated and column.gaps)
            for column in table.columns
        )
        return cls(tuple(columns), missing)

    @cached_property
    def table(self) -> Table:
        return Table(self.columns)

    @property
    def count(self) -> int:
        return sum(column.features for column in self.columns)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features: that of their column, or ``column=text``."""
        named: list[str] = []
        for place, column in enumerate(self.columns):
            label = self.table.label(place)
            if column.values is None:
                named += [label, *([f"{label}={GAP}"] if column.gaps else [])]
            else:
                named += [f"{label}={kind}" for kind in column.kinds[-column.features :] if column.features]
        return tuple(named)

    @property
    def stored(self) -> int:
        """Most values of a sample that are not 0."""
        return sum(1 + (column.values is None and column.gaps) for column in self.columns)

    @property
    def sparse(self) -> bool:
        """Whether features are a `csr_array`: if they are sparse whatever the rows are."""
        return is_sparse(self.stored, self.count)

    @property
    def space(self) -> "FeatureSpace":
        return FeatureSpace(self.count, self.names, encoding=self)

    def apply(self, rows: Features, table: Table | None = None) -> Features:
        """Features of some rows of a table, by default that of the encoding: float64 (rows, columns), see `Table.rows`.

        Returns float64 (rows, features), or a `csr_array` if they are sparse.
        """
        rows = _dense(rows)
        places = np.full((rows.shape[0], self.stored), -1, np.int32)
        values = np.ones(places.shape)
        slot, first = 0, 0
        for number_of, column in enumerate(self.columns):
            cells = rows[:, number_of]
            gaps = np.isnan(cells)
            if column.values is None:
                places[:, slot] = first
                values[:, slot] = cells if column.mean is None else np.where(gaps, column.mean, cells)
                if column.gaps:
                    slot += 1
                    places[gaps, slot] = first + 1
            else:
                lookup = self._lookup(number_of, table or self.table)
                chosen = lookup[np.where(gaps, lookup.size - 2, cells).astype(np.intp)]
                places[:, slot] = np.where(chosen < 0, -1, first + chosen)
            slot += 1
            first += column.features
        used = places >= 0
        if not self.sparse:
            made = np.zeros((rows.shape[0], self.count))
            made[np.nonzero(used)[0], places[used]] = values[used]
            return made
        used &= values != 0
        ends = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
        return scipy.sparse.csr_array((values[used], places[used], ends), shape=(rows.shape[0], self.count))

    def _lookup(self, place: int, table: Table) -> npt.NDArray[np.int32]:
        """The feature of each text of a column, then of a gap, then of an unknown text, at place −1; −1 for none."""
        column, known = self.columns[place], self.columns[place].places
        gap = len(known) if column.gaps else -1
        lookup = np.array([*(known.get(text, -1) for text in table.columns[place].values or ()), gap, -1], np.int32)
        return lookup - (len(column.kinds) == 2)

    def remarks(self, samples: int) -> tuple[str, ...]:
        many = [
            self.table.label(place)
            for place, column in enumerate(self.columns)
            if column.values is not None and len(column.values) > max(_FEW, _DISTINCT * samples)
        ]
        if not many:
            return ()
        them = "it" if len(many) == 1 else "them"
        return (
            f"{listed(many, _SHOWN)}: nearly every sample has another text, of which other samples learn nothing: "
            + on_command_line(f"--ignore-column leaves {them} out", f"leave {them} out"),
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Undo `to_json`; `KeyError`, `TypeError` or `ValueError` for anything else."""
        columns = [
            Column(**each | {"values": None if each["values"] is None else tuple(each["values"])})
            for each in data["columns"]
        ]
        return cls(tuple(columns), data["missing"])


def _dense(rows: Features) -> npt.NDArray[np.float64]:
    assert isinstance(rows, np.ndarray), "rows of a table are dense"
    return rows.astype(np.float64, copy=False)


@dataclass(frozen=True)
class FeatureSpace:
    """The features of samples, to read other samples with the same features.

    There are ``count`` features, with ``names``, if the source has any. ``zero_based`` tells if indices in LIBSVM's
    format begin at 0; ``None`` if that is not known. If names or indices are hashed, ``count`` is 2^``hash_bits``, and
    the reader of the format says which column a feature belongs to. ``encoding`` tells, if the source is a table with
    texts or gaps, how features are made of its columns. ``label_column`` is the number of the label column that was
    chosen, from 1 or backwards from −1, if the columns have no names to find it by; ``None`` if it is the last one, or
    is not known.
    """

    count: int
    names: tuple[str, ...] = ()
    zero_based: bool | None = None
    hash_bits: int | None = None
    encoding: TableEncoding | None = None
    label_column: int | None = field(default=None, compare=False)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Headers of the columns that the features are made of, if the source has any."""
        return self.names if self.encoding is None else self.encoding.table.names

    @property
    def column_count(self) -> int:
        return self.count if self.encoding is None else len(self.encoding.columns)

    def name(self, column: int) -> str:
        """Name of a feature in the source, or its number there; ``column`` is from 0."""
        if self.names:
            return self.names[column]
        if self.hash_bits is not None:
            return f"column {column}"
        return f"feature {column if self.zero_based else column + 1}"


def space_to_json(space: FeatureSpace) -> dict[str, Any]:
    """Features as JSON data; an encoding is only there if there is one."""
    fields = {name: value for name, value in vars(space).items() if name != "encoding"}
    return fields | ({} if space.encoding is None else {"encoding": space.encoding.to_json()})


def space_from_json(data: Mapping[str, Any]) -> FeatureSpace:
    """Undo `space_to_json`; `KeyError`, `TypeError` or `ValueError` for anything else."""
    encoding = data.get("encoding")
    known = None if encoding is None else TableEncoding.from_json(encoding)
    return FeatureSpace(**{**data, "names": tuple(data["names"]), "encoding": known})
