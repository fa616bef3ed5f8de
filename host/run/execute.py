"""Carrying out a training plan: open the device, train, write the model, and say what to do after a failure."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host import devices, training
from p4sgd.host.devices import Device
from p4sgd.host.devices.diagnosis import NetworkError
from p4sgd.host.distributed.communicator import Communicator, launch_command
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.report import save_report
from p4sgd.host.run.checks import CLUSTER
from p4sgd.host.run.plan import TrainingPlan
from p4sgd.host.streaming.folder import PreparedFolder
from p4sgd.host.training import CheckpointFile, ResultSet, TrainingResult
from p4sgd.host.training.dealing.shares import deal_to_device, deal_units
from p4sgd.host.training.events import SILENT, Events, Stage
from p4sgd.host.training.model_file import save_model
from p4sgd.hw.spec.config import PRESETS
from p4sgd.sim.sparse.data_parallel import SampleRanks

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Trace

__all__ = ["execute", "resume_advice"]


def execute(
    plan: TrainingPlan, events: Events = SILENT, *, resume_words: Sequence[str] = ()
) -> TrainingResult | ResultSet:
    """Carry out a training plan.

    The model is written before the device is closed: closing takes a while, in which the user may press Ctrl-C again.
    The report is written after that, because a simulated device gives its trace when it is closed.

    Parameters
    ----------
    plan
        The plan.
    events
        Its methods are called while the run goes on.
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
    request = plan.request

    def verify(device: Device | None) -> None:
        if isinstance(plan.data, PreparedFolder):
            events.stage(Stage.VERIFY)
            options, features, shards = plan.options, plan.data.space.count, None
            if options.shares != "auto":  # if they will be measured, no shards are known
                if device is not None:
                    shards, _ = deal_to_device(device, features, plan.data.samples, options, plan.ranks)
                elif plan.configs is not None:
                    shards = deal_units(features, options, plan.configs)
            if shards is not None:
                network = devices.DEVICES[plan.device].has_network
                shards = plan.data.deal_columns(shards, options, network=network).shards
            plan.data.verify(shards, on_progress=events.progress)

    traces: list[Trace] = []  # a single one, or none

    def keep(trace: "Trace") -> None:
        traces.append(trace)
        events.trace(trace)

    reports = plan.config is None or plan.cluster is not None  # the device itself says what its workers are like
    if not reports:
        verify(None)
    events.stage(Stage.OPEN)
    with contextlib.ExitStack() as opened:
        sample_ranks = _divide_samples(plan, opened) if plan.options.parallel == "data" else None
        opened.enter_context(_note_ended(plan))
        device = opened.enter_context(contextlib.closing(_open(plan, sample_ranks, keep)))
        opened.enter_context(_note_resume(plan.checkpoint, plan.ranks, resume_words))
        opened.enter_context(_note_doctor(device, request.cluster))
        if reports:
            verify(device)
        events.stage(Stage.TRAIN)
        result = training.train(
            plan.data,
            plan.options,
            device,
            test=plan.test,
            events=events,
            directory=request.images,
            checkpoint=plan.checkpoint,
            resume=plan.resume,
            sample_ranks=sample_ranks,
            start=request.start,
        )
        events.stage(Stage.WRITE)
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


def _open(plan: TrainingPlan, sample_ranks: SampleRanks | None, on_trace: "Callable[[Trace], None]") -> Device:
    """Open the device; where several processes train together, this one's part of it.

    A simulated device passes its trace to ``on_trace`` when it is closed, if the request needs one.
    """
    ranks, workers = plan.ranks, plan.options.workers
    if sample_ranks is not None:
        return devices.open_device("emulator", plan.config, workers, sample_ranks=sample_ranks)
    more: dict[str, Any] = dict(plan.request.device_options)
    if plan.cluster is not None:
        more["cluster"] = plan.cluster
    if plan.device == "rtl" and (plan.request.trace or plan.request.report is not None):
        more["on_trace"] = on_trace
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
