"""Runs by the thousands, each or a few from a seed of their own, on several processes; what came of them in figures."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
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


def main(
    doc: str | None,
    run: Callable[..., Outcome],
    figures: Iterable[str],
    *,
    runs: int,
    batch: int = 1,
    variants: Iterable[str] = (),
) -> int:
    """A campaign as a program, of whose docstring: print failures, with what repeats them, and these figures.

    ``run`` does ``batch`` runs, of ``variant`` if there are any. Returns the exit status: 1 if any failed.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="SEED", help="repeat what this seed does")
    command = f"python {sys.argv[0]}"
    if variants:
        parser.add_argument("--variant", choices=variants, default="Aggregator", metavar="NAME", help="with a mistake")
    options = parser.parse_args()
    if variants:
        run, command = partial(run, variant=options.variant), f"{command} --variant {options.variant}"
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
    for name in ("runs", *figures):
        print(f"{name:>24} {counts[name]:>16,}")
    print(f"{'failed seeds':>24} {failed:>16,}")
    return int(failed > 0)
