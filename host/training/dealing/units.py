"""How many units, groups of neighbouring columns, each worker gets: by stated shares, or by speeds that a run measures.

`columns.py` then chooses the columns, if data are sparse."""

import heapq
from collections.abc import Sequence

import numpy as np

from p4sgd.host.devices import Device
from p4sgd.host.devices.device import WorkerName, names_of
from p4sgd.host.devices.session import Session, of_job
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.distributed.communicator import Communicator, broadcast
from p4sgd.host.errors import UserError, option
from p4sgd.host.image.image import Shard
from p4sgd.host.image.packing import zeros_error
from p4sgd.host.losses import get_loss
from p4sgd.host.training.events import Note
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.rate import choose_rate, smallest_rate
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, PRESETS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import (
    MOST_WORKERS,
    TABLE_SEGMENTS,
    UNITS,
    FeatureFormat,
    RunSettings,
    check_capacity,
    most_chunks,
)

_MINI_BATCHES = 8
"""Mini-batches of a run that measures speeds, if there are so many."""

_ENOUGH_CYCLES = 50_000_000 // CLOCK_NS
"""Runs are repeated until the slowest worker has worked for so long, 50 ms, but `_LEAST_RUNS` to `_MOST_RUNS` times."""

_LEAST_RUNS, _MOST_RUNS = 3, 8

_GAIN = 0.1
"""Part of its time that the slowest worker must save by other shares: what was measured may be wrong by as much."""


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
) -> list[Shard]:
    """Deal units to workers, consecutive ones to each, by shares or so that all finish at about the same time.

    Every worker gets a unit. By ``shares``, by default equal ones, each further unit goes to the worker that then has
    the fewest units for its share (the method of D'Hondt). By ``speeds``, units that each worker does in a second if
    all its engines have as many, it goes to the worker that would finish it first, if the time of a worker is that of
    its fullest engine. No deal of whole units finishes earlier, or has a smaller maximum of units for a share. A worker
    that is full gets no more; ``precision`` and whether the run is ``stale`` limit what it can hold, if the units fit.

    Raises `UserError` if there are not 1 to 992 workers, if one would get no unit, or if they cannot hold all units.
    """
    workers, total = len(configs), features + bias
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"workers must be 1 to {MOST_WORKERS}, not {workers}")
    count = -(-total // unit)
    # If the units do not fit because of the run, the caller's check of capacity says what limits them.
    for planes, delayed in ((precision, stale), (1, False)):
        rooms = [units_held(config, unit, planes, stale=delayed) for config in configs]
        fits = min(rooms) > 0 and workers <= count <= sum(rooms)
        if fits:
            break
    if not fits:
        text = f"{features:,} features{' and the bias' if bias else ''} are {count:,} unit{'s' * (count > 1)} of {unit}"
        if count < workers:
            smaller = f", or a smaller {option('unit')}" if unit > min(UNITS) else ""
            raise UserError(f"{text}, too few for {workers} workers: use at most {count}{smaller}")
        each = f"{rooms[0]:,} each" if len(set(rooms)) == 1 else ", ".join(f"{room:,}" for room in rooms)
        needed = -(-count // min(rooms)) if min(rooms) else MOST_WORKERS + 1
        remedies = [f"at least {needed} workers"] if needed <= MOST_WORKERS else []
        fitting = [u for u in UNITS if workers <= -(-total // u) <= sum(units_held(config, u) for config in configs)]
        remedies += [option("unit", u) for u in sorted(fitting, key=lambda u: abs(u - unit))[:1]]
        larger = [name for name, make in PRESETS.items() if units_held(make(), unit) * workers >= count]
        remedies += [f"a larger configuration ({', '.join(larger)})"] if larger else []
        if units_held(WorkerConfig.sparse_worker(), unit) * workers >= count:
            remedies.append(f"for sparse data {option('config', 'sparse')}")
        raise UserError(f"{text}, more than the workers hold ({each}): use {' or '.join(remedies) or 'fewer features'}")
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

    Workers hold at most ``rooms`` units, together at least ``count``; ``shares`` are speeds if there are ``engines``.
    """
    engines = [1] * len(rooms) if engines is None else engines
    held, owners = [1] * len(rooms), list(range(len(rooms)))

    def with_one_more(worker: int) -> tuple[float, float, int]:
        """When the worker would finish; of several the one with the fewest units is next."""
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


def deal_units(
    features: int,
    options: TrainingOptions,
    configs: Sequence[WorkerConfig],
    *,
    shares: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    names: Sequence[WorkerName] | None = None,
) -> list[Shard]:
    """Deal the units of the data's features to workers of these configurations, as `partition` does; `UserError` if
    features, options and configurations do not fit together."""
    if options.precondition != "none" and any(config.sparse for config in configs):
        raise zeros_error(None)
    names = names or [WorkerName(shard) for shard in range(len(configs))]
    shards = partition(
        features,
        configs,
        bias=options.bias,
        unit=options.unit_of(features),
        precision=options.least_lines,
        stale=bool(options.staleness),
        shares=shares,
        speeds=speeds,
    )
    skip_zeros = f", or for sparse data {option('skip_zeros', 'always')}"
    for shard, name in zip(shards, names, strict=True):
        segments, chunks = shard.config.table_segments, shard.layout(BANKS, options.stored).chunks
        if segments < TABLE_SEGMENTS:
            raise UserError(
                f"the loss table of {name} has {segments} segments, training needs {TABLE_SEGMENTS}: "
                f"generate workers with table_segments of {TABLE_SEGMENTS} or more"
            )
        for lines, remedy in ((1, ""), (options.least_lines, skip_zeros)):
            try:
                check_capacity(shard.config, chunks, lines, stale=bool(options.staleness))
            except ValueError as error:
                raise UserError(f"{error}{remedy}") from error
    return shards


def deal_to_device(
    device: Device, features: int, samples: int, options: TrainingOptions, ranks: Communicator
) -> tuple[list[Shard], Note | None]:
    """Deal the units of the features to the workers of a device, in the shares that it states or by measured speed.

    No session may use the device; it runs for a moment if speeds are to be measured. Returns the shards of all workers
    of all ``ranks``, and a remark if speeds were to be measured. Raises `UserError` as `deal_units`, and `P4sgdError`
    if the device fails.
    """
    configs = of_job([worker.config for worker in device.workers], ranks)
    names = names_of(device, len(configs))
    stated = of_job(list(device.shares or [1.0] * len(device.workers)), ranks)
    shards = deal_units(features, options, configs, shares=stated, names=names)
    if options.shares != "auto" or len(shards) == 1:
        return shards, None
    kind = "equal" if device.shares is None else "those of the cluster file"
    if any(config.sparse for config in configs):
        return shards, Note(f"shares are {kind}: how fast sparse workers are depends on the data")
    cycles = _measure(device, shards, samples, options, ranks)
    if not all(cycles):
        what = f"shares are {kind}: the device {device.name} does not measure how fast its workers are"
        return shards, Note(what)
    speeds = [_rounds(shard) / each for shard, each in zip(shards, cycles, strict=True)]
    balanced = deal_units(features, options, configs, speeds=speeds, names=names)
    before, after = max(cycles), max(_rounds(shard) / speed for shard, speed in zip(balanced, speeds, strict=True))
    dealt, slowest = (balanced, after) if after < (1 - _GAIN) * before else (shards, before)
    numbers, sizes = ", ".join(str(name.number) for name in names), ", ".join(str(shard.units.size) for shard in dealt)
    ideal = _time(sum(shard.units.size for shard in shards) / sum(speeds))
    return dealt, Note(
        f"workers {numbers} have {sizes} units of {shards[0].unit} features: by measured speed the slowest works for "
        f"{_time(slowest)} in a mini-batch, with shares that are {kind} for {_time(before)}, and if units "
        f"could be divided for {ideal}"
    )


def _rounds(shard: Shard) -> int:
    """Units of a worker if all engines had as many as the fullest."""
    return -(-shard.units.size // shard.config.engines) * shard.config.engines


def _time(cycles: float) -> str:
    microseconds = cycles * CLOCK_NS / 1000
    return f"{microseconds:.3g} µs" if microseconds < 1000 else f"{microseconds / 1000:.3g} ms"


def _measure(
    device: Device, shards: Sequence[Shard], samples: int, options: TrainingOptions, ranks: Communicator
) -> list[float]:
    """Cycles for which each worker of the job works in a mini-batch, by its counters; 0 if it does not count. Waiting
    for sums does not count. Time does not depend on the data, but emulated workers pass over columns of zeros, so these
    have ones everywhere."""
    batch, loss = options.batch, get_loss(options.loss)
    mini_batches = min(_MINI_BATCHES, -(-samples // batch))
    own = shards[ranks.rank :: ranks.size]
    form = FeatureFormat(options.stored, options.precision, signed=False)
    rate = choose_rate(smallest_rate(batch, form), batch, form)
    session = Session(device, communicator=ranks)
    layouts = [shard.layout(mini_batches * batch, options.stored) for shard in own]
    session.upload(
        [
            WorkerImage(
                layout=layout,
                labels=np.zeros(layout.samples, np.int32),
                port_lines=(np.full(layout.lines_shape, 255, np.uint8),) * layout.config.labels_memory,
            )
            for layout in layouts
        ]
    )
    session.load_table(broadcast(ranks, loss.table()))
    session.configure(
        RunSettings(
            features=form,
            chunks=max(layout.chunks for layout in layouts),
            micro_batches=batch // BANKS,
            mini_batches=mini_batches,
            label_mode=loss.label_mode,
            rate_mantissa=rate.mantissa,
            rate_exponent=rate.exponent,
            workers=len(shards),
            unit=shards[0].unit,
            stale=bool(options.staleness),
        )
    )
    session.run(ModelSource.ZERO, store=False)  # caches and memory are cold
    runs: list[list[int]] = []
    while len(runs) < _LEAST_RUNS or (
        len(runs) < _MOST_RUNS and np.sum(runs, axis=0, initial=0).max() < _ENOUGH_CYCLES
    ):
        report = session.run(ModelSource.ZERO, store=False)
        if not report.counters:
            return [0.0] * len(shards)
        runs.append([counted["CYCLES_BUSY"] + counted["CYCLES_MEMORY"] for counted in report.counters])
    # Other programs can only add to a time.
    return [float(each) / mini_batches for each in np.min(runs, axis=0)]
