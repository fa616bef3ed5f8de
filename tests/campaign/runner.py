"""Runs by the thousands, each or a few from a seed of their own, on several processes; what came of them in figures."""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import get_context

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

_SHOWN = 10
"""Failures that are told one by one."""

_CHUNK = 20
"""Most seeds that a process takes at a time."""


@dataclass
class Outcome:
    """What came of a seed: figures, ``runs`` among them, and in words what went wrong; empty if nothing did."""

    seed: int
    counts: Counter[str]
    failure: str = ""


@dataclass
class Figures:
    """What came of many."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)


def maybe(rng: random.Random, most: float) -> float:
    """A chance that is 0 in half of all runs."""
    return rng.choice([0.0, rng.uniform(0, most)])


def command_line(doc: str | None, runs: int, jobs: int = 2) -> argparse.ArgumentParser:
    """The command line of a campaign: its docstring, and the options of every campaign with these defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=jobs, help="processes (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="SEED", help="repeat what this seed does")
    return parser


def collect(
    run: Callable[[int], Outcome], seeds: Iterable[int], *, jobs: int, note: Callable[[Outcome, Figures], None]
) -> Figures:
    """Run from all seeds; ``note`` is called after each."""
    seeds = list(seeds)
    figures = Figures()
    with get_context("fork").Pool(jobs) as pool:
        for outcome in pool.imap_unordered(run, seeds, chunksize=max(1, min(_CHUNK, len(seeds) // (4 * jobs)))):
            figures.counts += outcome.counts
            if outcome.failure:
                figures.failed.append(outcome)
            note(outcome, figures)
    return figures


def report(
    run: Callable[[int], Outcome], options: argparse.Namespace, command: str, names: Iterable[str], *, batch: int = 1
) -> int:
    """Run a campaign and print its progress, the failures with what repeats them, and the figures of these names.

    ``run`` does ``batch`` runs. Returns the exit status: 1 if any failed.
    """
    console = Console()
    count = -(-options.runs // batch)
    seeds = range(options.seed, options.seed + count) if options.only is None else [options.only]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    begin = time.perf_counter()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("runs", total=len(seeds) * batch)

        def note(outcome: Outcome, figures: Figures) -> None:
            progress.advance(task, batch)
            if outcome.failure and len(figures.failed) <= _SHOWN:
                progress.console.print(f"{outcome.failure}\n  again: {command} --only {outcome.seed}", soft_wrap=True)

        figures = collect(run, seeds, jobs=min(options.jobs, len(seeds)), note=note)
    table = Table("", command, title=f"{time.perf_counter() - begin:,.0f} s")
    table.columns[1].justify = "right"
    for name in ("runs", *names):
        table.add_row(name, f"{figures.counts[name]:,}")
    table.add_row("failed seeds", f"{len(figures.failed):,}")
    console.print(table)
    return int(bool(figures.failed))
