"""A training run of `p4sgd train` or `p4sgd simulate`: its request, display of the progress, and report."""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.failures import INTERRUPTED
from p4sgd.host.cli.output import COLUMNS, SIMULATOR_OPENING, EpochTable, Output, cell, shorten, show_steps
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.training.events import Events, Stage

if TYPE_CHECKING:
    from p4sgd.host.devices.device import WorkerName
    from p4sgd.host.run.folds import Fold
    from p4sgd.host.run.request import TrainingRequest
    from p4sgd.host.run.training_run import TrainingRun
    from p4sgd.host.streaming import OnProgress, Step
    from p4sgd.host.training import EpochRecord, ResultSet, TrainingResult
    from p4sgd.host.training.dealing.split import Split
    from p4sgd.sim.cluster.trace import Trace

_FOLD_METRICS = {
    **{"loss": "loss", "accuracy": "accuracy", "auc": "AUC", "f1": "F1"},
    **{"d2": "D²", "r2": "R²", "rmse": "RMSE", "mae": "MAE"},
}
"""Titles of the metrics in the table of folds, by name."""


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
        display.table.print()
        if isinstance(error, KeyboardInterrupt) and (done := display.rows_done()):
            kept = "" if run.checkpoint is not None else "; nothing is kept: --checkpoint FILE keeps what is done"
            error.__notes__ = [done + kept, *getattr(error, "__notes__", ())]
        raise
    if isinstance(result, TrainingResult):
        display.table.print()
    else:
        _print_rows(output, result)
    return run, result


def run_folds(
    output: Output, request: "TrainingRequest", folds: int, ranks: Communicator = SINGLE_PROCESS
) -> dict[str, Any]:
    """Cross-validate and show the metrics; returns its part of the JSON document, which is printed without ``out``."""
    with output.working("getting ready"):
        from p4sgd.host.run.folds import check_folds, cross_validate, summarise
        from p4sgd.host.run.training_run import TrainingRun

        check_folds(request)
        run = TrainingRun(request, ranks)
    display = _Display(output, run, folds=folds)
    done: list[Fold] = []
    try:
        with display.shown:
            for fold in cross_validate(run, folds, display):
                done.append(fold)  # what is done stays if the next one is interrupted
    except KeyboardInterrupt as error:
        _print_folds(output, done)
        error.add_note(f"{len(done)} of {folds} folds are finished; the next run begins with the first again")
        raise
    mean, deviation = summarise(done)
    found = {"folds": [fold.to_json() for fold in done], "mean": mean, "deviation": deviation}
    document = {"cross_validation": found}
    if request.out is None:
        output.document(run.to_json() | document)
    _print_folds(output, done, **{"mean": mean, "±": deviation})
    return document


def _print_folds(output: Output, done: "Sequence[Fold]", **summaries: Mapping[str, float]) -> None:
    """A table with a row for each fold, and then for each summary."""
    if not done:
        return
    names = [name for name in _FOLD_METRICS if name in done[0].metrics]
    rows: list[list[object]] = []
    for fold in done:
        metrics = (cell(name, fold.metrics[name]) for name in names)
        rows.append([fold.number, fold.samples, fold.result.best_epoch, *metrics])
    rows += [[title, "", "", *(cell(name, values[name]) for name in names)] for title, values in summaries.items()]
    output.table(["fold", "samples", "epoch", *(_FOLD_METRICS[name] for name in names)], rows)


def _print_rows(output: Output, result: "ResultSet") -> None:
    """A table with a row for each row of a model: its epochs, and its metrics without rounding."""
    measured = [key for key in COLUMNS if result.rows[0].metrics.get(key) is not None]
    rows = []
    for name, row in zip(result.names, result.rows, strict=True):
        metrics = (cell(key, row.metrics[key]) for key in measured)
        rows.append([name, len(row.history), row.best_epoch, *metrics, f"{row.history[0].learning_rate:.4g}"])
    titles = [COLUMNS[key] for key in measured]
    columns = [result.model.labels.row_kind, "epochs", "best epoch", *titles, "first rate"]
    output.table(columns, rows, spare=("first rate", "epochs", "best epoch"))


class _Display(Events):
    """Display of a training run on the terminal: in each stage something else, until ``shown`` is closed."""

    def __init__(
        self,
        output: Output,
        run: "TrainingRun",
        on_trace: "Callable[[Trace], None]" = lambda trace: None,
        folds: int = 0,
    ) -> None:
        self._output = output
        self._folds = folds
        self._run = run
        self._on_trace = on_trace
        self.shown = contextlib.ExitStack()
        self.table = EpochTable(output, run.options.epochs)
        self._row, self._names = 0, list[str]()
        self._on_progress: OnProgress | None = None

    def stage(self, stage: Stage) -> None:
        self.shown.close()  # two live displays at once are not possible
        if stage is Stage.VERIFY:
            self._on_progress = self.shown.enter_context(show_steps(self._output))
        elif stage is Stage.OPEN:
            is_simulated = self._run.device == "rtl"
            what = SIMULATOR_OPENING if is_simulated else "getting ready"
            self.shown.enter_context(self._output.working(what, told=is_simulated))
        elif stage is Stage.TRAIN:
            self.shown.enter_context(self.table.live())

    def fold(self, number: int) -> None:
        self.shown.close()
        self.shown.enter_context(self._output.working(f"fold {number} of {self._folds}"))

    def remark(self, text: str) -> None:
        self._output.remark(text)

    def warning(self, text: str) -> None:
        self._output.warn(text)

    def progress(self, step: "Step", done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(step, done, total)

    def row(self, row: int, names: Sequence[str]) -> None:
        self.shown.close()
        self._row, self._names = row, list(names)
        title = f"{row + 1} of {len(names)}: {shorten(names[row])}, epoch"
        self.table = EpochTable(self._output, self._run.options.epochs, title)
        self.shown.enter_context(self.table.live())

    def epoch(self, record: "EpochRecord") -> None:
        self.table.add(record.to_json())

    def trace(self, trace: "Trace") -> None:
        self._on_trace(trace)

    def rows_done(self) -> str:
        """How far the rows of the model are, for a message; empty if it has a single one, or none has begun."""
        if not self._names:
            return ""
        done, now = len(self.table.rows), shorten(self._names[self._row])
        epochs = f"{done} epoch{'s' if done != 1 else ''}"
        return f"{self._row} of {len(self._names)} rows of the model are finished, and {epochs} of {now}"

    def split(self, split: "Split", names: "Sequence[WorkerName]") -> None:
        columns = ["worker", "columns", "nonzeros", "predicted µs a sample"]
        self._output.table(columns, _split_rows(split, [name.number for name in names]), remark=True)


def _split_rows(split: "Split", numbers: Sequence[int]) -> list[list[object]]:
    """Workers one after another that are of a kind and take the same time have a row together."""
    from p4sgd.host.training.dealing.split import microseconds

    rows: list[list[object]] = []
    numbered = zip(numbers, split.workers, strict=True)
    for (sparse, time), group in itertools.groupby(
        numbered, lambda each: (each[1].sparse, microseconds(each[1].sample_ns))
    ):
        members, workers = zip(*group, strict=True)
        few = len(members) < 3 or members != tuple(range(members[0], members[-1] + 1))
        name = ", ".join(map(str, members)) if few else f"{members[0]}–{members[-1]}"
        columns, nonzeros = sum(each.columns for each in workers), sum(each.nonzeros for each in workers)
        rows.append([f"{name} {'sparse' if sparse else 'dense'}", columns, f"{nonzeros:.1%}", time])
    for name, other in (("all dense", split.all_dense), ("all sparse", split.all_sparse)):
        if other.sample_ns is None:
            rows.append([name, f"at most {other.room:,}", "", "too many columns"])
        else:
            rows.append([name, split.total, f"{1:.1%}", microseconds(other.sample_ns)])
    return rows


def _resume_words(output: Output) -> list[str]:
    return [word for word, told in (("--json", output.as_json), ("--quiet", output.quiet)) if told]


def finish(
    output: Output,
    run: "TrainingRun",
    result: "TrainingResult | ResultSet",
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Report the result of a run, with ``more`` entries of the document; after Ctrl-C, exit with its status."""
    import numpy as np

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
    early = f"stopped early after epoch {done}; " if result.stopped is StopReason.PATIENCE else ""
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
