"""Finding out what the columns of a table hold, from all of its rows."""

import itertools
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p4sgd.host.data.cells import TRUTH, CellError, Cells, has_decimal_comma
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.raw_labels import number
from p4sgd.host.data.table import Column, Table
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
    booleans; ``commas`` that all texts are numbers with a decimal comma. ``text``, ``gap`` and ``infinity`` are row and
    text of the first of each.
    """

    numbers: int = 0
    texts: int = 0
    values: set[str] | None = field(default_factory=set)
    typed: bool = False
    truths: bool = False
    commas: bool = True
    text: tuple[int, str | None] | None = None
    gap: tuple[int, str | None] | None = None
    infinity: tuple[int, str | None] | None = None

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

    def add_values(self, values: Iterable[str] | None) -> None:
        """Add some texts to the different ones."""
        if self.values is not None:
            self.values = None if values is None else self.values.union(values)
            if self.values is not None and len(self.values) > MOST_TEXTS:
                self.values = None

    def add(self, other: "_Findings") -> None:
        """Add the findings of another rank, but for the first cells of each kind."""
        self.numbers += other.numbers
        self.texts += other.texts
        self.typed |= other.typed
        self.truths |= other.truths
        self.commas &= other.commas
        self.add_values(other.values)


class Survey:
    """Finds out from all rows of a table what its columns hold.

    Parameters
    ----------
    names
        Headers of the columns; empty if there are none.
    count
        Number of columns.
    gap_texts
        Texts that mean a missing value, see `p4sgd.host.data.cells.Cells`.
    """

    def __init__(self, names: Sequence[str], count: int, gap_texts: Set[str] = frozenset()) -> None:
        self._gap_texts = gap_texts
        self._names = tuple(names) or ("",) * count
        self._found = [_Findings() for _ in range(count)]
        self._rows = 0

    def add(self, arrays: Sequence[Any], first: int | None = None) -> None:
        """Look at some rows, a pyarrow array for each column; the ``first`` follows those before by default."""
        first = self._rows if first is None else first
        self._rows = first + len(arrays[0])
        for found, array in zip(self._found, arrays, strict=True):
            self._add(found, Cells(array, self._gap_texts), first)

    def _add(self, found: _Findings, cells: Cells, first: int) -> None:
        numbers, gaps = cells.numbers, cells.gaps
        texts = np.zeros_like(gaps)
        if not cells.are_numbers:
            known, which = cells.encoded if found.values is not None or np.isnan(numbers[~gaps]).any() else ([], None)
            if which is not None:
                strange = [text not in cells.gap_texts and _no_number(text) for text in known]
                texts = np.array([*strange, False])[which]
                found.commas &= all(map(has_decimal_comma, itertools.compress(known, strange)))
                found.add_values(text for text in known if text not in cells.gap_texts)
        found.typed |= cells.are_numbers
        found.truths |= cells.are_truths
        found.texts += int(texts.sum())
        found.numbers += int((~texts & ~gaps).sum())
        infinite = ~np.isfinite(numbers) & ~gaps & ~texts
        for name, where in (("text", texts), ("gap", gaps), ("infinity", infinite)):
            if getattr(found, name) is None and where.any():
                row = int(where.argmax())
                setattr(found, name, (first + row, cells.text(row)))

    def finish(
        self, source: str, *, gaps: bool, tell: Callable[[CellError], UserError], ranks: Communicator = SINGLE_PROCESS
    ) -> Table:
        """Contents of the columns, the same on all ranks.

        Raises `UserError` for the first value that does not go with its column, on the rank that has it; or if a column
        has too many texts. ``source`` is the name of the table, ``gaps`` says whether values may be missing, and
        ``tell`` makes the error of a cell of this rank.
        """
        everywhere = ranks.all_gather(self._found)
        columns, wrong, many = [], [], []
        for place, name in enumerate(self._names):
            total = _Findings()
            parts = [found[place] for found in everywhere]
            for part in parts:
                total.add(part)
            missing = any(part.gap is not None for part in parts)
            for rank, part in enumerate(parts):
                if part.gap is not None and not gaps:
                    wrong.append((rank, part.gap[0], place, part.gap[1], True))
                strange = []
                if total.numeric:
                    strange = [part.infinity, None if total.boolean else part.text]
                elif total.commas:
                    strange = [part.text]
                wrong += [(rank, each[0], place, each[1], False) for each in strange if each is not None]
            if not (total.numbers or total.texts or total.typed):  # other rows may have either
                columns.append(Column(name, (), gaps=missing))
            elif total.numeric:
                columns.append(Column(name, truth=total.boolean, gaps=missing))
            elif total.values is not None:
                columns.append(Column(name, tuple(sorted(total.values)), gaps=missing))
            else:
                columns.append(Column(name, ()))
                many.append(place)
        if wrong:
            rank, row, place, text, gap = min(wrong, key=lambda each: each[:3])
            if rank == ranks.rank:
                raise tell(CellError(row, place, text, gap=gap))
        table = Table(tuple(columns))
        if many:
            raise UserError(
                f"{source}: {table.label(many[0])} has more than {MOST_TEXTS:,} different texts, of which each would "
                f"become a feature: leave it out"
                + on_command_line(f" with --ignore-column {columns[many[0]].name or 'NUMBER'}")
                + ", or give it fewer texts"
            )
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
        """Look at some further rows."""
        assert isinstance(rows, np.ndarray)
        for candidate, (place, _, _) in enumerate(self._columns):
            values = rows[:, place]
            if not self.rows and values.size:
                self._begins[candidate] = float(values[0])
            begin = self._begins[candidate]
            if begin is not None and not np.array_equal(values, np.arange(self.rows, self.rows + values.size) + begin):
                self._begins[candidate] = None
        self.rows += rows.shape[0]

    def remarks(self, gather: Callable[[Any], list[Any]]) -> tuple[str, ...]:
        """Remarks for the user, from the rows of all shares."""
        parts = gather((self.rows, self._begins))
        before, fits = 0, [{0.0, 1.0} for _ in self._columns]
        for rows, begins in parts:
            if rows:
                fits = [
                    fit & {begin - before} if begin is not None else set()
                    for fit, begin in zip(fits, begins, strict=True)
                ]
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
