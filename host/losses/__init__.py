"""Losses by name. A new loss is one class in a file of its own and one entry here."""

from p4sgd.host.errors import UserError
from p4sgd.host.losses.loss import Hinge, Logistic, Loss, Squared, Task

__all__ = ["LOSSES", "Loss", "Task", "get_loss"]

LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Hinge(), Squared())}
"""Every loss by the name that the user gives, the default first."""


def get_loss(name: str) -> Loss:
    """The loss of that name.

    Raises
    ------
    UserError
        If there is none; the message lists those there are.
    """
    try:
        return LOSSES[name]
    except KeyError:
        raise UserError(f"there is no loss {name!r}; there are {', '.join(LOSSES)}") from None
