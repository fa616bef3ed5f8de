"""The command `p4sgd train`, in one process or in several that train together; and the run that `simulate` shares."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.app import INTERRUPTED, describe, report
from p4sgd.host.cli.output import COLUMNS, Output, cell, make_table, shorten
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.training.events import Events, Stage

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from p4sgd.host.devices.device import WorkerName
    from p4sgd.host.run.request import TrainingRequest
    from p4sgd.host.run.training_run import TrainingRun
    from p4sgd.host.streaming import OnProgress, Step
    from p4sgd.host.training import EpochRecord, ResultSet, TrainingResult
    from p4sgd.host.training.dealing.split import Split
    from p4sgd.sim.cluster.trace import Trace


@click.command()
@click.argument("data", type=options.data_name, required=False)
@options.results
@options.path(
    "--checkpoint",
    "FILE",
    "File that keeps the state after every epoch, for --resume; with --resume, by default the same file. That of the "
    "same run that has ended is replaced only with --overwrite.",
)
@options.path(
    "--resume",
    "FILE",
    "Resume the run of a checkpoint, with its data and options. The result is that of a run that never stopped. "
    "--epochs, --workers, --parallel, --shares, --split, --skip-zeros, --on-loss, --stand-ins, --merge, --config, "
    "--sparse-workers, --out, --report, --device, --cluster and --checkpoint may differ.",
)
@options.path(
    "--init",
    "MODEL",
    "Start from the weights of a model. Its features, loss, precision and scaling are kept, and for numbers mean and "
    "deviation of its targets; the other options are those of this run, and the learning rate is found anew.",
)
@click.option("--device", type=options.device_kind, default="emulator", help="What to train on.")
@options.cluster
@click.option(
    "--launcher",
    type=options.NameFrom("launcher", "p4sgd.host.distributed:LAUNCHERS"),
    show_default="none",
    help="How the processes of this run were started: mpi for `mpiexec -n 4 p4sgd train … --launcher mpi`, where each "
    "process has one worker; none for a single process.",
)
@options.config_and_settings(
    "Configuration of each worker, which does not change the weights; by default small in simulation, on the emulator "
    "u280, a smaller one for few features, and sparse for sparse data."
)
@options.count(
    "--sparse-workers",
    0,
    "How many of the emulator's workers are sparse: the last ones. Of sparse data they get the columns with few "
    "values; see --split.",
    default=0,
    show_default=False,
    metavar="N",
)
@options.training
@options.reading
@options.common
def train(launcher: str | None, output: Output, **choices: Any) -> None:
    """Train a model.

    DATA is a file, the name of a data set that comes with scikit-learn, such as breast_cancer or iris:versicolor
    (these flowers against the rest), or a folder made by p4sgd data prepare. Columns of texts become
    features of 0 and 1, such as sex=male; --missing fills gaps. With --resume, DATA is needed only if the data of the
    checkpoint have moved.

    More than two classes are trained one after another, each against the rest, and so are several targets (several
    --label-column).

    The table has a row for every epoch, or for every class or target. The train loss and accuracy are those on the
    features as the device reads them, with --precision bits; validation and test data are not rounded. In the end the
    intercept of the best model is fitted again, to the unrounded training data, and the model is measured without
    rounding: these are the figures of p4sgd evaluate. The rate is the learning rate used; samples/s is the speed of the
    device, without the time to measure.
    """
    with _run_ranks(launcher) as ranks:
        output.silent = ranks.rank > 0  # rank 0 prints it
        if choices["data"] is None and choices["resume"] is None:
            raise click.MissingParameter(param_hint="'DATA'", param_type="argument")
        if not options.is_given("device"):
            choices["device"] = None
        with output.working("getting ready"):
            request = make_request(choices)
        run, result = run_training(output, request, ranks)
        finish(output, run, result)


@contextlib.contextmanager
def _run_ranks(launcher: str | None) -> Iterator[Communicator]:
    """The processes that carry out the running command together.

    A failure that is the same in all of them is reported once. Otherwise every process that fails names its rank; then
    all processes end, with the exit status of the failure.
    """
    from p4sgd.host.distributed import open_communicator

    ranks = open_communicator(launcher)
    if ranks.size == 1:
        yield ranks
        return
    try:
        yield ranks
    except click.exceptions.Exit:
        raise
    except (Exception, KeyboardInterrupt) as error:
        command = click.get_current_context().command_path
        status, line = describe(error, command)
        if ranks.interrupted:  # where it kept this rank from reaching the call in which all stop
            status = INTERRUPTED
        failures = ranks.fail(line)
        if failures is None or len(set(failures)) > 1:
            command = f"{command}, rank {ranks.rank}"
        if failures is None or failures.index(line) == ranks.rank:
            report(error, command)
        if failures is None:
            ranks.abort(status)
        raise click.exceptions.Exit(status) from error


def make_request(choices: MutableMapping[str, Any], **more: Any) -> "TrainingRequest":
    """The request that a command's options make, with ``more`` fields; what is no field of its own is for training."""
    from p4sgd.host.run.request import TrainingRequest

    reading = options.take_reading(choices)
    own = {each.name: choices.pop(each.name) for each in dataclasses.fields(TrainingRequest) if each.name in choices}
    return TrainingRequest(
        **own, **more, reading=reading, options=options.given(choices), options_file=options.options_file()
    )


def run_training(
    output: Output,
    request: "TrainingRequest",
    ranks: Communicator = SINGLE_PROCESS,
    on_trace: "Callable[[Trace], None]" = lambda trace: None,
) -> "tuple[TrainingRun, TrainingResult | ResultSet]":
    """Make and carry out a training run; show how it goes, and in the end the table of epochs, or of rows."""
    with output.working("getting ready"):
        from p4sgd.host.run.training_run import TrainingRun
        from p4sgd.host.training import TrainingResult

        run = TrainingRun(request, ranks)
    display = _Display(output, run, on_trace)
    try:
        with display.shown:
            result = run.execute(display, resume_words=_resume_words(output))
    except BaseException as error:
        display.print()
        if isinstance(error, KeyboardInterrupt) and (done := display.rows_done()):
            kept = "" if run.checkpoint is not None else "; nothing is kept: --checkpoint FILE keeps what is done"
            error.__notes__ = [done + kept, *getattr(error, "__notes__", ())]
        raise
    if isinstance(result, TrainingResult):
        display.print()
        return run, result
    measured = [key for key in COLUMNS if result.rows[0].metrics.get(key) is not None]
    rows = []
    for name, row in zip(result.names, result.rows, strict=True):
        metrics = (cell(key, row.metrics[key]) for key in measured)
        rows.append([name, len(row.history), row.best_epoch, *metrics, f"{row.history[0].learning_rate:.4g}"])
    titles = [result.model.labels.row_kind, "epochs", "best epoch", *(COLUMNS[key] for key in measured), "first rate"]
    output.table(titles, rows, spare=("first rate", "epochs", "best epoch"))
    return run, result


class _Display(Events):
    """Display of a training run on the terminal: in each stage something else, until ``shown`` is closed."""

    def __init__(
        self,
        output: Output,
        run: "TrainingRun",
        on_trace: "Callable[[Trace], None]" = lambda trace: None,
    ) -> None:
        self._output = output
        self._run = run
        self._on_trace = on_trace
        self.shown = contextlib.ExitStack()
        self._epochs: list[dict[str, Any]] = []
        self._row, self._names = 0, list[str]()
        self._on_progress: OnProgress | None = None
        self._refresh: Callable[[], None] = lambda: None

    def stage(self, stage: Stage) -> None:
        self.shown.close()  # two live displays at once are not possible
        if stage is Stage.VERIFY:
            self._on_progress = self.shown.enter_context(self._output.steps())
        elif stage is Stage.OPEN:
            self.shown.enter_context(self._output.opening(self._run.device))
        elif stage is Stage.TRAIN:
            self._show_epochs("epoch")

    def progress(self, step: "Step", done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(step, done, total)

    def row(self, row: int, names: Sequence[str]) -> None:
        self.shown.close()
        self._row, self._names, self._epochs = row, list(names), []
        self._show_epochs(f"{row + 1} of {len(names)}: {shorten(names[row])}, epoch")

    def epoch(self, record: "EpochRecord") -> None:
        self._epochs.append(record.to_json())
        self._refresh()

    def remark(self, text: str) -> None:
        self._output.remark(text)

    def warning(self, text: str) -> None:
        self._output.warn(text)

    def trace(self, trace: "Trace") -> None:
        self._on_trace(trace)

    def rows_done(self) -> str:
        """How far the rows of the model are, for a message; empty if it has a single one, or none has begun."""
        if not self._names:
            return ""
        done, now = len(self._epochs), shorten(self._names[self._row])
        epochs = f"{done} epoch{'s' if done != 1 else ''}"
        return f"{self._row} of {len(self._names)} rows of the model are finished, and {epochs} of {now}"

    def split(self, split: "Split", names: "Sequence[WorkerName]") -> None:
        columns = ["worker", "columns", "nonzeros", "predicted µs a sample"]
        self._output.table(columns, _split_rows(split, [name.number for name in names]), remark=True)

    def print(self) -> None:
        if self._epochs and not self._output.as_json:
            self._output.results.print(self._table(self._output.results), soft_wrap=True)

    def _table(self, console: "Console", last: int = 0) -> "Table":
        """A table of the ``last`` epochs, or all, with the columns that have a number in any."""
        used = [key for key in COLUMNS if any(epoch.get(key) is not None for epoch in self._epochs)]
        rows = [[cell(key, epoch.get(key)) for key in used] for epoch in self._epochs[-last:]]
        return make_table(console, [COLUMNS[key] for key in used], rows, 1, ("samples/s", "rate"))

    def _show_epochs(self, title: str) -> None:
        """Show the last epochs and a progress bar, on a terminal."""
        if not self._output.shows_progress:
            return
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = self._output.remarks
        columns = (TextColumn(title), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn())
        progress = Progress(*columns, console=console)
        task = progress.add_task("epochs", total=self._run.options.epochs)
        live = self.shown.enter_context(Live(progress, console=console, transient=True, refresh_per_second=8))

        def refresh() -> None:
            progress.update(task, completed=len(self._epochs))
            live.update(Group(self._table(console, last=12), progress))

        self._refresh = refresh


def _split_rows(split: "Split", numbers: Sequence[int]) -> list[list[object]]:
    """A row for each worker, and what all of one kind would take."""
    from p4sgd.host.training.dealing.split import microseconds

    rows: list[list[object]] = []
    for number, each in zip(numbers, split.workers, strict=True):
        name = f"{number} {'sparse' if each.sparse else 'dense'}"
        rows.append([name, each.columns, f"{each.nonzeros:.1%}", microseconds(each.sample_ns)])
    for name, other in (("all dense", split.all_dense), ("all sparse", split.all_sparse)):
        if other.sample_ns is None:
            rows.append([name, f"at most {other.room:,}", "", "too many columns"])
        else:
            rows.append([name, split.total, f"{1:.1%}", microseconds(other.sample_ns)])
    return rows


def _resume_words(output: Output) -> list[str]:
    return [word for word, is_set in (("--json", output.as_json), ("--quiet", output.quiet)) if is_set]


def finish(
    output: Output,
    run: "TrainingRun",
    result: "TrainingResult | ResultSet",
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Report the result of a run, with ``more`` entries of the document; after Ctrl-C, exit with its status."""
    import numpy as np

    from p4sgd.host.losses import Task
    from p4sgd.host.run.training_run import resume_advice
    from p4sgd.host.training import StopReason, TrainingResult

    request, checkpoint, chosen = run.request, run.checkpoint, run.options
    paths = {"out": request.out, "report": request.report, "init": request.init}
    paths["checkpoint"] = None if checkpoint is None else checkpoint.path
    document = result.to_json() | {
        "flags": sorted({flag for record in result.history for flag in record.flags}),
        # The same on every device: weights as little-endian int32.
        "weights_sha256": hashlib.sha256(np.ascontiguousarray(result.model.weights, "<i4").data).hexdigest(),
        **{name: None if path is None else str(path) for name, path in paths.items()},
    }
    output.document({**document, **more})
    if request.report is not None:
        output.say(f"report in {request.report}")
    last, name = result, result.monitored.replace("_", " ")
    if isinstance(result, TrainingResult):
        best = f"epoch {result.best_epoch}, {name} {result.best.metrics[result.monitored]:.4g}"
    else:
        last = result.rows[-1]
        best = f"the epoch of each {result.model.labels.row_kind} with the lowest {name}"
    done, times = len(last.history), last.summary["message_times"]
    kept = "not kept: --out MODEL keeps it" if request.out is None else f"kept in {request.out}"
    if result.stopped is StopReason.INTERRUPTED:
        output.tell(f"interrupted after epoch {done}; best so far: {best}; {kept}")
        if checkpoint is not None and checkpoint.last and done < chosen.epochs:
            output.tell(resume_advice(checkpoint, run.ranks, _resume_words(output)))
        raise click.exceptions.Exit(INTERRUPTED)
    if not output.quiet:
        output.say(describe_scaling(document["scaling"], document["scaling_reason"], chosen.precondition))
        if chosen.penalties[0] is None:
            classes = result.model.labels.task is Task.CLASSIFICATION
            weak = ", as weak as C=1 of scikit-learn" if classes else ""
            output.say(f"L2 penalty {last.summary['l2']:.3g}{weak}: --l2 0 is none")
        if document["whitening_times"]:
            from p4sgd.host.precondition.stage import StageTimes

            output.say(str(StageTimes(**document["whitening_times"])))
        if times:
            from p4sgd.host.distributed.overlap import MessageTimes

            output.say(str(MessageTimes(**times)))
    if chosen.merge != "auto" and not times and "packets" not in last.summary:
        output.remark(
            f"--merge {chosen.merge} had no effect: only the programs of a cluster and, after the first 10 "
            "mini-batches, processes that divide the features (--launcher mpi) send sums of several micro-batches"
        )
    early = {
        StopReason.PATIENCE: f"stopped early after epoch {done}; ",
        StopReason.CONVERGED: f"nothing was gained after epoch {done}; ",
    }.get(result.stopped, "")
    output.say(f"{early}best model: {best}; {kept}")
    known = ("train", "validation", "test") if run.folder is None else ("validation", "test")
    metrics = [
        f"{COLUMNS[key]} {cell(key, value)}"
        for key, value in document["metrics"].items()
        if key.startswith(known) and key in COLUMNS and value is not None
    ]
    if metrics:
        output.say(f"without rounding: {', '.join(metrics)}")


def describe_scaling(kind: str, reason: str, precondition: str) -> str:
    """How features were scaled and whitened, and why ``auto`` chose this scaling."""
    from p4sgd.host.precondition import BLOCK

    whitened = "" if precondition == "none" else f" before they are whitened in blocks of {BLOCK}"
    return f"features scaled with {kind}{whitened}{f': {reason}' if reason else ''}"
