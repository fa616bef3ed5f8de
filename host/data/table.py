"""Tables with texts and gaps: what their columns hold, and their rows as numbers.

A reader first finds out what each column holds (`survey.py`): numbers, or texts. Rows of the table are then float64:
numbers as they are, of texts their place among the column's texts (`Table`), NaN for gaps. Such rows are shuffled,
shared among ranks and sorted into buckets like any others. The training rows decide which features are made of them
(`encoding.py`).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import CellError, Cells
from p4sgd.host.errors import shortened

GAP = "missing"
"""What stands for a gap in the name of a feature."""

_UNKNOWN = -1
"""The place of a text that is not among those of a column."""

UnknownTexts: TypeAlias = dict[str, tuple[int, str]]
"""Texts that a model does not know, counted while a table is read: by column, how many, and one of them."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    ``name`` is its header; empty if there is none. ``values`` are its texts in alphabetical order, none if no value is
    known; ``None`` if it holds numbers, which with ``truth`` may be written as true and false, in upper or lower case.
    ``gaps`` tells that values are missing; in an encoding, that gaps have a feature of their own. ``mean`` is what
    stands there for a gap among numbers; ``None`` if gaps are refused.
    """

    name: str = ""
    values: tuple[str, ...] | None = None
    truth: bool = False
    mean: float | None = None
    gaps: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of texts: what there is a feature for, unless there are two, which are told apart by one feature."""
        return (*(self.values or ()), *((GAP,) if self.gaps else ()))

    @property
    def features(self) -> int:
        if self.values is None:
            return 1 + self.gaps
        return 1 if len(self.kinds) == 2 else len(self.kinds)

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {text: place for place, text in enumerate(self.values or ())}


@dataclass(frozen=True)
class Table:
    """Contents of the columns of a table that are features."""

    columns: tuple[Column, ...]

    @classmethod
    def of_numbers(cls, names: Sequence[str], count: int) -> Self:
        """A table of numbers; ``names`` are empty if there is no header."""
        return cls(tuple(map(Column, names)) if names else (Column(),) * count)

    @property
    def plain(self) -> bool:
        """Whether there are only numbers that are written as such."""
        return all(column.values is None and not column.truth for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The headers; empty if there are none."""
        names = tuple(column.name for column in self.columns)
        return names if any(names) else ()

    def label(self, place: int) -> str:
        return self.columns[place].name or f"feature {place + 1}"

    def rows(
        self, arrays: Sequence[Any], unknown: UnknownTexts, *, gaps: bool, gap_texts: Set[str] = frozenset()
    ) -> npt.NDArray[np.float64]:
        """Rows of the table as numbers: float64 (rows, columns), of texts their place among the column's texts, NaN for
        gaps.

        ``arrays`` are pyarrow arrays of these columns. ``unknown`` counts texts that a column does not have, which
        become −1. ``gaps`` tells whether values may be missing; ``gap_texts`` are texts that mean so, see
        `p4sgd.host.data.cells.Cells`, unless the column has such a text. Raises `CellError` for the first value that
        its column cannot have.
        """
        made = np.empty((len(arrays[0]), len(self.columns)))
        everything = [
            Cells(array, gap_texts - column.places.keys()) for column, array in zip(self.columns, arrays, strict=True)
        ]
        for place, (column, cells) in enumerate(zip(self.columns, everything, strict=True)):
            if column.values is not None:
                made[:, place] = self._codes(place, cells, unknown)
            else:
                made[:, place] = cells.truths if column.truth else cells.numbers
        if np.isfinite(made).all():
            return made
        wrong: list[CellError] = []
        for place, cells in enumerate(everything):
            strange = ~np.isfinite(made[:, place])
            if gaps:
                strange &= ~cells.gaps
            if strange.any():
                wrong.append(cells.error(strange, place))
        if wrong:
            raise min(wrong, key=lambda each: (each.row, each.column))
        return made

    def _codes(self, place: int, cells: Cells, unknown: UnknownTexts) -> npt.NDArray[np.float64]:
        texts, which = cells.encoded
        known = self.columns[place].places
        codes = np.array([known.get(text, _UNKNOWN) for text in texts] + [np.nan], np.float64)
        counts = np.bincount(which, minlength=codes.size)
        found = np.flatnonzero((codes == _UNKNOWN) & (counts > 0))
        strange = [row for row in found if texts[row] not in cells.gap_texts]
        if strange:
            before, example = unknown.get(self.label(place), (0, texts[strange[0]]))
            unknown[self.label(place)] = before + int(counts[strange].sum()), example
        result = codes[which]
        result[cells.gaps] = np.nan
        return result


def unknown_remarks(parts: Iterable[UnknownTexts]) -> tuple[str, ...]:
    """Remarks for the user on texts that a model does not know, from all parts of a table."""
    joined: UnknownTexts = {}
    for part in parts:
        for column, (count, example) in part.items():
            before, first = joined.get(column, (0, example))
            joined[column] = before + count, first
    return tuple(
        f"{column}: {count:,} value{'s' * (count > 1)} that the model does not know, such as {shortened(example)}: "
        f"taken for none of those that it knows"
        for column, (count, example) in joined.items()
    )
