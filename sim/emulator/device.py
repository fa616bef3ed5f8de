"""Emulated workers in one process, whose partials are summed without packets."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import LABEL_BYTES, ImageLayout
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import MAX_WORKERS
from p4sgd.sim import golden
from p4sgd.sim.emulator.worker import EmulatedWorker, EmulatorError, Inputs, Run
from p4sgd.sim.model import Features
from p4sgd.sim.sparse.data_parallel import SampleRanks

Forward: TypeAlias = Callable[[range], IntArray]
Backward: TypeAlias = Callable[[range, IntArray], None]


@dataclass(frozen=True)
class RemoteWorkers:
    """The workers of a job in other processes."""

    first: int  # shard of the first worker in this process; its other workers follow
    workers: int  # number of workers of the job
    start: Callable[[int, Forward], Callable[[Backward], None]]
    """Begins a mini-batch with sums over all processes: ``start(micro_batches, forward)`` divides the micro-batches
    into consecutive parts and calls ``forward(part)`` for all in order, which returns the sum of the partials in this
    process, int64 (8 · micro-batches of the part,). The function that it returns is called with ``backward``, and calls
    ``backward(part, total)`` for the same parts in order; with staleness after the next mini-batch was begun."""
    times: Callable[[], Any] = lambda: None
    """What is known about the time that takes, for `EmulatedDevice.message_times`."""


def _start_here(micro_batches: int, forward: Forward) -> Callable[[Backward], None]:
    part = range(micro_batches)
    sums = forward(part)
    return lambda backward: backward(part, sums)


class EmulatedDevice:
    """``workers`` emulated workers, 1 to 32, and the AllReduce between them.

    All are of size ``config``, or each of ``configs``. ``remote`` are workers of the same job in other processes, which
    do the same runs with the same settings; ``sample_ranks`` processes with other samples of the only worker, which is
    sparse.
    """

    name = "emulator"
    aggregator = None
    network_settings = None
    shares = None
    stand_ins = ()
    names = None
    absent = ()
    replaced: ClassVar[dict[int, Any]] = {}

    def __init__(
        self,
        config: WorkerConfig,
        workers: int,
        *,
        remote: RemoteWorkers | None = None,
        configs: Sequence[WorkerConfig] | None = None,
        sample_ranks: SampleRanks | None = None,
    ) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise ValueError(f"workers must be 1 to {MAX_WORKERS}, not {workers}")
        self._remote = remote or RemoteWorkers(0, workers, _start_here)
        self._sample_ranks = sample_ranks
        first = self._remote.first
        sizes = [config] * workers if configs is None else configs
        self._workers = [EmulatedWorker(size, first + index) for index, size in enumerate(sizes)]
        self._features: list[Features] = []

    @property
    def workers(self) -> Sequence[EmulatedWorker]:
        """The workers."""
        return self._workers

    @property
    def message_times(self) -> Any:
        """See `p4sgd.host.devices.device.Device`."""
        return self._remote.times()

    def wait(self, timeout_s: float | None = None) -> None:
        """Carry out the run that was started; ``timeout_s`` is ignored.

        After an exception, including Ctrl-C, every worker has its weights from before the run. An `EmulatorError` is
        raised for a run that a worker cannot do, or that would never end because the workers' settings differ.
        """
        idle = [worker.index for worker in self._workers if not worker.started]
        if len(idle) == len(self._workers):
            return
        try:
            if idle:
                raise EmulatorError(f"workers {idle} were not started: the others would wait for their packets forever")
            inputs = [worker.inputs() for worker in self._workers]
            self._check_job(inputs)
            groups: list[list[Inputs]] = []
            for each in inputs:
                group = next((group for group in groups if each.alike(group[0])), None)
                if group is None:
                    groups.append(group := [])
                group.append(each)
            runs = [Run(group, self._sample_ranks) for group in groups]
            self._features = [run.features for run in runs]
            if len(runs) == 1 and len(self._workers) == self._remote.workers:
                runs[0].model.train(slice(0, runs[0].settings.mini_batches * runs[0].settings.batch))
            else:
                self._train(runs)
        except BaseException:
            for worker in self._workers:
                worker.stop()
            raise
        for run in runs:
            run.finish()

    def _train(self, runs: Sequence[Run]) -> None:
        """Do all mini-batches, one after the other; with staleness the next one begins before one is updated."""
        settings, ahead = runs[0].settings, min(run.settings.stale for run in runs)
        begun: deque[Callable[[], None]] = deque()
        for mini_batch in range(settings.mini_batches):
            forward, backward = partial(_forward, runs, mini_batch), partial(_backward, runs, mini_batch)
            begun.append(partial(self._remote.start(settings.micro_batches, forward), backward))
            if len(begun) > ahead:
                begun.popleft()()
        for update in begun:
            update()

    def drop(self, lost: Collection[int]) -> None:
        """Go on without some workers; the others, which must all be in this process, are renumbered."""
        if len(self._workers) != self._remote.workers:
            raise EmulatorError("workers in other processes cannot be renumbered")
        self._workers = [worker for worker in self._workers if worker.index not in lost]
        for index, worker in enumerate(self._workers):
            worker.index = index
        self._remote = RemoteWorkers(0, len(self._workers), _start_here)

    def take_in(self, tell: Callable[[str], None]) -> Collection[int]:
        """Other workers never come: none."""
        return ()

    def clear(self) -> None:
        """Release all memory of the workers, as if nothing had been written, and their weights."""
        self._features = []
        for worker in self._workers:
            worker.clear()

    def close(self) -> None:
        """Release the workers and their memory."""
        self._workers = []
        self._features = []

    def _check_job(self, runs: Sequence[Inputs]) -> None:
        """Refuse a run whose workers are not set up for the same job."""
        shards = [worker.registers.get(spec.JOB, "shard") for worker in self._workers]
        first, last = self._workers[0].index, self._workers[-1].index
        if shards != list(range(first, last + 1)):  # an aggregator takes shard i from port i only
            raise EmulatorError(f"JOB.shard must be {first} to {last} in the order of the workers, not {shards}")
        wanted = (runs[0].job[0], self._remote.workers)
        batches = {(run.settings.micro_batches, run.settings.mini_batches) for run in runs}
        for worker, run in zip(self._workers, runs, strict=True):
            if run.job != wanted:
                raise EmulatorError(
                    f"worker {worker.index}: JOB says job {run.job[0]} of {run.job[1]} workers, "
                    f"the cluster is job {wanted[0]} of {wanted[1]}"
                )
        if len(batches) != 1:
            raise EmulatorError(f"workers differ in micro-batches and mini-batches: {sorted(batches)}")


def _forward(runs: Sequence[Run], mini_batch: int, part: range) -> IntArray:
    return golden.all_reduce([run.model.forward(run.samples(mini_batch, part)) for run in runs])


def _backward(runs: Sequence[Run], mini_batch: int, part: range, sums: IntArray) -> None:
    for run in runs:
        run.model.backward(run.samples(mini_batch, part), sums)


def warm_up(config: WorkerConfig) -> None:
    """Compile the loops for a configuration by small runs, which takes seconds the first time.

    Otherwise the first run would compile them, and other workers would take the delay for lost packets.
    """
    for directory in (False,) if config.sparse else (False, True):
        worker = EmulatedWorker(config, 0)
        client = RegisterClient(worker.read_register, worker.write_register)
        client.write(spec.FORMAT, precision=1, stored=1, directory=int(directory))
        client.write(spec.RUN, model_source=ModelSource.ZERO.value)
        ones = (
            spec.CHUNKS,
            spec.MICRO_BATCHES,
            spec.MINI_BATCHES,
            spec.SHRINK_FACTOR,
            spec.THRESHOLD,
            spec.PARTIAL_LIMIT,
        )
        for register in ones:
            client.write(register, value=1)
        layout = ImageLayout(config, config.lanes, BANKS, 1, config.lanes, directory)
        contents = layout.memories(np.ones((BANKS, config.lanes), np.int64))
        for memory, content in enumerate([*contents, np.zeros(LABEL_BYTES, np.uint8)]):
            worker.write_memory(memory, 0, content)
        for engine in range(config.engines if directory else 0):
            client.write_pair(spec.lines_count(engine), contents[engine * config.ports].shape[0])
        run, samples = Run([worker.inputs()]), slice(0, BANKS)
        run.model.backward(samples, run.model.forward(samples))
