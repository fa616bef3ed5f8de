"""What the simulator and its client agree on."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["CLOCK_NS", "SOCKET_VARIABLE", "memory_file", "read_saved"]

CLOCK_NS = 4
"""Clock period, ns: the 250 MHz that the boards aim at."""

SOCKET_VARIABLE = "P4SGD_CLUSTER_SOCKET"
"""Environment variable that tells the simulator where its client listens."""


def memory_file(worker: int, bank: int) -> str:
    """Name of the file that holds the contents of a worker's memory bank."""
    return f"worker{worker}_bank{bank}.bin"


def read_saved(directory: Path, worker: int, bank: int) -> list[tuple[int, npt.NDArray[np.uint8]]]:
    """What a memory bank saved: byte addresses and contents of its written words (see ``sim_storage.sv``)."""
    words = []
    for line in (directory / f"{memory_file(worker, bank)}.txt").read_text().splitlines():
        index, text = line.split()
        word = np.frombuffer(bytes.fromhex(text)[::-1], np.uint8)
        words.append((int(index, 16) * word.size, word))
    return words
