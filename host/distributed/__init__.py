"""Training in several processes: their communication, and how they are started."""

from p4sgd.host.distributed.communicator import (
    LAUNCHERS,
    SINGLE_PROCESS,
    Communicator,
    broadcast,
    open_communicator,
    share_of,
)

__all__ = ["LAUNCHERS", "SINGLE_PROCESS", "Communicator", "broadcast", "open_communicator", "share_of"]
