"""Carrying out a training plan: open the device, train, write the model, and say what to do after a failure."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from p4sgd.host import devices, training
from p4sgd.host.devices import Device
from p4sgd.host.devices.device import WorkerName
from p4sgd.host.devices.diagnosis import NetworkError
from p4sgd.host.distributed.communicator import Communicator, launch_command
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.report import save_report
from p4sgd.host.run.checks import CLUSTER
from p4sgd.host.run.plan import TrainingPlan
from p4sgd.host.streaming.folder import PreparedFolder
from p4sgd.host.streaming.state import OnProgress
from p4sgd.host.training import CheckpointFile, EpochRecord, ResultSet, TrainingResult
from p4sgd.host.training.dealing.heat import Split
from p4sgd.host.training.dealing.shares import deal_to_device, deal_units
from p4sgd.host.training.model_file import save_model
from p4sgd.hw.spec.config import PRESETS
from p4sgd.sim.sparse.data_parallel import SampleRanks

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Trace

    OnTrace: TypeAlias = Callable[[Trace], None]

__all__ = ["Stage", "execute", "resume_advice"]


class Stage(Enum):
    """A stage of a training run, in order."""

    VERIFY = "verify"
    """The files of a prepared folder are compared with their checksums; left out for other data.

    Which files these are depends on the configuration, so this follows `OPEN` if the device says it itself.
    """
    OPEN = "open"
    """The device is opened: minutes, if a simulator has to be built."""
    TRAIN = "train"
    """Epochs are run."""
    WRITE = "write"
    """The model is written and the device closed."""


def execute(
    plan: TrainingPlan,
    *,
    on_stage: Callable[[Stage], None] | None = None,
    on_progress: OnProgress | None = None,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    on_remark: Callable[[str], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
    on_row: Callable[[int, Sequence[str]], None] | None = None,
    on_split: Callable[[Split, Sequence[WorkerName]], None] | None = None,
    resume_words: Sequence[str] = (),
) -> TrainingResult | ResultSet:
    """Carry out a training plan.

    The model is written before the device is closed: closing takes a while, in which the user may press Ctrl-C again.
    The report is written after that, because a simulated device gives its trace when it is closed.

    Parameters
    ----------
    plan
        The plan.
    on_stage
        Called when a stage begins.
    on_progress
        Called while the files of a prepared folder are verified.
    on_epoch, on_remark, on_warning, on_row, on_split
        See `p4sgd.host.training.train`.
    resume_words
        Options that the advice how to resume repeats, such as ``--json``.

    Raises
    ------
    UserError, P4sgdError
        See `p4sgd.host.training.train`. Notes on the error say how to resume the run, if a checkpoint has something of
        it, and how to examine the network, if that has failed.
    KeyboardInterrupt
        Before there is a model, with the notes about the checkpoint.
    """
    begin = on_stage or (lambda stage: None)
    request = plan.request

    def verify(device: Device | None) -> None:
        if isinstance(plan.data, PreparedFolder):
            begin(Stage.VERIFY)
            options, features, shards = plan.options, plan.data.space.count, None
            if options.shares != "auto":  # if they will be measured, no shards are known
                if device is not None:
                    shards, _ = deal_to_device(device, features, plan.data.samples, options, plan.ranks)
                elif plan.configs is not None:
                    shards = deal_units(features, options, plan.configs)
            if shards is not None:
                network = devices.DEVICES[plan.device].has_network
                shards = plan.data.deal_columns(shards, options, network=network).shards
            plan.data.verify(shards, on_progress=on_progress)

    traces: list[Trace] = []  # a single one, or none
    reports = plan.config is None or plan.cluster is not None  # the device itself says what its workers are like
    if not reports:
        verify(None)
    begin(Stage.OPEN)
    with contextlib.ExitStack() as opened:
        sample_ranks = _divide_samples(plan, opened) if plan.options.parallel == "data" else None
        opened.enter_context(_note_ended(plan))
        device = opened.enter_context(contextlib.closing(_open(plan, sample_ranks, traces.append)))
        opened.enter_context(_note_resume(plan.checkpoint, plan.ranks, resume_words))
        opened.enter_context(_note_doctor(device, request.cluster))
        if reports:
            verify(device)
        begin(Stage.TRAIN)
        result = training.train(
            plan.data,
            plan.options,
            device,
            test=plan.test,
            on_epoch=on_epoch,
            on_remark=on_remark,
            on_warning=on_warning,
            on_row=on_row,
            on_split=on_split,
            directory=request.images,
            checkpoint=plan.checkpoint,
            resume=plan.resume,
            sample_ranks=sample_ranks,
            start=request.start,
        )
        begin(Stage.WRITE)
        if request.out is not None and plan.ranks.rank == 0:
            save_model(result.model, request.out)
    if request.report is not None and plan.ranks.rank == 0:
        rounded = isinstance(plan.data, PreparedFolder)
        save_report(result, request.report, plan.to_json(), rounded=rounded, trace=traces[0] if traces else None)
    return result


def _divide_samples(plan: TrainingPlan, opened: contextlib.ExitStack) -> SampleRanks:
    """How the ranks divide the samples among themselves; an aggregator adds rows of hot columns if there is one."""
    ranks = plan.ranks
    if plan.cluster is None:
        return SampleRanks(ranks.rank, ranks.size, ranks.all_sum, ranks.all_sum, ranks.all_to_all)
    from p4sgd.host.distributed.rows import AggregatedRows

    rows = opened.enter_context(AggregatedRows(plan.cluster, ranks))
    return SampleRanks(ranks.rank, ranks.size, rows, ranks.all_sum, ranks.all_to_all, packets=True)


def _open(plan: TrainingPlan, sample_ranks: SampleRanks | None, on_trace: "OnTrace") -> Device:
    """Open the device; where several processes train together, this one's part of it.

    If there will be a report, a simulated device passes its trace to ``on_trace`` when it is closed, too.
    """
    ranks, workers = plan.ranks, plan.options.workers
    if sample_ranks is not None:
        return devices.open_device("emulator", plan.config, workers, sample_ranks=sample_ranks)
    more: dict[str, Any] = dict(plan.request.device_options)
    if plan.cluster is not None:
        more["cluster"] = plan.cluster
    if plan.request.report is not None and plan.device == "rtl":
        more["on_trace"] = _both(on_trace, more.get("on_trace"))
    if ranks.size > 1 and plan.device == CLUSTER:
        more["ranks"] = ranks
    elif ranks.size > 1:
        from p4sgd.sim.emulator import RemoteWorkers

        sums = MergedSums(ranks, plan.options.merge, ahead=plan.options.staleness > 0)
        more["remote"] = RemoteWorkers(ranks.rank, workers, sums.start, times=lambda: sums.times)
        workers //= ranks.size
    if plan.configs is not None and plan.request.sparse_workers:
        more["configs"] = plan.configs[ranks.rank :: ranks.size]
    return devices.open_device(plan.device, plan.config, workers, **more)


def _both(first: "OnTrace", second: "OnTrace | None") -> "OnTrace":
    def call(trace: "Trace") -> None:
        first(trace)
        if second is not None:
            second(trace)

    return call


def resume_advice(file: CheckpointFile, ranks: Communicator, words: Sequence[str] = ()) -> str:
    """How to resume a run that has stopped, with the launcher that had started it."""
    command = launch_command(["p4sgd", "train", "--resume", str(file.path), *words], ranks)
    return f"{file.path} has the state after {file.last}; to resume: {shlex.join(command)}"


@contextlib.contextmanager
def _note_resume(file: CheckpointFile | None, ranks: Communicator, words: Sequence[str]) -> Iterator[None]:
    """Add to an error how to resume, if the checkpoint has something of this run."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if file is not None and file.last:
            error.add_note(resume_advice(file, ranks, words))
        raise


@contextlib.contextmanager
def _note_ended(plan: TrainingPlan) -> Iterator[None]:
    """Add to an error that names a process of the local cluster that has ended the whole command that starts it."""
    try:
        yield
    except (UserError, P4sgdError) as error:
        if plan.device == CLUSTER:
            from p4sgd.host.serve.local_cluster import find_local_cluster

            with contextlib.suppress(UserError, P4sgdError):
                for each in (find_local_cluster() or {"members": []})["members"]:
                    if each["ended"] and each["control"] in str(error):
                        error.add_note(f"{each['name']} {each['ended']}; to start it again: {each['command']}")
        raise


@contextlib.contextmanager
def _note_doctor(device: Device, cluster: Path | None) -> Iterator[None]:
    """Add to an error of the network how to find out more."""
    try:
        yield
    except NetworkError as error:
        if device.name == CLUSTER:
            what = f"--cluster {shlex.quote(str(cluster))}"
        else:
            names = [name for name, make in PRESETS.items() if make() == device.workers[0].config]
            what = " ".join([f"--workers {len(device.workers)}", *(f"--config {name}" for name in names[:1])])
        error.add_note(f"p4sgd doctor --device {device.name} {what} says more")
        raise
