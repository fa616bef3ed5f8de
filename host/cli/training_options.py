"""Command-line options of training runs: one for every field of `TrainingOptions`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from p4sgd.host.cli.options import NameFrom

__all__ = ["preparation_options", "report_option", "training_options", "tuning_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


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
    """Returns, when called, the names in a constant that `p4sgd.host.training.options` has."""

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
