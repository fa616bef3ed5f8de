"""Tables with texts and gaps: the kinds of columns, and rows of tables as numbers.

A reader first finds out what each column holds (`survey.py`). Rows of the table are then float64: numbers as they are,
of texts their place among the column's texts, NaN for gaps. Such rows are shuffled, shared among ranks and sorted into
buckets like any others. The training rows decide which features are made of them (`encoding.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import CellError, Cells
from p4sgd.host.data.dates import day_of
from p4sgd.host.data.notation import TYPED, Notation
from p4sgd.host.errors import shortened

FloatArray: TypeAlias = npt.NDArray[np.float64]

GAP = "missing"
"""What stands for a gap in the name of a feature."""

_UNKNOWN = -1
"""The place of a text that is not among those of a column."""

_UNIT = 1126
"""Every float64 is a multiple of 2^-1074, and with a mantissa of 53 bits an integer times 2^-1126 or more."""

UnknownTexts: TypeAlias = dict[str, tuple[int, str]]
"""Texts and parts of dates that a model does not know, counted while a table is read: by column, how many, and one."""


Encoded: TypeAlias = Iterator[tuple[npt.NDArray[np.int32], FloatArray | float]]
"""Features of samples that may be other than 0: which of a column's, negative for none, (rows,), and their values."""


@dataclass(frozen=True)
class Column(ABC):
    """A column of a table. ``name`` is its header, empty if there is none; ``gaps`` tells that values are missing."""

    name: str = ""
    gaps: bool = False

    @abstractmethod
    def read(self, cells: Cells, label: str, unknown: UnknownTexts) -> FloatArray:
        """Cells as in the rows of a table: float64 (rows,), NaN or infinite if the column cannot have them."""

    @abstractmethod
    def count(self, cells: FloatArray) -> npt.NDArray[np.int64]:
        """How many cells are known, or of texts have each, and last of all are gaps."""

    def total(self, cells: FloatArray) -> int:
        """Σ cells · 2^1126 of numbers."""
        return 0

    @abstractmethod
    def fitted(self, counts: Sequence[int], total: int, missing: str) -> Self:
        """The column in an encoding, from sums of `count` and `total` over the training rows."""

    @abstractmethod
    def features(self, label: str) -> list[str]:
        """Names of the features that are made of it."""

    @property
    def stored(self) -> int:
        """Most of its features that are not 0 in a sample."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """The column as JSON data, for `column_from_json`."""
        plain: dict[str, Any] = {"values": None} | msgspec.to_builtins(self)
        return plain

    @abstractmethod
    def encode(self, cells: FloatArray, table: "Column") -> Encoded:
        """Features of rows with these cells, which `read` has given for the column of a ``table``."""


@dataclass(frozen=True)
class NumberColumn(Column):
    """Numbers, which with ``truth`` may be written as true and false, in upper or lower case.

    In an encoding they are a feature, with ``gaps`` another one is 1 for these, and ``mean`` stands for a gap, ``None``
    if gaps are refused.
    """

    truth: bool = False
    mean: float | None = None

    def read(self, cells: Cells, label: str, unknown: UnknownTexts) -> FloatArray:
        return cells.truths if self.truth else cells.numbers

    def count(self, cells: FloatArray) -> npt.NDArray[np.int64]:
        gaps = np.count_nonzero(np.isnan(cells))
        return np.array([cells.size - gaps, gaps])

    def total(self, cells: FloatArray) -> int:
        """Exact, as sums of float64 would depend on the order of the rows; at most 2^26 cells."""
        known = cells[~np.isnan(cells)]
        if not known.size:
            return 0
        mantissas, exponents = np.frexp(known)
        lowest = int(exponents.min())
        integers = (mantissas * 2.0**53).astype(np.int64)
        total = 0
        for part, shift in ((integers >> 27, 27), (integers & ((1 << 27) - 1), 0)):  # so that sums fit 53 bits
            sums = np.bincount(exponents - lowest, weights=part)
            total += sum(int(each) << (place + shift) for place, each in enumerate(sums.tolist()) if each)
        return total << (lowest - 53 + _UNIT)

    def fitted(self, counts: Sequence[int], total: int, missing: str) -> Self:
        known, gaps = counts
        mean = total / (known << _UNIT) if known else 0.0  # Python rounds it correctly
        return replace(self, mean=None if missing == "error" else mean, gaps=missing == "indicator" and gaps > 0)

    def features(self, label: str) -> list[str]:
        return [label, *([f"{label}={GAP}"] if self.gaps else [])]

    @property
    def stored(self) -> int:
        return 1 + self.gaps

    def encode(self, cells: FloatArray, table: "Column") -> Encoded:
        gaps = np.isnan(cells)
        yield np.zeros(cells.size, np.int32), cells if self.mean is None else np.where(gaps, self.mean, cells)
        if self.gaps:
            yield np.where(gaps, np.int32(1), np.int32(-1)), 1.0


_YEAR_MONTHS, _WEEKDAYS = 12, ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_PARTS = (
    *((f"month={place + 1}", "month") for place in range(_YEAR_MONTHS)),
    *((f"weekday={name}", "weekday") for name in _WEEKDAYS),
    *((f"hour={place}", "hour") for place in range(24)),
)
"""Parts of a date that samples may have, and their kinds."""


@dataclass(frozen=True)
class DateColumn(NumberColumn):
    """Dates in one of the `p4sgd.host.data.dates.ORDERS`, in rows as days since 1970.

    In an encoding they are a number, with ``parts`` the year, and there are features for the months, weekdays and
    hours that the training samples have, if there are two of the kind; else the days.
    """

    order: str = "ymd"
    parts: tuple[str, ...] | None = None

    @property
    def known(self) -> dict[str, list[int]]:
        """The ``parts`` by kind, in their order: months and hours from 0, weekdays from Monday on."""
        known = {}
        for kind in dict.fromkeys(kind for _, kind in _PARTS):
            names = [name for name, other in _PARTS if other == kind]
            known[kind] = [place for place, name in enumerate(names) if name in (self.parts or ())]
        return {kind: places for kind, places in known.items() if places}

    def read(self, cells: Cells, label: str, unknown: UnknownTexts) -> FloatArray:
        texts, which = cells.encoded
        found = np.array([*(day_of(text, self.order) for text in texts), np.nan])[which]
        found[cells.gaps] = np.nan
        if self.parts:
            kinds = {part.partition("=")[0] for part in self.parts}
            strange = np.array([*(kind in kinds and name not in self.parts for name, kind in _PARTS), False])
            rows = np.flatnonzero(strange[self._divided(found)[1]].any(axis=1))
            if rows.size:
                before, example = unknown.get(label, (0, texts[which[rows[0]]]))
                unknown[label] = before + rows.size, example
        return found

    def _divided(self, cells: FloatArray) -> tuple[FloatArray, npt.NDArray[np.intp]]:
        """The number of each date, and which of `_PARTS` it has, (rows, 3), negative for gaps."""
        if self.parts is None:
            return cells, np.empty((cells.size, 0), np.intp)
        gaps = np.isnan(cells)
        minutes = np.where(gaps, 0, np.floor(cells * 1440 + 1e-6)).astype("datetime64[m]")
        days, months = minutes.astype("datetime64[D]"), minutes.astype("datetime64[M]").astype(np.intp)
        hours = (minutes - days).astype(np.intp) // 60
        weekdays = (days.astype(np.intp) + 3) % 7  # 1970 began on a Thursday
        parts = [months % _YEAR_MONTHS, weekdays + _YEAR_MONTHS, hours + _YEAR_MONTHS + len(_WEEKDAYS)]
        years = np.where(gaps, np.nan, months // _YEAR_MONTHS + 1970.0)
        return years, np.where(gaps[:, None], -1, np.stack(parts, axis=1))

    def count(self, cells: FloatArray) -> npt.NDArray[np.int64]:
        parts = self._divided(cells)[1]
        return np.concatenate([np.bincount(parts[parts >= 0], minlength=len(_PARTS)), super().count(cells)])

    def total(self, cells: FloatArray) -> int:
        return super().total(self._divided(cells)[0])

    def fitted(self, counts: Sequence[int], total: int, missing: str) -> Self:
        fitted = super().fitted(counts[-2:], total, missing)
        if self.parts is None:
            return fitted
        there = [part for part, count in zip(_PARTS, counts, strict=False) if count]
        kinds = [kind for _, kind in there]
        return replace(fitted, parts=tuple(name for name, kind in there if kinds.count(kind) > 1))

    def features(self, label: str) -> list[str]:
        number, *gap = super().features(label)
        if self.parts is None:
            return [number, *gap]
        return [f"{label}.year", *gap, *(f"{label}.{part}" for part in self.parts)]

    @property
    def stored(self) -> int:
        return super().stored + 3 * (self.parts is not None)

    def encode(self, cells: FloatArray, table: "Column") -> Encoded:
        number, parts = self._divided(cells)
        yield from super().encode(number, table)
        first = 1 + self.gaps
        places = {part: first + place for place, part in enumerate(self.parts or ())}
        lookup = np.array([*(places.get(name, -1) for name, _ in _PARTS), -1], np.int32)
        yield from ((lookup[part], 1.0) for part in parts.T)


@dataclass(frozen=True)
class TextColumn(Column):
    """Texts, in ``values`` in alphabetical order.

    In an encoding there is a feature for each, 1 for the samples that have it, and ``gaps`` tells that a gap is a text
    of its own. Of two texts only the second has a feature.
    """

    values: tuple[str, ...] = ()

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {text: place for place, text in enumerate(self.values)}

    def read(self, cells: Cells, label: str, unknown: UnknownTexts) -> FloatArray:
        """Places of the texts; −1 for others, which ``unknown`` counts."""
        texts, which = cells.encoded
        codes = np.array([self.places.get(text, _UNKNOWN) for text in texts] + [np.nan], np.float64)
        counts = np.bincount(which, minlength=codes.size)
        found = np.flatnonzero((codes == _UNKNOWN) & (counts > 0))
        strange = [place for place in found if texts[place] not in cells.notation.missing]
        if strange:
            before, example = unknown.get(label, (0, texts[strange[0]]))
            unknown[label] = before + int(counts[strange].sum()), example
        result = codes[which]
        result[cells.gaps] = np.nan
        return result

    def count(self, cells: FloatArray) -> npt.NDArray[np.int64]:
        gap = len(self.values)
        return np.bincount(np.where(np.isnan(cells), gap, cells).astype(np.intp), minlength=gap + 1)

    def fitted(self, counts: Sequence[int], total: int, missing: str) -> Self:
        *rows, gaps = counts
        kept = tuple(text for text, count in zip(self.values, rows, strict=True) if count)
        return replace(self, values=kept, gaps=missing == "indicator" and gaps > 0)

    def features(self, label: str) -> list[str]:
        kinds = [*self.values, *([GAP] if self.gaps else [])]
        return [f"{label}={kind}" for kind in (kinds[1:] if len(kinds) == 2 else kinds)]

    def encode(self, cells: FloatArray, table: "Column") -> Encoded:
        assert isinstance(table, TextColumn)
        # The feature of each text of the table, of a gap and, at place −1, of an unknown text.
        gap = len(self.values) if self.gaps else -1
        lookup = np.array([*(self.places.get(text, -1) for text in table.values), gap, -1], np.int32)
        lookup -= len(self.values) + self.gaps == 2
        yield lookup[np.where(np.isnan(cells), lookup.size - 2, cells).astype(np.intp)], 1.0


def column_from_json(data: Mapping[str, Any]) -> Column:
    """Undo `Column.to_json`; `KeyError` or `ValueError` for anything else."""
    kind: type[Column] = DateColumn if "order" in data else NumberColumn
    return msgspec.convert(data, TextColumn if data["values"] is not None else kind)


@dataclass(frozen=True)
class Table:
    """Contents of the columns of a table that are features."""

    columns: tuple[Column, ...]

    @classmethod
    def of_numbers(cls, names: Sequence[str], count: int) -> "Table":
        """A table of numbers; ``names`` are empty if there is no header."""
        return Table(tuple(map(NumberColumn, names or [""] * count)))

    @property
    def plain(self) -> bool:
        """Whether there are only numbers that are written as such."""
        return all(type(column) is NumberColumn and not column.truth for column in self.columns)

    @property
    def headers(self) -> tuple[str, ...]:
        """Empty if there are none."""
        names = tuple(column.name for column in self.columns)
        return names if any(names) else ()

    def label(self, place: int) -> str:
        """A column in messages and names of features."""
        return self.columns[place].name or f"feature {place + 1}"

    def rows(
        self, arrays: Sequence[Any], unknown: UnknownTexts, *, gaps: bool, notation: Notation = TYPED
    ) -> FloatArray:
        """Rows of the table as numbers: float64 (rows, columns), see above.

        ``arrays`` are pyarrow arrays of these columns. ``unknown`` counts texts that a column does not have, which
        become −1. ``gaps`` tells whether values may be missing; texts of the ``notation`` mean so unless the column has
        such a text. Raises `CellError` for the first value that its column cannot have.
        """
        made = np.empty((len(arrays[0]), len(self.columns)))
        everything = [
            Cells(array, notation.without(column.places.keys()) if isinstance(column, TextColumn) else notation)
            for column, array in zip(self.columns, arrays, strict=True)
        ]
        for place, (column, cells) in enumerate(zip(self.columns, everything, strict=True)):
            made[:, place] = column.read(cells, self.label(place), unknown)
        if np.isfinite(made).all():
            return made
        wrong: list[CellError] = []
        for place, cells in enumerate(everything):
            strange = ~np.isfinite(made[:, place])
            if gaps:
                strange &= ~cells.gaps
            if strange.any():
                wrong.append(cells.error(strange, place))
                wrong[-1].order = getattr(self.columns[place], "order", "")
        if wrong:
            raise min(wrong, key=lambda each: (each.row, each.column))
        return made


def unknown_remarks(unknown: UnknownTexts) -> tuple[str, ...]:
    """Remarks for the user on texts that a model does not know."""
    return tuple(
        f"{column}: {count:,} value{'s' * (count > 1)} that the model does not know, such as {shortened(example)}: "
        f"taken for none of those that it knows"
        for column, (count, example) in unknown.items()
    )
