"""Output of the commands: results on standard output, everything else on standard error; tables and progress bars."""

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from p4sgd.host.training.events import TITLES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

    from p4sgd.host.streaming import OnProgress, Step

_FILE_WIDTH = 200
"""Width of output to a file or a pipe: more than that of any table whose rows must not wrap."""

COLUMNS = {
    "epoch": "epoch",
    **{
        f"{data}_{name}": f"{data} {title}"
        for data in ("train", "validation", "test")
        for name, title in list(TITLES.items())[:4]
    },
    "learning_rate": "rate",
    "samples_per_second": "samples/s",
}
"""Titles of the columns of the table of epochs, by key."""

_compilations = logging.getLogger("p4sgd.sim.compiled")


class Output:
    """Output of one command.

    With ``as_json`` one JSON document is printed on standard output, and nothing else there; with ``quiet`` no remarks
    and no progress, but results, warnings and errors; with ``silent`` nothing, because another rank prints it.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False, silent: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.silent = silent
        # Any command may be the first to use a compiled loop; the last output is that of the running command.
        _compilations.handlers = [_handler(self.remark)]
        _compilations.setLevel(logging.INFO)

    @cached_property
    def results(self) -> "Console":
        return _console(stderr=False, quiet=self.silent)

    @cached_property
    def remarks(self) -> "Console":
        return _console(stderr=True, quiet=self.silent)

    @property
    def shows_progress(self) -> bool:
        """Whether to show progress: standard error is a terminal, and ``quiet`` is not set."""
        return not (self.quiet or self.silent) and self.remarks.is_terminal

    def document(self, content: Mapping[str, Any]) -> None:
        if self.as_json and not self.silent:
            click.echo(json.dumps(_finite(content), allow_nan=False))

    def say(self, text: str, *, whole: bool = False) -> None:
        """Print a line of results, without ``as_json``; a ``whole`` one may be copied, so the terminal breaks it."""
        if not self.as_json:
            _print(self.results, text, whole=whole)

    def remark(self, text: str) -> None:
        """Print a line that is not a result, unless ``quiet`` is set."""
        if not self.quiet:
            _print(self.remarks, text)

    def tell(self, text: str) -> None:
        """Print a line on standard error after the name of the running command, even with ``quiet``."""
        if not self.silent:
            click.echo(f"{click.get_current_context().command_path}: {text}", err=True)

    def warn(self, text: str) -> None:
        _print(self.remarks, f"warning: {text}")

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Iterable[object]],
        *,
        texts: int = 1,
        wraps: bool = False,
        spare: Sequence[str] = (),
        remark: bool = False,
    ) -> None:
        """Print a table; numbers get thousands separators or 6 digits, ``None`` is left empty.

        The first columns, ``texts``, are aligned left, the others, numbers, right. The last one ``wraps`` if it has
        sentences; other tables are narrowed to the terminal, in the end without the columns ``spare``. A table of
        results is not printed with ``as_json``, one that is a ``remark`` not with ``quiet``.
        """
        if self.quiet if remark else self.as_json:
            return
        console, cells = self.remarks if remark else self.results, [list(map(_text, row)) for row in rows]
        table = make_table(console, columns, cells, texts, spare, wraps=wraps)
        console.print(table, width=min(console.width, 120) if wraps else None, soft_wrap=True)

    def records(self, records: Sequence[Mapping[str, object]], names: Sequence[str] = (), **how: Any) -> None:
        """Print a `table` of the objects in a document, if there are any, with some ``names`` of members, or all."""
        if records:
            names = names or list(records[0])
            self.table(
                [name.replace("_", " ") for name in names], [[each[name] for name in names] for each in records], **how
            )

    def written(self, document: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Print the document of a command that has written a folder, or its files as a table."""
        self.document({**document, "files": [file.name for file in files]})
        self.table(["file", "bytes"], [[file.name, file.stat().st_size] for file in files])

    @contextlib.contextmanager
    def working(self, what: str, *, told: bool = False) -> Iterator[None]:
        """Show on the terminal what is being done, and how far building a simulator is, as long as the context lasts.

        Where there is no terminal, a remark is printed if ``told``, because it takes long.
        """
        if not self.shows_progress:
            if told:
                self.remark(what)
            yield
            return
        logger = logging.getLogger("p4sgd.sim")
        with self.remarks.status(what) as status:
            handler, level = _handler(lambda step: status.update(f"{what}: {step}")), logger.level
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            try:
                yield
            finally:
                logger.removeHandler(handler)
                logger.setLevel(level)

    def opening(self, device: str) -> contextlib.AbstractContextManager[None]:
        """`working` while a device is opened."""
        if device == "rtl":
            return self.working("preparing the simulator, minutes at first", told=True)
        return self.working("getting ready")

    @contextlib.contextmanager
    def progress(self) -> "Iterator[Callable[[str, int, int | None, str], None]]":
        """Show progress bars, on a terminal only.

        Yields the function to call with the title of a bar, how much is done, how much there is, and its unit.
        """
        if not self.shows_progress:
            yield lambda title, done, total, unit: None
            return
        from rich.filesize import decimal
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        tasks: dict[str, TaskID] = {}
        amount = TextColumn("{task.fields[amount]}")
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
        with Progress(*columns, console=self.remarks, transient=True) as progress:

            def show(title: str, done: int, total: int | None, unit: str) -> None:
                if title not in tasks:
                    tasks[title] = progress.add_task(title, total=None, amount="")
                counts = [count for count in (done, total) if count is not None]
                shown = " / ".join(decimal(count) if unit == "bytes" else f"{count:,}" for count in counts)
                amount = shown if unit in ("", "bytes") else f"{shown} {unit}"
                progress.update(tasks[title], completed=done, total=total or None, amount=amount)

            yield show

    @contextlib.contextmanager
    def steps(self) -> "Iterator[OnProgress]":
        """Show the steps of making or checking prepared data: a progress bar each on a terminal, elsewhere a remark.

        Yields the function to call with a step, how much of it is done, and how much there is.
        """
        begun: set[Step] = set()
        with self.progress() as show:

            def shown(step: "Step", done: int, total: int) -> None:
                if self.shows_progress:
                    show(step.title, done, total, step.unit)
                elif step not in begun:
                    begun.add(step)
                    self.remark(step.title)

            yield shown


def _handler(show: Callable[[str], None]) -> logging.Handler:
    handler = logging.Handler()
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    return handler


def _console(*, stderr: bool, quiet: bool) -> "Console":
    """A console that cuts nothing off where its output is not a terminal."""
    from rich.console import Console

    console = Console(stderr=stderr, quiet=quiet, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console


def _print(console: "Console", text: str, *, whole: bool = False) -> None:
    console.print(text, markup=False, soft_wrap=whole or not console.is_terminal)


def _text(cell: object) -> str:
    if cell is None or isinstance(cell, bool):
        return {None: "", True: "yes", False: "no"}[cell]
    if isinstance(cell, list | tuple):
        return " ".join(map(_text, cell)) or "-"
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def make_table(
    console: "Console",
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    spare: Sequence[str] = (),
    *,
    wraps: bool = False,
) -> "Table":
    """A table that fits a console, if possible; parameters are those of `Output.table`.

    In a narrow one every word of a header has a line of its own; then ``spare`` columns are left out one by one.
    """
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    unlimited = console.options.update(max_width=100_000)
    for narrow, left_out in ((False, 0), *((True, number) for number in range(len(spare) + 1))):
        kept = [place for place, title in enumerate(columns) if title not in spare[:left_out]]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if narrow else 1), show_edge=not narrow)
        for place in kept:
            title = columns[place].replace("validation", "valid.").replace(" ", "\n") if narrow else columns[place]
            justify: Literal["left", "right"] = "left" if place < texts else "right"
            no_wrap = not (wraps and place == kept[-1])
            table.add_column(Text(title), vertical="bottom" if narrow else "top", justify=justify, no_wrap=no_wrap)
        for row in rows:
            table.add_row(*(Text(row[place]) for place in kept))
        if wraps or Measurement.get(console, unlimited, table).maximum <= console.width:
            break
    return table


def _finite(content: Any) -> Any:
    """Plain data for JSON, which has no NaN and no infinity: both become ``None``."""
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def cell(key: str, value: float | None, digits: int = 4) -> str:
    """A metric or another number of an epoch, for a table."""
    if value is None:
        return ""
    if key in ("epoch", "samples_per_second"):
        return f"{value:,.0f}"
    if math.isnan(value):
        return "undefined"
    return f"{value:.2%}" if "accuracy" in key else f"{value:.{digits}g}"


def shorten(name: str) -> str:
    """The name of a class, cut in its middle if it is long, because ends tell classes apart as often as beginnings.

    With 17 characters in the first column and in two headers, a table fits 60 columns.
    """
    return name if len(name) <= 17 else f"{name[:8]}…{name[-8:]}"
