"""Losses by name. To add a loss, subclass `Loss` and add it to `LOSSES`, or declare it in another package or file."""

import functools
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from p4sgd.host.errors import UserError
from p4sgd.host.losses.classification import Hinge, Logistic, ModifiedHuber, SquaredHinge
from p4sgd.host.losses.log_link import Gamma, Poisson, Tweedie
from p4sgd.host.losses.loss import Loss, Probabilistic, Shape, Task
from p4sgd.host.losses.regression import EpsilonInsensitive, Huber, Quantile, Squared
from p4sgd.hw.spec.registry import Registry, choices
from p4sgd.hw.spec.run import LabelMode

__all__ = ["ELSEWHERE", "LOSSES", "Loss", "Probabilistic", "Task", "get_loss"]

_OWN: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Logistic(),
        Hinge(),
        SquaredHinge(),
        ModifiedHuber(),
        Squared(),
        Huber(),
        EpsilonInsensitive(),
        Quantile(),
        Poisson(),
        Gamma(),
        Tweedie(),
    )
}


def _check(name: str, declared: Any) -> Loss:
    """The loss that another package or file declares, as an object or as its class."""
    loss = declared() if isinstance(declared, type) else declared
    if not isinstance(loss, Loss):
        raise TypeError(f"{name} is not of the class p4sgd.host.losses.Loss")
    known = {parameter for own in _OWN.values() for parameter in own.parameters}
    if unknown := ", ".join(loss.parameters.keys() - known):
        raise ValueError(f"{name} has the parameter {unknown}: losses may have {', '.join(sorted(known))}")
    kinds = {"name": str, "summary": str, "task": Task, "label_mode": LabelMode, "step": Real, "shape": Shape}
    for attribute, kind in kinds.items():
        if not isinstance(getattr(loss, attribute, None), kind):
            raise ValueError(f"{name} has no {attribute} of the class {kind.__name__}")
    if loss.name != name:
        raise ValueError(f"{name} has the name {loss.name}")
    _try(loss)
    return loss


def _try(loss: Loss) -> None:
    """Call the methods of a loss over the range of activations; a ValueError names the one that is wrong."""
    z = np.arange(-1024, 1024, 0.25).reshape(-1, 2)
    y = np.ones_like(z)
    arguments = {"psi": (z,), "value": (np.clip(z, -16, 16), y), "label": (y,), "importance": (y,)}
    for method, given in arguments.items():
        try:
            with np.errstate(all="ignore"):
                found = getattr(loss, method)(*given)
        except Exception as error:
            raise ValueError(f"{method} of {loss.name} raises {type(error).__name__}: {error}") from error
        if not isinstance(found, np.ndarray) or found.shape != z.shape or found.dtype.kind not in "fiu":
            raise ValueError(f"{method} of {loss.name} gives no array of real numbers of the shape of its argument")
        if np.isnan(found).any():
            raise ValueError(f"{method} of {loss.name} gives NaN for {given[0][np.isnan(found)][0]:g}")


LOSSES = Registry("p4sgd.losses", _OWN, _check)
"""All losses by name, with the default of each parameter; the default loss first."""

ELSEWHERE = {
    "log_loss": "logistic",
    "binary:logistic": "logistic",
    "multi:softmax": "logistic",
    "multi:softprob": "logistic",
    "binary:hinge": "hinge",
    "squared_error": "squared",
    "reg:squarederror": "squared",
    "reg:quantileerror": "quantile",
    "count:poisson": "poisson",
    "reg:gamma": "gamma",
    "reg:tweedie": "tweedie",
}
"""What a loss is called here, by its name in scikit-learn or XGBoost, for messages."""


def get_loss(name: str, parameters: Mapping[str, float] | None = None) -> Loss:
    """The loss with a name; `Loss.parameters` that are not given have their defaults. `UserError` if there is none,
    `ValueError` if it has no such parameter, or if one is out of range."""
    if name not in LOSSES:
        here = f", which is {ELSEWHERE[name]} here" if name in ELSEWHERE else ""
        raise UserError(f"there is no loss {name!r}{here}: {choices(LOSSES)}")
    return _make(name, tuple(sorted(parameters.items()))) if parameters else LOSSES[name]


@functools.cache  # the same object has the same table, which is fitted once
def _make(name: str, parameters: tuple[tuple[str, float], ...]) -> Loss:
    known, chosen = LOSSES[name], dict(parameters)
    if not set(chosen) <= set(known.parameters):
        raise ValueError(f"the loss {name} has no parameters {', '.join(set(chosen) - set(known.parameters))}")
    return type(known)(**chosen)
