"""Training in several processes: communication between them, and how they are started."""

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast, share_of
from p4sgd.host.distributed.launching import LAUNCHERS, open_communicator

__all__ = ["LAUNCHERS", "SINGLE_PROCESS", "Communicator", "broadcast", "open_communicator", "share_of"]
