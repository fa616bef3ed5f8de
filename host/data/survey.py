"""Finding out what the columns of a table hold, from all of its rows."""

import itertools
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p4sgd.host.data.cells import TRUTH, CellError, Cells, has_decimal_comma, number
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.table import Column, NumberColumn, Table, TextColumn
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import UserError, on_command_line

MOST_TEXTS = 1000
"""Most different texts of a column. Names, tickets and dates have more in all but small tables, and the weight of each
would be learned from few samples. Each text is a column of the image: without a limit a mistake could fill the memory.
"""

_LEAST_ROWS = 10
"""Rows from which on numbers in order are no coincidence."""


@dataclass
class _Findings:
    """Findings about a column, so far or in all ranks.

    ``numbers`` and ``texts`` count cells, without gaps. ``values`` are the different texts of all cells, ``None`` if
    they are too many. ``typed`` and ``truths`` tell that the format says that these are numbers or booleans, and
    booleans; ``commas`` that all texts are numbers with a decimal comma. ``first`` has row and text of the first text,
    gap and infinity of this rank.
    """

    numbers: int = 0
    texts: int = 0
    values: set[str] | None = field(default_factory=set)
    typed: bool = False
    truths: bool = False
    commas: bool = True
    first: dict[str, tuple[int, str | None]] = field(default_factory=dict)

    @property
    def boolean(self) -> bool:
        """Whether all texts are true or false, or the format says so."""
        if self.numbers and self.texts:
            return False
        return self.truths or bool(self.values and all(text.lower() in TRUTH for text in self.values))

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers: if not more cells are texts than are numbers, or all are true or false."""
        return self.texts <= self.numbers or self.boolean

    def add(self, other: "_Findings") -> None:
        """Add other findings, but for the first cells of each kind."""
        self.numbers += other.numbers
        self.texts += other.texts
        self.typed |= other.typed
        self.truths |= other.truths
        self.commas &= other.commas
        values = None if self.values is None or other.values is None else self.values | other.values
        self.values = None if values is None or len(values) > MOST_TEXTS else values

    @property
    def refused(self) -> set[str]:
        """Kinds of cells, beside gaps, that do not go with the findings of all ranks."""
        if self.numeric:
            return {"infinity"} if self.boolean else {"infinity", "text"}
        return {"text"} if self.commas else set()

    def column(self, name: str, *, gaps: bool) -> Column:
        if self.numeric and (self.numbers or self.texts or self.typed):
            return NumberColumn(name, gaps, truth=self.boolean)
        return TextColumn(name, gaps, tuple(sorted(self.values or ())))  # other rows may have either, if all are gaps


class Survey:
    """Finds out from all rows of a table what its ``count`` columns hold.

    ``names`` are their headers, empty if there are none; ``gap_texts`` mean a missing value, see `Cells`.
    """

    def __init__(self, names: Sequence[str], count: int, gap_texts: Set[str] = frozenset()) -> None:
        self._gap_texts = gap_texts
        self._names = tuple(names) or ("",) * count
        self._found = [_Findings() for _ in range(count)]

    def add(self, arrays: Sequence[Any], first: int) -> None:
        """Look at some rows from the ``first`` on, a pyarrow array for each column."""
        for found, array in zip(self._found, arrays, strict=True):
            cells = Cells(array, self._gap_texts)
            numbers, gaps = cells.numbers, cells.gaps
            texts, commas, values = np.zeros_like(gaps), True, set[str]()
            if not cells.are_numbers and (found.values is not None or np.isnan(numbers[~gaps]).any()):
                known, which = cells.encoded
                strange = [text not in self._gap_texts and _no_number(text) for text in known]
                texts = np.array([*strange, False])[which]
                commas = all(map(has_decimal_comma, itertools.compress(known, strange)))
                values = set(known) - self._gap_texts
            counts = int((~texts & ~gaps).sum()), int(texts.sum())
            found.add(_Findings(*counts, values, cells.are_numbers, cells.are_truths, commas))
            infinite = ~np.isfinite(numbers) & ~gaps & ~texts
            for kind, where in (("text", texts), ("gap", gaps), ("infinity", infinite)):
                if where.any() and kind not in found.first:
                    row = int(where.argmax())
                    found.first[kind] = first + row, cells.text(row)

    def finish(
        self, source: str, *, gaps: bool, tell: Callable[[CellError], UserError], ranks: Communicator = SINGLE_PROCESS
    ) -> Table:
        """Contents of the columns, the same on all ranks.

        Raises `UserError` for the first value that does not go with its column, on the rank that has it; or if a column
        has too many texts. ``source`` is the name of the table, ``gaps`` says whether values may be missing, and
        ``tell`` makes the error of a cell of this rank.
        """
        everywhere = ranks.all_gather(self._found)
        columns, wrong, many = [], [], list[int]()
        for place, name in enumerate(self._names):
            total, parts = _Findings(), [found[place] for found in everywhere]
            for part in parts:
                total.add(part)
            refused = total.refused | ({"gap"} if not gaps else set())
            for rank, part in enumerate(parts):
                cells = ((kind, *cell) for kind, cell in part.first.items() if kind in refused)
                wrong += [(rank, row, place, text, kind == "gap") for kind, row, text in cells]
            columns.append(total.column(name, gaps=any("gap" in part.first for part in parts)))
            if total.values is None and not total.numeric:
                many.append(place)
        if wrong:
            rank, row, place, text, gap = min(wrong, key=lambda each: each[:3])
            if rank == ranks.rank:
                raise tell(CellError(row, place, text, gap=gap))
        table = Table(tuple(columns))
        if many:
            way = on_command_line(f" with --ignore-column {columns[many[0]].name or 'NUMBER'}")
            texts = f"more than {MOST_TEXTS:,} different texts, each of which would be a feature"
            raise UserError(f"{source}: {table.label(many[0])} has {texts}: leave it out{way}")
        return table


def _no_number(text: str) -> bool:
    """Whether a text is no number; "nan" is none."""
    value = number(text)
    return value is None or np.isnan(value)


class RowNumbers:
    """Looks for columns with the numbers of the rows, which a table has by mistake.

    ``columns`` are the number from 1 and the header of each feature.
    """

    def __init__(self, columns: Sequence[tuple[int, str]]) -> None:
        self._columns = [(place, *each) for place, each in enumerate(columns) if _counts_rows(each[1])]
        self._begins: list[float | None] = [None] * len(self._columns)
        self.rows = 0

    def add(self, rows: Features) -> None:
        for candidate, (place, _, _) in enumerate(self._columns):
            values: Any = rows[:, place]
            begin = float(values[0]) if not self.rows and values.size else self._begins[candidate]
            counts = begin is not None and np.array_equal(values, np.arange(self.rows, self.rows + values.size) + begin)
            self._begins[candidate] = begin if counts else None
        self.rows += rows.shape[0]

    def remarks(self, ranks: Communicator) -> tuple[str, ...]:
        before, fits = 0, [{0.0, 1.0} for _ in self._columns]
        for rows, begins in ranks.all_gather((self.rows, self._begins)):
            if rows:
                for fit, begin in zip(fits, begins, strict=True):
                    fit &= set() if begin is None else {begin - before}
            before += rows
        return tuple(
            f"column {column}{f' ({name})' * bool(name)} has the numbers of the rows and is taken for a feature: "
            + on_command_line(f"--ignore-column {column} leaves it out", "leave it out")
            for (_, column, name), fit in zip(self._columns, fits, strict=True)
            if fit and before >= _LEAST_ROWS
        )


def _counts_rows(name: str) -> bool:
    """Whether a column with this header may hold the numbers of the rows."""
    name = name.strip().lower()
    return name in ("", "index", "row", "rownames", "no", "nr", "unnamed: 0") or name.endswith("id")
