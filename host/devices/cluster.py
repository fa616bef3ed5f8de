"""The device `cluster`: workers, processes or boards, and an aggregator on a real network, by a cluster file."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from p4sgd.host.aggregators.cluster_file import Cluster
from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.aggregators.membership import Membership
from p4sgd.host.aggregators.opening import open_controller
from p4sgd.host.aggregators.seats import seats_of
from p4sgd.host.aggregators.tree import macs_of
from p4sgd.host.boards.mac import await_links
from p4sgd.host.devices.board_worker import BoardWorker
from p4sgd.host.devices.device import Device, NetworkSettings, Worker, WorkerName, name_workers
from p4sgd.host.devices.job_workers import JobWorkers
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.devices.stand_in import StandInWorker
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import P4sgdError, UserError, option
from p4sgd.host.links.opening import UDP
from p4sgd.host.links.udp import udp_address_text
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.client import GoneError, RefusalError, TokenError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig

_SLACK_S = 0.02
"""`NetworkSettings.slack_s`: a batch of a socket aggregator takes a millisecond or two, and processes wait for a core.
Starting all workers one after the other takes less, so packets that are resent after this time were lost."""

_RECONNECT_S = 0.2
"""Longest time to wait for a connection to a worker that may not be there."""

_POLL_S = 0.05
"""Time to wait for one worker before the others are checked."""


def network_settings(cluster: Cluster) -> NetworkSettings:
    """The network settings of a cluster file."""
    options = cluster.network
    is_emulated = any(worker.board is not None and worker.board.is_emulated for worker in cluster.workers)
    return NetworkSettings(
        resend_cycles=options.resend_us * 1000 // CLOCK_NS,
        resends=options.resends,
        doublings=options.doublings,
        aggregator_mac=cluster.aggregator.address,
        local_macs=tuple(worker.local_mac for worker in cluster.workers),
        slack_s=0.0 if is_emulated else _SLACK_S,
        udp=cluster.udp,
        seats=tuple(seats_of(worker.rack for worker in cluster.workers)) if cluster.racks else (),
        rack_macs=tuple(rack.address for rack in cluster.racks),
    )


_Connection: TypeAlias = RemoteWorker | BoardWorker


class ClusterWorker:
    """A worker of a cluster: the aggregator hears of its joins, and errors of its connection tell which is lost."""

    def __init__(self, job_workers: JobWorkers, shard: int, port: int, connection: _Connection) -> None:
        self._job_workers = job_workers
        self._shard = shard
        self._port = port
        self._connection = connection
        self.config = connection.config
        self.stands_in_for: int | None = None  # a shard, from the next join on

    def read_register(self, offset: int) -> int:
        with self._losing():
            return self._connection.read_register(offset)

    def read_registers(self, offsets: Sequence[int]) -> list[int]:
        with self._losing():
            return self._connection.read_registers(offsets)

    def write_register(self, offset: int, word: int) -> None:
        self._job_workers.before_write(self, self._shard, self._port, offset, word)
        with self._losing():
            self._connection.write_register(offset, word)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        with self._losing():
            self._connection.write_memory(bank, address, data)

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        with self._losing():
            return self._connection.read_memory(bank, address, size)

    def await_end(self, within_s: float) -> bool:
        with self._losing():
            return self._connection.await_end(within_s)

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except RefusalError:
            raise
        except P4sgdError as error:
            error.lost_workers = frozenset({self._shard})
            raise


class ClusterDevice(Device):
    """The ``workers`` workers and the aggregator of a cluster file; those that it allows to be late may be missing.

    ``config`` is that of all workers; with None they may differ but for the number of slots. ``ranks`` have a device
    each: worker i belongs to rank i mod ranks, and rank 0 controls the aggregator, which is None in the others.

    A `UserError` if a worker or the aggregator cannot be reached, or if the workers' configurations do not suit; a
    `P4sgdError` if a worker or the aggregator does not answer as it should.
    """

    name = "cluster"
    aggregator: Controller | None = None  # and, as workers come and go:
    network_settings = NetworkSettings()
    names: Sequence[WorkerName] = ()
    workers: Sequence[ClusterWorker] = ()
    replaced: Mapping[int, P4sgdError] = {}

    def __init__(
        self, config: WorkerConfig | None, workers: int, *, cluster: Cluster, ranks: Communicator = SINGLE_PROCESS
    ) -> None:
        if workers != len(cluster.workers):
            raise UserError(f"the cluster file has {len(cluster.workers)} workers, not {workers}")
        self._cluster = cluster
        self._config = config
        self._ranks = ranks
        self._absent: dict[int, int | None] = {}  # by index in the file: the process that was dropped, if any
        with contextlib.ExitStack() as opened:
            connections: dict[int, _Connection] = {}
            missing: list[UserError] = []
            for index in range(ranks.rank, workers, ranks.size):
                try:
                    connection = _connect(index, cluster)
                except TokenError:  # it is there, but would never take part
                    raise
                except UserError as error:
                    if ranks.size > 1 or not cluster.workers[index].late:
                        missing.append(error)
                    self._absent[index] = None
                    continue
                connections[index] = opened.enter_context(contextlib.closing(connection))
            if missing:  # all of them in one line
                raise UserError("; ".join(map(str, missing))) from missing[0]
            if not connections:
                raise UserError("none of the cluster file's workers is there: start one, with p4sgd worker")
            found = ranks.all_gather([(index, str(worker), worker.config) for index, worker in connections.items()])
            _check_configurations(sorted(each for part in found for each in part), config)
            if ranks.rank == 0:
                self.aggregator = opened.enter_context(contextlib.closing(open_controller(cluster)))
                membership = Membership(self.aggregator)
                opened.callback(_end_jobs, membership)
            # Only now: a link needs both ends, and all links come up at the same time.
            macs = [each.mac for each in connections.values() if isinstance(each, BoardWorker) and each.mac is not None]
            await_links(macs, list(macs_of(self.aggregator).values()) if self.aggregator else [])
            self._opened = opened.pop_all()
        self._membership: Callable[[], Membership] = lambda: membership
        self._arrange(connections)

    def _arrange(self, connections: Mapping[int, _Connection]) -> None:
        """Number these workers, by their index in the cluster file, as shards."""
        self._connections = dict(sorted(connections.items()))
        ranks = self._ranks
        present = list(self._connections) if ranks.size == 1 else range(len(self._cluster.workers))  # no rank is late
        self._present = tuple(self._cluster.workers[index] for index in present)
        self._shards = range(ranks.rank, len(present), ranks.size)  # of this rank's workers
        self.names = tuple(self._name(index) for index in present)
        self.network_settings = network_settings(msgspec.structs.replace(self._cluster, workers=self._present))
        self.replaced = {}
        self._job_workers = JobWorkers(self._membership, ranks, len(present) if self._cluster.racks else None)
        self.workers = [
            ClusterWorker(self._job_workers, shard, self._present[shard].port, connection)
            for shard, connection in zip(self._shards, self._connections.values(), strict=True)
        ]

    def _name(self, index: int) -> WorkerName:
        return WorkerName(index, self._cluster.workers[index].control)

    @property
    def shares(self) -> Sequence[float]:
        return [self._present[shard].share for shard in self._shards]

    @property
    def absent(self) -> Sequence[WorkerName]:
        return [self._name(index) for index in sorted(self._absent)]

    @property
    def boards(self) -> Mapping[int, BoardWorker]:
        """The workers on boards, by shard."""
        connected = zip(self._shards, self._connections.values(), strict=True)
        return {shard: connection for shard, connection in connected if isinstance(connection, BoardWorker)}

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all started workers are idle. An error in one rank is raised in all."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        started = self._job_workers.take_started()
        own = {shard: each for shard, each in zip(self._shards, self.workers, strict=True) if shard in started}
        while True:
            problem = None
            try:
                own = {shard: worker for shard, worker in own.items() if not worker.await_end(_POLL_S)}
                if self.aggregator is not None:
                    self.aggregator.check_process()
            except P4sgdError as error:
                if not self._replace(error):
                    problem = error
                own = {shard: worker for shard, worker in own.items() if shard not in self.replaced}
            is_late = end is not None and time.monotonic() >= end
            states = self._ranks.all_gather((list(own), problem, is_late))
            for _, problem, _ in states:
                if problem is not None:
                    raise problem
            running = sorted(shard for shards, _, _ in states for shard in shards)
            if not running:
                return
            if any(is_late for _, _, is_late in states):
                names = name_workers(self.names[shard] for shard in running)
                raise P4sgdError(f"{names} was still running after {timeout_s:g} s")

    def _replace(self, error: P4sgdError) -> bool:
        """Have its stand-in do what is left of the run for a worker whose loss an error reports; returns whether that
        could be done."""
        if len(error.lost_workers) != 1:
            return False
        (shard,) = error.lost_workers
        by, held = (shard - 1) % len(self.workers), (shard + 1) % len(self.workers)
        if self.workers[by].stands_in_for != shard or {by, held} & self.replaced.keys():
            return False  # nobody has its shard, or it had two
        try:
            self._membership().promote(shard)
            StandInWorker(self.workers[by]).write_register(registers.JOIN.offset, 0)
        except P4sgdError:
            return False
        self.replaced = {**self.replaced, shard: error}
        return True

    def drop(self, lost: Collection[int]) -> None:
        if self._ranks.size > 1:
            raise P4sgdError("the workers of several ranks cannot go on without the others")
        indices = list(self._connections)
        for index in (indices[shard] for shard in lost):
            connection = self._connections[index]
            with contextlib.suppress(P4sgdError):
                connection.close()
            self._absent[index] = connection.process
        self._arrange({index: each for index, each in self._connections.items() if index not in self._absent})

    @property
    def stand_ins(self) -> Sequence[Worker]:
        """See `Device`. They are so from the next join on."""
        are_programs = not self.boards and self._cluster.aggregator.kind == "socket" and not self._cluster.racks
        if self._ranks.size > 1 or not are_programs or len({worker.config for worker in self.workers}) > 1:
            return ()
        for shard, worker in enumerate(self.workers):
            worker.stands_in_for = (shard + 1) % len(self.workers)
        return [StandInWorker(worker) for worker in self.workers]

    def take_in(self, tell: Callable[[str], None]) -> Collection[int]:
        """See `Device.take_in`; not for boards, nor if several ranks share the cluster.

        A worker that was dropped must have been started again. If it was not, it has lost its network.
        """
        came: dict[int, _Connection] = {}
        present = [(index, str(each), each.config) for index, each in self._connections.items()]
        for index, dropped in sorted(self._absent.items()):
            if self._cluster.workers[index].board is not None:
                continue
            connection = None
            try:
                connection = _connect(index, self._cluster, connect_s=_RECONNECT_S)
                if connection.process != dropped:
                    _check_configurations([*present, (index, str(connection), connection.config)], self._config)
                    came[index] = self._opened.enter_context(contextlib.closing(connection))
            except GoneError:
                pass
            except (P4sgdError, UserError) as error:
                if connection is not None or isinstance(error, P4sgdError | TokenError):
                    tell(f"a worker that has come cannot take part: {error}")
            if connection is not None and index not in came:
                connection.close()
        if came:
            self._absent = {index: process for index, process in self._absent.items() if index not in came}
            self._arrange(self._connections | came)
        return {shard for shard, index in enumerate(self._connections) if index in came}

    def close(self) -> None:
        """End the job at the aggregator and all runs on boards, and close all connections."""
        self._opened.close()


def _end_jobs(membership: Membership) -> None:
    with contextlib.suppress(P4sgdError, UserError):  # an aggregator that is gone has none
        membership.end()


def _connect(index: int, cluster: Cluster, **options: float) -> _Connection:
    address = cluster.workers[index]
    if address.board is not None:
        return BoardWorker(index, address.board, rs_fec=cluster.network.rs_fec)
    interface = UDP + udp_address_text(address.local_mac) if cluster.udp else "INTERFACE"
    control = ControlAddress.parse(address.control)
    return RemoteWorker(index, control, cluster.token, interface=interface, **options)


def _check_configurations(workers: Sequence[tuple[int, str, WorkerConfig]], config: WorkerConfig | None) -> None:
    """Refuse workers that are not of ``config``, or differ in slots; each is index, name and configuration."""
    _, first, known = workers[0]
    for _, name, there in workers:
        if config is not None and there != config:
            own, wanted = vars(there), vars(config)
            differ = ", ".join(f"{key} {own[key]}, not {wanted[key]}" for key in own if own[key] != wanted[key])
            raise UserError(
                f"{name} has another configuration than was asked for ({differ}): leave {option('config')} out, start "
                "it with that --config, or use an xclbin of that configuration"
            )
        if there.slots != known.slots:  # operation n is in slot n mod slots
            raise UserError(
                f"{name} has {there.slots} slots, {first} has {known.slots}: workers of one job must have equally "
                f"many: those that are programs can be started with --set slots={known.slots}"
            )
