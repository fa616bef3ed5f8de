"""What the simulator and its client agree on."""

__all__ = ["CLOCK_NS", "SOCKET_VARIABLE", "memory_file"]

CLOCK_NS = 4
"""Clock period, ns: the 250 MHz that the boards aim at."""

SOCKET_VARIABLE = "P4SGD_CLUSTER_SOCKET"
"""Environment variable that tells the simulator where its client listens."""


def memory_file(worker: int, bank: int) -> str:
    """Name of the file that holds the contents of a worker's memory bank."""
    return f"worker{worker}_bank{bank}.bin"
