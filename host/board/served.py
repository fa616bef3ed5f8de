"""What a board server needs of a worker."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["ServedWorker"]


class ServedWorker(Protocol):
    """Registers, memory and packets of a worker that does nothing by itself: whoever serves it calls `work`."""

    @property
    def config(self) -> WorkerConfig:
        """Size of the worker."""

    @property
    def idle(self) -> bool:
        """Whether no run is wanted or under way."""

    @property
    def next_work(self) -> int | None:
        """When to call `work` though nothing came, in the cycles of `cycles_now`; None for never."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that all memories keep, if that depends on what is written; else 0."""

    def work(self) -> None:
        """Go on, for a moment; to be called after every frame and request."""

    def receive(self, frame: bytes) -> None:
        """Take a frame, of whatever length."""

    def read_register(self, offset: int) -> int:
        """Read a word."""

    def write_register(self, offset: int, word: int) -> None:
        """Write a word."""

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of bytes of a bank."""

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Put bytes into a bank. The array may be kept: it must not be changed afterwards."""

    def forget_memory(self, bank: int, address: int, size: int) -> None:
        """Let go of bytes of a bank that are about to be written, or refuse them."""
