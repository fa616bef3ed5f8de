"""What every device offers: workers with registers and memory, and a way to wait for them.

How the workers of a device find their aggregator.

What every device offers: workers with registers and memory, and a way to wait for them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.errors import UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.cmac import LinkState
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import GROUP_BIT
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["WAIT_LIMIT", "Device", "NetworkSettings", "Worker", "client_of"]


WAIT_LIMIT = 1 << 31
"""Cycles that a worker's wait is below, doubled as often as it may be (`registers.RESEND`)."""


@dataclass(frozen=True)
class NetworkSettings:
    """How the workers find the aggregator.

    Parameters
    ----------
    job
        Number of the first job, 0 to 255; of those that follow, after a run that did not end well, and of the first too
        if it is ``None``, it is the next that no worker knows from its last job and under which the aggregator serves
        nobody: so packets of the last job which are still under way are foreign to this one.
    first_round
        Round of the first AllReduce, 0 to 65535: 1 for an aggregator that is new to the job.
    resend_cycles
        Cycles after which a packet without answer is sent again, at least 1: by default 10 µs at 250 MHz, several times
        the way through a switch and back.
    doublings, resends
        How often this time doubles, 0 to 15, and how many resends there are before a worker gives up, 1 to 255, or 0
        for any number. By default a worker waits for the others for 160 ms at 250 MHz. No wait is as long as 2^31
        cycles.
    aggregator_mac
        MAC address of the aggregator, not that of a group.
    local_macs
        MAC addresses of the workers, by shard index, no two alike; none for 02:50:34:53:47 ('P4SG') and the shard,
        which will do where no others share a port of the aggregator.
    slack_s
        By how many seconds what is prompt in this network may be late by the clock: the answer of a program, and
        workers that are started one after the other. 0 in a simulated network, where the clock says nothing.

    Raises
    ------
    UserError
        If one is outside its range.
    """

    job: int | None = None
    first_round: int = 1
    resend_cycles: int = 2500
    doublings: int = 6
    resends: int = 255
    aggregator_mac: int = 0
    local_macs: tuple[int, ...] = ()
    slack_s: float = 0.0

    def __post_init__(self) -> None:
        for name, low, field in (
            ("job", 0, registers.JOB["job"]),
            ("first_round", 0, registers.JOIN["round"]),
            ("resend_cycles", 1, registers.RESEND_CYCLES["value"]),
            ("doublings", 0, registers.RESEND["doublings"]),
            ("resends", 0, registers.RESEND["limit"]),
        ):
            value, most = getattr(self, name), (1 << field.bits) - 1
            if value is not None and not low <= value <= most:
                raise UserError(f"{name} must be {low} to {most}, not {value}")
        if self.resend_cycles << self.doublings >= WAIT_LIMIT:
            raise UserError(
                f"{self.resend_cycles} resend_cycles with {self.doublings} doublings are a wait of "
                f"{self.resend_cycles << self.doublings} cycles, which must be below {WAIT_LIMIT}: take less of either"
            )
        if not 0 <= self.aggregator_mac < 1 << 48 or self.aggregator_mac >> GROUP_BIT & 1:
            raise UserError(f"aggregator_mac must be the address of a single host, not {self.aggregator_mac:#014x}")

    def local_mac(self, shard: int) -> int:
        """MAC address of a worker."""
        return self.local_macs[shard] if self.local_macs else 0x02 << 40 | registers.MAGIC << 8 | shard

    @property
    def echo_s(self) -> float:
        """How long to wait for the answer to a probe, by the clock: as for any other, and the slack; 0 if simulated."""
        return max(self.slack_s, self.resend_cycles * CLOCK_NS / 1e9) if self.slack_s else 0.0

    @property
    def patience_s(self) -> float:
        """How long a worker waits for an answer before it gives up, at 250 MHz; infinite if it never does."""
        if not self.resends:
            return math.inf
        waits = [self.resend_cycles << min(resend, self.doublings) for resend in range(self.resends + 1)]
        return sum(waits) * CLOCK_NS / 1e9


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
