"""What an experiment is, and what it finds: tables, figures of them, and sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

Cell = str | int | float | bool | None


class Source(StrEnum):
    """Where the numbers of a row come from."""

    MEASURED = "measured"  # on the machine that the finding names, if the table names no other
    SIMULATED = "simulated"  # cycles of the RTL
    MODELLED = "modelled"  # computed by a formula
    PUBLISHED = "published"  # by others; the table names where
    VENDOR = "vendor"  # figures of a product's maker


@dataclass(frozen=True)
class Chart:
    """A figure of a table: ``y`` over ``x``, which are columns, with a curve for each value of the column ``series``.

    If the cells of ``x`` are texts, they are bars. ``only`` has the cells of the rows that are drawn, by column; rows
    in which ``x`` or ``y`` is empty are not.
    """

    x: str
    y: str
    series: str | None = None
    only: dict[str, Cell] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Table:
    """Rows with a cell for each column. The last column is ``source`` and has a `Source` in every row.

    Units are in the names of columns, as ``time, µs``. ValueError if rows and columns do not match, or if a chart names
    a column that is not there.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    charts: Sequence[Chart] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if not self.columns or self.columns[-1] != "source" or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"{self.title}: columns must differ, and the last one must be source: {self.columns}")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns: {row}")
            if row[-1] not in list(Source):
                raise ValueError(f"{self.title}: the source must be one of {', '.join(Source)}, not {row[-1]}")
        for chart in self.charts:
            named = {chart.x, chart.y, *chart.only, *([chart.series] if chart.series else [])}
            if unknown := named - set(self.columns):
                raise ValueError(f"{self.title}: a chart needs the columns {', '.join(sorted(unknown))}")


@dataclass(frozen=True)
class Finding:
    """The result of an experiment.

    ``losses`` are sentences about what others do better: they come first in the report. ``sentences`` say all else that
    was found. ``skipped`` is the reason, and the remedy, if nothing could be found.
    """

    tables: Sequence[Table] = ()
    sentences: Sequence[str] = ()
    losses: Sequence[str] = ()
    skipped: str = ""


@dataclass(frozen=True)
class Experiment:
    """A question about P4SGD, and the function that finds the answer on this machine; quickly, if it is given True."""

    id: str
    title: str
    question: str
    run: Callable[[bool], Finding]


def experiment(id: str, title: str, question: str) -> Callable[[Callable[[bool], Finding]], Experiment]:
    """Decorator that makes an experiment of a function."""
    return partial(Experiment, id, title, question)
