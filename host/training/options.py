"""The options of a training run: the one declaration of their names, defaults, ranges and meanings.

The options of the commands, the parameters of the estimators, their descriptions and all checks come from it. Nothing
heavy is imported here before a value is checked.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Flag, auto
from importlib import import_module
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args

from p4sgd.host.errors import UserError, flag, option

if TYPE_CHECKING:
    from p4sgd.host.losses import Loss


def names_in(where: str | tuple[str, ...]) -> Iterable[str]:
    """Names, or those in a constant, or that a function returns: ``p4sgd.host.losses:LOSSES``."""
    if isinstance(where, tuple):
        return where
    module, _, name = where.partition(":")
    found = getattr(import_module(module), name)
    names: Iterable[str] = found() if callable(found) else found
    return names


class Fact(Flag):
    """Facts about an option."""

    NONE = 0
    NOT_TUNED = auto()
    """`p4sgd tune` lacks it: it searches for it, or it does not matter on an emulator of one process."""
    PREPARED = auto()
    """It is chosen when data are prepared in a folder, and then fixed."""
    CHANGEABLE = auto()
    """But training on such a folder may change it."""
    RESUMABLE = auto()
    """It may change when a run is resumed: it does not change what an epoch computes."""
    FEATURES = auto()
    """A run that starts from a model has it from that, because the meaning of its features depends on it."""
    OBJECTIVE = auto()
    """It has it from the model, too, but could have another."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What is declared of an option beside its name, type and default.

    In ``help`` ``{l2}`` stands for another option. ``choices`` tells `names_in` which names it may have. ``metavar`` is
    the name of a value on the command line, ``estimators`` are those that have it as a parameter.
    """

    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: str | tuple[str, ...] | None = None
    metavar: str | None = None
    estimators: Literal["all", "classifiers", "none"] = "all"
    facts: Fact = Fact.NONE

    def for_command(self) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: flag(found[1]).split("/")[0], self.help)

    def for_parameter(self) -> str:
        return re.sub(r"\{(\w+)\}", r"``\1``", self.help)

    def check(self, name: str, expected: Any, value: Any) -> None:
        """Raise a `UserError` if a value is not of the ``expected`` type, or not allowed."""
        if self.choices is not None and value not in (known := tuple(names_in(self.choices))):
            raise UserError(f"must be one of {', '.join(map(str, known))}, not {value!r}", field=name)
        kinds = get_args(expected) or (expected,)
        if not any(_is_of(kind, value) for kind in kinds):
            words = " or ".join(_KINDS[kind][1] for kind in kinds)
            raise UserError(f"must be {words}, not {value!r}", field=name)
        if not isinstance(value, Real):
            return
        if not isinstance(value, Integral) and not math.isfinite(value):
            raise UserError(f"must be a finite number, not {value}", field=name)
        bounds = (("at least", self.least), ("at most", self.most), ("more than", self.above), ("below", self.below))
        for allowed, bound in bounds:
            if bound is not None and not _COMPARED[allowed](value, bound):
                given = value if isinstance(value, Integral) else f"{value:g}"  # of a large one, all digits
                raise UserError(f"must be {allowed} {bound:g}, not {given}", field=name)


_COMPARED = {"at least": operator.ge, "at most": operator.le, "more than": operator.gt, "below": operator.lt}

_KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a text"),
    NoneType: (NoneType, "None"),
}
"""Values of each type of an option, NumPy's numbers among them, and what messages call them."""


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a value is of a type; of others than `_KINDS` any is, which is checked elsewhere."""
    return kind not in _KINDS or (isinstance(value, _KINDS[kind][0]) and (kind is bool) == isinstance(value, bool))


def _declared(default: Any, help: str, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"declaration": Declaration(help=help, **more)})


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training run, named after those of scikit-learn's SGD estimators where they have a counterpart.

    Raises `UserError` if a value is out of range; the message names the option.
    """

    loss: str = _declared(
        "logistic",
        "Loss to minimise. Of two classes: logistic, for probabilities; hinge, of support vector machines; "
        "squared_hinge, the same but smooth; modified_huber, smooth and tolerant of wrong labels, for probabilities. "
        "Of numbers: squared, least squares; huber, the same but linear beyond {epsilon}; epsilon_insensitive, linear "
        "beyond {epsilon} and nothing below; quantile, for a {quantile} instead of the mean. Of numbers by e^z, a "
        "logarithmic link: poisson, of at least 0, as counts are; gamma, above 0; tweedie, of at least 0 with a "
        "{tweedie_power} between both.",
        choices="p4sgd.host.losses:LOSSES",
        facts=Fact.PREPARED | Fact.CHANGEABLE | Fact.OBJECTIVE,
    )
    epsilon: float | None = _declared(
        None,
        "Threshold of the losses huber and epsilon_insensitive, in the unit of the target; by default an eighth of its "
        "standard deviation. It is rounded to 7 bits of that deviation, so that the loss table is exact.",
        least=0,
        facts=Fact.OBJECTIVE,
    )
    quantile: float | None = _declared(
        None,
        "Quantile that the loss quantile fits, above 0 and below 1; by default the median, 0.5.",
        above=0,
        below=1,
        facts=Fact.OBJECTIVE,
    )
    tweedie_power: float | None = _declared(
        None,
        "Power of the loss tweedie, above 1 (poisson) and below 2 (gamma); by default 1.5.",
        above=1,
        below=2,
        facts=Fact.PREPARED | Fact.OBJECTIVE,
    )
    epochs: int = _declared(40, "Maximum number of passes over the data.", least=1, facts=Fact.RESUMABLE)
    batch: int = _declared(
        16,
        "Samples in a mini-batch, a multiple of 8; a last one that is not full makes a smaller update.",
        least=8,
        facts=Fact.NOT_TUNED | Fact.PREPARED,
    )
    learning_rate: float | None = _declared(
        None,
        "Initial learning rate, for the mean gradient of a mini-batch and features scaled to about 1; by default it is "
        "found by short trials on a part of the data. If training diverges, it is divided by 10, or by more if trials "
        "find a lower one, and training goes back to the best weights, or to the start.",
        above=0,
    )
    schedule: str = _declared(
        "adaptive",
        "Learning rate over the epochs: constant; invscaling divides it by epoch^power; adaptive waits for {patience} "
        "epochs without progress, 1 by default, and goes on from the best weights with a fifth of the rate. If that "
        "brings progress, it takes the rate back up once progress ends; if not, it lowers it further.",
        choices=("constant", "invscaling", "adaptive"),
    )
    power: float = _declared(0.5, "Exponent of the schedule invscaling.", least=0)
    l2: float | None = _declared(
        None,
        "Strength of the L2 penalty, l2/2 * |w|^2. It acts on coefficients of features with a deviation of 1 (scalings "
        "standard and robust), of raw features (none), or of scaled ones (minmax, maxabs), not on the intercept. By "
        "default, without {l1}, it is 1 / samples for classes, as weak as C=1 of scikit-learn, for poisson, gamma and "
        "tweedie the deviance from the mean / samples; other numbers have none, and 0 is none.",
        least=0,
        facts=Fact.NOT_TUNED,
    )
    l1: float = _declared(0.0, "Strength of the L1 penalty, l1 * |w|, on the same coefficients.", least=0)
    alpha: float | None = _declared(
        None,
        "Strength of both penalties as in scikit-learn's SGD and ElasticNet, in place of {l2} and {l1}: "
        "alpha * ((1 - l1_ratio) / 2 * |w|^2 + l1_ratio * |w|).",
        least=0,
        facts=Fact.NOT_TUNED,
    )
    l1_ratio: float | None = _declared(
        None,
        "Part of {alpha} that is an L1 penalty, 0 to 1; by default 0, only L2.",
        least=0,
        most=1,
        facts=Fact.NOT_TUNED,
    )
    precision: int = _declared(
        8,
        "Bits of a feature that training reads, 1 to 8.",
        least=1,
        most=8,
        facts=Fact.NOT_TUNED | Fact.PREPARED | Fact.CHANGEABLE | Fact.OBJECTIVE,
    )
    planes: int | None = _declared(
        None,
        "Bits of a feature that are stored, 1 to 8; by default as many as are read.",
        least=1,
        most=8,
        facts=Fact.NOT_TUNED | Fact.PREPARED | Fact.FEATURES,
    )
    scaling: str = _declared(
        "auto",
        "Scaling of each feature: standard by mean and deviation, robust by median and quantiles, minmax to the range "
        "0 to 1, maxabs by the largest magnitude, none by one power of two for all; auto is standard, for sparse data "
        "none or maxabs.",
        choices="p4sgd.host.data.scaling:KINDS",
        facts=Fact.PREPARED | Fact.FEATURES,
    )
    missing: str = _declared(
        "error",
        "What is done about missing values of a table (CSV, Parquet, DataFrame): error refuses them; mean takes the "
        "mean of the column's training samples, and of a column of texts none of its texts; indicator does that and "
        "adds a feature that is 1 where a value was missing.",
        choices="p4sgd.host.data.encoding:FILLINGS",
        facts=Fact.PREPARED | Fact.FEATURES,
    )
    dates: str = _declared(
        "text",
        "What is made of dates in a table: text takes each for a category of its own; days for the days since 1970; "
        "parts makes the year a number, and features of the months, the weekdays and the hours that there are.",
        choices="p4sgd.host.data.dates:DATES",
        facts=Fact.PREPARED | Fact.FEATURES,
    )
    precondition: str = _declared(
        "none",
        "Preconditioning: block whitens dense features in blocks of 64 columns, so that correlated columns need fewer "
        "epochs. {l2} then acts on the weights of whitened features; {l1} is refused.",
        choices=("none", "block"),
        facts=Fact.PREPARED | Fact.FEATURES,
    )
    damping: float = _declared(
        0.01,
        "What {precondition} block adds to the diagonal of the correlations: with more of it, small differences "
        "of correlated columns count less.",
        least=0,
        below=1000,  # with more, whitened features would be less than a step of 8 planes
        facts=Fact.PREPARED | Fact.FEATURES,
    )
    bias: bool = _declared(
        True,
        "Whether to train an intercept. Without it, that of the model only makes up for scaling, quantisation and the "
        "mean of the targets, or its logarithm where predictions are e^z.",
        facts=Fact.PREPARED | Fact.FEATURES,
    )
    positive: str | float | None = _declared(
        None,
        "Label of class 1, all other labels being class 0. Without it, of more than two classes each is trained "
        "against the rest.",
        metavar="LABEL",
        estimators="none",
        facts=Fact.PREPARED | Fact.OBJECTIVE,
    )
    class_weight: str | dict[str, float] | None = _declared(  # noqa: RUF009 - a field
        None,
        "Weights of classes: balanced, so that both count the same in total; or weights by label, as in "
        "spam=2,ham=0.5, where labels that are not named weigh 1. They multiply the weights of samples, and count in "
        "training and in the loss of held-out samples.",
        metavar="balanced|LABEL=WEIGHT,…",
        estimators="classifiers",
        facts=Fact.PREPARED,
    )
    unit: int | None = _declared(
        None,
        "Features that stay together on an engine, and whose part of an activation is rounded: 8, 16, 32 or 64; by "
        "default the most that leave 32 units. With fewer than a worker has lanes, some lanes are idle; with fewer "
        "units than there are engines, some engines are. Weights depend on it, by rounding.",
        facts=Fact.PREPARED,
    )
    workers: int = _declared(
        1,
        "Number of workers that share the features, 1 to 32; by default 1, or all workers of the cluster file.",
        least=1,
        most=992,
        facts=Fact.PREPARED | Fact.CHANGEABLE | Fact.RESUMABLE,
    )
    parallel: str = _declared(
        "model",
        "What several processes (--launcher) divide: model gives each a worker with some of the columns; data gives "
        "each some of the samples of a single sparse worker, for sparse data with millions of columns.",
        choices=("model", "data"),
        estimators="none",
        facts=Fact.NOT_TUNED | Fact.RESUMABLE,
    )
    shares: str = _declared(
        "fixed",
        "How the features of a cluster are shared out: fixed by the share of each worker in the cluster file, or "
        "equally; auto by the workers' speeds, which are measured first.",
        choices=("fixed", "auto"),
        facts=Fact.NOT_TUNED | Fact.RESUMABLE,
    )
    split: str = _declared(
        "auto",
        "How many columns of sparse data are on dense workers, those with the most values, if others are sparse "
        "workers: a number; auto so that the slowest worker should be fastest; none for equal shares. Where processes "
        "divide the samples, how many columns all processes have: auto by their heat, none for none.",
        facts=Fact.NOT_TUNED | Fact.RESUMABLE,
    )
    skip_zeros: str = _declared(
        "auto",
        "Whether dense workers leave out lines of zeros, so that boards take no time for them: auto for sparse data if "
        "that should be faster; always or never, whatever is predicted. The weights are the same.",
        choices=("auto", "never", "always"),
        facts=Fact.NOT_TUNED | Fact.PREPARED | Fact.CHANGEABLE | Fact.RESUMABLE,
    )
    on_loss: str = _declared(
        "adopt",
        "What to do when a worker is lost: adopt deals its features to the others and trains the epoch again, to the "
        "same weights; stop ends the run.",
        choices=("adopt", "stop"),
        facts=Fact.NOT_TUNED | Fact.RESUMABLE,
    )
    stand_ins: bool = _declared(
        False,
        "Whether each worker process of a cluster also holds the features of the next one, and stands in for it while "
        "it pauses. The weights are the same.",
        estimators="none",
        facts=Fact.NOT_TUNED | Fact.RESUMABLE,
    )
    merge: str = _declared(
        "auto",
        "How many micro-batches of 8 samples have their sums in one message, where messages cost a program time: in "
        "packets between the programs of a cluster, and between processes that divide the features. A number; auto for "
        "so many that a mini-batch should be done first, by measured times.",
        facts=Fact.NOT_TUNED | Fact.RESUMABLE,
    )
    staleness: int = _declared(
        0,
        "With 1, a mini-batch may read weights that lack the update of the one before, which saves waiting; with 0 it "
        "may not.",
        least=0,
        most=1,
    )
    validation_fraction: float = _declared(
        0.0,
        "Fraction of the samples held out to choose the best epoch.",
        least=0,
        below=1,
        facts=Fact.NOT_TUNED | Fact.PREPARED,
    )
    patience: int | None = _declared(
        None,
        "Stop after so many epochs without progress. The schedule adaptive then tries a lower rate for as many more; "
        "by default it stops after 4 epochs in which the loss has fallen by less than a quarter of {tolerance}, or 2 "
        "with a lower rate; other schedules never. Progress is a fall of the loss by which the best epoch is chosen: "
        "that of held-out samples, or the train loss with the penalties.",
        least=1,
    )
    tolerance: float = _declared(
        2e-3,
        "Smallest fall of the loss, as a fraction of it, that counts as progress, for {patience} and the schedule "
        "adaptive. Without {patience}, adaptive divides it like the rate, and waits, too, while falls that shrink "
        "quickly would add up to half of it.",
        least=0,
        below=1,
    )
    seed: int = _declared(
        0, "Seed of the shuffle and of the validation split.", least=0, estimators="none", facts=Fact.PREPARED
    )

    def __post_init__(self) -> None:
        from p4sgd.host.losses import get_loss
        from p4sgd.host.training.class_weights import class_weights_of

        get_loss(self.loss)
        for name in ("split", "merge"):  # a number may be given as one
            object.__setattr__(self, name, str(getattr(self, name)))
        for field in dataclasses.fields(self):
            field.metadata["declaration"].check(field.name, field.type, getattr(self, field.name))
        for wrong, name, problem in self._problems():
            if wrong:
                raise UserError(problem, field=name)
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", class_weights_of(self.class_weight))

    def _problems(self) -> Iterator[tuple[object, str, str]]:
        """Whether values do not go together, the option to blame, and the problem."""
        from p4sgd.host.data.scaling import CENTRED
        from p4sgd.host.losses import LOSSES, Task
        from p4sgd.hw.spec.config import BANKS
        from p4sgd.hw.spec.run import MAX_MICRO_BATCHES, UNITS

        given = {field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default}
        loss, whitened, block = LOSSES[self.loss], self.precondition != "none", option("precondition", "block")
        for name in (name for each in LOSSES.values() for name in each.parameters):
            known = " or ".join(each.name for each in LOSSES.values() if name in each.parameters)
            wrong = name in given and name not in loss.parameters
            yield wrong, name, f"has no effect on the loss {self.loss}: choose {known}, or leave it out"
        yield self.loss == "huber" and self.epsilon == 0, "epsilon", "must be more than 0, not 0"
        wrong = self.class_weight is not None and loss.task is not Task.CLASSIFICATION
        yield wrong, "class_weight", f"has no effect on the loss {self.loss}, which is not for classes"
        for name, words, what in (("split", ("auto", "none"), "columns"), ("merge", ("auto",), "micro-batches")):
            value = getattr(self, name)
            wrong = value not in words and not (value.isdecimal() and int(value))
            yield wrong, name, f"must be {' or '.join(words)} or a number of {what}, at least 1, not {value!r}"
        most, below = BANKS * MAX_MICRO_BATCHES, self.batch // BANKS * BANKS
        yield self.batch > most, "batch", f"must be {BANKS} to {most}, not {self.batch}"
        problem = f"must be a multiple of {BANKS}, not {self.batch}: take {below} or {below + BANKS}"
        yield self.batch % BANKS, "batch", problem
        problem = f"must be at most the {self.stored} stored planes, not {self.precision}: lower it or store more"
        yield self.precision > self.stored, "precision", problem
        wrong = self.unit is not None and self.unit not in UNITS
        yield wrong, "unit", f"must be one of {', '.join(map(str, UNITS))}, not {self.unit}"
        problem = f"has no effect without {option('alpha')}, of which it is a part: add that, or take {option('l1')}"
        yield self.alpha is None and self.l1_ratio is not None, "l1_ratio", problem
        other = option("l2" if self.l2 else "l1")
        problem = f"stands for {option('l2')} and {option('l1')}: leave {other} out, or that"
        yield self.alpha is not None and (self.l2 or self.l1), "alpha", problem
        wrong = "power" in given and self.schedule != "invscaling"
        yield wrong, "power", f"has no effect on the schedule {self.schedule}: only invscaling has one"
        wrong = "tolerance" in given and self.patience is None and self.schedule != "adaptive"
        yield wrong, "tolerance", f"has no effect without {option('patience')} or the schedule adaptive"
        wrong = "damping" in given and not whitened
        yield wrong, "damping", f"has no effect without {block}: add that, or leave it out"
        problem = f"{self.scaling} does not go with {block}, which centres: choose auto, {' or '.join(CENTRED)}"
        yield whitened and self.scaling not in ("auto", *CENTRED), "scaling", problem
        problem = f"does not go with {block}, which mixes features: leave one of them out"
        yield whitened and self.penalties[1] > 0, "l1", problem

    @property
    def penalties(self) -> tuple[float | None, float]:
        """Strengths of the L2 and the L1 penalty, whichever way they were chosen; ``None`` if the data decide."""
        from p4sgd.host.losses import LOSSES, Task

        if self.alpha is not None:
            ratio = self.l1_ratio or 0.0
            return self.alpha * (1 - ratio), self.alpha * ratio
        decided = self.l2 is not None or self.l1 or LOSSES[self.loss].task is Task.REGRESSION
        return (self.l2 or 0.0 if decided else None), self.l1

    def loss_for(self, scale: float, name: str) -> "Loss":
        """The loss with its parameters, for targets that are divided by a ``scale``.

        Raises `UserError`, with the ``name`` of the data, if ``epsilon`` is out of the range of the loss table.
        """
        from p4sgd.host.losses import LOSSES, get_loss

        units = {"epsilon": scale}  # others have none
        given = {name: getattr(self, name) for name in LOSSES[self.loss].parameters}
        try:
            return get_loss(
                self.loss, {name: value / units.get(name, 1.0) for name, value in given.items() if value is not None}
            )
        except ValueError:
            raise UserError(
                f"{name}: {option('epsilon', self.epsilon)} is out of range for targets with a deviation of "
                f"{scale:.3g}: choose {scale * 2**-16:.3g} to {scale * 1000:.3g}"
            ) from None

    @property
    def stored(self) -> int:
        return self.precision if self.planes is None else self.planes

    @property
    def least_lines(self) -> int:
        """Lines of a chunk for which a worker must have room, as far as is known before images are made."""
        return 1 if self.skip_zeros == "always" else self.precision

    def unit_of(self, features: int) -> int:
        """Features of a unit, for so many features of the data."""
        from p4sgd.hw.spec.run import choose_unit

        return choose_unit(features + self.bias) if self.unit is None else self.unit

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def declarations() -> dict[str, Declaration]:
    """The declarations of all options by name."""
    return {field.name: field.metadata["declaration"] for field in dataclasses.fields(TrainingOptions)}


def options_with(fact: Fact) -> tuple[str, ...]:
    """Names of the options of which a fact holds."""
    return tuple(name for name, declared in declarations().items() if fact & declared.facts)
