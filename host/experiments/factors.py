"""Experiment on factors: which rank whitens, or inverts, which of them, and which sums travel together."""

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from p4sgd.host.data import Scaling
from p4sgd.host.distributed import open_communicator
from p4sgd.host.distributed.planner import FactorCosts, FactorPlan, plan_factors
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.host.experiments.messages import FLOAT_BYTES, resnet_50
from p4sgd.host.experiments.ranks import run_ranks, why_no_ranks
from p4sgd.host.precondition.stage import StageTimes, measure, whiten
from p4sgd.host.precondition.whitening import block_slices

VARIANTS = tuple(product(("by all", "by owners"), ("one a block", "planned")))
"""Who whitens, and how sums travel."""


def _plan(who: str, sums: str, blocks: int, ranks: int, costs: FactorCosts) -> FactorPlan:
    """The plan for that. Predictions are those of planned sums."""
    made = plan_factors(blocks, ranks, replace(costs, send=math.inf) if who == "by all" else costs)
    if sums == "planned":
        return made
    return replace(made, messages=tuple((block,) for message in made.messages for block in message))


def stage(samples: str, columns: str, rounds: str) -> None:
    """A rank's program: in every round costs are measured and each variant runs once with a plan made from them.

    Prints for each variant medians of the rounds, as JSON: messages, blocks sent, measured, predicted and least ms.
    """
    ranks = open_communicator("mpi")
    count = int(samples) // ranks.size
    made = [np.cumsum(np.random.default_rng(r).normal(size=(count, int(columns))), axis=1) for r in range(ranks.size)]
    own, blocks = made[ranks.rank], len(list(block_slices(int(columns))))
    scaling = Scaling.fit(np.concatenate(made), "standard")
    found: list[list[StageTimes]] = [[] for _ in VARIANTS]
    matrices = set()
    for _ in range(int(rounds)):
        costs = measure(own, scaling, ranks)
        for times, (who, sums) in zip(found, VARIANTS, strict=True):
            ranks.all_gather(None)
            plan = _plan(who, sums, blocks, ranks.size, costs)
            whitening, taken = whiten(own, count * ranks.size, scaling, 0.01, 8, ranks, plan)
            assert taken is not None, "there are several ranks"
            times.append(taken)
            matrices.add(whitening.matrix.tobytes())
    assert len(matrices) == 1, "every plan gives the same bits"
    names = {"messages": 1, "sent": 1, "measured_s": 1e3, "predicted_s": 1e3, "lower_bound_s": 1e3}
    if ranks.rank == 0:
        medians = [
            [k * statistics.median(getattr(t, name) for t in each) for name, k in names.items()] for each in found
        ]
        print(json.dumps(medians))


Seconds = Callable[[int], float]  # of a factor of a size


def least_busy(sizes: Sequence[int], ranks: int, invert: Seconds) -> list[int]:
    """Owners of factors: each one goes to the rank that has had the least work so far."""
    busy, owners = [0.0] * ranks, []
    for size in sizes:
        owners.append(busy.index(min(busy)))
        busy[owners[-1]] += invert(size)
    return owners


def end(sizes: Sequence[int], owners: Sequence[int | None], ranks: int, invert: Seconds, send: Seconds) -> float:
    """When all ranks have all inverses: those of owners, sent over one channel, then of the others, that all invert."""
    busy, ready, channel = [0.0] * ranks, [], 0.0
    for size, owner in zip(sizes, owners, strict=True):
        if owner is not None:
            busy[owner] += invert(size)
            ready.append((busy[owner], size))
    for there, size in sorted(ready):
        channel = max(channel, there) + send(size)
    shared = (invert(size) for size, owner in zip(sizes, owners, strict=True) if owner is None)
    return max(channel, max(busy) + sum(shared))


def placements(sizes: Sequence[int], ranks: int, invert: Seconds, send: Seconds) -> dict[str, float]:
    """`end` by rule; "planned" is that of `plan_factors` for many sizes: the best number of largest ones has owners."""
    order = sorted(sizes, reverse=True)
    sent = [size for size in order if invert(size) > send(size)]
    rest = [size for size in order if invert(size) <= send(size)]
    owners = least_busy(order, ranks, invert)
    none: list[None] = [None] * len(order)
    return {
        "by all": end(order, none, ranks, invert, send),
        "by owners in turn": end(sizes, [index % ranks for index in range(len(sizes))], ranks, invert, send),
        "SPD-KFAC": end([*sent, *rest], [*least_busy(sent, ranks, invert), *none[: len(rest)]], ranks, invert, send),
        "planned": min(
            end(order, [*owners[:count], *none[count:]], ranks, invert, send) for count in range(len(order) + 1)
        ),
    }


def _inversion(quick: bool) -> Seconds:
    """Seconds to invert a factor of a size, by those measured here: between sizes, and beyond them, as the cube."""
    known = {}
    for size in (64, 256, 512) if quick else (64, 256, 512, 1024, 2048):
        factor = np.random.default_rng(size).standard_normal((size, size), np.float32)
        factor = factor @ factor.T + size * np.eye(size, dtype=np.float32)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            np.linalg.inv(factor)
            times.append(time.perf_counter() - begin)
        known[size] = min(times)

    def seconds(size: int) -> float:
        near = max((each for each in known if each <= size), default=min(known))
        return known[near] * (size / near) ** 3

    return seconds


def _placement(quick: bool) -> Finding:
    """Who inverts the factors of K-FAC for ResNet-50."""
    sizes = [size for layer in resnet_50() for size in (layer.inputs, layer.outputs)]
    invert, ends = _inversion(quick), {}
    for gigabits, ranks in product((1, 10, 100), (4, 16, 64)):

        def send(size: int, rate: float = gigabits * 1e9) -> float:
            return 1e-4 + size * (size + 1) // 2 * FLOAT_BYTES * 8 / rate

        ends[f"{gigabits} Gb/s, {ranks} ranks"] = placements(sizes, ranks, invert, send)
    rows: list[list[Cell]] = [
        [network, rule, seconds, Source.MODELLED] for network, found in ends.items() for rule, seconds in found.items()
    ]
    gains = [found["SPD-KFAC"] / found["planned"] for found in ends.values()]
    table = Table(
        f"{len(sizes)} factors of K-FAC for ResNet-50, of {min(sizes)} to {max(sizes):,} rows",
        ("network", "inverted", "all inverses, s", "source"),
        rows,
        [Chart("network", "all inverses, s", "inverted", log_y=True)],
        "Inversions of a few sizes are measured here and continued by their cubes; a broadcast takes 0.1 ms and the "
        "bytes of a triangle of f32. SPD-KFAC (S. Shi, L. Zhang, B. Li, ICDCS 2021): the largest first to the rank "
        "with least work, and by all what takes longer to send than to invert. Planned: the number of largest ones "
        "that have owners is the best of all.",
    )
    ordered = sum(found["SPD-KFAC"] <= min(found["by all"], found["by owners in turn"]) for found in ends.values())
    sentence = (
        f"Factors of many sizes: the rule of SPD-KFAC is ahead of owners in turn and of inversion by all in {ordered} "
        f"of {len(ends)} networks; planned, inverses are there {min(gains):.3f} to "
        f"{max(gains):.3f} times as fast as by it."
    )
    behind = [network for network, found in ends.items() if found["planned"] > min(found.values())]
    losses = [f"Another rule is ahead of the planned one for {', '.join(behind)}."] if behind else []
    return Finding([table], [sentence], losses)


@experiment("E14", "Placed factors", "Which rank should invert which factor?")
def placement(quick: bool) -> Finding:
    """E14: the blocks of a preconditioner over ranks, and factors of several sizes."""
    modelled = _placement(quick)
    if problem := why_no_ranks():
        return replace(modelled, sentences=[*modelled.sentences, f"Ranks were not measured: {problem}."])
    count, samples, columns, rounds = (2, 1000, 1024, 2) if quick else (4, 8000, 4096, 9)
    found = json.loads(run_ranks(count, stage, samples, columns, rounds))
    rows: list[list[Cell]] = []
    for (who, sums), (messages, sent, *times) in zip(VARIANTS, found, strict=True):
        rows.append([f"{who}, {sums}", int(messages), int(sent), *times, Source.MEASURED])
    names = ("whitened, sums", "messages", "sent", "measured, ms", "predicted, ms", "lower bound, ms", "source")
    fastest = min(rows, key=lambda row: float(row[3] or 0))
    table = Table(
        f"Blocks of 64 columns, {samples:,} samples of {columns:,}, {count} ranks on this machine",
        names,
        rows,
        [Chart("whitened, sums", "measured, ms")],
        f"Medians of {rounds} rounds, of the slowest rank. All plans give the same bits.",
    )
    sentence = f"Whitening blocks over ranks was fastest {fastest[0]}: {fastest[3]:.0f} ms."
    return replace(modelled, tables=[table, *modelled.tables], sentences=[sentence, *modelled.sentences])
