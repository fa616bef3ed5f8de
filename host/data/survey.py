"""Finding out what the columns of a table hold, from all of its rows."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p4sgd.host.data.cells import TRUTH, CellError, Cells
from p4sgd.host.data.dates import ORDERS, dates_of
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.notation import TYPED, Notation, has_unit, other_notations
from p4sgd.host.data.table import Column, DateColumn, NumberColumn, Table, TextColumn
from p4sgd.host.errors import UserError, on_command_line, option, shortened

MOST_TEXTS = 1000
"""Most different texts of a column. Names, tickets and dates have more in all but small tables, and the weight of each
would be learned from few samples. Each text is a column of the image: without a limit a mistake could fill the memory.
"""

_LEAST_ROWS = 10
"""Rows from which on numbers in order are no coincidence."""


@dataclass
class _Findings:
    """Findings about a column, so far.

    ``counts`` are of cells: ``numbers`` and ``texts``, without gaps, texts that are ``respelled``, numbers in another
    notation, and those that are dates, by the order. ``values`` are the different texts of all cells, ``None`` if they
    are too many. Of the ``traits``, ``typed`` and ``truths`` tell that the format says that these are numbers or
    booleans, and booleans; ``category`` that format or user say that these are no numbers, and ``codes`` that some are
    digits after a 0. ``first`` has row and text of the first cell of each kind.
    """

    counts: Counter[str] = field(default_factory=Counter)
    traits: set[str] = field(default_factory=set)
    values: set[str] | None = field(default_factory=set)
    first: dict[str, tuple[int, str | None]] = field(default_factory=dict)

    @property
    def boolean(self) -> bool:
        """Whether all texts are true or false, or the format says so."""
        if (self.counts["numbers"] and self.counts["texts"]) or "category" in self.traits:
            return False
        return "truths" in self.traits or bool(self.values and all(text.lower() in TRUTH for text in self.values))

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers: if not more cells are texts than are numbers, or all are true or false."""
        return "category" not in self.traits and (self.counts["texts"] <= self.counts["numbers"] or self.boolean)

    @property
    def dates(self) -> bool:
        """Whether most cells are dates, and none are numbers."""
        return not self.counts["numbers"] and 2 * max(map(self.counts.__getitem__, ORDERS)) > self.counts["texts"]

    @property
    def orders(self) -> list[str]:
        """Those of `ORDERS` in which most cells are dates."""
        return [order for order in ORDERS if self.counts[order] == max(map(self.counts.__getitem__, ORDERS))]

    def look(self, cells: Cells, first: int, *, chosen: bool) -> None:
        """Add findings about cells from the row ``first`` on, which are categories if the user has chosen so."""
        typed, category, gaps = cells.are_numbers and not chosen, cells.are_texts or chosen, cells.gaps
        traits = {"typed": typed, "truths": cells.are_truths, "category": category, "codes": cells.has_codes}
        new = _Findings(traits={name for name, it_has in traits.items() if it_has})
        numbers = np.full(gaps.size, np.nan) if category else cells.numbers
        texts, respelled = np.isnan(numbers) & ~gaps, np.zeros_like(gaps)
        if not typed and (self.values is not None or texts.any()):
            known, which = cells.encoded
            new.values = set(known) - cells.notation.missing
            for text, count in zip(known, np.bincount(which).tolist(), strict=False) if not chosen else ():
                new.counts.update(dict.fromkeys(dates_of(text), count))
            if not category:
                strange = [place for place in np.unique(which[texts]) if other_notations(known[place])]
                respelled = np.isin(which, strange)
        kinds = {"numbers": ~texts & ~gaps, "texts": texts, "respelled": respelled}
        new.counts.update({kind: int(where.sum()) for kind, where in kinds.items()})
        self.add(new)
        infinite = np.isinf(numbers) & ~gaps
        for kind, where in {"text": texts, "respelled": respelled, "gap": gaps, "infinity": infinite}.items():
            if where.any() and kind not in self.first:
                row = int(where.argmax())
                self.first[kind] = first + row, cells.text(row)

    def add(self, other: "_Findings") -> None:
        """Add other findings, but for the first cells of each kind."""
        self.counts.update(other.counts)
        self.traits |= other.traits
        values = None if self.values is None or other.values is None else self.values | other.values
        self.values = None if values is None or len(values) > MOST_TEXTS else values

    @property
    def refused(self) -> set[str]:
        """Kinds of cells, beside gaps, that do not go with the findings."""
        if self.numeric:
            return {"infinity"} if self.boolean else {"infinity", "text"}
        respelled = self.counts["respelled"]
        like_numbers = respelled and self.counts["numbers"] + respelled >= self.counts["texts"] - respelled
        return {"respelled"} if like_numbers and "category" not in self.traits else set()

    def column(self, name: str, dates: str, *, gaps: bool) -> Column:
        if self.numeric and (self.counts["numbers"] or self.counts["texts"] or "typed" in self.traits):
            return NumberColumn(name, gaps, truth=self.boolean)
        if self.dates and dates != "text":
            return DateColumn(name, gaps, order=self.orders[0], parts=() if dates == "parts" else None)
        return TextColumn(name, gaps, tuple(sorted(self.values or ())))  # other rows may have either, if all are gaps


class Survey:
    """Finds out from all rows of a table what its ``count`` columns hold: the one place that decides it.

    ``names`` are their headers, empty if there are none; ``notation`` is that of the cells, see `Cells`.
    ``categorical`` are columns that the user says to be categories, by place, and ``dates`` is one of
    `p4sgd.host.data.dates.DATES`.
    """

    def __init__(
        self,
        names: Sequence[str],
        count: int,
        notation: Notation = TYPED,
        *,
        categorical: Collection[int] = (),
        dates: str = "text",
    ) -> None:
        self._notation, self._categorical, self._dates = notation, categorical, dates
        self._names = tuple(names) or ("",) * count
        self._found = [_Findings() for _ in range(count)]
        self.remarks: tuple[str, ...] = ()
        """What the user should know, after `finish`."""

    def add(self, arrays: Sequence[Any], first: int) -> None:
        """Look at some rows from the ``first`` on, a pyarrow array for each column."""
        for place, (found, array) in enumerate(zip(self._found, arrays, strict=True)):
            found.look(Cells(array, self._notation), first, chosen=place in self._categorical)

    def finish(
        self,
        source: str,
        *,
        gaps: bool,
        tell: Callable[[CellError], UserError],
        codes: bool = False,
    ) -> Table:
        """Contents of the columns. If ``codes``, columns with digits after a 0, such as 01001, are categories.

        Raises `UserError` for the first value that does not go with its column; or if a column has too many texts, or
        dates that may be read in two ways. ``source`` is the name of the table, ``gaps`` says whether values may be
        missing, and ``tell`` makes the error of a cell.
        """
        columns, wrong, refusals = [], [], list[str]()
        for place, (name, total) in enumerate(zip(self._names, self._found, strict=True)):
            total.traits |= {"category"} if codes and "codes" in total.traits else set()
            refused = total.refused | ({"gap"} if not gaps else set())
            cells = ((kind, *cell) for kind, cell in total.first.items() if kind in refused)
            wrong += [(row, place, text, kind == "gap") for kind, row, text in cells]
            columns.append(total.column(name, self._dates, gaps="gap" in total.first))
            label, named = name or f"feature {place + 1}", shlex.quote(name) if name else "NUMBER"
            if "codes" in total.traits and total.numeric:
                way = f"--categorical {named} makes texts of them"
                self.remarks += (f"{label} has digits after a 0, such as 01, which are taken for numbers: {way}",)
            if isinstance(columns[-1], DateColumn) and len(total.orders) == 2:
                refusals.append(f"{label} has dates whose day and month may be either way round: write the year first")
            if isinstance(columns[-1], TextColumn) and total.values is None:
                texts = f"{label} has more than {MOST_TEXTS:,} different texts, each of which would be a feature: "
                if total.dates:
                    texts += f"make numbers of dates with {option('dates', 'days')} or {option('dates', 'parts')}, or "
                elif has_unit(example := total.first["text"][1] or ""):
                    texts += f"write numbers such as {shortened(example)} without a unit, or "
                refusals.append(texts + "leave it out" + on_command_line(f" with --ignore-column {named}"))
        if self._dates != "text" and not any(isinstance(column, DateColumn) for column in columns):
            forms, way = "2024-03-31, 31.03.2024 or 03/31/2024", option("dates", self._dates)
            self.remarks += (f"no column has dates such as {forms}, so {way} changes nothing: write them so",)
        if wrong:
            row, place, text, gap = min(wrong, key=lambda each: each[:2])
            raise tell(CellError(row, place, text, gap=gap, notation=self._notation))
        if refusals:
            raise UserError(f"{source}: {refusals[0]}")
        return Table(tuple(columns))


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

    def remarks(self, table: Table) -> tuple[str, ...]:
        """What the user should know, of the columns that the ``table`` says are numbers."""
        return tuple(
            f"column {column}{f' ({name})' * bool(name)} has the numbers of the rows and is taken for a feature: "
            + on_command_line(f"--ignore-column {column} leaves it out", "leave it out")
            for (place, column, name), begin in zip(self._columns, self._begins, strict=True)
            if (begin in (0.0, 1.0) or (name and begin is not None))
            and self.rows >= _LEAST_ROWS
            and not isinstance(table.columns[place], TextColumn)
        )


def _counts_rows(name: str) -> bool:
    """Whether a column with this header may hold the numbers of the rows."""
    name = name.strip().lower()
    return name in ("", "index", "row", "rownames", "no", "nr", "unnamed: 0") or name.endswith("id")
