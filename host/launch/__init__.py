"""Training that several processes do together, and how they are started."""

from p4sgd.host.launch.communicator import ALONE, Communicator, agreed, share_of
from p4sgd.host.launch.opening import LAUNCHERS, open_communicator

__all__ = ["ALONE", "LAUNCHERS", "Communicator", "agreed", "open_communicator", "share_of"]
