"""Training in several processes: communication between them, and how they are started."""

from p4sgd.host.distributed.communicator import (
    LAUNCHERS,
    SINGLE_PROCESS,
    Communicator,
    broadcast,
    open_communicator,
    share_of,
)

__all__ = ["LAUNCHERS", "SINGLE_PROCESS", "Communicator", "broadcast", "open_communicator", "share_of"]
