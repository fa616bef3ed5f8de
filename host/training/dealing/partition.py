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
    names: Sequence[object] | None = None,
) -> list[Shard]:
    """Deal units to workers, consecutive ones to each, by shares or so that all finish at about the same time.

    Every worker gets a unit. By ``shares``, by default equal ones, each further unit goes to the worker that then has
    the fewest units for its share (the method of D'Hondt). By ``speeds``, units that each worker does in a second if
    all its engines have as many, it goes to the worker that would finish it first, if the time of a worker is that of
    its fullest engine. As all units are alike, no deal of whole units finishes earlier, or has a smaller maximum of
    units for a share. A worker that is full gets no more.

    ``precision`` and whether the run is ``stale`` limit what a worker can hold, see `check_capacity`; the limit is kept
    if the units fit. Messages call the workers by their ``names``.

    Raises `UserError` if there are not 1 to 32 workers, if one would get no unit, or if they cannot hold all units.
    """
    workers, total = len(configs), features + bias
    if not 1 <= workers <= MAX_WORKERS:
        raise UserError(f"workers must be 1 to {MAX_WORKERS}, not {workers}")

    def rooms_of(unit: int, precision: int, *, stale: bool) -> list[int]:
        """Most units of each worker; none if these are not all units, or if a worker would have none."""
        rooms = [units_held(config, unit, precision, stale=stale) for config in configs]
        return rooms if min(rooms) > 0 and workers <= -(-total // unit) <= sum(rooms) else []

    # If the units do not fit because of the run, the caller's check of capacity says what limits them.
    rooms = rooms_of(unit, precision, stale=stale) or rooms_of(unit, 1, stale=False)
    count = -(-total // unit)
    if not rooms:
        text = f"{features:,} features{' and the bias' if bias else ''} are {count:,} unit{'s' * (count > 1)} of {unit}"
        others = [each for each in UNITS if rooms_of(each, precision, stale=stale)]
        other = f" or {option('unit', min(others, key=lambda each: abs(each - unit)))}" if others else ""
        if count < workers:
            few = f"at most {count} worker{'s' * (count > 1)}"
            raise UserError(f"{text}, too few for {workers} workers: use {few}{other}")
        held = [units_held(config, unit) for config in configs]
        each = f"{held[0]:,} each"
        if len(set(held)) > 1:
            names = names or [f"worker {worker}" for worker in range(workers)]
            each = ", ".join(f"{name}: {room:,}" for name, room in zip(names, held, strict=True))
        needed = -(-count // min(held)) if min(held) else MAX_WORKERS + 1
        more = f"at least {needed} workers" if needed <= MAX_WORKERS else "fewer features"
        remedies, share = [more + other], -(-count // workers)
        if larger := [name for name, make in PRESETS.items() if units_held(make(), unit) >= share]:
            remedies.append(f"a larger configuration ({', '.join(larger)})")
        if units_held(WorkerConfig.sparse_worker(), unit) >= share:
            remedies.append(f"for sparse data {option('config', 'sparse')}")
        raise UserError(f"{text}, more than the workers hold ({each}): use {', or '.join(remedies)}")
    if speeds is None:
        owners = take_turns(count, rooms, shares or [1.0] * workers)
    else:
        owners = take_turns(count, rooms, speeds, [config.engines for config in configs])
    edges = np.append(0, np.cumsum(np.bincount(owners, minlength=workers)))
    return [
        Shard(worker, config, np.arange(edges[worker], edges[worker + 1]), unit, total)
        for worker, config in enumerate(configs)
    ]


def take_turns(
    count: int, rooms: Sequence[int], shares: Sequence[float], engines: Sequence[int] | None = None
) -> IntArray:
    """Which worker gets each of ``count`` units, one after the other, as `partition` deals them: int64 (count,).

    Workers hold at most ``rooms`` units, together at least ``count``; ``shares`` may be speeds. With ``engines`` the
    time of a worker's fullest engine counts, and not its number of units.
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
