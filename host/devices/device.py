"""The interface of devices: workers with registers and memory, and how they find their aggregator."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.host.aggregators.seats import Seat
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient, find_other_map

if TYPE_CHECKING:
    from p4sgd.host.aggregators.controller import Controller
    from p4sgd.host.distributed.overlap import MessageTimes

WAIT_LIMIT = 1 << 31
"""Upper bound of a worker's longest wait, in cycles: RESEND_CYCLES after all doublings (`registers.RESEND`)."""


@dataclass(frozen=True)
class NetworkSettings:
    """How the workers find the aggregator, and how long they wait for it."""

    # Number of the first job, 0 to 255. If None, and after a failed run, the next is taken that is in no worker's JOB
    # register and that the aggregator does not serve: late packets of the last job are dropped.
    job: int | None = None
    first_round: int = 1  # round of the first AllReduce, 0 to 65535: 1 for an aggregator that is new to the job
    # Cycles after which an unanswered packet is sent again, at least 1: by default 10 µs at 250 MHz, several round
    # trips through a switch. This time doubles so often, 0 to 15, and must stay below 2^31 cycles.
    resend_cycles: int = 2500
    doublings: int = 6
    resends: int = 255  # resends before a worker gives up, by default after 160 ms; 0 never gives up
    aggregator_mac: int = 0  # no group address
    # Different addresses of the workers by shard; by default 02:50:34:53:47 ('P4SG') and the shard.
    local_macs: tuple[int, ...] = ()
    # Seconds of delay to expect of programs: an aggregator's answer, workers that are started one after the other. 0 in
    # a simulated network, where wall-clock time means nothing.
    slack_s: float = 0.0
    udp: bool = False  # packets travel in UDP, and addresses stand for those of IPv4 (`p4sgd.hw.spec.udp`)
    # With two levels of aggregators: where each worker is, by shard, and the addresses of the racks' aggregators.
    seats: tuple[Seat, ...] = ()
    rack_macs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wait = self.resend_cycles << self.doublings
        if wait >= WAIT_LIMIT:
            raise UserError(
                f"{self.resend_cycles} resend_cycles with {self.doublings} doublings are a wait of {wait} cycles, "
                f"which must be below {WAIT_LIMIT}: reduce either"
            )

    def local_mac(self, shard: int) -> int:
        """MAC address of a worker."""
        return self.local_macs[shard] if self.local_macs else 0x02 << 40 | registers.MAGIC << 8 | shard

    def seat(self, shard: int, workers: int) -> Seat:
        """What a worker is to its aggregator, in a job of so many."""
        return self.seats[shard] if self.seats else Seat(None, shard, workers, None)

    def peer_mac(self, shard: int) -> int:
        """Address of a worker's aggregator."""
        rack = self.seats[shard].rack if self.seats else None
        return self.aggregator_mac if rack is None else self.rack_macs[rack]

    @property
    def echo_s(self) -> float:
        """Seconds to wait for the answer to a probe: the first wait or the slack, if longer; 0 in a simulation."""
        return max(self.slack_s, self.resend_cycles * CLOCK_NS / 1e9) if self.slack_s else 0.0

    @property
    def patience_s(self) -> float:
        """Seconds after which a worker gives up waiting for an answer, at 250 MHz; infinite if it never does."""
        if not self.resends:
            return math.inf
        waits = [self.resend_cycles << min(resend, self.doublings) for resend in range(self.resends + 1)]
        return sum(waits) * CLOCK_NS / 1e9


class NetworkError(P4sgdError):
    """Workers gave up waiting for the network."""


@dataclass(frozen=True)
class WorkerName:
    """A worker as the user knows it, also when others were lost or have come: its number in the cluster file, or its
    shard on devices without one; and the address at which it is controlled, if it has one."""

    number: int
    control: str = ""

    def __str__(self) -> str:
        return name_workers([self])


def name_workers(names: Iterable[WorkerName]) -> str:
    """Name workers in a message: ``worker 2 at unix:a, 3 at unix:b``."""
    return "worker " + ", ".join(
        f"{each.number} at {each.control}" if each.control else f"{each.number}" for each in names
    )


class Worker(Protocol):
    """One worker: 32-bit registers by byte offset (:mod:`p4sgd.hw.spec.registers`) and banks of memory.

    Banks are numbered as in `WorkerConfig.memories`. Bank engine · ports + port belongs to one port of an engine: it
    holds that port's part of the engine's lines, and for port 0 also the engine's weights. The labels are in bank
    `WorkerConfig.labels_memory`. Memory that was never written has arbitrary content.

    A worker may also have ``read_registers``, for several at once, and ``write_table``, for a whole `LossTable`.
    """

    @property
    def config(self) -> WorkerConfig: ...

    def read_register(self, offset: int) -> int: ...

    def write_register(self, offset: int, word: int) -> None: ...

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write C-contiguous bytes. The device may keep a reference, so the caller must not change ``data``."""

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]: ...


class Device(Protocol):
    """A cluster of workers and their aggregator, ready for use. Devices inherit what they do not have."""

    name: str

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers of this process, in the order of shards."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the run of every started worker has ended; a `P4sgdError` if it takes longer."""

    def close(self) -> None:
        """Release the device. It must not be used afterwards."""

    @property
    def aggregator(self) -> "Controller | None":
        """Controller of the aggregator; None if it cannot be controlled."""
        return None

    @property
    def network_settings(self) -> NetworkSettings | None:
        """How the workers find the aggregator; None for the defaults."""
        return None

    @property
    def shares(self) -> Sequence[float] | None:
        """Shares of the features that the workers of this process should get, in proportion; None for equal ones."""
        return None

    @property
    def names(self) -> Sequence[WorkerName] | None:
        """Names of the workers of all ranks by shard; None if they are numbered by shard."""
        return None

    @property
    def absent(self) -> Sequence[WorkerName]:
        """Workers that were dropped or are late."""
        return ()

    @property
    def stand_ins(self) -> Sequence[Worker]:
        """Each worker as holder of the next one's shard, the last of the first one's; none if workers cannot be."""
        return ()

    @property
    def replaced(self) -> Mapping[int, P4sgdError]:
        """Workers that were lost in a run which their stand-ins ended, by shard, with what happened. They are to be
        dropped before the next run."""
        return {}

    @property
    def message_times(self) -> "MessageTimes | None":
        """How the sums of a mini-batch travel; None if nothing was planned."""
        return None

    def drop(self, lost: Collection[int]) -> None:
        """Go on without some workers, by shard. The others are renumbered, in order, and must join a job anew. A
        `P4sgdError` if the device cannot do this."""
        raise P4sgdError(f"the workers of device {self.name} cannot go on without the others")

    def take_in(self, tell: Callable[[str], None]) -> Collection[int]:
        """Add workers that were dropped or late and are there now, and renumber all, which must then join a job anew;
        returns the shards of the new ones. ``tell`` gets a remark on each worker that is there and does not suit."""
        return ()

    def clear(self) -> None:
        """Let go of what was written to the workers' memory if it is memory of this process."""
        return


def names_of(device: Device, workers: int) -> Sequence[WorkerName]:
    """Names of the ``workers`` of a device's job, by shard."""
    return [WorkerName(shard) for shard in range(workers)] if device.names is None else device.names


def client_of(worker: Worker) -> RegisterClient:
    """A worker's registers by fields. A worker at the other end of a connection reads many with one request."""
    return RegisterClient(worker.read_register, worker.write_register, getattr(worker, "read_registers", None))


def read_configuration(name: str, client: RegisterClient) -> WorkerConfig:
    """Read a worker's configuration; a `P4sgdError` if it is no P4SGD worker or comes from another version."""
    identity = (registers.MAGIC_WORD, registers.ABI), registers.MAGIC, registers.ABI_VERSION
    unknown = f"{name} is no P4SGD worker: its first identification word"
    if problem := find_other_map(client, *identity, unknown=unknown, who=f"{name} has"):
        raise P4sgdError(problem)
    size = client.read(registers.GEOMETRY)
    sparse, ports = divmod(size["ports"], registers.SPARSE_PORTS)
    known = client.read(registers.CONFIG_HASH)["value"]
    try:
        config = WorkerConfig(
            engines=size["engines"],
            ports=ports,
            lanes=size["lanes"],
            chunks=client.read(registers.CHUNKS_MAX)["value"],
            line_fifo_depth=client.read(registers.LINE_FIFO_DEPTH)["value"],
            slots=client.read(registers.SLOTS)["value"],
            table_segments=client.read(registers.SEGMENTS)["value"],
            sparse=bool(sparse),
        )
    except ValueError as error:
        raise P4sgdError(f"{name} has no possible configuration: {error}") from error
    if config.config_hash != known:
        raise P4sgdError(
            f"{name} has a configuration of another version of p4sgd (hash {known:#010x}): start it again with this one"
        )
    return config
