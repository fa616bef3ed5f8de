"""What training takes from an earlier model: weights, and the meaning of its features and labels."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from p4sgd.host.data import Scaling
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.errors import UserError
from p4sgd.host.losses import get_loss
from p4sgd.host.training.options import Fact, TrainingOptions, options_with
from p4sgd.hw.spec.fixed import WeightArray

if TYPE_CHECKING:
    from p4sgd.host.precondition import Whitening
    from p4sgd.host.training.events import EpochRecord
    from p4sgd.host.training.model_file import Model, ModelSet


@dataclass(frozen=True, eq=False)
class Start:
    """What a run on other samples starts from. What is ``None`` is chosen by the samples, as without a start.

    ``weights`` are int32 `WEIGHT` integers of all features, the bias last, and ``options`` those of the run that these
    and ``scaling`` are from. Schedules go on with ``history``, which counts among the epochs of the options. ``refit``
    tells whether the intercept is fitted to the samples, as without a start, and is not the bias as it was trained. For
    a model of several rows, each of ``rows`` has weights, rate and history of its own. If there is no coding, ``guess``
    tells whether numbers that seem to be measurements are refused as classes.
    """

    coding: LabelCoding | TargetCoding | None = None
    scaling: "Scaling | Whitening | None" = None
    weights: WeightArray | None = None
    rate: float | None = None
    history: "Sequence[EpochRecord]" = ()
    options: TrainingOptions | None = None
    refit: bool = True
    rows: "tuple[Start, ...]" = ()
    guess: bool = True

    def row(self, row: int) -> "Start":
        return replace(self.rows[row], refit=self.refit) if self.rows else self

    @property
    def epochs(self) -> int:
        """How many epochs there were before, at most of the rows."""
        return max(len(each.history) for each in self.rows or (self,))

    def anew(self) -> "Start":
        """From the weights alone: with a rate that is searched for, and no epochs before."""
        return replace(self, rate=None, history=(), refit=True, rows=tuple(row.anew() for row in self.rows))

    @classmethod
    def of_model(cls, model: "Model | ModelSet", name: str) -> Self:
        """The weights of a model of some name, with its scaling and its meaning of labels; `UserError` if it lacks its
        scaling, or the options of its training."""
        if model.scaling is None or not model.training.get("options"):
            raise UserError(
                f"{name}: lacks the scaling of features that training goes on from, as models of earlier versions do: "
                f"train it anew"
            )
        known = {field.name for field in dataclasses.fields(TrainingOptions)}
        try:
            options = TrainingOptions(
                **{key: value for key, value in model.training["options"].items() if key in known}
            )
            if any(row.weights.size != row.coefficients.size + options.bias for row in model.rows):
                raise UserError("the weights are not theirs")
        except (AttributeError, TypeError, UserError) as error:
            raise UserError(f"{name}: a damaged model file: the options of its training: {error}") from error
        shared: dict[str, Any] = {"scaling": model.scaling, "options": options}
        rows = tuple(cls(coding=row.labels, weights=row.weights, **shared) for row in model.rows)
        return rows[0] if len(rows) == 1 else cls(coding=model.labels, rows=rows, **shared)

    @property
    def keeps_zeros(self) -> bool:
        """Whether zeros of sparse data stay zeros, as far as that is decided."""
        return self.scaling is None or (isinstance(self.scaling, Scaling) and self.scaling.heat is not None)

    def check(self, options: TrainingOptions) -> None:
        """Raise a `UserError` if with some options the meaning of features, labels or weights would be another."""
        task = get_loss(options.loss).task
        if self.coding is not None and self.coding.task is not task:
            raise UserError(
                f"the loss {options.loss} is for {task.value}, the weights are those of a {self.coding.task.value}: "
                f"only training anew can change it"
            )
        for name in options_with(Fact.FEATURES) if self.options is not None else ():
            fact = "stored" if name == "planes" else name
            before, after = getattr(self.options, fact), getattr(options, fact)
            if before != after:
                raise UserError(f"{name} was {before} and is {after}: only training anew can change it")
