"""Random training jobs, and running one on any device through nothing but registers and memory."""

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.stand_in import StandInWorker
from p4sgd.host.image import Shard
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IMPORTANCE, INTERCEPT, LABEL, SHRINK, SLOPE, WEIGHT, IntArray
from p4sgd.hw.spec.image import ImageLayout, pack_labels
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import MAX_SHIFT, UNITS, FeatureFormat, LabelMode, LossTable, RunSettings
from p4sgd.sim import golden
from support.line_sequences import make_sparse

SMALL = WorkerConfig(engines=2, ports=2, lanes=8, chunks=16, line_fifo_depth=128, slots=4)
"""Several of everything that there can be several of, and few of what wraps around."""

PAGE = 4096

KEY = 0xFEDC_BA98_7654_3210
"""Of jobs with packets of version 2."""


@dataclass
class Job:
    """Everything a run needs. ``stored`` are S-bit features of each worker, (samples, features of the worker).

    ``sparse`` are workers that have lists of entries, of a configuration like that of the others; ``directories`` are
    workers whose image has directories.
    """

    config: WorkerConfig
    settings: RunSettings
    table: LossTable
    stored: list[IntArray]
    labels: IntArray
    weights: list[IntArray]
    sparse: frozenset[int] = frozenset()
    exempt: tuple[int, int] | None = None
    """Worker and feature of the weight without penalties."""
    importances: IntArray | None = None
    directories: frozenset[int] = frozenset()

    @property
    def configs(self) -> list[WorkerConfig]:
        """Configuration of each worker."""
        listing = dataclasses.replace(self.config, engines=3, sparse=True) if self.sparse else self.config
        return [listing if worker in self.sparse else self.config for worker in range(len(self.stored))]

    def golden(self, runs: int = 1, **options: Any) -> golden.Trained:
        """What the golden model, with options of `golden.train`, makes of ``runs`` runs after another."""
        form = self.settings.features
        q = [golden.read_planes(worker, form.stored, form.precision) for worker in self.stored]
        weights = self.weights
        flags = [golden.Flags() for _ in q]
        for _ in range(runs):
            trained = golden.train(
                q, self.labels, weights, self.table, self.settings, self.importances, exempt=self.exempt, **options
            )
            weights = trained.weights
            for known, new in zip(flags, trained.flags, strict=True):
                for name in vars(known):
                    setattr(known, name, getattr(known, name) or getattr(new, name))
        return golden.Trained(weights, flags)

    def memories(self, worker: int) -> list[np.ndarray]:
        """What is in a worker's memories but that of the labels: lines, or entries if it is sparse."""
        return self.layout(worker).memories(self._in_memory(worker))

    def lines(self, worker: int) -> IntArray:
        """How many lines each engine reads of an image with directories."""
        return self.layout(worker).pack_directories(self._in_memory(worker))[1][:, -1]

    def model_address(self, worker: int) -> int:
        """Where weights are, after all that."""
        return _aligned(max(each.nbytes for each in self.memories(worker)))

    def layout(self, worker: int) -> ImageLayout:
        """Layout of a worker's image."""
        samples, features = self.stored[worker].shape
        form, directory = self.settings.features, worker in self.directories
        stored = form.precision if directory else form.stored  # all planes are read
        return ImageLayout(self.configs[worker], features, samples, stored, self.settings.unit, directory)

    def _in_memory(self, worker: int) -> IntArray:
        form = self.settings.features
        values = self.stored[worker]
        return golden.read_planes(values, form.stored, form.precision) if worker in self.directories else values


def random_table(rng: np.random.Generator, segments: int, *, wild: bool) -> LossTable:
    """A sigmoid-like table, or one of arbitrary numbers."""
    if wild:
        return LossTable(
            int(rng.integers(0, MAX_SHIFT + 1)),
            rng.integers(SLOPE.minimum, SLOPE.maximum + 1, segments),
            rng.integers(INTERCEPT.minimum, INTERCEPT.maximum + 1, segments),
        )
    edges = (np.arange(segments + 1) - segments / 2) * (16 / segments)
    value = -1 / (1 + np.exp(edges))
    slope = np.diff(value) / np.diff(edges)
    slope[[0, -1]] = 0
    intercept = (value[:-1] + value[1:]) / 2 - slope * (edges[:-1] + edges[1:]) / 2
    shift = 16 + 4 - (segments - 1).bit_length()
    return LossTable(shift, SLOPE.from_real(slope), INTERCEPT.from_real(intercept))


def random_job(
    config: WorkerConfig,
    workers: int,
    *,
    seed: int,
    precision: int | None = None,
    stored: int | None = None,
    signed: bool | None = None,
    wild: bool = False,
    loss: str | None = None,
    max_chunks: int = 4,
    max_mini_batches: int = 4,
    stale: bool = False,
    chunks: int | None = None,
    micro_batches: int | None = None,
    mini_batches: int | None = None,
    unit: int | None = None,
    weighted: bool | None = None,
) -> Job:
    """A job of random size and settings; ``wild`` drives numbers into every clamp and saturation.

    ``loss`` names a loss whose table and label mode are used instead of random ones.
    """
    pick = random.Random(seed)
    rng = np.random.default_rng(seed)
    p = precision or pick.randint(1, 8)
    form = FeatureFormat(stored or pick.randint(p, 8), p, pick.random() < 0.5 if signed is None else signed)
    chunks = chunks or pick.randint(1, max_chunks)
    unit = unit or pick.choice([unit for unit in UNITS if chunks % max(1, unit // config.lanes) == 0])
    micro_batches = micro_batches or pick.randint(1, 4)
    mini_batches = mini_batches or pick.randint(1, max_mini_batches)
    settings = RunSettings(
        features=form,
        chunks=chunks,
        micro_batches=micro_batches,
        mini_batches=mini_batches,
        label_mode=LabelMode(*(pick.random() < 0.5 for _ in range(3))) if wild else LabelMode(sign=True),
        rate_mantissa=pick.randint(1, 255),
        rate_exponent=pick.randint(8, 22),
        shrink=pick.choice([0, pick.randint(0, SHRINK.maximum)]),
        threshold=pick.choice([0, pick.randint(0, 1000)]),
        workers=workers,
        unit=unit,
        stale=stale,
    )
    samples = BANKS * micro_batches * mini_batches
    units = chunks // max(1, unit // config.lanes) * config.engines
    full, least = units * unit, (units - config.engines) * unit + 1
    low, high = (-(1 << form.stored - 1), 1 << form.stored - 1) if form.signed else (0, 1 << form.stored)
    values = [rng.integers(low, high, (samples, pick.randint(least, full))) for _ in range(workers)]
    reach = WEIGHT.maximum if wild else 1 << 21
    weights = [rng.integers(-reach, reach, worker.shape[1]) for worker in values]
    span = LABEL.maximum if wild else 1 << 16
    labels = rng.integers(-span, span, samples)
    if not wild and (loss is None or get_loss(loss).label_mode.sign):
        labels = np.sign(labels | 1) << 16
    table = random_table(rng, config.table_segments, wild=wild)
    if loss is not None:
        known = get_loss(loss)
        table = known.table(config.table_segments)
        settings = dataclasses.replace(settings, label_mode=known.label_mode)
    exempt = None
    if pick.random() < 0.75:
        worker = pick.randrange(workers)
        exempt = worker, pick.choice([values[worker].shape[1] - 1, pick.randrange(values[worker].shape[1])])
    importances = None
    if pick.random() < 0.3 if weighted is None else weighted:
        settings = dataclasses.replace(settings, weighted=True)
        importances = rng.choice([0, 1, IMPORTANCE.one, *rng.integers(0, IMPORTANCE.one, samples)], samples)
    return Job(config, settings, table, values, labels, weights, exempt=exempt, importances=importances)


def with_directories(job: Job, seed: int) -> Job:
    """The same job with many features 0, some or all of whose images have directories."""
    rng = np.random.default_rng(seed)
    stored = [make_sparse(rng, values, job.config.lanes) for values in job.stored]
    workers = rng.permutation(len(stored))[: rng.integers(1, len(stored) + 1)].tolist()
    return dataclasses.replace(job, stored=stored, directories=frozenset(workers))


def deal(one: Job, config: WorkerConfig, owners: np.ndarray) -> tuple[Job, list[Shard]]:
    """A job of one worker for several: unit i goes to worker ``owners[i]``; workers without a unit are left out."""
    unit, total = one.settings.unit, one.weights[0].size
    shards = [
        Shard(worker, config, np.flatnonzero(owners == owner), unit, total)
        for worker, owner in enumerate(np.unique(owners))
    ]
    exempt = None
    if one.exempt is not None:
        places = [np.flatnonzero(np.arange(total)[shard.columns] == one.exempt[1]).tolist() for shard in shards]
        [exempt] = [(worker, place) for worker, found in enumerate(places) for place in found]
    job = dataclasses.replace(
        one,
        exempt=exempt,
        config=config,
        settings=dataclasses.replace(one.settings, workers=len(shards)),
        stored=[one.stored[0][:, shard.columns] for shard in shards],
        weights=[one.weights[0][shard.columns] for shard in shards],
    )
    return job, shards


def _aligned(size: int) -> int:
    return -(-size // PAGE) * PAGE


def configure(
    workers,
    job: Job,
    *,
    number: int = 0,
    first_round: int = 1,
    aggregator_mac: int = 0,
    resend_cycles: int = 2000,
    resends: int = 0,
    merge: int = 0,
    stand_ins: bool = False,
) -> list[RegisterClient]:
    """Have workers of a device join a job, under a number, with all that a run needs; returns their registers.

    Packets are of version 2, with up to ``merge`` micro-batches, unless that is 0. With ``stand_ins`` each holds the
    shard of the next, too.
    """
    settings = job.settings
    clients = [client_of(worker) for worker in workers]
    holders = [(index, StandInWorker(workers[index - 1])) for index in range(len(workers))] if stand_ins else []
    for index, worker in [*holders, *enumerate(workers)]:
        layout, config = job.layout(index), job.configs[index]
        client = client_of(worker)
        scattered = layout.scatter(layout.pad(job.weights[index])).astype("<i4")
        for memory, part in enumerate(job.memories(index)):
            if part.size:
                worker.write_memory(memory, 0, part.reshape(-1))
            client.write_pair(registers.lines_address(*divmod(memory, config.ports)), 0)
        for engine in range(config.engines):
            model = job.model_address(index)
            worker.write_memory(config.model_memory(engine), model, scattered[engine].view(np.uint8))
            client.write_pair(registers.model_address(engine), model)
        worker.write_memory(config.labels_memory, 0, pack_labels(job.labels, job.importances))
        client.write_pair(registers.LABELS_ADDRESS, 0)
        form = settings.features
        client.write(
            registers.FORMAT,
            precision=form.precision,
            stored=layout.stored,
            signed=int(form.signed),
            unit_chunks=layout.unit_chunks_field,
            directory=int(layout.directory),
        )
        if layout.directory:
            for engine, count in enumerate(job.lines(index).tolist()):
                client.write_pair(registers.lines_count(engine), count)
        client.write(registers.CHUNKS, value=layout.chunks)
        client.write(registers.MICRO_BATCHES, value=settings.micro_batches)
        client.write(registers.MINI_BATCHES, value=settings.mini_batches)
        mode = settings.label_mode
        roles = {name: int(role) for name, role in vars(mode).items()}
        client.write(registers.LABEL_MODE, **roles, weighted=int(settings.weighted))
        client.write(registers.RATE, mantissa=settings.rate_mantissa, gradient_shift=settings.gradient_shift)
        client.write(registers.SHRINK_FACTOR, value=settings.shrink)
        client.write(registers.THRESHOLD, value=settings.threshold)
        if job.exempt is not None and job.exempt[0] == index:
            engine, chunk, lane = layout.place(job.exempt[1])
            client.write(registers.EXEMPT, engine=engine, chunk=chunk, lane=lane, exempt=1)
        else:
            client.write(registers.EXEMPT, exempt=0)
        client.write(registers.PARTIAL_LIMIT, value=settings.partial_limit)
        client.write(registers.TABLE_SHIFT, value=job.table.shift)
        client.write(registers.TABLE_INDEX, value=0)
        for slope, intercept in zip(job.table.slope.tolist(), job.table.intercept.tolist(), strict=True):
            client.write(registers.TABLE_SLOPE, value=slope)
            client.write(registers.TABLE_INTERCEPT, value=intercept)
        client.write(registers.STATUS, **{field.name: 1 for field in registers.STATUS.fields})
        if merge:
            client.write(registers.MERGE, value=merge)
            client.write_pair(registers.JOB_KEY, KEY)
        client.write(registers.JOB, job=number, shard=index, workers=settings.workers)
        if isinstance(worker, StandInWorker):
            continue
        client.write(registers.RESEND_CYCLES, value=resend_cycles)
        client.write(registers.RESEND, limit=resends, doublings=2)
        client.write(registers.LOCAL_MAC[0], value=0x02000000 | number << 8 | index)
        client.write_pair(registers.PEER_MAC, aggregator_mac)
        client.write(registers.JOIN, round=first_round)
    assert all(client.read(registers.JOB)["job"] == number for client in clients)
    return clients


def start(clients, job: Job, *, first: bool = True, last: bool = True) -> None:
    """Start a run: with weights from memory if it is the first, storing them if it is the last."""
    source = ModelSource.MEMORY if first else ModelSource.KEEP
    for client in clients:
        client.write(registers.RUN, model_source=source.value, model_store=int(last), stale=int(job.settings.stale))
        client.write(registers.CTRL, start=1)


def collect(workers, clients, job: Job):
    """Weights and STATUS fields of each worker, and the counters of the last run."""
    weights, status, counters = [], [], []
    for index, (worker, client) in enumerate(zip(workers, clients, strict=True)):
        layout, config, address = job.layout(index), job.configs[index], job.model_address(index)
        stored = [
            worker.read_memory(config.model_memory(engine), address, layout.model_bytes).view("<i4")
            for engine in range(config.engines)
        ]
        gathered = layout.gather(np.stack(stored).astype(np.int64))
        weights.append(layout.unpad(gathered))
        assert np.array_equal(gathered, layout.pad(weights[-1])), "padding features have weights"
        status.append(client.read(registers.STATUS))
        counters.append(client.read_counters(registers.counters(config)))
    return weights, status, counters


def run_on(device, job: Job, *, runs: int = 1, timeout_s: float = 0.004, stand_ins: bool = False, **options):
    """Run a job on a device, with the options of `configure`; returns what `collect` does.

    A run may take so long: by default a million cycles.
    """
    clients = configure(device.workers, job, stand_ins=stand_ins, **options)
    others = [client_of(StandInWorker(worker)) for worker in device.workers] if stand_ins else []
    for run in range(runs):
        start([*others, *clients], job, first=run == 0, last=run == runs - 1)
        device.wait(timeout_s)
        for client in clients:
            assert client.read(registers.CTRL)["done"] == 1
            assert client.read(registers.CTRL) == {"start": 0, "done": 0, "idle": 1, "ready": 0}
    return collect(device.workers, clients, job)


def check_exact(device, job, runs, *, counts, **options):
    """Run a job on a device, which must end with the golden model's weights and flags, and may count as RTL does."""
    weights, status, counters = run_on(device, job, runs=runs, **options)
    expected = job.golden(runs)
    for worker, (got, wanted) in enumerate(zip(weights, expected.weights, strict=True)):
        assert got.tolist() == wanted.tolist(), f"worker {worker}"
        for name, flag in vars(expected.flags[worker]).items():
            assert status[worker][name] == flag, f"worker {worker}: {name}"
        assert status[worker]["memory_error"] == 0
    for worker, counted in enumerate(counters):
        causes = [value for name, value in counted.items() if name.startswith("CYCLES_")]
        assert counted["CYCLES"] == sum(causes)
        if counts:
            assert counted["CYCLES"]
            lines = job.settings.mini_batches * job.settings.micro_batches * job.settings.chunks
            engines = [counted[f"ENGINE{engine}_LINES"] for engine in range(job.config.engines)]
            wanted = [lines * job.settings.features.precision] * job.config.engines
            assert engines == (job.lines(worker).tolist() if worker in job.directories else wanted)
