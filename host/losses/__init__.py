"""Losses by name. To add a loss, subclass `Loss` and add it to `LOSSES`."""

import functools
from collections.abc import Mapping

from p4sgd.host.errors import UserError
from p4sgd.host.losses.classification import Hinge, Logistic, ModifiedHuber, SquaredHinge
from p4sgd.host.losses.log_link import Gamma, Poisson, Tweedie
from p4sgd.host.losses.loss import Loss, Probabilistic, Task
from p4sgd.host.losses.regression import EpsilonInsensitive, Huber, Quantile, Squared

__all__ = ["ELSEWHERE", "LOSSES", "Loss", "Probabilistic", "Task", "get_loss"]

LOSSES: dict[str, Loss] = {
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
        raise UserError(f"there is no loss {name!r}{here}: choose one of {', '.join(LOSSES)}")
    return _make(name, tuple(sorted(parameters.items()))) if parameters else LOSSES[name]


@functools.cache  # the same object has the same table, which is fitted once
def _make(name: str, parameters: tuple[tuple[str, float], ...]) -> Loss:
    known, chosen = LOSSES[name], dict(parameters)
    if not set(chosen) <= set(known.parameters):
        raise ValueError(f"the loss {name} has no parameters {', '.join(set(chosen) - set(known.parameters))}")
    return type(known)(**chosen)
