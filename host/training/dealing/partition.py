"""Deals the units of a job, groups of neighbouring columns, to workers in proportion to shares or speeds."""

import heapq
from collections.abc import Sequence

import numpy as np

from p4sgd.host.errors import UserError, option
from p4sgd.host.image.image import Shard
from p4sgd.hw.spec.config import PRESETS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import MAX_WORKERS, UNITS, most_chunks


def partition(
    features: int,
    configs: Sequence[WorkerConfig],
    *,
    bias: bool,
    unit: int,
    precision: int = 1,
    stale: bool = False,
    shares: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
) -> list[Shard]:
    """Deal units to workers, consecutive ones to each, by shares or so that all finish at about the same time.

    Every worker gets a unit. By shares, each further unit goes to the worker that then has the fewest units for its
    share (the method of D'Hondt). By speeds, it goes to the worker that would finish it first, if the time of a worker
    is that of its fullest engine. As all units are alike, no deal of whole units finishes earlier, or has a smaller
    maximum of units for a share. A worker that is full gets no more.

    Parameters
    ----------
    features
        Number of features of the data.
    configs
        Configuration of each worker, 1 to 32.
    bias
        Whether a bias follows the features as the last one.
    unit
        Features of a unit.
    precision, stale
        Of the run: they limit what a worker can hold, see `check_capacity`. The limit is kept if the units fit.
    shares
        Share of each worker, in proportion; ``None`` for equal ones.
    speeds
        In place of shares: units that each worker does in a second, if all its engines have as many.
    names
        What messages call the workers; ``None`` for "worker 0" and so on.

    Returns
    -------
    One shard per worker; together they have all features, in order.

    Raises
    ------
    UserError
        If a worker would get no unit, or if the workers cannot hold all units.
    """
    workers = len(configs)
    if not 1 <= workers <= MAX_WORKERS:
        raise UserError(f"workers must be 1 to {MAX_WORKERS}, not {workers}")
    total = features + bias
    count = -(-total // unit)

    def rooms_of(unit: int, precision: int = 1, *, stale: bool = False) -> list[int]:
        return [units_held(config, unit, precision, stale=stale) for config in configs]

    def fits(unit: int, rooms: Sequence[int]) -> bool:
        return min(rooms) > 0 and -(-total // unit) <= sum(rooms)

    rooms = rooms_of(unit, precision, stale=stale)
    if not fits(unit, rooms):  # the caller's check of capacity says what limits them
        rooms = rooms_of(unit)
    if count < workers or not fits(unit, rooms):
        others = [
            other
            for other in UNITS
            if workers <= -(-total // other) and fits(other, rooms_of(other, precision, stale=stale))
        ]
        remedies = [option("unit", min(others, key=lambda other: abs(other - unit)))] if others else []
        text = f"{features:,} features{' and the bias' if bias else ''} are {count:,} unit{'s' * (count > 1)} of {unit}"
        if count < workers:
            remedies.insert(0, f"at most {count} worker{'s' * (count > 1)}")
            raise UserError(f"{text}, too few for {workers} workers: use {' or '.join(remedies)}")
        names = names or [f"worker {worker}" for worker in range(workers)]
        held = ", ".join(f"{name}: {room:,}" for name, room in zip(names, rooms, strict=True))
        if len(set(rooms)) == 1:
            held = f"{rooms[0]:,} each" if workers > 1 else f"{rooms[0]:,}"
            if rooms[0] and (needed := -(-count // rooms[0])) <= MAX_WORKERS:
                remedies.insert(0, f"at least {needed} workers")
        remedies += _larger(count, unit, workers)
        raise UserError(f"{text}, more than the workers hold ({held}): use {' or '.join(remedies)}")
    if speeds is None:
        owners = take_turns(count, rooms, shares or [1.0] * workers)
    else:
        owners = take_turns(count, rooms, speeds, [config.engines for config in configs])
    edges = np.append(0, np.cumsum(np.bincount(owners, minlength=workers)))
    return [
        Shard(worker, config, np.arange(edges[worker], edges[worker + 1]), unit, total)
        for worker, config in enumerate(configs)
    ]


def _larger(count: int, unit: int, workers: int) -> list[str]:
    """Configurations of which as many workers hold so many units, as remedies."""
    each = -(-count // workers)
    larger = [name for name, make in PRESETS.items() if units_held(make(), unit) >= each]
    remedies = [f"a larger configuration ({', '.join(larger)})"] if larger else ["fewer features"]
    if units_held(WorkerConfig.sparse_worker(), unit) >= each:
        remedies.append(f"for sparse data {option('config', 'sparse')}")
    return remedies


def take_turns(
    count: int, rooms: Sequence[int], shares: Sequence[float], engines: Sequence[int] | None = None
) -> IntArray:
    """Which worker gets each of ``count`` units, one after the other, as `partition` deals them: int64 (count,).

    Parameters
    ----------
    count
        Number of units, at least as many as workers.
    rooms
        Most units of each worker; all together at least ``count``.
    shares
        Share or speed of each.
    engines
        Engines of each, if the time of its fullest engine counts, and not its number of units.
    """
    engines = [1] * len(rooms) if engines is None else engines
    held, owners = [1] * len(rooms), list(range(len(rooms)))

    def with_one_more(worker: int) -> tuple[float, float, int]:
        """When the worker would finish; if several at the same time, the one with the fewest units is next."""
        units, each = held[worker] + 1, engines[worker]
        return -(-units // each) * each / shares[worker], units / shares[worker], worker

    queue = [with_one_more(worker) for worker, room in enumerate(rooms) if room > 1]
    heapq.heapify(queue)
    while len(owners) < count:
        *_, worker = queue[0]
        owners.append(worker)
        held[worker] += 1
        if held[worker] < rooms[worker]:
            heapq.heapreplace(queue, with_one_more(worker))
        else:
            heapq.heappop(queue)
    return np.array(owners, np.int64)


def units_held(config: WorkerConfig, unit: int, precision: int = 1, *, stale: bool = False) -> int:
    """Most units that a worker can have in such a run; see `check_capacity`."""
    return config.engines * (most_chunks(config, precision, stale=stale) * config.lanes // max(unit, config.lanes))
