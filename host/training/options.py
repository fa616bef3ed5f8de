"""The options of a training run, with their checks."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p4sgd.host.data.encoding import FILLINGS
from p4sgd.host.data.scaling import CENTRED, KINDS
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Loss, Task, get_loss
from p4sgd.host.training.class_weights import class_weights_of
from p4sgd.host.training.schedule import SCHEDULES
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.run import MAX_MICRO_BATCHES, MAX_WORKERS, UNITS, choose_unit

__all__ = ["ON_LOSS", "PRECONDITIONS", "SHARES", "TrainingOptions"]


PRECONDITIONS = ("none", "block")
"""Preconditioners by name. block: features are whitened in blocks of 64 columns, by `p4sgd.host.precondition`."""

ON_LOSS = ("adopt", "stop")
"""What may be done when a worker is lost."""

PARALLELS = ("model", "data")
"""What workers divide among themselves: the columns, or the samples."""

SKIP_ZEROS = ("auto", "never", "always")
"""Whether dense workers pass over lines of zeros."""

SHARES = ("fixed", "auto")
"""How workers may get their shares of the features."""

_MOST_DAMPING = 1000.0
"""With more, whitened features would be less than a step of 8 planes."""

_MAX_BATCH = BANKS * MAX_MICRO_BATCHES


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training run, named after those of scikit-learn's SGD estimators where they have a counterpart.

    Parameters
    ----------
    loss
        Name of the loss.
    epsilon
        Threshold of the losses that have one, in the unit of the target; ``None`` is an eighth of its standard
        deviation. It is rounded to 7 bits of that deviation, so that the loss table is exact.
    quantile
        Quantile of the loss ``quantile``, above 0 and below 1; ``None`` is the median.
    tweedie_power
        Power of the loss ``tweedie``, above 1 and below 2; ``None`` is 1.5.
    epochs
        Largest number of passes over the training set.
    batch
        Samples in a mini-batch (B), a multiple of 8.
    learning_rate
        Initial learning rate, for the mean gradient of a mini-batch and features scaled to about 1; ``None`` chooses it
        by short trials on a sample (`p4sgd.host.training.search`). Where training
        diverges, it goes on from the best weights with a lower rate.
    schedule
        Learning rate over the epochs: one of `p4sgd.host.training.schedule.SCHEDULES`.
    power
        Exponent of the schedule ``invscaling``.
    l2
        Strength of the L2 penalty l2/2·‖w‖², where w are the coefficients of features with a deviation of 1 for the
        scalings ``standard`` and ``robust``, of raw features for ``none``, and of scaled ones for the others. The bias
        has no penalty.
    l1
        Strength of the L1 penalty l1·‖w‖₁, on the same.
    alpha
        Instead of ``l2`` and ``l1``: strength of both penalties together, alpha·((1 − r)/2·‖w‖² + r·‖w‖₁).
    l1_ratio
        r of ``alpha``, 0 to 1; ``None`` is 0.
    precision
        Bit planes that training reads (P), 1 to ``planes``.
    planes
        Bit planes that are stored (S), 1 to 8; ``None`` stores as many as are read.
    scaling
        Scaling of the features: one of `p4sgd.host.data.scaling.KINDS`; see `p4sgd.host.data.Scaling.fit`.
    missing
        What is done about missing values of a table (CSV, Parquet): one of `p4sgd.host.data.encoding.FILLINGS`.
        ``error`` refuses them; ``mean`` takes the mean of the training samples, and of a column of texts none of its
        texts; ``indicator`` does that and adds a feature that is 1 where a value was missing.
    precondition
        How SGD is preconditioned: one of `PRECONDITIONS`. With ``block``, ``l2`` acts on the weights of whitened
        features, and ``l1`` is refused.
    damping
        What ``block`` adds to the diagonal of the correlations, at least 0: with more of it, small differences of
        correlated columns count less.
    bias
        Whether to train a bias, a further feature that is the same in every sample. Without it, the model's intercept
        only makes up for scaling and quantisation.
    positive
        The label of class 1, as the source has it, all others being class 0, if there are more than two labels.
    class_weight
        Weights of classes: ``balanced``, with which both count the same in total; weights by label, as a mapping or a
        text ``LABEL=WEIGHT,LABEL=WEIGHT``, in which labels that are not named weigh 1; ``None`` if all weigh 1. They
        multiply the weights of samples, and count in training and in the loss of held-out samples.
    unit
        Features of a unit, 8, 16, 32 or 64: activations are rounded for each unit, and a unit is never divided among
        workers or engines. ``None`` takes the most that leave 32 units. With fewer features than a worker has lanes,
        some lanes are idle: 64 is best for boards if that leaves as many units as all workers together have engines.
        Weights depend on it, by rounding; they do not depend on ``workers``, unless activations are clamped.
    workers
        Number of workers, 1 to 32.
    parallel
        What is divided: ``model`` gives every worker some of the columns; ``data`` gives every rank some of the samples
        of a single sparse worker. Both end with the same weights.
    split
        How many columns of sparse data are hot: a number, ``auto`` or ``none``. If there are dense and sparse workers,
        the dense ones have the hot columns: with ``auto`` as many as make the slowest worker fastest, with ``none`` in
        proportion to the shares. If samples are divided, all ranks have the hot columns: with ``none`` there are none.
    skip_zeros
        Whether dense workers leave out lines of zeros, so that boards need no time for them: ``always``, ``never``, or
        ``auto`` where the data are sparse and that should be faster. All planes that are stored must be read.
    shares
        How units are dealt to workers: ``fixed`` by the shares of the cluster file, equal ones where it has none;
        ``auto`` by the workers' speeds, which are measured before training.
    on_loss
        What to do when a worker is lost during the run: ``adopt`` deals its units to the others and trains the epoch
        again, with the same weights as if nothing had happened; ``stop`` ends the run.
    merge
        Micro-batches whose sums travel in one message, in a packet between programs or where ranks add them up: a
        number, or ``auto`` for as many as fit a packet, and for ranks for a plan from measured times.
    staleness
        With 1, the forward passes of a mini-batch may read weights that lack the update of the one before, and need not
        wait for it; with 0 they may not.
    validation_fraction
        Fraction of the training set to hold out for choosing the best epoch, 0 to below 1.
    patience
        Epochs without progress after which training stops. The schedule ``adaptive`` then lowers the rate, and training
        stops after as many more. ``None`` never stops early.
    tolerance
        Smallest fall of the monitored loss, as a fraction of the smallest one so far, that counts as progress, for
        ``patience`` and ``adaptive``; 0 to below 1. Without ``patience``, ``adaptive`` divides it like the rate.
    seed
        Seed of the shuffle and of the validation split.

    Raises
    ------
    UserError
        If a value is out of range; the message names the option.
    """

    loss: str = "logistic"
    epsilon: float | None = None
    quantile: float | None = None
    tweedie_power: float | None = None
    epochs: int = 40
    batch: int = 16
    learning_rate: float | None = None
    schedule: str = "adaptive"
    power: float = 0.5
    l2: float = 0.0
    l1: float = 0.0
    alpha: float | None = None
    l1_ratio: float | None = None
    precision: int = 8
    planes: int | None = None
    scaling: str = "auto"
    missing: str = "error"
    precondition: str = "none"
    damping: float = 0.01
    bias: bool = True
    positive: str | float | None = None
    class_weight: str | dict[str, float] | None = None
    unit: int | None = None
    workers: int = 1
    parallel: str = "model"
    shares: str = "fixed"
    split: str = "auto"
    skip_zeros: str = "auto"
    on_loss: str = "adopt"
    merge: str = "auto"
    staleness: int = 0
    validation_fraction: float = 0.0
    patience: int | None = None
    tolerance: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        parameters = get_loss(self.loss).parameters
        if self.epsilon is not None:
            self._check_parameter("epsilon", parameters)
            if self.loss == "huber":
                _real("epsilon", self.epsilon, above=0.0)
            _real("epsilon", self.epsilon, least=0.0)
        if self.quantile is not None:
            self._check_parameter("quantile", parameters)
            _real("quantile", self.quantile, above=0.0, below=1.0)
        if self.tweedie_power is not None:
            self._check_parameter("tweedie_power", parameters)
            _real("tweedie-power", self.tweedie_power, above=1.0, below=2.0)
        if self.class_weight is not None:
            if get_loss(self.loss).task is not Task.CLASSIFICATION:
                raise UserError(f"class-weight has no effect on the loss {self.loss}, which is not for classes")
            object.__setattr__(self, "class_weight", class_weights_of(self.class_weight))
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("parallel", self.parallel, PARALLELS)
        _one_of("scaling", self.scaling, KINDS)
        _one_of("filling of missing values", self.missing, FILLINGS)
        _one_of("precondition", self.precondition, PRECONDITIONS)
        _one_of("shares", self.shares, SHARES)
        for name in ("split", "merge"):  # a number may be given as one
            object.__setattr__(self, name, str(getattr(self, name)))
        if self.split not in ("auto", "none") and not (self.split.isdecimal() and int(self.split)):
            raise UserError(f"split must be auto, none or a number of columns, at least 1, not {self.split!r}")
        _one_of("skip-zeros", self.skip_zeros, SKIP_ZEROS)
        _one_of("on-loss", self.on_loss, ON_LOSS)
        if self.merge != "auto" and not (self.merge.isdecimal() and int(self.merge)):
            raise UserError(f"merge must be auto or a number of micro-batches, at least 1, not {self.merge!r}")
        _whole("epochs", self.epochs, 1)
        _whole("batch", self.batch, BANKS, _MAX_BATCH)
        if self.batch % BANKS:
            below, above = self.batch // BANKS * BANKS, -(-self.batch // BANKS) * BANKS
            raise UserError(f"batch must be a multiple of {BANKS}, not {self.batch}: take {below} or {above}")
        if self.planes is not None:
            _whole("planes", self.planes, 1, MAX_PRECISION)
        _whole("precision", self.precision, 1, MAX_PRECISION)
        if self.precision > self.stored:
            raise UserError(
                f"precision must be at most the {self.stored} stored planes, not {self.precision}: "
                f"lower the precision or store more planes"
            )
        if self.learning_rate is not None:
            _real("learning rate", self.learning_rate, above=0.0)
        _real("power", self.power, least=0.0)
        _real("l2", self.l2, least=0.0)
        _real("l1", self.l1, least=0.0)
        self._check_elastic_net()
        _real("damping", self.damping, least=0.0, below=_MOST_DAMPING)
        _real("tolerance", self.tolerance, least=0.0, below=1.0)
        _real("validation fraction", self.validation_fraction, least=0.0, below=1.0)
        if self.patience is not None:
            _whole("patience", self.patience, 1)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        if self.power != defaults["power"] and self.schedule != "invscaling":
            raise UserError(f"power has no effect on the schedule {self.schedule}: only invscaling has one")
        if self.tolerance != defaults["tolerance"] and self.patience is None and self.schedule != "adaptive":
            raise UserError("tolerance has no effect without patience or the schedule adaptive")
        if self.precondition == "none" and self.damping != defaults["damping"]:
            raise UserError("damping has no effect without --precondition block: add that, or leave --damping out")
        if self.precondition != "none" and self.scaling not in ("auto", *CENTRED):
            raise UserError(
                f"scaling {self.scaling} does not go with --precondition {self.precondition}, which centres features "
                f"and scales them by their deviation: choose auto, {' or '.join(CENTRED)}, or leave --precondition out"
            )
        if self.precondition != "none" and self.penalties[1] > 0:
            raise UserError(
                f"l1 does not go with --precondition {self.precondition}, because it would make weights of whitened "
                f"features zero, not those of the data: leave one of them out"
            )
        if self.unit is not None and (not isinstance(self.unit, int) or self.unit not in UNITS):
            raise UserError(f"unit must be one of {', '.join(map(str, UNITS))}, not {self.unit}")
        _whole("workers", self.workers, 1, MAX_WORKERS)
        _whole("staleness", self.staleness, 0, 1)
        _whole("seed", self.seed, 0)

    def _check_elastic_net(self) -> None:
        if self.alpha is None:
            if self.l1_ratio is not None:
                raise UserError(
                    "l1-ratio has no effect without alpha, of which it is a part: add --alpha, or take --l1"
                )
            return
        _real("alpha", self.alpha, least=0.0)
        if self.l1_ratio is not None:
            _real("l1-ratio", self.l1_ratio, least=0.0)
            if self.l1_ratio > 1:
                raise UserError(f"l1-ratio must be at most 1, not {self.l1_ratio:g}")
        if self.l2 or self.l1:
            raise UserError(f"alpha stands for l2 and l1: leave {'l2' if self.l2 else 'l1'} out, or alpha")

    @property
    def penalties(self) -> tuple[float, float]:
        """Strengths of the L2 and the L1 penalty, whichever way they were chosen."""
        if self.alpha is None:
            return self.l2, self.l1
        ratio = self.l1_ratio or 0.0
        return self.alpha * (1 - ratio), self.alpha * ratio

    def _check_parameter(self, name: str, parameters: Mapping[str, float]) -> None:
        if name not in parameters:
            known = " or ".join(loss.name for loss in LOSSES.values() if name in loss.parameters)
            option = name.replace("_", "-")
            raise UserError(f"{option} has no effect on the loss {self.loss}: choose {known}, or leave it out")

    def loss_for(self, scale: float, name: str) -> Loss:
        """The loss with its parameters.

        Parameters
        ----------
        scale
            By what targets are divided, `p4sgd.host.data.labels.LabelCoding.scale`.
        name
            Name of the data, for messages.

        Raises
        ------
        UserError
            If ``epsilon`` is out of the range of the loss table for such targets.
        """
        parameters = {}
        if self.quantile is not None:
            parameters["quantile"] = self.quantile
        if self.tweedie_power is not None:
            parameters["tweedie_power"] = self.tweedie_power
        if self.epsilon is not None:
            parameters["epsilon"] = self.epsilon / scale
        try:
            return get_loss(self.loss, parameters)
        except ValueError:
            raise UserError(
                f"{name}: epsilon {self.epsilon:g} is out of range for targets with a deviation of {scale:.3g}: "
                f"choose {scale * 2**-16:.3g} to {scale * 1000:.3g}"
            ) from None

    @property
    def stored(self) -> int:
        """Bit planes that are stored (S)."""
        return self.precision if self.planes is None else self.planes

    @property
    def least_lines(self) -> int:
        """Lines of a chunk for which a worker must have room: all that are read or, if zeros are always skipped, one.
        How many more there are is known when images are there."""
        return 1 if self.skip_zeros == "always" else self.precision

    def unit_of(self, features: int) -> int:
        """Features of a unit, for so many features of the data."""
        return choose_unit(features + self.bias) if self.unit is None else self.unit

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"there is no {name} {value!r}: choose one of {', '.join(known)}")


def _whole(name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise UserError(f"{name} must be {allowed}, not {value}")


def _real(
    name: str, value: float, *, least: float | None = None, above: float | None = None, below: float | None = None
) -> None:
    if not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, not {value}")
    if least is not None and value < least:
        raise UserError(f"{name} must be at least {least:g}, not {value:g}")
    if above is not None and value <= above:
        raise UserError(f"{name} must be more than {above:g}, not {value:g}")
    if below is not None and value >= below:
        raise UserError(f"{name} must be below {below:g}, not {value:g}")
