"""The factor stage over MPI ranks, with and without overlap, merging and placement, side by side.

    PYTHONPATH=tests python tests/bench/bench_factors.py [--ranks 4] [--columns 4096] [--samples 8000] [--rounds 15]

In every round costs are measured and each variant runs once with a plan made from them. Times are those of the slowest
rank, medians of the rounds, in ms. Without overlap a sum is waited for before the next block's moments are computed.
"""

import math
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.mpi import run_as_ranks
from support.script import CONSOLE, parser_of, show

from p4sgd.host.data import Scaling
from p4sgd.host.data.dataset import DistributedDataset
from p4sgd.host.distributed import Communicator, open_communicator
from p4sgd.host.distributed.planner import FactorCosts, FactorPlan, plan_factors
from p4sgd.host.precondition.stage import StageTimes, measure, whiten
from p4sgd.host.precondition.whitening import block_slices

VARIANTS = [
    ("by all", "one an owner", "no"),
    ("by all", "one a block", "no"),
    ("by all", "one a block", "yes"),
    ("by all", "planned", "yes"),
    ("by owners", "one an owner", "no"),
    ("by owners", "one a block", "no"),
    ("by owners", "one a block", "yes"),
    ("by owners", "planned", "yes"),
]
"""Who whitens, how sums travel, whether ranks compute meanwhile."""


def plan(who: str, sums: str, blocks: int, ranks: int, costs: FactorCosts) -> FactorPlan:
    """The plan for that. Predictions are those of planned sums."""
    made = plan_factors(blocks, ranks, replace(costs, send=math.inf) if who == "by all" else costs)
    each = [(block,) for message in made.messages for block in message]
    if sums == "one an owner":
        owners = [block % ranks if block < made.owned else None for (block,) in each]
        joined = {owner: tuple(b for (b,), own in zip(each, owners, strict=True) if own == owner) for owner in owners}
        return replace(made, messages=tuple(joined.values()))
    return replace(made, messages=tuple(each)) if sums == "one a block" else made


class Waiting:
    """Ranks that wait for a sum at once."""

    def __init__(self, ranks: Communicator) -> None:
        self._ranks = ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def start_sum(self, values: Any, owner: int | None = None) -> Any:
        """As `Communicator.start_sum`."""
        total = self._ranks.start_sum(values, owner).wait()
        return SimpleNamespace(wait=lambda: total, done=lambda: True)


def run(options: Any) -> None:
    """Measure, as a rank; rank 0 prints."""
    ranks = open_communicator("mpi")
    samples, columns = options.samples // ranks.size * ranks.size, options.columns
    own = np.cumsum(np.random.default_rng(ranks.rank).normal(size=(samples // ranks.size, columns)), axis=1)
    owners = np.repeat(np.arange(ranks.size, dtype=np.uint8), samples // ranks.size)
    data = DistributedDataset(own, np.zeros(samples), "made", owners=owners, ranks=ranks)
    scaling = Scaling.fit(own, "standard", ranks)
    blocks = len(list(block_slices(columns)))
    planning: list[float] = []
    found: list[list[StageTimes]] = [[] for _ in VARIANTS]
    matrices = set()
    for _ in range(options.rounds):
        begin = time.perf_counter()
        costs = measure(data, scaling)
        plan_factors(blocks, ranks.size, costs)
        planning.append(time.perf_counter() - begin)
        for times, (who, sums, overlap) in zip(found, VARIANTS, strict=True):
            made = plan(who, sums, blocks, ranks.size, costs)
            ranks.all_gather(None)
            communicator = ranks if overlap == "yes" else Waiting(ranks)
            whitening, taken = whiten(replace(data, ranks=communicator), scaling, 0.01, 8, made)
            times.append(taken)
            matrices.add(whitening.matrix.tobytes())
    assert len(matrices) == 1, "every plan gives the same bits"
    if ranks.rank:
        return

    def median(values: Iterable[float]) -> str:
        return f"{statistics.median(values) * 1e3:.1f}"

    rows = []
    for times, (place, merge, overlap) in zip(found, VARIANTS, strict=True):
        numbers = [f"{statistics.median(getattr(each, name) for each in times):.0f}" for name in ("messages", "sent")]
        measured = [each.measured_s for each in times]
        predicted = median(each.predicted_s for each in times) if merge == "planned" else ""
        bound = median(each.lower_bound_s for each in times)
        rows.append([place, merge, overlap, *numbers, median(measured), median([min(measured)]), predicted, bound])
    title = f"{samples:,} samples of {columns:,} columns, {ranks.size} ranks, {os.cpu_count()} processors"
    times_ms = ("measured, ms", "least, ms", "predicted, ms", "lower bound, ms")
    show(title, ("whitened", "sums", "overlap", "messages", "sent", *times_ms), rows)
    CONSOLE.print(f"measuring costs and planning: {median(planning)} ms; rounds: {options.rounds}")


def main() -> None:
    """Start the ranks, or be one."""
    parser = parser_of(__doc__, columns=4096, samples=8000, rounds=15)
    run_as_ranks(parser, run)


if __name__ == "__main__":
    main()
