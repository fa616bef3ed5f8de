"""Losses by name. To add a loss, subclass `Loss` in a module of its own and add it to `LOSSES`."""

from p4sgd.host.errors import UserError
from p4sgd.host.losses.hinge import Hinge
from p4sgd.host.losses.logistic import Logistic
from p4sgd.host.losses.loss import Loss, Task
from p4sgd.host.losses.modified_huber import ModifiedHuber
from p4sgd.host.losses.squared import Squared
from p4sgd.host.losses.squared_hinge import SquaredHinge

__all__ = ["LOSSES", "Loss", "Task", "get_loss"]

LOSSES: dict[str, Loss] = {
    loss.name: loss for loss in (Logistic(), Hinge(), SquaredHinge(), ModifiedHuber(), Squared())
}
"""All losses by name, the default first."""


def get_loss(name: str) -> Loss:
    """The loss with a name.

    Raises
    ------
    UserError
        If there is none; the message lists the names.
    """
    try:
        return LOSSES[name]
    except KeyError:
        raise UserError(f"there is no loss {name!r}: choose one of {', '.join(LOSSES)}") from None
