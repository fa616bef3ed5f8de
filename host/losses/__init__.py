"""Losses by name. To add a loss, subclass `Loss` and add it to `LOSSES`, or declare it in another package or file."""

import functools
from collections.abc import Mapping
from typing import Any

from p4sgd.host.errors import UserError
from p4sgd.host.losses.classification import Hinge, Logistic, ModifiedHuber, SquaredHinge
from p4sgd.host.losses.log_link import Gamma, Poisson, Tweedie
from p4sgd.host.losses.loss import Loss, Probabilistic, Task
from p4sgd.host.losses.regression import EpsilonInsensitive, Huber, Quantile, Squared
from p4sgd.hw.spec.registry import Registry, choices

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
    for attribute in ("name", "summary", "task", "label_mode", "step"):
        if not hasattr(loss, attribute):
            raise ValueError(f"{name} has no {attribute}")
    if loss.name != name:
        raise ValueError(f"{name} has the name {loss.name}")
    return loss


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
