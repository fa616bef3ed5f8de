"""The command `p4sgd tune`: precision, mini-batch and L2 penalty by held-out samples and predicted time."""

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.app import INTERRUPTED
from p4sgd.host.cli.output import Output, cell
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.run.tuning import Trial

_GRID = ("precision", "batch", "l2")
"""What is searched for, that which changes fastest last: data are prepared once for several penalties."""


def _grid_option(name: str, kind: type[int] | type[float], default: str, help: str) -> Callable[[Any], Any]:
    """An option for numbers of a kind, separated by commas."""

    def numbers_in(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int | float, ...]:
        numbers: list[int | float] = []
        for text in value.split(","):
            try:
                numbers.append(kind(text))
            except ValueError:
                what = "whole number" if kind is int else "number"
                problem = f"{text!r} is not a {what}: separate {what}s by commas, as in {default}"
                raise click.BadParameter(problem, ctx, param) from None
            if numbers.count(numbers[-1]) > 1:
                raise click.BadParameter(f"{text} is there twice: once is enough", ctx, param)
        return tuple(numbers)

    return click.option(f"--{name}", metavar="NUMBERS", callback=numbers_in, default=default, help=help)


@click.command()
@options.data
@_grid_option("precision", int, "1,2,4,8", "Bits of a feature to try, 1 to 8; as many are stored.")
@_grid_option("batch", int, "16,64,256", "Sizes of a mini-batch to try, multiples of 8.")
@_grid_option("l2", float, "0,1e-4,1e-3,1e-2", "Strengths of the L2 penalty to try.")
@click.option(
    "--validation-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    help="Fraction of the samples held out to compare the models.",
)
@click.option(
    "--metric",
    metavar="NAME",
    help="What models are compared by, one of those that p4sgd evaluate prints: of classes by default log_loss if the "
    "loss gives probabilities, else accuracy, or auc, average_precision, balanced_accuracy, f1 or loss; of numbers "
    "deviance if predictions are e^z, else r2 (loss for quantile), or d2, mse, rmse or mae.",
)
@options.count(
    "--splits",
    1,
    "How many times the samples are divided at random into those that are trained on and those that are held out, to "
    "tell differences from noise; after each only the better half of the combinations goes on, at least 8.",
    default=5,
)
@options.path("--out", "MODEL", "Model file to write: the model of the command that is recommended.")
@options.overwrite
@options.tuning
@options.reading
@options.common
def tune(
    data: str,
    validation_fraction: float,
    metric: str | None,
    splits: int,
    out: Path | None,
    overwrite: bool,
    output: Output,
    **choices: Any,
) -> None:
    """Find precision, mini-batch and L2 penalty.

    Trains models with every combination on the emulator, first the defaults, each with the learning rate that suits it,
    and measures them on held-out samples, the same for all. Time is that predicted for --workers U280 boards, for the
    epochs to the best one. Only what is not worse than the defaults is recommended, and a weaker penalty only if it is
    better by more than the standard error of the difference. * has the best mean of --metric of these; ± is that error
    of the difference from it. → is the fastest that is less than that worse, or a better one that takes up to 5 %
    longer; the command at the end trains it, on all samples.
    """
    grid = {name: choices.pop(name) for name in _GRID}
    reading = options.take_reading(choices)
    with output.working("getting ready"):
        from p4sgd.host.run import tuning
        from p4sgd.host.run.request import TrainingRequest
        from p4sgd.host.run.training_run import TrainingRun
        from p4sgd.host.training import StopReason, TrainingOptions

        fixed = options.given(choices)
        started = TrainingOptions(**fixed)
        metric, chosen = tuning.check_metric(started, metric), tuning.choices(started, grid)
        request = TrainingRequest(
            data=data, reading=reading, options=fixed, out=out, overwrite=overwrite, options_file=options.options_file()
        )
        run = TrainingRun(request)
    trials: list[Trial] = []
    done, total, stopped = 0, tuning.runs_of(len(chosen), splits), None
    try:
        with output.progress() as show:
            show("run", 0, total, "")
            for now in tuning.tune(run, chosen, metric, validation_fraction, splits):
                trials, done = now, done + 1
                show("run", done, total, "")
        best, preferred = tuning.choose(trials, validation_fraction)
        picked = trials[preferred].picked
        if out is not None:
            with output.working("training the chosen model"):
                final = dataclasses.replace(request, data=run.rows, reading={}, options=fixed | picked)
                stopped = TrainingRun(final).execute().stopped
    except KeyboardInterrupt as error:
        with contextlib.suppress(UserError):  # none can be chosen
            _show(output, trials, validation_fraction, *tuning.choose(trials, validation_fraction))
        error.add_note(f"{done} of {total} runs are finished; no model is kept")
        raise
    words = ["p4sgd", "train", data, *_words([name for name in picked if picked[name] is not None], picked)]
    words += _given_words()
    space = run.data.space
    output.document(
        {
            "data": run.data.name,
            "samples": run.data.samples,
            "features": space.count,
            "boards": run.options.workers,
            "metric": metric,
            "splits": splits,
            "trials": [each.to_json() for each in trials],
            "best": best,
            "chosen": preferred,
            "command": words + ([] if out is None else ["--out", str(out)]),
            "out": None if out is None else str(out),
        }
    )
    _show(output, trials, validation_fraction, best, preferred)
    if any(each.board_ms is None for each in trials):
        boards = f"{run.options.workers} board{'s' * (run.options.workers > 1)}"
        output.remark(f"{boards} cannot hold {space.count:,} columns: times are not predicted")
    kept = "MODEL" if out is None else shlex.quote(str(out))
    output.say(f"recommended: {shlex.join(words)} --out {kept}", whole=True)
    if stopped is StopReason.INTERRUPTED:
        output.tell(f"interrupted; its best model so far is kept in {out}")
        raise click.exceptions.Exit(INTERRUPTED)
    if out is not None:
        output.say(f"its model is kept in {out}")


def _show(output: Output, trials: "Sequence[Trial]", held_out: float, best: int, chosen: int) -> None:
    from p4sgd.host.run.tuning import difference_error

    rows, metric, most = [], trials[best].metric, len(trials[best].scores)
    for place, trial in enumerate(trials):
        if len(trial.scores) < most:  # their means are those of other samples
            continue
        marks = "*" * (place == best) + "→" * (place == chosen)
        choice = ("default" if value is None else f"{value:g}" for value in trial.picked.values())
        error = cell(metric, difference_error(trial, trials[best], held_out)) if place != best and most > 1 else ""
        score, time = cell(metric, trial.score), cell("board_ms", trial.board_ms, 3)
        rows.append([marks, *choice, f"{sum(trial.epochs) / most:.3g}", score, error, time])
    title = metric.replace("_", " ")
    output.table(["", "bits", "batch", "L2", "epochs", title, "±", "board ms"], rows)
    if len(rows) < len(trials):
        output.remark(f"{len(trials) - len(rows)} of {len(trials)} combinations fell behind in the first divisions")
    if not output.quiet:
        output.say(
            f"* best {title}   → chosen: the fastest less than its ± from it, neither worse nor with a weaker penalty "
            f"than the first line"
        )


def _given_words() -> list[str]:
    """The options of the running command that are those of `p4sgd train`, too, as the user gave them."""
    values = click.get_current_context().params
    own = ("data", "out", "overwrite", "as_json", "quiet", "metric", "splits", "validation_fraction", *_GRID)
    return _words([name for name in values if name not in own and options.is_given(name)], values)


def _words(names: Container[str | None], values: Mapping[str, Any]) -> list[str]:
    """Options of the running command with these values, as they stand on the command line."""
    words: list[str] = []
    for param in click.get_current_context().command.params:
        if not isinstance(param, click.Option) or param.name not in names:
            continue
        value = values[param.name or ""]
        if isinstance(value, bool):
            words.append((param.opts if value else param.secondary_opts)[0])
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            short = f"{each:g}" if isinstance(each, float) else str(each)
            words += [param.opts[0], short if not isinstance(each, float) or float(short) == each else str(each)]
    return words
