"""What training starts from, if not from nothing: features and labels as they were understood, and weights."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from p4sgd.host.data import Scaling
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.errors import UserError
from p4sgd.host.losses import get_loss
from p4sgd.host.precondition import Whitening
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.fixed import IntArray

if TYPE_CHECKING:
    from p4sgd.host.training.model_file import Model
    from p4sgd.host.training.result import EpochRecord

__all__ = ["Start"]

_FIXED = ("stored", "scaling", "missing", "precondition", "damping", "bias")
"""Facts about options that the scaling and the number of weights depend on."""


@dataclass(frozen=True, eq=False)
class Start:
    """What a run on other samples starts from. What is ``None`` is chosen by the samples, as without a start.

    Parameters
    ----------
    coding
        Meaning of the labels.
    scaling
        Scaling of the features, with their preconditioning; its heat is counted anew.
    weights
        int64 `WEIGHT` integers of all features, the bias last; ``None`` is zeros.
    rate
        Initial learning rate.
    history
        Epochs before, with which schedules go on. They count among the epochs of the options.
    options
        Options of the run that ``scaling`` and ``weights`` are from.
    refit
        Whether the intercept is fitted to the samples, as without a start. If not, the model has the bias as it was
        trained, which the samples of a small part of the data change little.
    """

    coding: LabelCoding | None = None
    scaling: Scaling | Whitening | None = None
    weights: IntArray | None = None
    rate: float | None = None
    history: "Sequence[EpochRecord]" = ()
    options: TrainingOptions | None = None
    refit: bool = True

    @classmethod
    def of_model(cls, model: "Model", name: str) -> Self:
        """The weights of a model, with its scaling and its meaning of labels.

        Parameters
        ----------
        model
            The model.
        name
            What it is called in messages.

        Raises
        ------
        UserError
            If it lacks its scaling, or the options of its training.
        """
        known = {field.name for field in dataclasses.fields(TrainingOptions)}
        began = {key: value for key, value in model.training.get("options", {}).items() if key in known}
        if model.scaling is None or not began:
            raise UserError(
                f"{name}: lacks the scaling of features that training goes on from, as models of earlier versions do: "
                f"train it anew"
            )
        weights = model.weights.astype(np.int64)
        return cls(coding=model.labels, scaling=model.scaling, weights=weights, options=TrainingOptions(**began))

    @property
    def keeps_zeros(self) -> bool:
        """Whether zeros of sparse data stay zeros, as far as that is decided."""
        return self.scaling is None or (isinstance(self.scaling, Scaling) and self.scaling.heat is not None)

    def check(self, options: TrainingOptions) -> None:
        """Refuse options with which the scaling, the meaning of labels and the weights would be others.

        Raises
        ------
        UserError
            If one of them has changed.
        """
        if self.coding is not None and self.coding.task is not get_loss(options.loss).task:
            raise UserError(
                f"the loss {options.loss} is for {get_loss(options.loss).task.value}, the weights are those of a "
                f"{self.coding.task.value}: only training anew can change it"
            )
        for name in _FIXED if self.options is not None else ():
            before, after = getattr(self.options, name), getattr(options, name)
            if before != after:
                option = "planes" if name == "stored" else name
                raise UserError(f"{option} was {before} and is {after}: only training anew can change it")
