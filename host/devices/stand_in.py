"""Registers and memory of the shard that a worker process stands in for."""

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.device import Worker
from p4sgd.hw.spec.register_map import STAND_IN


class StandInWorker:
    """A worker process as the worker whose shard it also holds, of the same configuration. It has no packets of its own
    there: it is started before the process itself, and its run ends with that one's."""

    def __init__(self, worker: Worker) -> None:
        self.config = worker.config
        self._worker = worker

    def read_register(self, offset: int) -> int:
        return self._worker.read_register(STAND_IN + offset)

    def write_register(self, offset: int, word: int) -> None:
        self._worker.write_register(STAND_IN + offset, word)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        self._worker.write_memory(self.config.memories + bank, address, data)

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        return self._worker.read_memory(self.config.memories + bank, address, size)
