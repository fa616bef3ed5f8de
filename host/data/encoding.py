"""Features of samples, and how a model makes them of the columns of a table with texts and gaps.

The training rows decide which features there are (`fit_encoding`), and a `TableEncoding` makes these of the rows of any
table with the same columns. The model file has it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.dates import dates_of
from p4sgd.host.data.matrix import Features, each_block
from p4sgd.host.data.notation import has_unit
from p4sgd.host.data.reading import TableReading
from p4sgd.host.data.statistics import is_sparse
from p4sgd.host.data.table import NumberColumn, Table, TextColumn, column_from_json
from p4sgd.host.errors import listed, on_command_line, option, shortened

FILLINGS = ("error", "mean", "indicator")
"""Ways to deal with missing values."""

_DISTINCT, _FEW = 0.5, 20
"""A column of more different texts than this part of the samples tells samples apart and does not describe them, if
there are more than a few."""

_BLOCK_VALUES = 1 << 18
"""Values that are added up at once; columns have fewer than 2^26 rows then, as `NumberColumn.total` needs."""

_SHOWN = 5
"""Most columns that a message names."""


def fit_encoding(table: Table, blocks: Iterable[Features], missing: str) -> "TableEncoding":
    """The encoding that follows from counts and sums over the training rows of a table, however they are divided.

    Blocks of rows are float64 (rows, columns), as `Table.rows` gives them; ``missing`` is one of `FILLINGS`.
    """
    counts, sums = [column.count(np.empty(0)) for column in table.columns], [0] * len(table.columns)

    def add(rows: Features) -> None:
        step = max(1, _BLOCK_VALUES // rows.shape[1])
        for first in range(0, rows.shape[0], step):
            block = _dense(rows[first : first + step])
            for place, (column, cells) in enumerate(zip(table.columns, block.T, strict=True)):
                counts[place] += column.count(cells)
                sums[place] += column.total(cells) if missing != "error" else 0

    each_block(add, blocks)
    fitted = (
        column.fitted(count.tolist(), total, missing)
        for column, count, total in zip(table.columns, counts, sums, strict=True)
    )
    return TableEncoding(tuple(fitted), missing)


@dataclass(frozen=True)
class TableEncoding(Table):
    """The features that a model makes of the columns of a table, fitted to its training rows; see
    `NumberColumn` and `TextColumn`.

    Texts that these do not have are all zeros, and so are gaps with the filling ``mean``. ``missing`` is one of
    `FILLINGS`.
    """

    missing: str

    def __post_init__(self) -> None:
        if self.missing not in FILLINGS:
            raise ValueError(f"there is no filling {self.missing!r}")
        for column in self.columns:
            fits = True
            if isinstance(column, TextColumn):
                fits = list(column.values) == sorted(set(column.values))
            elif isinstance(column, NumberColumn):
                fits = (column.mean is None) == (self.missing == "error") and math.isfinite(column.mean or 0.0)
            if not fits:
                raise ValueError(f"the texts of {column.name} are out of order, or its mean is not finite")

    @classmethod
    def widest(cls, table: Table, missing: str) -> Self:
        """An encoding with at least the features that any training rows call for; ``missing`` is one of `FILLINGS`."""
        counts = ([1] * (column.count(np.empty(0)).size - 1) + [int(column.gaps)] for column in table.columns)
        fitted = (column.fitted(each, 0, missing) for column, each in zip(table.columns, counts, strict=True))
        return cls(tuple(fitted), missing)

    @cached_property
    def _features(self) -> list[list[str]]:
        """Names of the features of each column."""
        return [column.features(self.label(place)) for place, column in enumerate(self.columns)]

    @property
    def count(self) -> int:
        return sum(map(len, self._features))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features: that of their column, or ``column=text``."""
        return tuple(name for names in self._features for name in names)

    @property
    def stored(self) -> int:
        """Most values of a sample that are not 0."""
        return sum(column.stored for column in self.columns)

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
        for cells, column, known, names in zip(
            rows.T, self.columns, (table or self).columns, self._features, strict=True
        ):
            for chosen, value in column.encode(cells, known):
                places[:, slot] = np.where(chosen < 0, -1, first + chosen)
                values[:, slot] = value
                slot += 1
            first += len(names)
        used = places >= 0
        if not self.sparse:
            made = np.zeros((rows.shape[0], self.count))
            made[np.nonzero(used)[0], places[used]] = values[used]
            return made
        used &= values != 0
        ends = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
        return scipy.sparse.csr_array((values[used], places[used], ends), shape=(rows.shape[0], self.count))

    def remarks(self, samples: int) -> tuple[str, ...]:
        """What the user should know of columns that say little or nothing of other samples; there were ``samples``."""
        texts = {
            self.label(place): column.values
            for place, column in enumerate(self.columns)
            if isinstance(column, TextColumn)
        }
        dates = [label for label, values in texts.items() if len(values) > 1 and all(map(dates_of, values))]
        most = max(_FEW, _DISTINCT * samples)
        units = [label for label, values in texts.items() if len(values) > 2 and all(map(has_unit, values))]
        many = [label for label, values in texts.items() if len(values) > most and label not in dates + units]
        told = []
        if none := [self.label(place) for place, names in enumerate(self._features) if not names]:
            told.append(f"{listed(none, _SHOWN)}: no training sample has a value: left out")
        if units:
            example = shortened(texts[units[0]][0])
            told.append(
                f"{listed(units, _SHOWN)}: each text such as {example} is a feature of its own: write numbers "
                f"without a unit"
            )
        if dates:
            few = f"{option('dates', 'days')} or {option('dates', 'parts')}"
            told.append(
                f"{listed(dates, _SHOWN)}: each date is a feature of its own: {few} makes numbers or few features"
            )
        if many:
            them, example = "it" if len(many) == 1 else "them", shortened(texts[many[0]][0])
            alone = f"nearly every sample has another text, such as {example}, of which other samples learn nothing"
            way = on_command_line(f"--ignore-column leaves {them} out", f"leave {them} out")
            told.append(f"{listed(many, _SHOWN)}: {alone}: {way}")
        return tuple(told)

    def to_json(self) -> dict[str, Any]:
        return {"columns": [column.to_json() for column in self.columns], "missing": self.missing}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Undo `to_json`; `KeyError`, `TypeError` or `ValueError` for anything else."""
        return cls(tuple(map(column_from_json, data["columns"])), data["missing"])


def _dense(rows: Features) -> npt.NDArray[np.float64]:
    assert isinstance(rows, np.ndarray), "rows of a table are dense"
    return rows.astype(np.float64, copy=False)


@dataclass(frozen=True)
class FeatureSpace:
    """The features of samples, to read other samples with the same features.

    There are ``count`` features, with ``names``, if the source has any. ``zero_based`` tells if indices in LIBSVM's
    format begin at 0; ``None`` if that is not known. If names or indices are hashed, ``count`` is 2^``hash_bits``, and
    the reader of the format says which column a feature belongs to. ``encoding`` tells, if the source is a table with
    texts or gaps, how features are made of its columns, and ``reading``, if it is any table, which other columns there
    are. ``offset`` is the kind of offsets that the samples have, if any (`p4sgd.host.data.sample_numbers.OFFSETS`).
    """

    count: int
    names: tuple[str, ...] = ()
    zero_based: bool | None = None
    hash_bits: int | None = None
    encoding: TableEncoding | None = None
    reading: TableReading | None = field(default=None, compare=False)
    offset: str | None = field(default=None, compare=False)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Headers of the columns that the features are made of, if the source has any."""
        return self.names if self.encoding is None else self.encoding.headers

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
    made = {name: each.to_json() for name in ("encoding", "reading") if (each := getattr(space, name)) is not None}
    return {name: value for name, value in vars(space).items() if name not in ("encoding", "reading")} | made


def space_from_json(data: Mapping[str, Any]) -> FeatureSpace:
    """Undo `space_to_json`; `KeyError`, `TypeError` or `ValueError` for anything else."""
    made = {"encoding": TableEncoding.from_json(data["encoding"])} if data.get("encoding") is not None else {}
    return msgspec.convert({**data, **made}, FeatureSpace)
