"""The `cluster` device: workers that are processes or boards, and an aggregator, joined by a real network.

A cluster file says where they are (`p4sgd.host.aggregators.cluster_file`). The workers say themselves how big they are.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.aggregators.cluster_file import Cluster, NetworkOptions, WorkerAddress
from p4sgd.host.aggregators.controller import Controller, open_controller
from p4sgd.host.aggregators.membership import Membership
from p4sgd.host.devices.device import NetworkSettings
from p4sgd.host.devices.members import Members, before_write
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.devices.xrt_worker import BoardWorker
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.hw.spec.cmac import LinkState
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig

__all__ = ["ClusterDevice", "ClusterWorker", "network_settings"]

_SLACK_S = 0.02
"""A batch of a socket aggregator takes a millisecond or two, and programs wait for processors. To start all workers one
after the other takes less: so what they send again under an examination was lost."""

_LOOK_S = 0.05
"""How long to wait for one worker before it is seen whether the others are still there."""


def network_settings(cluster: Cluster) -> NetworkSettings:
    """What a cluster file says of the network, as workers are told."""
    options = cluster.network
    return NetworkSettings(
        resend_cycles=options.resend_us * 1000 // CLOCK_NS,
        resends=options.resends,
        doublings=options.doublings,
        aggregator_mac=cluster.aggregator.mac,
        local_macs=tuple(worker.local_mac for worker in cluster.workers),
        slack_s=_SLACK_S,
    )


_Reached: TypeAlias = RemoteWorker | BoardWorker


class ClusterWorker:
    """A worker of a cluster; the aggregator is told of its joins."""

    def __init__(self, device: "ClusterDevice", index: int, reached: _Reached) -> None:
        self._device = device
        self._index = index
        self._reached = reached
        self.config = reached.config
        self.read_register = reached.read_register
        self.read_memory = reached.read_memory
        self.await_end = reached.await_end

    def write_register(self, offset: int, word: int) -> None:
        """Write a word; a join is told to the aggregator first."""
        before_write(
            offset,
            word,
            on_join=lambda first_round: self._device.before_join(self._index, first_round),
            on_start=lambda: self._device.before_start(self._index),
        )
        self._reached.write_register(offset, word)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to a bank."""
        self._reached.write_memory(bank, address, data)


class ClusterDevice:
    """The workers and the aggregator of a cluster file.

    Parameters
    ----------
    config
        Size that the workers must have; None for whatever they say, all the same.
    workers
        How many there must be.
    cluster
        Where they are.
    ranks
        Ranks with a device each, for every other worker of the file; the first tells the aggregator.

    Attributes
    ----------
    aggregator : Controller
        Of the aggregator between the workers; None in other ranks than the first.
    network_settings : NetworkSettings
        How the workers find it.

    Raises
    ------
    UserError
        If a worker or the aggregator is not there, or the workers are not all alike, or not as asked for, or have their
        packets in UDP.
    P4sgdError
        If one does not answer as it should.
    """

    name = "cluster"

    def __init__(
        self, config: WorkerConfig | None, workers: int, *, cluster: Cluster, ranks: Communicator = SINGLE_PROCESS
    ) -> None:
        if workers != len(cluster.workers):
            raise UserError(f"the cluster file has {len(cluster.workers)} workers, not {workers}")
        self.network_settings = network_settings(cluster)
        self.aggregator: Controller | None = None
        self._ranks = ranks
        self._ports = [worker.port for worker in cluster.workers]
        with contextlib.ExitStack() as opened:
            found_here: dict[int, _Reached] = {}
            for index in range(ranks.rank, workers, ranks.size):
                reached = _reach(index, cluster.workers[index], cluster.network)
                found_here[index] = opened.enter_context(contextlib.closing(reached))
            found = ranks.all_gather([(index, str(worker), worker.config) for index, worker in found_here.items()])
            _check_alike(sorted((each for part in found for each in part), key=lambda each: each[0]), config)
            if ranks.rank == 0:
                self.aggregator = opened.enter_context(contextlib.closing(open_controller(cluster)))
                membership = Membership(self.aggregator)
            self._opened = opened.pop_all()
        self._reached = found_here
        self._workers = {index: ClusterWorker(self, index, reached) for index, reached in found_here.items()}
        self._members = Members(lambda: membership, ranks)

    @property
    def workers(self) -> Sequence[ClusterWorker]:
        """The workers of this process, by shard index."""
        return list(self._workers.values())

    @property
    def links(self) -> Mapping[int, LinkState]:
        """Ethernet links of this process's workers that are boards, now; by shard index."""
        boards = {index: reached for index, reached in self._reached.items() if isinstance(reached, BoardWorker)}
        return {index: link for index, board in boards.items() if (link := board.link) is not None}

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until every started worker is idle. What one rank finds, all raise.

        Raises
        ------
        P4sgdError
            If not all workers of a job were started, if one is gone, or after ``timeout_s`` seconds.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        own = sorted(self._members.take_started())
        while True:
            problem = None
            try:
                own = [index for index in own if not self._workers[index].await_end(_LOOK_S)]
            except P4sgdError as error:
                problem = error
            is_late = end is not None and time.monotonic() >= end
            states = self._ranks.all_gather((own, problem, is_late))
            for _, problem, _ in states:
                if problem is not None:
                    raise problem
            running = sorted(index for indices, _, _ in states for index in indices)
            if not running:
                return
            if any(is_late for _, _, is_late in states):
                names = ", ".join(map(str, running))
                raise P4sgdError(f"worker {names} was still running after {timeout_s:g} s")

    def close(self) -> None:
        """Hang up. Workers and aggregator stay as they are, for the next client, but for runs of boards, which end."""
        self._opened.close()

    # -- for the workers -----------------------------------------------------------------------------------------

    def before_join(self, worker: int, first_round: int) -> None:
        """Tell the aggregator of a worker."""
        self._members.join(self._workers[worker], worker, self._ports[worker], first_round)

    def before_start(self, worker: int) -> None:
        """Note that a worker runs."""
        self._members.start(worker)


def _reach(index: int, address: WorkerAddress, network: NetworkOptions) -> _Reached:
    if address.board is not None:
        return BoardWorker(index, address.board, rs_fec=network.rs_fec)
    return RemoteWorker(index, ControlAddress.parse(address.control))


def _check_alike(workers: Sequence[tuple[int, str, WorkerConfig]], config: WorkerConfig | None) -> None:
    """Refuse workers with UDP, of several sizes, or of another than asked for; of each its index, name and size."""
    wanted = workers[0][2] if config is None else config
    whose = "worker 0" if config is None else "what is asked for"
    for _, name, there in workers:
        if there.udp:  # a session writes neither ETHERNET_MAC nor NEXT_HOP_MAC
            raise UserError(f"{name} was generated with --udp, which p4sgd cannot drive yet: generate it without")
        if there != wanted:
            raise UserError(
                f"{name} has another configuration than {whose} ({_describe(there, wanted)}): start it with "
                "the same --config as the others, or the xclbin of the same"
            )


def _describe(config: WorkerConfig, wanted: WorkerConfig) -> str:
    """In what a configuration differs."""
    there = vars(config)
    return ", ".join(
        f"{name} {there[name]}, not {value}" for name, value in vars(wanted).items() if there[name] != value
    )
