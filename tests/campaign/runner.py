"""Runs by the thousands, each or a few from a seed of their own, on several processes; what came of them in figures."""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import get_context

_CHUNK = 20
"""Most seeds that a process takes at a time."""


@dataclass
class Outcome:
    """What came of a seed: figures, ``runs`` among them, and in words what went wrong; empty if nothing did."""

    seed: int
    counts: Counter[str]
    failure: str = ""


def maybe(rng: random.Random, most: float) -> float:
    """A chance that is 0 in half of all runs."""
    return rng.choice([0.0, rng.uniform(0, most)])


def command_line(doc: str | None, runs: int) -> argparse.ArgumentParser:
    """The command line of a campaign: its docstring, and the options of every campaign."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="SEED", help="repeat what this seed does")
    return parser


def report(
    run: Callable[[int], Outcome], options: argparse.Namespace, command: str, names: Iterable[str], *, batch: int = 1
) -> int:
    """Run a campaign and print the failures with what repeats them, and the figures of these names.

    ``run`` does ``batch`` runs. Returns the exit status: 1 if any failed.
    """
    count = -(-options.runs // batch)
    seeds = range(options.seed, options.seed + count) if options.only is None else [options.only]
    jobs = min(options.jobs, len(seeds))
    begin, counts, failed = time.perf_counter(), Counter[str](), 0
    with get_context("fork").Pool(jobs) as pool:
        chunk = max(1, min(_CHUNK, len(seeds) // (4 * jobs)))
        for outcome in pool.imap_unordered(run, seeds, chunksize=chunk):
            counts += outcome.counts
            if outcome.failure:
                failed += 1
                print(f"{outcome.failure}\n  again: {command} --only {outcome.seed}", flush=True)
    print(f"{command}: {time.perf_counter() - begin:,.0f} s")
    for name in ("runs", *names):
        print(f"{name:>24} {counts[name]:>16,}")
    print(f"{'failed seeds':>24} {failed:>16,}")
    return int(failed > 0)
