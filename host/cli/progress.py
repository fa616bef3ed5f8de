"""Bars for work in several steps."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from p4sgd.host.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import TaskID

    from p4sgd.host.prepared.progress import OnProgress, Step

__all__ = ["show_steps"]


@contextlib.contextmanager
def show_steps(output: Output) -> "Iterator[OnProgress]":
    """A bar for every step on the terminal, fed by the function that is handed out; elsewhere a remark for each."""
    if not output.shows_progress:
        told: set[Step] = set()

        def remark(step: "Step", done: int, total: int) -> None:
            if step not in told:
                told.add(step)
                output.remark(step.title)

        yield remark
        return
    from rich.filesize import decimal
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    tasks: dict[Step, TaskID] = {}
    amount = TextColumn("{task.fields[amount]}")
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=output.remarks, transient=True) as progress:

        def show(step: "Step", done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step.title, total=None, amount="")
            shown = [decimal(count) if step.unit == "bytes" else f"{count:,}" for count in (done, total)]
            unit = "" if step.unit == "bytes" else f" {step.unit}"
            amount = f"{' / '.join(shown)}{unit}"
            progress.update(tasks[step], completed=done, total=total or None, amount=amount)

        yield show
