"""A training run of `p4sgd train` or `p4sgd simulate`: options, display of the progress, and report."""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from p4sgd.host.cli.failures import INTERRUPTED
from p4sgd.host.cli.options import NameFrom
from p4sgd.host.cli.output import SIMULATOR_OPENING, EpochTable, Output, cell, shorten, show_steps
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator

if TYPE_CHECKING:
    from p4sgd.host.devices.device import WorkerName
    from p4sgd.host.run.execute import Stage
    from p4sgd.host.run.plan import TrainingPlan
    from p4sgd.host.run.request import TrainingRequest
    from p4sgd.host.streaming.state import OnProgress, Step
    from p4sgd.host.training import EpochRecord, ResultSet, TrainingResult
    from p4sgd.host.training.heat import Split

__all__ = [
    "COLUMNS",
    "describe_scaling",
    "finish",
    "preparation_options",
    "report_option",
    "run_folds",
    "run_training",
    "training_options",
    "tuning_options",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

COLUMNS = {
    "epoch": "epoch",
    "train_loss": "train loss",
    "train_accuracy": "train accuracy",
    "train_r2": "train R²",
    "train_d2": "train D²",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "validation_r2": "validation R²",
    "validation_d2": "validation D²",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "test_r2": "test R²",
    "test_d2": "test D²",
    "learning_rate": "rate",
    "samples_per_second": "samples/s",
}
"""Titles of the columns of the table of epochs, by key."""


class _TrainingOption(click.Option):
    """An option with the default of the field of the same name in `TrainingOptions`."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        from p4sgd.host.training.options import TrainingOptions

        return {field.name: field.default for field in dataclasses.fields(TrainingOptions)}[self.name or ""]


def _losses() -> Iterable[str]:
    from p4sgd.host.losses import LOSSES

    return LOSSES


def _losses_elsewhere() -> Mapping[str, str]:
    from p4sgd.host.losses import ELSEWHERE

    return ELSEWHERE


def _scalings() -> Iterable[str]:
    from p4sgd.host.data.scaling import KINDS

    return KINDS


def _fillings() -> Iterable[str]:
    from p4sgd.host.data.encoding import FILLINGS

    return FILLINGS


def _names(constant: str) -> Callable[[], Iterable[str]]:
    """Returns, when called, the names in a constant of `p4sgd.host.training.options`."""

    def names() -> Iterable[str]:
        from p4sgd.host.training import options

        found: tuple[str, ...] = getattr(options, constant)
        return found

    return names


def _option(*names: str, show_default: bool = True, **attributes: Any) -> Callable[[_Command], _Command]:
    return click.option(*names, cls=_TrainingOption, show_default=show_default, **attributes)


_LOSS_HELP = (
    "Loss to minimise. Of two classes: logistic, for probabilities; hinge, of support vector machines; squared_hinge, "
    "the same but smooth; modified_huber, smooth and tolerant of wrong labels, for probabilities. Of numbers: squared, "
    "least squares; huber, the same but linear beyond --epsilon; epsilon_insensitive, linear beyond --epsilon and "
    "nothing below; quantile, for a --quantile instead of the mean. Of numbers by e^z, a logarithmic link: poisson, of "
    "at least 0, as counts are; gamma, above 0; tweedie, of at least 0 with a --tweedie-power between both."
)

_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "loss": _option("--loss", type=NameFrom("loss", _losses, _losses_elsewhere), help=_LOSS_HELP),
    "epsilon": _option(
        "--epsilon",
        type=float,
        help="Threshold of the losses huber and epsilon_insensitive, in the unit of the target; by default an eighth "
        "of its standard deviation.",
    ),
    "quantile": _option(
        "--quantile",
        type=float,
        help="Quantile that the loss quantile fits, above 0 and below 1; by default the median, 0.5.",
    ),
    "tweedie_power": _option(
        "--tweedie-power",
        type=float,
        help="Power of the loss tweedie, above 1 (poisson) and below 2 (gamma); by default 1.5.",
    ),
    "epochs": _option("--epochs", type=int, help="Maximum number of passes over the data."),
    "batch": _option(
        "--batch",
        type=int,
        help="Samples in a mini-batch, a multiple of 8; a last one that is not full makes a smaller update.",
    ),
    "learning_rate": _option(
        "--lr",
        "learning_rate",
        type=float,
        help="Initial learning rate; by default it is found by short trials on a part of the data. If training "
        "diverges, it is divided by 10, or by more if trials find a lower one, and training goes back to the best "
        "weights, or to the start.",
    ),
    "schedule": _option(
        "--schedule",
        type=NameFrom("schedule", _names("SCHEDULES")),
        help="Learning rate over the epochs: constant; invscaling divides it by epoch^power; adaptive waits for "
        "--patience epochs without progress, 1 by default, and goes on from the best weights with a fifth of the rate. "
        "If that brings progress, it takes the rate back up once progress ends; if not, it lowers it further.",
    ),
    "power": _option("--power", type=float, help="Exponent of the schedule invscaling."),
    "l2": _option(
        "--l2",
        type=float,
        help="Strength of the L2 penalty. It acts on coefficients of features with a deviation of 1 (scalings standard "
        "and robust), of raw features (none), or of scaled ones (minmax, maxabs), not on the intercept.",
    ),
    "l1": _option("--l1", type=float, help="Strength of the L1 penalty, on the same coefficients."),
    "alpha": _option(
        "--alpha",
        type=float,
        help="Strength of both penalties as in scikit-learn's SGD and ElasticNet, in place of --l2 and --l1: "
        "alpha * ((1 - l1_ratio) / 2 * |w|^2 + l1_ratio * |w|).",
    ),
    "l1_ratio": _option(
        "--l1-ratio", type=float, help="Part of --alpha that is an L1 penalty, 0 to 1; by default 0, only L2."
    ),
    "precision": _option("--precision", type=int, help="Bits of a feature that training reads, 1 to 8."),
    "planes": _option(
        "--planes", type=int, help="Bits of a feature that are stored, 1 to 8; by default as many as are read."
    ),
    "scaling": _option(
        "--scaling",
        type=NameFrom("scaling", _scalings),
        help="Scaling of each feature: standard by mean and deviation, robust by median and quantiles, minmax to the "
        "range 0 to 1, maxabs by the largest magnitude, none by one power of two for all; auto chooses by the data: "
        "standard, or robust where a few values are far outside; for sparse data none or maxabs.",
    ),
    "missing": _option(
        "--missing",
        type=NameFrom("filling of missing values", _fillings),
        help="What is done about missing values of a CSV or Parquet file: error refuses them; mean takes the mean of "
        "the column's training samples, and of a column of texts none of its texts; indicator does that and adds a "
        "feature that is 1 where a value was missing.",
    ),
    "precondition": _option(
        "--precondition",
        type=NameFrom("precondition", _names("PRECONDITIONS")),
        help="Preconditioning: block whitens dense features in blocks of 64 columns, so that correlated columns need "
        "fewer epochs. --l2 then acts on the weights of whitened features; --l1 is refused.",
    ),
    "damping": _option(
        "--damping",
        type=float,
        help="What --precondition block adds to the diagonal of the correlations: with more of it, small differences "
        "of correlated columns count less.",
    ),
    "bias": _option("--bias/--no-bias", help="Whether to fit an intercept."),
    "positive": _option(
        "--positive",
        metavar="LABEL",
        help="Label of class 1, all other labels being class 0. Without it, of more than two classes each is trained "
        "against the rest.",
    ),
    "class_weight": _option(
        "--class-weight",
        metavar="balanced|LABEL=WEIGHT,…",
        help="Weights of classes: balanced, so that both count the same in total; or weights by label, as in "
        "spam=2,ham=0.5, where labels that are not named weigh 1. They multiply the weights of samples, and count in "
        "training and in the loss of held-out samples.",
    ),
    "unit": _option(
        "--unit",
        type=int,
        help="Features that stay together on an engine, and whose part of an activation is rounded: 8, 16, 32 or 64; "
        "by default the most that leave 32 units. With fewer than a worker has lanes, some of its lanes are idle; with "
        "fewer units than the workers of a cluster together have engines, some engines are.",
    ),
    "workers": _option(
        "--workers",
        type=int,
        show_default=False,
        help="Number of workers that share the features, 1 to 32; by default 1, or all workers of the cluster file.",
    ),
    "parallel": _option(
        "--parallel",
        type=NameFrom("way to divide the work", _names("PARALLELS")),
        help="What several processes (--launcher) divide: model gives each a worker with some of the columns; data "
        "gives each some of the samples of a single sparse worker, for sparse data with millions of columns.",
    ),
    "shares": _option(
        "--shares",
        type=NameFrom("choice of shares", _names("SHARES")),
        help="How the features of a cluster are shared out: fixed by the share of each worker in the cluster file, or "
        "equally; auto by the workers' speeds, which are measured first.",
    ),
    "split": _option(
        "--split",
        help="How many columns of sparse data are on dense workers, those with the most values, if others are sparse "
        "workers: a number; auto so that the slowest worker should be fastest; none for equal shares. With --parallel "
        "data, how many columns all processes have: auto by their heat, none for none.",
    ),
    "skip_zeros": _option(
        "--skip-zeros",
        type=NameFrom("choice of zeros to skip", _names("SKIP_ZEROS")),
        help="Whether dense workers leave out lines of zeros, so that boards take no time for them: auto for sparse "
        "data if that should be faster; always or never, whatever is predicted. The weights are the same.",
    ),
    "on_loss": _option(
        "--on-loss",
        type=NameFrom("reaction", _names("ON_LOSS")),
        help="What to do when a worker is lost: adopt deals its features to the others and trains the epoch "
        "again, to the same weights; stop ends the run.",
    ),
    "merge": _option(
        "--merge",
        help="How many micro-batches of 8 samples have their sums in one message, where messages cost a program time: "
        "in packets between the programs of a cluster, and between processes (--launcher) that divide the features. A "
        "number; auto for so many that a mini-batch should be done first, by measured times.",
    ),
    "staleness": _option(
        "--staleness",
        type=int,
        help="With 1, a mini-batch may read weights that lack the update of the one before, which saves waiting; "
        "with 0 it may not.",
    ),
    "validation_fraction": _option(
        "--validation-fraction", type=float, help="Fraction of the samples held out to choose the best epoch."
    ),
    "patience": _option(
        "--patience",
        type=int,
        help="Stop after so many epochs without progress; by default never. The schedule adaptive then tries "
        "a lower rate for as many more. Progress is a fall of the validation loss, or without held-out samples of the "
        "train loss with the penalties, by which the best epoch is chosen, too.",
    ),
    "tolerance": _option(
        "--tolerance",
        type=float,
        help="Smallest fall of the loss, as a fraction of it, that counts as progress, for --patience and the schedule "
        "adaptive. Without --patience, adaptive divides it like the rate.",
    ),
    "seed": _option("--seed", type=int, help="Seed of the shuffle and of the validation split."),
}
"""By field of `TrainingOptions`."""


def training_options(command: _Command) -> _Command:
    """Add an option for every field of `TrainingOptions`."""
    for option in reversed(_OPTIONS.values()):
        command = option(command)
    return command


_NOT_TUNED = (
    "precision",
    "planes",
    "batch",
    "l2",
    "alpha",
    "l1_ratio",
    "validation_fraction",
    "parallel",
    "shares",
    "split",
    "skip_zeros",
    "on_loss",
    "merge",
)
"""Fields of `TrainingOptions` that `p4sgd tune` searches for or has otherwise, or that are not for a single process."""


def tuning_options(command: _Command) -> _Command:
    """Add an option for every field of `TrainingOptions` that is the same in all runs of a search."""
    for name in reversed(_OPTIONS):
        if name not in _NOT_TUNED:
            command = _OPTIONS[name](command)
    return command


def preparation_options(command: _Command) -> _Command:
    """Add an option for every field of `TrainingOptions` that prepared data depend on."""
    from p4sgd.host.streaming import OPTIONS

    for name in reversed(_OPTIONS):
        if name in OPTIONS:
            command = _OPTIONS[name](command)
    return command


def report_option(command: _Command) -> _Command:
    """Add ``--report``."""
    return click.option(
        "--report",
        type=click.Path(path_type=Path),
        metavar="FILE.html",
        help="HTML page to write in the end: curves of the epochs, how good the model is, its largest coefficients, "
        "and where cycles are counted, what they went for. Needs pip install 'p4sgd[report]'.",
    )(command)


def run_training(
    output: Output, request: "TrainingRequest", ranks: Communicator = SINGLE_PROCESS
) -> "tuple[TrainingPlan, TrainingResult | ResultSet]":
    """Plan and execute a training run; show how it goes, and in the end the table of epochs, or of rows.

    Raises
    ------
    UserError, P4sgdError, KeyboardInterrupt
        As `p4sgd.host.run.plan.make_plan` and `p4sgd.host.run.execute.execute`.
    """
    with output.working("getting ready"):
        from p4sgd.host.run.execute import execute
        from p4sgd.host.run.plan import make_plan
        from p4sgd.host.training import TrainingResult

        plan = make_plan(request, ranks)
    display = _Display(output, plan)
    try:
        with display:
            result = execute(
                plan,
                on_stage=display.begin,
                on_progress=display.progress,
                on_epoch=display.add,
                on_remark=output.remark,
                on_row=display.begin_row,
                on_split=display.show_split,
                resume_words=_resume_words(output),
            )
    except BaseException:
        display.table.print()
        raise
    if isinstance(result, TrainingResult):
        display.table.print()
    else:
        _print_rows(output, result)
    return plan, result


_FOLD_METRICS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "F1",
    "d2": "D²",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
}
"""Titles of the metrics in the table of folds, by name."""


def run_folds(
    output: Output, request: "TrainingRequest", folds: int, ranks: Communicator = SINGLE_PROCESS
) -> dict[str, Any]:
    """Cross-validate: train and measure a model for each fold, and show the metrics.

    Returns
    -------
    What the JSON document of the run has of it. Without ``out`` in the request it is printed.

    Raises
    ------
    UserError, P4sgdError, KeyboardInterrupt
        As `p4sgd.host.run.folds.cross_validate`.
    """
    with contextlib.ExitStack() as shown:
        shown.enter_context(output.working("getting ready"))
        from p4sgd.host.run.folds import check_folds, cross_validate, summarise
        from p4sgd.host.run.plan import make_plan

        check_folds(request)
        plan = make_plan(request, ranks)

        def show(number: int) -> None:
            shown.close()
            shown.enter_context(output.working(f"fold {number} of {folds}"))

        done = cross_validate(plan, folds, on_fold=show, on_remark=output.remark)
    mean, deviation = summarise(done)
    found = {"folds": [fold.to_json() for fold in done], "mean": mean, "deviation": deviation}
    document = {"cross_validation": found}
    if request.out is None:
        output.document(plan.to_json() | document)
    names = [name for name in _FOLD_METRICS if name in mean]
    rows = [
        [f"{fold.number}", f"{fold.samples:,}", f"{fold.result.best_epoch}", *(cell(n, fold.metrics[n]) for n in names)]
        for fold in done
    ]
    for title, values in (("mean", mean), ("±", deviation)):
        rows.append([title, "", "", *(cell(name, values[name]) for name in names)])
    output.table(["fold", "samples", "epoch", *(_FOLD_METRICS[name] for name in names)], rows)
    return document


def _print_rows(output: Output, result: "ResultSet") -> None:
    """A table with a row for each row of a model: its epochs, and its metrics without rounding."""
    measured = [key for key in COLUMNS if result.rows[0].metrics.get(key) is not None]
    rows = [
        (
            name,
            f"{len(row.history)}",
            f"{row.best_epoch}",
            *(cell(key, row.metrics[key]) for key in measured),
            cell("learning_rate", row.history[0].learning_rate),
        )
        for name, row in zip(result.names, result.rows, strict=True)
    ]
    titles = [COLUMNS[key] for key in measured]
    columns = [result.model.labels.row_kind, "epochs", "best epoch", *titles, "first rate"]
    output.table(columns, rows, spare=("first rate", "epochs", "best epoch"))


class _Display(contextlib.AbstractContextManager["_Display"]):
    """What a training run shows on the terminal: in each stage something else."""

    def __init__(self, output: Output, plan: "TrainingPlan") -> None:
        self.table = EpochTable(output, plan.options.epochs, COLUMNS)
        self._epochs = plan.options.epochs
        self._output = output
        self._opening = SIMULATOR_OPENING if plan.device == "rtl" else None
        self._shown = contextlib.ExitStack()
        self._on_progress: OnProgress | None = None

    def begin(self, stage: "Stage") -> None:
        """Show a stage in place of the one before: two live displays at once are not possible."""
        from p4sgd.host.run.execute import Stage

        self._shown.close()
        if stage is Stage.VERIFY:
            self._on_progress = self._shown.enter_context(show_steps(self._output))
        elif stage is Stage.OPEN:
            told = self._opening is not None
            self._shown.enter_context(self._output.working(self._opening or "getting ready", told=told))
        elif stage is Stage.TRAIN:
            self._shown.enter_context(self.table)

    def progress(self, step: "Step", done: int, total: int) -> None:
        """Show how much of the prepared data is verified."""
        if self._on_progress is not None:
            self._on_progress(step, done, total)

    def begin_row(self, row: int, names: Sequence[str]) -> None:
        """Show the epochs of a row of the model in place of those of the row before."""
        self._shown.close()
        title = f"{row + 1} of {len(names)}: {shorten(names[row])}, epoch"
        self.table = self._shown.enter_context(EpochTable(self._output, self._epochs, COLUMNS, title))

    def add(self, record: "EpochRecord") -> None:
        """Add an epoch to the table."""
        self.table.add(record.to_json())

    def show_split(self, split: "Split", names: "Sequence[WorkerName]") -> None:
        """Show what each worker has of the columns, and what all of them would take on one kind of workers."""
        columns = ["worker", "columns", "nonzeros", "predicted µs a sample"]
        self._output.table(columns, _split_rows(split, [name.number for name in names]), remark=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()


def _split_rows(split: "Split", numbers: Sequence[int]) -> list[tuple[str, str, str, str]]:
    """Workers one after another that are of a kind and take the same time have a row together."""
    from p4sgd.host.training.heat import microseconds

    rows = []
    numbered = zip(numbers, split.workers, strict=True)
    for (sparse, time), group in itertools.groupby(
        numbered, lambda each: (each[1].sparse, microseconds(each[1].sample_ns))
    ):
        members, workers = zip(*group, strict=True)
        few = len(members) < 3 or members != tuple(range(members[0], members[-1] + 1))
        name = ", ".join(map(str, members)) if few else f"{members[0]}–{members[-1]}"
        columns, nonzeros = sum(each.columns for each in workers), sum(each.nonzeros for each in workers)
        rows.append((f"{name} {'sparse' if sparse else 'dense'}", f"{columns:,}", f"{nonzeros:.1%}", time))
    for name, other in (("all dense", split.all_dense), ("all sparse", split.all_sparse)):
        if other.sample_ns is None:
            rows.append((name, f"at most {other.room:,}", "", "too many columns"))
        else:
            rows.append((name, f"{split.total:,}", f"{1:.1%}", microseconds(other.sample_ns)))
    return rows


def _resume_words(output: Output) -> list[str]:
    return [word for word, told in (("--json", output.as_json), ("--quiet", output.quiet)) if told]


def finish(
    output: Output,
    plan: "TrainingPlan",
    result: "TrainingResult | ResultSet",
    more: Mapping[str, Any] | None = None,
) -> None:
    """Report the result of a training run; after Ctrl-C, exit with the status of an interruption.

    Parameters
    ----------
    output
        The output.
    plan
        The plan of the run.
    result
        Its result.
    more
        Further entries of the JSON document.
    """
    from p4sgd.host.data import Dataset
    from p4sgd.host.run.execute import resume_advice
    from p4sgd.host.training import StopReason, TrainingResult

    out, checkpoint = plan.request.out, plan.checkpoint
    document = result.to_json()
    flags = {flag for record in result.history for flag in record.flags}
    document |= {
        "flags": sorted(flags),
        # The same on every device: weights as little-endian int32.
        "weights_sha256": hashlib.sha256(result.model.weights.astype("<i4").tobytes()).hexdigest(),
        "out": None if out is None else str(out),
        "report": None if plan.request.report is None else str(plan.request.report),
        "checkpoint": None if checkpoint is None else str(checkpoint.path),
        "init": None if plan.request.init is None else str(plan.request.init),
    }
    output.document(document | dict(more or {}))
    name = result.monitored.replace("_", " ")
    last = result if isinstance(result, TrainingResult) else result.rows[-1]
    if plan.request.report is not None:
        output.say(f"report in {plan.request.report}")
    if isinstance(result, TrainingResult):
        best = f"epoch {result.best_epoch}, {name} {result.best.metrics[result.monitored]:.4g}"
    else:
        best = f"the epoch of each {result.model.labels.row_kind} with the lowest {name}"
    kept = "not kept: --out MODEL keeps it" if out is None else f"kept in {out}"
    if result.stopped is StopReason.INTERRUPTED:
        done = len(last.history)
        output.tell(f"interrupted after epoch {done}; best so far: {best}; {kept}")
        if checkpoint is not None and checkpoint.last and done < plan.options.epochs:
            output.tell(resume_advice(checkpoint, plan.ranks, _resume_words(output)))
        raise click.exceptions.Exit(INTERRUPTED)
    early = f"stopped early after epoch {len(last.history)}; " if result.stopped is StopReason.PATIENCE else ""
    if not output.quiet:
        output.say(describe_scaling(document["scaling"], document["scaling_reason"], plan.options.precondition))
    if document["whitening_times"] and not output.quiet:
        from p4sgd.host.precondition import StageTimes

        output.say(str(StageTimes(**document["whitening_times"])))
    if last.summary["message_times"] and not output.quiet:
        from p4sgd.host.distributed.overlap import MessageTimes

        output.say(str(MessageTimes(**last.summary["message_times"])))
    elif plan.options.merge != "auto" and not last.summary["message_times"] and "packets" not in last.summary:
        output.remark(
            f"--merge {plan.options.merge} had no effect: only the programs of a cluster and, after the first 10 "
            "mini-batches, processes that divide the features (--launcher mpi) send sums of several micro-batches"
        )
    output.say(f"{early}best model: {best}; {kept}")
    known = ("train", "validation", "test") if isinstance(plan.data, Dataset) else ("validation", "test")
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
