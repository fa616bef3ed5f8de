"""Sessions: what a trainer does with a device, through registers and memory: images, settings, runs and weights."""

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.device import Device, NetworkError, NetworkSettings, Worker, client_of, names_of
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast, raise_on_all
from p4sgd.host.errors import P4sgdError, UserError, option
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.fixed import EngineWeights
from p4sgd.hw.spec.image import pack_labels
from p4sgd.hw.spec.job import JOB_NUMBERS
from p4sgd.hw.spec.packet import KEY_BITS, KEYED_VERSION, VERSION
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import LossTable, RunSettings

if TYPE_CHECKING:
    from p4sgd.host.distributed.overlap import MessageTimes

_T = TypeVar("_T")

_ABORT_SECONDS = 0.02
"""Longest time to wait for the end of an aborted run, in seconds. Outstanding reads of memory take microseconds."""

_NOT_RUN = {"aborted", "not_joined", "refused"}
"""Fields of STATUS that are set only if another program has written to the worker's registers."""


@dataclass(frozen=True)
class RunReport:
    """Flags and counters after a run."""

    flags: frozenset[str]  # names of the fields of STATUS that at least one worker has set in this run
    # For each worker, the counters of `p4sgd.hw.spec.registers.counters` by name. Empty if all are 0, as on a device
    # that does not count.
    counters: tuple[dict[str, int], ...]

    def mini_batch_s(self, mini_batches: int) -> float | None:
        """Seconds of a mini-batch, by the worker that started last, so without the start; None if none counts."""
        if not self.counters:
            return None
        return min(counted["CYCLES"] for counted in self.counters) * CLOCK_NS * 1e-9 / mini_batches


@dataclass
class _Member:
    """A worker of this process."""

    shard: int
    worker: Worker
    client: RegisterClient
    image: WorkerImage = field(init=False)  # since `Session.upload`
    longest: int | None = None  # most lines that a micro-batch has on an engine, if the image has directories


class Session:
    """A device in use: it is loaded and run; the caller closes it.

    Call `upload`, `load_table` and `configure` in this order, then `run`, `read_weights`, `write_weights`,
    `load_labels`, `load_table` and `configure` as often as needed. The workers join a job when the session begins. A
    `P4sgdError` if the aggregator refuses the job (`p4sgd.host.aggregators.membership`).

    Parameters
    ----------
    network
        How the workers find the aggregator; by default as the device says.
    communicator
        Ranks that share a job, with a session each: worker i belongs to rank i mod ranks. All make the same calls.
    merge
        Micro-batches in a packet, at most; None for as many as all members of the job take. A `UserError` if they do
        not take so many.
    stand_ins
        Whether each worker also holds the next one's shard, to stand in for it when it pauses. A `UserError` if the
        device cannot do so.

    Attributes
    ----------
    most : int
        Most micro-batches in a packet of version 2 that all members take; 0 if some speak version 1 only.
    micro_batches : int
        Micro-batches in a packet, since `configure`.
    """

    def __init__(
        self,
        device: Device,
        network: NetworkSettings | None = None,
        communicator: Communicator = SINGLE_PROCESS,
        *,
        merge: int | None = None,
        stand_ins: bool = False,
    ) -> None:
        self._device = device
        self._ranks = communicator
        self._members = [
            _Member(communicator.rank + index * communicator.size, worker, client_of(worker))
            for index, worker in enumerate(device.workers)
        ]
        others: Sequence[Worker] = ()
        if stand_ins and self.workers > 1 and not (others := device.stand_ins):
            raise UserError(
                f"{option('stand_ins', True)}: takes a cluster of workers of one configuration and one aggregator, "
                "all of them processes, and no --launcher"
            )
        self._stand_ins = [
            _Member((shard + 1) % self.workers, worker, client_of(worker)) for shard, worker in enumerate(others)
        ]
        self._names = names_of(device, self.workers)
        self.network = network or device.network_settings or NetworkSettings()
        self._merge = merge
        known = self._gather(lambda member: member.client.read(registers.MERGE_MOST)["value"])
        aggregator = broadcast(communicator, 0 if device.aggregator is None else device.aggregator.most)
        self.most = min(*known, aggregator)
        if merge is not None and merge > max(1, self.most):
            from p4sgd.host.devices.merging import why_no_more

            raise UserError(
                f"{option('merge', merge)}: a packet of this job has at most {max(1, self.most)} "
                f"micro-batch{'es' * (self.most > 1)}, as {why_no_more(known, aggregator, self._names)}; give no more, "
                f"or leave {option('merge')} out"
            )
        self.micro_batches = 1
        self._settings: RunSettings | None = None
        self._written: RunSettings | None = None  # those that the registers have
        self._plan: MessageTimes | None = None
        self._table: LossTable | None = None
        self._planned_for = 0
        self._seconds: list[float] = []
        self._joined = False
        self._join(self.network.job)

    @property
    def workers(self) -> int:
        """Number of workers in the job."""
        return len(self._members) * self._ranks.size

    @property
    def _holders(self) -> list[_Member]:
        """All that hold a shard, those of stand-ins first."""
        return self._stand_ins + self._members

    @property
    def version(self) -> int:
        """Highest version of the packet that all members speak."""
        return KEYED_VERSION if self.most else VERSION

    @property
    def message_times(self) -> "MessageTimes | None":
        """How the sums of a mini-batch travel; None if nothing was planned."""
        if self._plan is None:
            return self._device.message_times
        return replace(self._plan, measured_s=statistics.median(self._seconds) if self._seconds else None)

    # -- before a run --------------------------------------------------------------------------------------------

    def upload(self, images: Sequence[WorkerImage]) -> None:
        """Write the image of every worker of this process. The device may keep references: they must not change."""
        self._written = None
        by_shard = {each.shard: image for each, image in zip(self._members, images, strict=True)}
        for each in self._holders:
            image = by_shard[each.shard]
            config = each.worker.config
            for number, lines in enumerate(image.port_lines):
                if lines.size:
                    each.worker.write_memory(number, 0, lines.reshape(-1))
                each.client.write_pair(registers.lines_address(*divmod(number, config.ports)), 0)
            for engine in range(config.engines):
                each.client.write_pair(registers.model_address(engine), image.model_address)
            each.image = image
            each.longest = image.longest_micro_batch
            self._write_labels(each, image.labels, image.importances)

    def load_labels(self, labels: npt.NDArray[np.int32], importances: npt.NDArray[np.int32] | None = None) -> None:
        """Replace labels and weights of the samples, of the form and under the conditions of `upload`."""
        for each in self._holders:
            self._write_labels(each, labels, importances)

    def _write_labels(
        self, member: _Member, labels: npt.NDArray[np.int32], importances: npt.NDArray[np.int32] | None
    ) -> None:
        member.worker.write_memory(member.worker.config.labels_memory, 0, pack_labels(labels, importances))
        member.client.write_pair(registers.LABELS_ADDRESS, 0)

    def load_table(self, table: LossTable) -> None:
        """Write the loss table of every worker; a `ValueError` if it does not fit (`LossTable.refine`)."""
        if table is self._table:
            return
        self._table = None
        for each in self._holders:
            refined = table.refine(each.worker.config.table_segments)
            if (write := getattr(each.worker, "write_table", None)) is not None:
                write(refined)
                continue
            each.client.write(registers.TABLE_SHIFT, value=refined.shift)
            each.client.write(registers.TABLE_INDEX, value=0)
            for slope, intercept in zip(refined.slope.tolist(), refined.intercept.tolist(), strict=True):
                each.client.write(registers.TABLE_SLOPE, value=slope)
                each.client.write(registers.TABLE_INTERCEPT, value=intercept)
        self._table = table

    def configure(self, settings: RunSettings) -> None:
        """Write the settings of the next runs to every worker, with the chunks of its own image in place of
        ``settings.chunks``. A `UserError` if a worker is too small for the run."""
        if settings == self._written:
            return
        form, count = settings.features, settings.micro_batches
        for each in self._members:
            if each.longest is not None and form.precision != form.stored:
                raise UserError(
                    f"images that leave out zeros are read with all {form.stored} planes, not {form.precision}: store "
                    f"no more planes than are read, or leave {option('skip_zeros', 'always')} out"
                )
            try:
                own = replace(settings, chunks=each.image.layout.chunks)
                own.check_fits(each.worker.config, each.longest)
            except ValueError as error:
                raise UserError(str(error)) from error
        self._settings, self._written = settings, None
        if self._planned_for != count:
            self._planned_for, self._plan = 0, None
            self._seconds.clear()
        if self.most:
            self.micro_batches = self._plan.messages[0] if self._plan else self._cut(count)
        for each in self._holders:
            _write_settings(each.client, each.image, settings)
        self._divide(settings.mini_batches, self.micro_batches)
        self._written = settings

    def plan_packets(self) -> None:
        """Plan how many micro-batches a packet has, for the settings of the last `configure`: by short runs.

        Does nothing if they have a plan, if members speak version 1 only, or if a mini-batch is one micro-batch. The
        weights in the workers are lost, those in memory are not. Raises as `run`."""
        settings = self._settings
        count = 1 if settings is None else settings.micro_batches
        if settings is None or count in (1, self._planned_for) or not self.most:
            return
        from p4sgd.host.devices.merging import plan_packets

        def measure(mini_batches: int, merged: int) -> tuple[float, float] | None:
            mini_batches = min(mini_batches, settings.mini_batches)
            begin = time.perf_counter()
            self._divide(mini_batches, merged)
            taken = self._run(ModelSource.ZERO, store=False, timeout_s=None).mini_batch_s(mini_batches)
            return None if taken is None else (taken, broadcast(self._ranks, time.perf_counter() - begin))

        most = min(count, self.most) if self._merge is None else 0
        self._written = None  # also if a run fails
        self._plan = plan_packets(measure, count, self._cut(count), most)
        self._planned_for = count
        if self._plan is not None:
            self.micro_batches = self._plan.messages[0]
        self._divide(settings.mini_batches, self.micro_batches)
        self._written = settings

    def _cut(self, count: int) -> int:
        """Micro-batches in each of the fewest packets of a mini-batch of ``count``, about equally many."""
        packets = -(-count // min(self._merge or self.most, self.most))
        return -(-count // packets)

    def _divide(self, mini_batches: int, merged: int) -> None:
        """Have runs of so many mini-batches, and packets of so many micro-batches."""
        assert self._settings is not None
        read = mini_batches * self._settings.micro_batches
        for each in self._holders:
            each.client.write(registers.MINI_BATCHES, value=mini_batches)
            if each.image.starts is not None:
                for engine, lines in enumerate(each.image.starts[:, read].tolist()):
                    each.client.write_pair(registers.lines_count(engine), lines)
            if self.most:
                each.client.write(registers.MERGE, value=merged)

    def write_weights(self, weights: Sequence[EngineWeights]) -> None:
        """Write the weights of each worker of the job to memory, for runs with `ModelSource.MEMORY`; they must not
        change."""
        for each in self._holders:
            config, address = each.worker.config, each.image.model_address
            for engine, values in enumerate(weights[each.shard]):
                content = np.ascontiguousarray(values, dtype="<i4").view(np.uint8)
                each.worker.write_memory(config.model_memory(engine), address, content)

    # -- a run ---------------------------------------------------------------------------------------------------

    def run(self, source: ModelSource, *, store: bool = True, timeout_s: float | None = None) -> RunReport:
        """Run all workers once and wait until they end, for up to ``timeout_s`` seconds.

        The initial weights come from ``source``; with ``store`` the workers write theirs to memory at the end, for
        `read_weights`. No worker is left running, whatever happens. After a failed run, the workers join a new job
        before the next. A `NetworkError` if a worker gave up waiting for the network; a `P4sgdError` if one was busy,
        did not end or met a memory error.
        """
        report = self._run(source, store=store, timeout_s=timeout_s)
        if self._plan is not None and self._settings is not None:
            taken = report.mini_batch_s(self._settings.mini_batches)
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
        self._follow_stand_ins()
        flags = self._check_run()
        self._joined = True
        further = registers.KEYED_COUNTERS if self.most else {}
        counters = self._gather(
            lambda member: member.client.read_counters(registers.counters(member.worker.config) | further)
        )
        counted = any(any(worker.values()) for worker in counters)
        return RunReport(flags, tuple(counters) if counted else ())

    def _check_run(self) -> frozenset[str]:
        """The flags of a run that has ended, if all is well."""
        void = "the weights of this run are void"
        statuses = self._gather(lambda member: member.client.read(registers.STATUS))
        done = self._gather(lambda member: member.client.read(registers.CTRL)["done"])
        for index, status in enumerate(statuses):
            if status["memory_error"]:  # first, as it makes the others report network errors
                raise P4sgdError(f"{self._names[index]} met a memory error; {void}", lost_workers={index})
        if any(status["network_error"] for status in statuses):
            from p4sgd.host.devices.diagnosis import diagnose_worker, explain_network_error

            reports = self._gather(lambda member: diagnose_worker(member.client, self.network.echo_s))
            problem, lost = explain_network_error(reports, self._names, self.network.seats)
            raise NetworkError(f"{problem}; {void}", lost_workers=lost)
        flags = [{name for name, value in status.items() if value} for status in statuses]
        also = [
            {name for name, value in each.client.read(registers.STATUS).items() if value} for each in self._stand_ins
        ]
        for index, (ended, own) in enumerate(zip(done, flags, strict=True)):
            if not ended or own & _NOT_RUN:
                seen = ", ".join(sorted(own)) or "none"
                raise P4sgdError(
                    f"{self._names[index]} did not run to the end (STATUS: {seen}); {void}. Make sure that no other "
                    "program uses the worker, and try again"
                )
        return frozenset().union(*flags, *also)

    def read_weights(self) -> list[EngineWeights]:
        """The weights that the last run stored, of each worker of the job. They may be those that the device keeps."""

        def read(member: _Member) -> EngineWeights:
            config, address, size = member.worker.config, member.image.model_address, member.image.layout.model_bytes
            banks = map(config.model_memory, range(config.engines))
            return [np.ascontiguousarray(member.worker.read_memory(bank, address, size)).view("<i4") for bank in banks]

        return self._gather(read)

    def close(self) -> None:
        """Let go of the images, which the device may have kept references to. There are no runs afterwards."""
        self._members, self._stand_ins = [], []
        self._device.clear()

    # -- details -------------------------------------------------------------------------------------------------

    def _gather(self, read: Callable[[_Member], _T]) -> list[_T]:
        """A value for each worker of the job."""
        return of_job([read(member) for member in self._members], self._ranks)

    def _start(self, source: ModelSource, store: bool) -> None:
        stale = int(self._settings is not None and self._settings.stale)
        for each in self._holders:
            each.client.write(registers.STATUS, **{field.name: 1 for field in registers.STATUS.fields})
            each.client.write(registers.RUN, model_source=source.value, model_store=int(store), stale=stale)
        for each in self._holders:
            each.client.write(registers.CTRL, start=1)

    def _follow_stand_ins(self) -> None:
        """Have stand-ins be the members in place of workers that were lost in the run."""
        if replaced := self._device.replaced:
            holders = {each.shard: each for at, each in enumerate(self._stand_ins) if at not in replaced}
            self._stand_ins = [each for shard, each in holders.items() if shard not in replaced]
            self._members = [holders[each.shard] if each.shard in replaced else each for each in self._members]

    def _abort(self) -> None:
        """Abort the runs of all workers that can be reached."""
        for each in self._members:
            with contextlib.suppress(P4sgdError, RuntimeError):
                each.client.write(registers.ABORT, abort=1)
        with contextlib.suppress(P4sgdError, RuntimeError):
            self._device.wait(_ABORT_SECONDS)

    def _refuse_busy(self) -> None:
        for each in self._members:
            if not each.client.read(registers.CTRL)["idle"]:
                raise P4sgdError(f"{self._names[each.shard]} is busy with another run")

    def _join(self, number: int | None = None) -> None:
        """Have the workers join a job, by default the next that is in no worker's JOB register and that the aggregator
        does not serve."""
        self._refuse_busy()  # a run would never end if its worker changed jobs meanwhile
        if number is not None:
            return self._join_as(number)
        aggregator = self._device.aggregator
        while not self._joined:
            known = self._gather(lambda member: member.client.read(registers.JOB)["job"])
            if aggregator is None and self._ranks.size == 1:
                return self._join_as((max(known) + 1) % JOB_NUMBERS)
            from p4sgd.host.aggregators.membership import NumberTakenError, free_number

            served = set() if aggregator is None else {job.number for job in aggregator.served().values()}
            taken = set(known).union(*self._ranks.all_gather(served))
            with contextlib.suppress(NumberTakenError):  # by another program at the same moment
                self._join_as(free_number(taken, max(known)))

    def _join_as(self, number: int) -> None:
        network = self.network
        # Packets of an earlier job with the same number are not taken for its own; those of version 1 have no key.
        key = broadcast(self._ranks, secrets.randbits(KEY_BITS) if self.most else None)
        for each in self._stand_ins:
            each.client.write(registers.JOB, job=number, shard=each.shard, workers=self.workers)
        for each in self._members:
            client = each.client
            if client.read(registers.MERGE_MOST)["value"]:
                client.write(registers.MERGE, value=0 if key is None else self.micro_batches)
                client.write_pair(registers.JOB_KEY, key or 0)
            seat = network.seat(each.shard, self.workers)
            client.write(registers.JOB, job=number, shard=seat.shard, workers=seat.workers)
            client.write(registers.RESEND_CYCLES, value=network.resend_cycles)
            client.write(registers.RESEND, limit=network.resends, doublings=network.doublings)
            client.write_pair(registers.LOCAL_MAC, network.local_mac(each.shard))
            client.write_pair(registers.PEER_MAC, network.peer_mac(each.shard))
            client.write(registers.JOIN, round=network.first_round)
        self._joined = True


def of_job(own: list[_T], ranks: Communicator) -> list[_T]:
    """Gather a value for each worker of this process from all ranks, in the order of shards."""
    return [each for values in zip(*ranks.all_gather(own), strict=True) for each in values]


def _write_settings(client: RegisterClient, image: WorkerImage, settings: RunSettings) -> None:
    """Write the settings of a worker's runs, but for the number of mini-batches."""
    form, layout = settings.features, image.layout
    client.write(
        registers.FORMAT,
        precision=form.precision,
        stored=form.stored,
        signed=int(form.signed),
        unit_chunks=layout.unit_chunks_field,
        directory=int(layout.directory),
    )
    roles = {name: int(role) for name, role in vars(settings.label_mode).items()}
    client.write(registers.LABEL_MODE, **roles, weighted=int(settings.weighted))
    client.write(registers.RATE, mantissa=settings.rate_mantissa, gradient_shift=settings.gradient_shift)
    engine, chunk, lane = image.exempt or (0, 0, 0)
    client.write(registers.EXEMPT, engine=engine, chunk=chunk, lane=lane, exempt=int(image.exempt is not None))
    for register, value in (
        (registers.CHUNKS, layout.chunks),
        (registers.MICRO_BATCHES, settings.micro_batches),
        (registers.SHRINK_FACTOR, settings.shrink),
        (registers.THRESHOLD, settings.threshold),
        (registers.PARTIAL_LIMIT, settings.partial_limit),
    ):
        client.write(register, value=value)
