"""What every device offers: workers with registers and memory, and a way to wait for them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.link_state import LinkState
from p4sgd.host.devices.network import NetworkSettings
from p4sgd.host.switch.controller import Controller
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["Device", "Worker", "client_of"]


class Worker(Protocol):
    """One worker: 32-bit registers (:mod:`p4sgd.hw.spec.registers`) and banks of memory.

    Banks are numbered as `WorkerConfig.memories` counts them. Bank engine · ports + port is behind a port of an engine
    and holds its part of the engine's lines, and behind port 0 the engine's weights too; the labels lie in bank
    `WorkerConfig.labels_memory`. What was never written reads as anything at all.
    """

    @property
    def config(self) -> WorkerConfig:
        """Size of the worker."""
        ...

    def read_register(self, offset: int) -> int:
        """Read the word at a byte offset."""
        ...

    def write_register(self, offset: int, word: int) -> None:
        """Write the word at a byte offset."""
        ...

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write C-contiguous bytes. The device may keep a reference, so the caller leaves ``data`` as it is."""
        ...

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Read ``size`` bytes."""
        ...


class Device(Protocol):
    """A cluster of workers and the aggregator between them, ready to be used."""

    name: str

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers, by shard index; where other processes have some of the cluster, those of this one."""
        ...

    @property
    def aggregator(self) -> Controller | None:
        """Of the aggregator between them; None if nothing can be told to it or asked."""
        ...

    @property
    def network_settings(self) -> NetworkSettings | None:
        """How the workers find the aggregator; None if the defaults will do."""
        ...

    @property
    def links(self) -> Mapping[int, LinkState] | None:
        """Ethernet links of the workers that tell of theirs, now, by shard index; None if none does."""
        ...

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the run of every started worker has ended.

        Raises
        ------
        P4sgdError
            If that takes longer than ``timeout_s`` seconds.
        """
        ...

    def close(self) -> None:
        """Give the device back. It is not used any more."""
        ...


def client_of(worker: Worker) -> RegisterClient:
    """Access to a worker's registers by their fields."""
    return RegisterClient(worker.read_register, worker.write_register)
