"""Sessions: what a trainer does with a device, through registers and memory: images, settings, runs and weights."""

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.aggregators.membership import NumberTakenError, draw_key, free_number
from p4sgd.host.devices.device import Device, NetworkSettings, client_of, names_of
from p4sgd.host.devices.diagnosis import NetworkError, diagnose_worker, explain_network_error, find_lost_workers
from p4sgd.host.devices.identification import describe_shape, find_identity_problem
from p4sgd.host.devices.merging import MergeLimit, cut_evenly, find_merge_limit, plan_packets
from p4sgd.host.devices.worker_image import WorkerImage, longest_micro_batch, model_address
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast, raise_on_all
from p4sgd.host.distributed.overlap import MessageTimes
from p4sgd.host.errors import P4sgdError, UserError, option
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import BANKS, CLOCK_NS
from p4sgd.hw.spec.fixed import WEIGHT, EngineWeights
from p4sgd.hw.spec.image import pack_labels
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import LossTable, RunSettings

_T = TypeVar("_T")

_ABORT_SECONDS = 0.02
"""Longest time to wait for the end of an aborted run, in seconds. Outstanding reads of memory take microseconds."""

_NOT_RUN = {"aborted", "not_joined", "refused"}
"""Fields of STATUS that are set only if another program has written to the worker's registers: a session finds such
mistakes of its own before it starts a run."""


@dataclass(frozen=True)
class RunReport:
    """Flags and counters after a run.

    Parameters
    ----------
    flags
        Names of the fields of STATUS that at least one worker has set in this run.
    counters
        For each worker, the counters of :func:`p4sgd.hw.spec.registers.counters` by name. Empty if all are 0, as on a
        device that does not count.
    """

    flags: frozenset[str]
    counters: tuple[dict[str, int], ...]


class Session:
    """A device in use: it is checked, loaded and run.

    Call `upload`, `load_table` and `configure` in this order, then `run`, `read_weights`, `write_weights`,
    `load_labels`, `load_table` and `configure` as often as needed. The workers join a job when the session begins.

    Parameters
    ----------
    device
        The device; the caller closes it.
    network
        How the workers find the aggregator. If None, the device's settings are used, or the defaults.
    communicator
        Ranks that share a job, with a session each: worker i belongs to rank i mod ranks. All ranks must make the same
        calls.
    merge
        Micro-batches in a packet, at most; None for as many as all members of the job take.

    Attributes
    ----------
    network : NetworkSettings
        The settings in use.
    limit : MergeLimit
        The version of the packet that all members speak, and how many micro-batches they take in one.
    micro_batches : int
        Micro-batches in a packet, since `configure`.

    Raises
    ------
    UserError
        If members do not take as many micro-batches in a packet as ``merge`` asks for.
    P4sgdError
        If a worker is no P4SGD worker, has another version of the register map or another configuration than the
        device expects, or if the aggregator refuses the job (`p4sgd.host.aggregators.membership`).
    """

    def __init__(
        self,
        device: Device,
        network: NetworkSettings | None = None,
        communicator: Communicator = SINGLE_PROCESS,
        *,
        merge: int | None = None,
    ) -> None:
        self._device = device
        self._ranks = communicator
        self._clients = [client_of(worker) for worker in device.workers]
        self._images: list[WorkerImage] = []
        self._longest: list[int | None] = []
        """Of each image with directories, most lines that a micro-batch has on an engine."""
        self._weighted = False
        self._names = names_of(device, self.workers)
        for index, shard in enumerate(self._shards):
            if problem := find_identity_problem(device, index):
                raise P4sgdError(f"{self._names[shard]} of device {device.name} {problem}")
        self.network = network or device.network_settings or NetworkSettings()
        self._merge = merge
        self.limit = self._find_limit()
        self.micro_batches = 1
        self._settings: RunSettings | None = None
        self._plan: MessageTimes | None = None
        self._planned_for = 0
        self._seconds: list[float] = []
        self._joined = False
        self._join(self.network.job)

    @property
    def workers(self) -> int:
        """Number of workers in the job."""
        return len(self._clients) * self._ranks.size

    @property
    def message_times(self) -> MessageTimes | None:
        """How the sums of a mini-batch travel, in packets or between ranks; None if nothing was planned."""
        if self._plan is None:
            return self._device.message_times
        return replace(self._plan, measured_s=statistics.median(self._seconds) if self._seconds else None)

    # -- before a run --------------------------------------------------------------------------------------------

    def upload(self, images: Sequence[WorkerImage]) -> None:
        """Write every worker's lines and labels to its memory.

        Parameters
        ----------
        images
            One for every worker of the device, all with the same number of samples. The device may keep references to
            them, so they must not change.

        Raises
        ------
        P4sgdError
            If the images do not fit the device's workers.
        """
        if len(images) != len(self._clients):
            raise P4sgdError(f"there are {len(images)} images for {len(self._clients)} workers")
        if len({image.layout.micro_batches for image in images}) != 1:
            raise P4sgdError("the images differ in their numbers of samples")
        for worker, client, image in zip(self._device.workers, self._clients, images, strict=True):
            config, shape = worker.config, describe_shape(image.layout.config)
            if shape != describe_shape(config):
                raise P4sgdError(f"the image is for {shape}, the worker has {describe_shape(config)}")
            for number in range(config.labels_memory):
                if image.lines(number).size:
                    worker.write_memory(number, 0, image.lines(number).reshape(-1))
                client.write_pair(registers.lines_address(*divmod(number, config.ports)), 0)
            for engine in range(config.engines):
                client.write_pair(registers.model_address(engine), model_address(image))
        self._images = list(images)
        self._longest = [None if image.starts is None else longest_micro_batch(image) for image in images]
        self._write_labels([(image.labels, image.importances) for image in images])

    def load_labels(self, labels: npt.NDArray[np.int32], importances: npt.NDArray[np.int32] | None = None) -> None:
        """Write labels, and weights of the samples if they have any, as `WorkerImage` has them, in place of those that
        are there. The device may keep references to them, so they must not change."""
        self._write_labels([(labels, importances)] * len(self._clients))

    def _write_labels(self, each: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None]]) -> None:
        for worker, client, (labels, importances) in zip(self._device.workers, self._clients, each, strict=True):
            worker.write_memory(worker.config.labels_memory, 0, pack_labels(labels, importances))
            client.write_pair(registers.LABELS_ADDRESS, 0)
            self._weighted = importances is not None

    def load_table(self, table: LossTable) -> None:
        """Write the loss table of every worker; a `ValueError` if it does not fit (`LossTable.refine`)."""
        for worker, client in zip(self._device.workers, self._clients, strict=True):
            refined = table.refine(worker.config.table_segments)
            client.write(registers.TABLE_SHIFT, value=refined.shift)
            client.write(registers.TABLE_INDEX, value=0)
            for slope, intercept in zip(refined.slope.tolist(), refined.intercept.tolist(), strict=True):
                client.write(registers.TABLE_SLOPE, value=slope)
                client.write(registers.TABLE_INTERCEPT, value=intercept)

    def configure(self, settings: RunSettings) -> None:
        """Write the settings of the next runs to every worker.

        Each worker gets the number of chunks of its own image, not ``settings.chunks``.

        Raises
        ------
        UserError
            If a worker is too small for the run.
        P4sgdError
            If the settings do not match the uploaded images.
        """
        self._check_settings(settings)
        self._settings = settings
        count = settings.micro_batches
        if self._planned_for != count:
            self._planned_for, self._plan = 0, None
            self._seconds.clear()
        if most := self.limit.most:
            most = min(self._merge or most, most)
            self.micro_batches = self._plan.messages[0] if self._plan else cut_evenly(count, most)
        form, mode = settings.features, settings.label_mode
        for client, image in zip(self._clients, self._images, strict=True):
            client.write(
                registers.FORMAT,
                precision=form.precision,
                stored=form.stored,
                signed=int(form.signed),
                unit_chunks=image.layout.unit_chunks_field,
                directory=int(image.layout.directory),
            )
            client.write(registers.CHUNKS, value=image.layout.chunks)
            client.write(registers.MICRO_BATCHES, value=count)
            roles = {name: int(role) for name, role in vars(mode).items()}
            client.write(registers.LABEL_MODE, **roles, weighted=int(settings.weighted))
            client.write(registers.RATE, mantissa=settings.rate_mantissa, gradient_shift=settings.gradient_shift)
            client.write(registers.SHRINK_FACTOR, value=settings.shrink)
            client.write(registers.THRESHOLD, value=settings.threshold)
            engine, chunk, lane = image.exempt or (0, 0, 0)
            client.write(registers.EXEMPT, engine=engine, chunk=chunk, lane=lane, exempt=int(image.exempt is not None))
            client.write(registers.PARTIAL_LIMIT, value=settings.partial_limit)
        self._divide(settings.mini_batches, self.micro_batches)

    def plan_packets(self) -> None:
        """Plan how many micro-batches a packet has, for the settings of the last `configure`: by short runs.

        Does nothing if they have a plan, if members speak version 1 only, or if a mini-batch is one micro-batch. The
        weights in the workers are lost, those in memory are not. Raises as `run`."""
        settings, most = self._settings, self.limit.most
        if settings is None or self._planned_for == settings.micro_batches or not most or settings.micro_batches == 1:
            return
        count = settings.micro_batches

        def measure(mini_batches: int, merged: int) -> tuple[float, float] | None:
            mini_batches = min(mini_batches, settings.mini_batches)
            begin = time.perf_counter()
            self._divide(mini_batches, merged)
            taken = _mini_batch_s(self._run(ModelSource.ZERO, store=False, timeout_s=None), mini_batches)
            return None if taken is None else (taken, broadcast(self._ranks, time.perf_counter() - begin))

        merge = None if self._merge is None else cut_evenly(count, min(self._merge, most))
        self._plan = plan_packets(measure, count, most, merge)
        self._planned_for = count
        if self._plan is not None:
            self.micro_batches = self._plan.messages[0]
        self._divide(settings.mini_batches, self.micro_batches)

    def _divide(self, mini_batches: int, merged: int) -> None:
        """Have runs of so many mini-batches, and packets of so many micro-batches."""
        assert self._settings is not None
        read = mini_batches * self._settings.micro_batches
        for client, image in zip(self._clients, self._images, strict=True):
            client.write(registers.MINI_BATCHES, value=mini_batches)
            if image.starts is not None:
                for engine, lines in enumerate(image.starts[:, read].tolist()):
                    client.write_pair(registers.lines_count(engine), lines)
            if self.limit.most:
                client.write(registers.MERGE, value=merged)

    def write_weights(self, weights: Sequence[EngineWeights]) -> None:
        """Write the weights of each worker of the job to the workers' memory, for runs with `ModelSource.MEMORY`. The
        device may keep references to them, so they must not change."""
        own = weights[self._ranks.rank :: self._ranks.size]
        for worker, image, engines in zip(self._device.workers, self._images, own, strict=True):
            config, address, size = worker.config, model_address(image), image.layout.model_bytes // 4
            if [each.shape for each in engines] != [(size,)] * config.engines or any(map(WEIGHT.overflows, engines)):
                raise P4sgdError(f"each of {config.engines} engines needs {size} weights of {WEIGHT}")
            for engine, values in enumerate(engines):
                content = np.ascontiguousarray(values, dtype="<i4").view(np.uint8)
                worker.write_memory(config.model_memory(engine), address, content)

    # -- a run ---------------------------------------------------------------------------------------------------

    def run(self, source: ModelSource, *, store: bool = True, timeout_s: float | None = None) -> RunReport:
        """Run all workers once and wait until they end.

        No worker is left running, whatever happens. After a failed run, the workers join a new job before the next.

        Parameters
        ----------
        source
            Where the initial weights come from.
        store
            Whether the workers write their weights to memory at the end, for `read_weights`.
        timeout_s
            Longest time to wait, in seconds; ``None`` waits for ever.

        Raises
        ------
        NetworkError
            If a worker gave up waiting for the network.
        P4sgdError
            If a worker was busy, did not end or met a memory error.
        """
        report = self._run(source, store=store, timeout_s=timeout_s)
        if self._plan is not None and self._settings is not None:
            taken = _mini_batch_s(report, self._settings.mini_batches)
            self._seconds += [] if taken is None else [taken]
        return report

    def _run(self, source: ModelSource, *, store: bool, timeout_s: float | None) -> RunReport:
        if self._joined:
            self._refuse_busy()
        else:
            self._join()
        self._joined = False
        try:
            raise_on_all(self._ranks, partial(self._start, source, store))
            self._device.wait(timeout_s)
        except BaseException as error:
            self._abort()
            if isinstance(error, RuntimeError):  # the emulator does not know the host's classes of errors
                raise P4sgdError(f"device {self._device.name}: {error}") from error
            raise
        flags = self._check_run()
        self._joined = True
        further = registers.KEYED_COUNTERS if self.limit.most else {}
        counters = of_job(
            [
                client.read_counters(registers.counters(worker.config) | further)
                for client, worker in zip(self._clients, self._device.workers, strict=True)
            ],
            self._ranks,
        )
        counted = any(any(worker.values()) for worker in counters)
        return RunReport(flags, tuple(counters) if counted else ())

    def _check_run(self) -> frozenset[str]:
        """The flags of a run that has ended, if all is well."""
        void = "the weights of this run are void"
        statuses = of_job([client.read(registers.STATUS) for client in self._clients], self._ranks)
        done = of_job([bool(client.read(registers.CTRL)["done"]) for client in self._clients], self._ranks)
        for index, status in enumerate(statuses):
            if status["memory_error"]:  # first, as it makes the others report network errors
                raise P4sgdError(f"{self._names[index]} met a memory error; {void}", lost_workers={index})
        if any(status["network_error"] for status in statuses):
            reports = of_job([diagnose_worker(client, self.network.echo_s) for client in self._clients], self._ranks)
            raise NetworkError(
                f"{explain_network_error(reports, self._names)}; {void}", lost_workers=find_lost_workers(reports)
            )
        flags = [{name for name, value in status.items() if value} for status in statuses]
        for index, (ended, own) in enumerate(zip(done, flags, strict=True)):
            if not ended or own & _NOT_RUN:
                reason = f": its STATUS has {', '.join(sorted(own))}" if own else ""
                raise P4sgdError(
                    f"{self._names[index]} did not run to the end{reason}; {void}. Make sure that no other program "
                    "uses the worker, and try again"
                )
        return frozenset().union(*flags)

    def read_weights(self) -> list[EngineWeights]:
        """The weights that the last run stored, of each worker of the job. They may be those that the device keeps."""
        weights: list[EngineWeights] = []
        for worker, image in zip(self._device.workers, self._images, strict=True):
            config, address, size = worker.config, model_address(image), image.layout.model_bytes
            parts = (worker.read_memory(config.model_memory(engine), address, size) for engine in range(config.engines))
            weights.append([np.ascontiguousarray(part).view("<i4") for part in parts])
        return of_job(weights, self._ranks)

    def close(self) -> None:
        """Let go of the images, which the device may have kept references to. There are no runs afterwards."""
        self._images = []
        self._device.clear()

    # -- details -------------------------------------------------------------------------------------------------

    @property
    def _shards(self) -> range:
        """Indices in the job of this device's workers."""
        return range(self._ranks.rank, self.workers, self._ranks.size)

    def _start(self, source: ModelSource, store: bool) -> None:
        stale = int(self._settings is not None and self._settings.stale)
        for client in self._clients:
            client.write(registers.STATUS, **{field.name: 1 for field in registers.STATUS.fields})
            client.write(registers.RUN, model_source=source.value, model_store=int(store), stale=stale)
        for client in self._clients:
            client.write(registers.CTRL, start=1)

    def _abort(self) -> None:
        """Abort the runs of all workers that can be reached."""
        for client in self._clients:
            with contextlib.suppress(P4sgdError, RuntimeError):
                client.write(registers.ABORT, abort=1)
        with contextlib.suppress(P4sgdError, RuntimeError):
            self._device.wait(_ABORT_SECONDS)

    def _refuse_busy(self) -> None:
        for index, client in zip(self._shards, self._clients, strict=True):
            if not client.read(registers.CTRL)["idle"]:
                raise P4sgdError(f"{self._names[index]} is busy with another run")

    def _join(self, number: int | None = None) -> None:
        """Have the workers join a job, by default the next free one."""
        self._refuse_busy()  # a run would never end if its worker changed jobs meanwhile
        if number is not None:
            self._join_as(number)
        while not self._joined:
            with contextlib.suppress(NumberTakenError):  # by another program at the same moment
                self._join_as(self._next_job())

    def _join_as(self, number: int) -> None:
        network = self.network
        key = broadcast(self._ranks, draw_key(self.limit.most))
        for index, client in zip(self._shards, self._clients, strict=True):
            if client.read(registers.MERGE_MOST)["value"]:
                client.write(registers.MERGE, value=0 if key is None else self.micro_batches)
                client.write_pair(registers.JOB_KEY, key or 0)
            client.write(registers.JOB, job=number, shard=index, workers=self.workers)
            client.write(registers.RESEND_CYCLES, value=network.resend_cycles)
            client.write(registers.RESEND, limit=network.resends, doublings=network.doublings)
            client.write_pair(registers.LOCAL_MAC, network.local_mac(index))
            client.write_pair(registers.PEER_MAC, network.aggregator_mac)
            client.write(registers.JOIN, round=network.first_round)
        self._joined = True

    def _find_limit(self) -> MergeLimit:
        workers = of_job([client.read(registers.MERGE_MOST)["value"] for client in self._clients], self._ranks)
        aggregator = self._device.aggregator
        most = broadcast(self._ranks, None if aggregator is None else aggregator.most)
        return find_merge_limit(workers, most, self._names, self._merge)

    def _next_job(self) -> int:
        """The next number that is in no worker's JOB register and that the aggregator does not serve."""
        aggregator = self._device.aggregator
        served = {} if aggregator is None else aggregator.served()
        known = of_job([client.read(registers.JOB)["job"] for client in self._clients], self._ranks)
        taken = set(known).union(*self._ranks.all_gather({job.number for job in served.values()}))
        return free_number(taken, max(known))

    def _check_settings(self, settings: RunSettings) -> None:
        if not self._images:
            raise P4sgdError("no images were uploaded yet")
        form = settings.features
        for worker, image, longest in zip(self._device.workers, self._images, self._longest, strict=True):
            layout = image.layout
            facts = {
                "stored planes": (form.stored, layout.stored),
                "signed": (form.signed, image.signed),
                "unit": (settings.unit, layout.unit),
                "workers": (settings.workers, self.workers),
                "weights of samples": (settings.weighted, self._weighted),
            }
            for name, (wanted, there) in facts.items():
                if wanted != there:
                    raise P4sgdError(f"{name}: {wanted} in the settings, {there} in what was uploaded")
            if (read := settings.micro_batches * settings.mini_batches) > layout.micro_batches:
                raise P4sgdError(
                    f"the settings read {BANKS * read} samples, the image has {BANKS * layout.micro_batches}"
                )
            if image.starts is not None and form.precision != form.stored:
                raise UserError(
                    f"images that leave out zeros are read with all {form.stored} planes, not {form.precision}: store "
                    f"no more planes than are read, or leave {option('skip_zeros', 'always')} out"
                )
            try:
                replace(settings, chunks=layout.chunks).check_fits(worker.config, longest)
            except ValueError as error:
                raise UserError(str(error)) from error


def of_job(own: list[_T], ranks: Communicator) -> list[_T]:
    """Gather a value for each worker of this process from all ranks, in the order of shards."""
    return [each for values in zip(*ranks.all_gather(own), strict=True) for each in values]


def _mini_batch_s(report: RunReport, mini_batches: int) -> float | None:
    """Seconds of a mini-batch, by the worker that started last, so without the start; None if workers do not count."""
    if not report.counters:
        return None
    return min(counted["CYCLES"] for counted in report.counters) * CLOCK_NS * 1e-9 / mini_batches
