"""What `p4sgd train` and `p4sgd simulate` share: options, the run itself, and what is said about it."""

import contextlib
import dataclasses
import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from p4sgd.host.cli.checkpoints import TrainingRequest, how_to_go_on
from p4sgd.host.cli.launching import check_distributed, part_of_job
from p4sgd.host.cli.options import CLUSTER, NameFrom, find_cluster, is_given
from p4sgd.host.cli.output import SIMULATOR_OPENING, EpochTable, Output, show_steps
from p4sgd.host.cli.paths import check_apart, check_new_images
from p4sgd.host.cli.reading import check_reading
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, SingleProcess
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.data import Dataset
    from p4sgd.host.data.identity import DataIdentity
    from p4sgd.host.devices import Device
    from p4sgd.host.streaming.folder import PreparedFolder
    from p4sgd.host.training import Checkpoint, CheckpointFile, TrainingResult

__all__ = ["choose_configuration", "finish", "preparation_options", "run_training", "training_options", "weights_hash"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_COLUMNS = {
    "epoch": "epoch",
    "train_loss": "train loss",
    "train_accuracy": "train accuracy",
    "train_r2": "train R²",
    "quantised_loss": "quantised loss",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "validation_r2": "validation R²",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "test_r2": "test R²",
    "learning_rate": "rate",
    "samples_per_second": "samples/s",
}

_PREPARED_COLUMNS = {
    "epoch": "epoch",
    "quantised_loss": "quantised loss",
    "quantised_accuracy": "quantised accuracy",
    "quantised_r2": "quantised R²",
}
"""The first columns for prepared data, whose samples are not at hand."""


class _TrainingOption(click.Option):
    """An option whose default is that of the field of the same name in `TrainingOptions`."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        from p4sgd.host.training.options import TrainingOptions

        return {field.name: field.default for field in dataclasses.fields(TrainingOptions)}[self.name or ""]


def _losses() -> Iterable[str]:
    from p4sgd.host.losses import LOSSES

    return LOSSES


def _schedules() -> Iterable[str]:
    from p4sgd.host.training.options import SCHEDULES

    return SCHEDULES


def _scalings() -> Iterable[str]:
    from p4sgd.host.data.scaling import KINDS

    return KINDS


def _option(*names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    return click.option(*names, cls=_TrainingOption, show_default=True, **attributes)


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "loss": _option("--loss", type=NameFrom("loss", _losses), help="Loss to minimise."),
    "epochs": _option("--epochs", type=int, help="Passes over the data, at most."),
    "batch": _option(
        "--batch",
        type=int,
        help="Samples of a mini-batch, a multiple of 8; if too few are left for the last one, its update is smaller.",
    ),
    "learning_rate": _option(
        "--lr", "learning_rate", type=float, help="First learning rate; chosen from the data if not given."
    ),
    "schedule": _option("--schedule", type=NameFrom("schedule", _schedules), help="How the learning rate goes on."),
    "power": _option("--power", type=float, help="Exponent of the schedule invscaling."),
    "l2": _option("--l2", type=float, help="Strength of the L2 penalty."),
    "l1": _option("--l1", type=float, help="Strength of the L1 penalty."),
    "precision": _option("--precision", type=int, help="Bits of a feature that training reads, 1 to 8."),
    "planes": _option(
        "--planes", type=int, help="Bits of a feature that are stored; as many as are read if not given."
    ),
    "scaling": _option(
        "--scaling",
        type=NameFrom("scaling", _scalings),
        help="How features are scaled, column by column: minmax to 0 to 1, maxabs by the largest magnitude; "
        "auto takes maxabs for sparse data and minmax for others.",
    ),
    "bias": _option("--bias/--no-bias", help="Whether training has a bias; without, no intercept is fitted."),
    "positive": _option(
        "--positive", metavar="LABEL", help="The label that is set against the rest, if there are more than two."
    ),
    "workers": _option("--workers", type=int, help="Workers that share the features, 1 to 32."),
    "staleness": _option("--staleness", type=int, help="Updates that a forward pass may lack: 0, or 1 to wait less."),
    "validation_fraction": _option(
        "--validation-fraction", type=float, help="Part of the data held out to choose the best epoch."
    ),
    "patience": _option(
        "--patience",
        type=int,
        help="Stop after so many epochs without progress, never if not given; adaptive first lowers the rate.",
    ),
    "tolerance": _option(
        "--tolerance",
        type=float,
        help="Progress of the loss smaller than this counts as none, for patience and adaptive.",
    ),
    "seed": _option("--seed", type=int, help="Seed of the shuffle and of the split."),
}
"""By field of `TrainingOptions`."""


def training_options(command: _Command) -> _Command:
    """Add an option for every field of `TrainingOptions`."""
    for option in reversed(_OPTIONS.values()):
        command = option(command)
    return command


def preparation_options(command: _Command) -> _Command:
    """Add an option for every field of `TrainingOptions` that prepared data depend on."""
    from p4sgd.host.streaming import OPTIONS

    for name in reversed(_OPTIONS):
        if name in OPTIONS:
            command = _OPTIONS[name](command)
    return command


def run_training(
    output: Output,
    job: TrainingRequest,
    config: str | None,
    *,
    samples: int | None = None,
    images: Path | None = None,
    checkpoint: "CheckpointFile | None" = None,
    resume: "Checkpoint | None" = None,
    ranks: Communicator = SINGLE_PROCESS,
    **device_options: Any,
) -> "TrainingResult":
    """Read the data, open the device, train, write the model, and show the epochs.

    The model is written before anything else is done with the result: closing a device takes a while, during which
    one may press Ctrl-C again, and whoever reads the output may have gone away.

    Parameters
    ----------
    output
        Where to.
    job
        What to train.
    config
        Name of a configuration; ``None`` chooses one.
    samples
        How many samples to train on, the first ones; all if not given.
    images
        Folder for the workers' memory images, if they are wanted as files.
    checkpoint
        Where to keep the state after every epoch.
    resume
        Where to go on from, with its configuration.
    ranks
        Processes that do this together, with a worker each; the first writes files.
    device_options
        More arguments for the device.

    Raises
    ------
    UserError, P4sgdError
        As the parts; with a note of how to go on, if there is a way.
    KeyboardInterrupt
        Before the first epoch has ended.
    """
    with output.working("getting ready"):
        import numpy as np

        from p4sgd.host.data import read_dataset
        from p4sgd.host.data.identity import identify
        from p4sgd.host.devices import open_device
        from p4sgd.host.training import TrainingOptions, train
        from p4sgd.host.training.model_file import save_model
        from p4sgd.hw.spec.config import PRESETS

        cluster = find_cluster(job.device, job.cluster)
        choices = dict(job.choices)
        if cluster is not None:
            device_options["cluster"] = cluster
            choices["workers"] = _workers_of(
                f"{job.cluster} has", len(cluster.workers), job, is_fixed=resume is not None
            )
        if not isinstance(ranks, SingleProcess):
            check_distributed(job.device)
            choices["workers"] = _workers_of("mpiexec has started", ranks.size, job, is_fixed=resume is not None)
        check_reading(job.reading, [job.data, job.test])
    prepared = _open_prepared(job.data, samples, images, ranks)
    if prepared is not None:
        fixed = {name for name in choices if resume is not None or is_given(name)}
        if cluster is not None or not isinstance(ranks, SingleProcess):
            fixed.add("workers")
        choices = prepared.options(choices, fixed)
    with output.working("getting ready"):
        options = TrainingOptions(**choices)
        kept = [job.out, checkpoint.path if checkpoint else None]
        check_apart([*kept, *check_new_images(images, options.workers)], [job.data, job.test])
        training_set: Dataset | PreparedFolder
        identity: DataIdentity | None
        if prepared is not None:
            training_set, identity = prepared, prepared.identity
        else:
            training_set = read_dataset(job.data, communicator=ranks, **job.reading)
            if samples is not None and samples < training_set.samples:
                first = f"the first {samples} samples of {training_set.name}"
                training_set = training_set.take(np.arange(samples), first)
            identity = None if resume is None else identify(training_set)
        if resume is not None and identity is not None:
            resume.check_data(identity)  # before test data that match others, and before a simulator
        tested = (
            None
            if job.test is None
            else read_dataset(job.test, like=training_set.space, communicator=ranks, **job.reading)
        )
        if resume is not None:
            chosen = resume.run.config
        elif cluster is not None and config is None:
            chosen = None  # the workers say it themselves
        elif prepared is not None and config is None:
            chosen = prepared.manifest.config
        else:
            features = training_set.space.count + options.bias
            chosen = PRESETS[config or choose_configuration(job.device, features, options.workers)]()
        if job.device == "rtl" and chosen is not None:
            from p4sgd.host.training.preparation import check_memory
            from p4sgd.sim.cluster.protocol import MEMORY_BITS

            check_memory(training_set, options, chosen, 1 << MEMORY_BITS)  # a simulator takes minutes
    if prepared is not None:
        if chosen is not None:
            prepared.check(options, chosen)
        with show_steps(output) as on_progress:
            prepared.verify(on_progress)
    opening = SIMULATOR_OPENING if job.device == "rtl" else None
    with output.working(opening or "getting ready", told=opening is not None):
        workers, part = part_of_job(job.device, options.workers, ranks)
        opened = open_device(job.device, chosen, workers, **device_options, **part)
    table = EpochTable(output, options.epochs, _COLUMNS if prepared is None else _PREPARED_COLUMNS | _COLUMNS)
    try:
        with contextlib.closing(opened), _note_how_to_go_on(checkpoint, output), _note_doctor(opened, job.cluster):
            with table:
                result = train(
                    training_set,
                    options,
                    opened,
                    test=tested,
                    on_epoch=lambda record: table.add(record.to_json()),
                    on_remark=output.remark,
                    directory=images,
                    checkpoint=checkpoint,
                    resume=resume,
                )
            if job.out is not None and ranks.rank == 0:
                save_model(result.model, job.out)
    finally:
        table.print()
    return result


def _open_prepared(data: str, samples: int | None, images: Path | None, ranks: Communicator) -> "PreparedFolder | None":
    """A folder of prepared data, if that is what the user has named."""
    from p4sgd.host.data.read import is_builtin
    from p4sgd.host.streaming.folder import is_prepared, open_prepared

    if is_builtin(data) or not Path(data).is_dir():
        return None
    if not is_prepared(data):
        raise UserError(f"{data}: is a folder, but holds no prepared data or not all: p4sgd data prepare makes it")
    if samples is not None or images is not None:
        option = "--samples" if images is None else "--images"
        raise UserError(f"{data}: was prepared as a whole and has its images already: leave {option} out")
    return open_prepared(Path(data), ranks)


@contextlib.contextmanager
def _note_how_to_go_on(checkpoint: "CheckpointFile | None", output: Output) -> Iterator[None]:
    """Add to an exception what to do about it, if the checkpoint has something of this run."""
    try:
        yield
    except Exception as error:
        if checkpoint is not None and checkpoint.epoch:
            error.add_note(how_to_go_on(checkpoint, output))
        raise


@contextlib.contextmanager
def _note_doctor(device: "Device", cluster: Path | None) -> Iterator[None]:
    """Add to an error of the network how to find out more."""
    from p4sgd.host.devices.diagnosis import NetworkError
    from p4sgd.hw.spec.config import PRESETS

    try:
        yield
    except NetworkError as error:
        if device.name == CLUSTER:
            error.add_note(f"p4sgd doctor --device {CLUSTER} --cluster {shlex.quote(str(cluster))} says more")
            raise
        names = [name for name, make in PRESETS.items() if make() == device.workers[0].config]
        config = "".join(f" --config {name}" for name in names[:1])
        error.add_note(f"p4sgd doctor --device {device.name} --workers {len(device.workers)}{config} says more")
        raise


def _workers_of(whose: str, there: int, job: TrainingRequest, *, is_fixed: bool) -> int:
    """How many workers a run has where that is not free: those that there are, unless others were asked for."""
    wanted: int = job.choices["workers"]
    if wanted != there and (is_fixed or is_given("workers")):
        remedy = "resume it on as many" if is_fixed else "leave --workers out"
        raise UserError(f"{whose} {there} workers, this run has {wanted}: {remedy}")
    return there


def choose_configuration(device: str, features: int, workers: int) -> str:
    """The largest configuration that is quick on the device and in which every worker has a chunk of features."""
    from p4sgd.hw.spec.config import PRESETS

    names = ("u280", "small", "tiny") if device == "emulator" else ("small", "tiny")
    return next((name for name in names if -(-features // PRESETS[name]().lanes) >= workers), names[-1])


def weights_hash(result: "TrainingResult") -> str:
    """SHA-256 of the weights as little-endian int32, in hexadecimal: equal on every device."""
    return hashlib.sha256(result.model.weights.astype("<i4").tobytes()).hexdigest()


def finish(
    output: Output,
    result: "TrainingResult",
    out: Path | None,
    checkpoint: "CheckpointFile | None" = None,
    **more: Any,
) -> None:
    """Say how training went, and end with the status of an interruption if there was one.

    Parameters
    ----------
    output
        Where to.
    result
        What training gave.
    out
        File of the model, if it was written.
    checkpoint
        File of the checkpoint, if there is one.
    more
        Further entries of the JSON document.
    """
    from p4sgd.host.cli.failures import INTERRUPTED
    from p4sgd.host.training import StopReason

    document = result.to_json()
    flags = Counter(flag for record in result.history for flag in record.flags)
    document |= {
        "flags": sorted(flags),
        "weights_sha256": weights_hash(result),
        "out": None if out is None else str(out),
        "checkpoint": None if checkpoint is None else str(checkpoint.path),
    }
    output.document(document | more)
    name = result.monitored.replace("_", " ")
    best = f"epoch {result.best_epoch}, {name} {result.best.metrics[result.monitored]:.4g}"
    kept = "it is not kept: --out MODEL would" if out is None else f"kept in {out}"
    if result.stopped is StopReason.INTERRUPTED:
        done = len(result.history)
        output.tell(f"interrupted after epoch {done}; best so far: {best}; {kept}")
        if checkpoint is not None and checkpoint.epoch and done < document["options"]["epochs"]:
            output.tell(how_to_go_on(checkpoint, output))
        raise click.exceptions.Exit(INTERRUPTED)
    early = f"stopped early after epoch {len(result.history)}; " if result.stopped is StopReason.PATIENCE else ""
    output.say(f"features scaled with {document['scaling']}")
    output.say(f"{early}best model: {best}; {kept}")
