"""The table of epochs: live on the terminal while training, once and whole at the end."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from p4sgd.host.cli.output import Output, make_table

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress, TaskID

__all__ = ["EpochTable"]

_LIVE_ROWS = 12
"""Rows that the live table shows, the last ones."""


class EpochTable:
    """Rows of numbers, one an epoch.

    Use as a context manager around training. On a terminal the last rows are shown while it runs, with a progress bar;
    at the end, also after Ctrl-C, `print` writes the whole table to standard output.

    Parameters
    ----------
    output
        Where to.
    total
        Epochs to come, at most.
    columns
        Titles by key of a row; columns for which no row has a number are left out.
    """

    def __init__(self, output: Output, total: int, columns: Mapping[str, str]) -> None:
        self._output = output
        self._total = total
        self._columns = columns
        self._rows: list[Mapping[str, float | None]] = []
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def add(self, row: Mapping[str, float | None]) -> None:
        """Add an epoch; ``row`` has ``epoch`` and any of the columns."""
        self._rows.append(row)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=len(self._rows))
        self._refresh()

    def print(self) -> None:
        """Write the whole table to standard output."""
        if self._rows:
            self._output.table(*self._cells(self._rows))

    def _cells(self, rows: Sequence[Mapping[str, float | None]]) -> tuple[list[str], list[list[str]]]:
        used = [key for key in self._columns if any(row.get(key) is not None for row in self._rows)]
        return [self._columns[key] for key in used], [[_cell(key, row.get(key)) for key in used] for row in rows]

    def _refresh(self) -> None:
        if self._live is not None:
            from rich.console import Group

            assert self._progress is not None
            self._live.update(Group(make_table(*self._cells(self._rows[-_LIVE_ROWS:])), self._progress))

    def __enter__(self) -> Self:
        if self._output.shows_progress:
            from rich.live import Live
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("epoch"),
                MofNCompleteColumn(),
                BarColumn(),
                TimeRemainingColumn(),
                console=self._output.remarks,
            )
            self._task = self._progress.add_task("epochs", total=self._total)
            self._live = Live(self._progress, console=self._output.remarks, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key in ("epoch", "samples_per_second"):
        return f"{value:,.0f}"
    return f"{value:.2%}" if "accuracy" in key else f"{value:.4g}"
