"""Experiments on the AllReduce of 8 values: of boards, of the software aggregator on this machine, and of MPI."""

import os
import random
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from p4sgd.host.aggregators.cluster_file import (
    AggregatorAddress,
    Cluster,
    Control,
    RackAddress,
    UdpAddress,
    WorkerAddress,
)
from p4sgd.host.aggregators.membership import GROUP_MAC
from p4sgd.host.aggregators.seats import seats_of
from p4sgd.host.aggregators.software import SoftwareAggregator
from p4sgd.host.aggregators.tree import Tree
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.host.experiments.ranks import allreduce, run_ranks, why_no_ranks
from p4sgd.host.links import open_link
from p4sgd.host.links.link import BatchLink
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.serve import aggregator
from p4sgd.host.serve.local_cluster import python_command
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import VALUES, Packet, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS
from p4sgd.hw.spec.timing import NETWORK_NS
from p4sgd.hw.spec.udp import address_of

_READY_S, _ANSWER_S = 60.0, 30.0
_RESEND_S = 0.02
"""Wait before a packet without an answer is sent again: as in a cluster of processes on one machine."""

_BOARD_RESEND_US = 10.0
"""The same of boards: `p4sgd.host.devices.device.NetworkSettings`."""

_TURN = 100
"""Operations one after the other, before others take their turn under the same load."""

_LARGEST = MAX_WORKERS * (MAX_WORKERS - 1), MAX_WORKERS
"""Workers and racks of the largest tree: an aggregator of a rack has a place for its parent, too."""

_ENDPOINT_NS = 4 * CLOCK_NS
"""From a worker's partials to its frame, and from the frame with sums to these."""


def board_us(workers: int, racks: int = 0, loss: float = 0.0) -> float:
    """Time from the last partials to the sums between boards in µs, at most, and its mean if links lose frames.

    `p4sgd.hw.spec.timing.NETWORK_NS` has the terms, with 8 workers. With racks frames pass two aggregators on their way
    up, where they take turns, and that of the rack once more on their way down (tests/hw/aggregator/test_levels.py). An
    operation whose frames are lost waits until its packets are sent again, until all have arrived.
    """
    most = {name: high for name, (_, high) in NETWORK_NS.items()}
    passing = most.pop("aggregator") + most.pop("merge and split") - 8 * CLOCK_NS
    turns = (-(-workers // racks), racks, 1) if racks else (workers,)
    once = sum(passing + turn * CLOCK_NS for turn in turns) + (2 if racks else 1) * sum(most.values())
    frames, again = workers + 1 + (racks + 1 if racks else 0), 0.0
    for tries in range(1, 8):  # each frame is lost in all tries with loss ** tries
        left = 1 - (1 - loss**tries) ** frames
        again += left * _BOARD_RESEND_US * 2 ** (tries - 1)
    return (_ENDPOINT_NS + once) / 1000 + again


@contextmanager
def serving(
    folder: str, interfaces: Sequence[str], *options: str, start: Callable[..., Any] = subprocess.Popen
) -> Iterator[tuple[Any, SoftwareAggregator]]:
    """A process of ``p4sgd switch serve`` that ``start`` starts, and its controller; a `P4sgdError` if it ends."""
    control = f"unix:{folder}/aggregator"
    words = ["switch", "serve", "--control", control, *options]
    words += [word for name in interfaces for word in ("--interface", name)]
    with Path(folder, "log").open("ab") as log:
        process = start(python_command("from p4sgd.host.cli import main; main()", *words), stderr=log)
    try:
        end = time.monotonic() + _READY_S
        while True:
            try:
                controller = SoftwareAggregator(ControlAddress.parse(control))
                break
            except (P4sgdError, UserError):
                if process.poll() is not None or time.monotonic() > end:
                    how = "does not answer" if process.poll() is None else "has ended"
                    raise P4sgdError(f"p4sgd switch serve {how}: {Path(folder, 'log').read_text()}") from None
                time.sleep(0.02)
        with closing(controller):
            yield process, controller
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_READY_S)
            finally:
                process.kill()


class Workers:
    """All workers of a job of an aggregator, or of a tree of them, played by this process.

    ``base`` is the number of the first of their loopback addresses.
    """

    def __init__(self, stack: ExitStack, base: int, workers: int, racks: int = 0) -> None:
        first = 127 << 24 | (os.getpid() & 0xFFFF) << 8 | base
        hosts = [IPv4Address(first + index) for index in range(1 + racks + workers)]
        macs = [address_of(host) for host in hosts]
        parts = [
            stack.enter_context(serving(stack.enter_context(tempfile.TemporaryDirectory()), [f"udp:{host}"]))[1]
            for host in hosts[: 1 + racks]
        ]
        self._links = [stack.enter_context(closing(open_link(f"udp:{host}"))) for host in hosts[1 + racks :]]
        own, behind = macs[1 + racks :], [worker * racks // workers if racks else None for worker in range(workers)]
        cluster = Cluster(
            AggregatorAddress("socket", Control("unix:top"), udp=UdpAddress(macs[0])),
            tuple(
                WorkerAddress(0, Control(f"unix:{index}"), udp=UdpAddress(mac), rack=rack)
                for index, (mac, rack) in enumerate(zip(own, behind, strict=True))
            ),
            racks=tuple(
                RackAddress(
                    kind="socket", control=Control(f"unix:rack{rack}"), udp=UdpAddress(macs[1 + rack]), port=0, uplink=0
                )
                for rack in range(racks)
            ),
        )
        tree = Tree(cluster, parts[0], parts[1:])
        tree.set_mac(macs[0])
        tree.begin(0, Job(1, tuple(Member(mac, 0) for mac in own), GROUP_MAC, 1), 1)
        self._who = [
            (seat, macs[0] if seat.rack is None else macs[1 + seat.rack], mac)
            for seat, mac in zip(seats_of(behind), own, strict=True)
        ]
        self._round, self._loss, self._draw = 0, 0.0, random.Random(0).random
        self.sums: tuple[int, ...] = ()

    def _exchange(self, kind: PacketType, values: tuple[int, ...]) -> float:
        """All send a packet until each has its answer; µs from the last packet to the last answer."""
        answer = {PacketType.PARTIAL: PacketType.FULL, PacketType.ACK: PacketType.CLEAR}[kind]
        number = self._round % 65536
        frames = []
        for seat, peer, mac in self._who:
            where = 1, 0, number, seat.shard, seat.workers, 1 << seat.shard
            frames.append(Packet(kind, *where, values, peer, mac).to_bytes())
        waiting, sums = dict(zip(self._links, frames, strict=True)), b""
        for link, frame in waiting.items():
            self._send(link, frame)
        begin = time.perf_counter()
        resend, end = begin + _RESEND_S, begin + _ANSWER_S
        while waiting:
            for link in list(waiting):
                while link in waiting and (found := link.receive()) is not None:
                    # Late answers to packets that were sent again are of another type or round.
                    if found[14] & 15 == answer and int.from_bytes(found[18:20]) == number and self._arrives():
                        del waiting[link]
                        sums = found
            if not waiting:
                break
            if not select.select(waiting, [], [], max(0.0, resend - time.perf_counter()))[0]:
                if time.perf_counter() > end:
                    raise P4sgdError("the software aggregator does not answer")
                for link, frame in waiting.items():
                    self._send(link, frame)
                resend = time.perf_counter() + _RESEND_S
        seconds = time.perf_counter() - begin
        if kind is PacketType.PARTIAL:
            self.sums = Packet.from_bytes(sums).values
        return seconds * 1e6

    def _arrives(self) -> bool:
        return not self._loss or self._draw() >= self._loss

    def _send(self, link: BatchLink, frame: bytes) -> None:
        if self._arrives():
            link.send(frame)

    def all_reduce(self, operations: int, loss: float = 0.0) -> list[float]:
        """µs of each of so many operations, one after the other, while links lose a part of the frames."""
        self._loss, found = loss, []
        for _ in range(operations):
            self._round += 1
            found.append(self._exchange(PacketType.PARTIAL, tuple(range(VALUES))))
            self._exchange(PacketType.ACK, (0,) * VALUES)
        return found


PUBLISHED = (("NCCL, 8 H20, NVLink: github.com/deepseek-ai/DeepEP/issues/303", 8, 13.10),)
"""Network with the source, workers, and µs of an AllReduce of 8 floats."""

Case = tuple[int, int, float]  # workers, racks (0 for one level), part of the frames that is lost


def measure(cases: Sequence[Case], operations: int) -> dict[Case, list[float]]:
    """Sorted µs of so many operations for each case. Cases take turns."""
    aggregator.warm_up()  # nobody is to wait until each process has compiled it
    with ExitStack() as stack:
        players, base = {}, 1
        for workers, racks in dict.fromkeys(case[:2] for case in cases):
            players[workers, racks] = Workers(stack, base, workers, racks)
            players[workers, racks].all_reduce(10)
            base += 1 + racks + workers
        times: dict[Case, list[float]] = {case: [] for case in cases}
        for _ in range(-(-operations // _TURN)):
            for (workers, racks, loss), found in times.items():
                found += players[workers, racks].all_reduce(min(_TURN, operations), loss)
        for (workers, _), player in players.items():
            if player.sums != tuple(workers * value for value in range(VALUES)):
                raise P4sgdError(f"{workers} workers got wrong sums: {player.sums}")
    return {case: sorted(found) for case, found in times.items()}


@experiment("E1", "An AllReduce", "How long does the sum of 8 values take, with workers and losses?")
def latency(quick: bool) -> Finding:
    """E1: one operation, by number of workers and loss."""
    rows: list[list[Cell]] = [
        ["boards", workers, loss, board_us(workers, loss=loss), None, Source.MODELLED]
        for loss in (0.0, 0.001, 0.01)
        for workers in (1, 2, 4, 8, 16, 32)
    ]
    counts, operations = ((2, 4), 200) if quick else ((1, 2, 4, 8, 16, 32), 2000)
    cases = [(workers, 0, loss) for workers in counts for loss in (0.0, 0.001, 0.01)]
    for (workers, _, loss), times in measure(cases, operations).items():
        cells = [statistics.median(times), times[len(times) * 99 // 100]]
        rows.append(["software aggregator, UDP", workers, loss, *cells, Source.MEASURED])
    problem, losses = why_no_ranks(), []
    for workers in () if problem else (2,) if quick else (2, 4, 8):
        (median, high) = map(float, run_ranks(workers, allreduce, VALUES, operations).split())
        rows.append(["MPI_Allreduce, shared memory", workers, 0.0, median, high, Source.MEASURED])
        ours = next(
            (row[3] for row in rows if row[0] == "software aggregator, UDP" and row[1:3] == [workers, 0.0]), None
        )
        if ours is not None and median < float(ours):
            losses.append(
                f"MPI_Allreduce of {workers} processes in shared memory takes {median:.1f} µs, the software aggregator "
                f"over UDP {ours:.0f} µs."
            )
    rows += [[network, workers, 0.0, us, None, Source.PUBLISHED] for network, workers, us in PUBLISHED]
    columns = ("network", "workers", "lost frames", "µs", "99 % within, µs", "source")
    return Finding(
        [
            Table(
                "AllReduce of 8 values",
                columns,
                rows,
                [
                    Chart("workers", "µs", "network", {"lost frames": 0.0}, log_x=True, log_y=True),
                    Chart("workers", "µs", "lost frames", {"network": "boards"}, log_x=True, log_y=True),
                ],
                "Boards: the most, with RS-FEC (hw/net/README.md), and the mean if frames are lost, with resends after "
                f"{_BOARD_RESEND_US:.0f} µs. Measured: medians from the last packet of the workers, which one process "
                "plays, to the last answer; all processes share this machine. Published: 32 bytes, by nccl-tests.",
            )
        ],
        [
            f"Between 8 boards an AllReduce takes at most {board_us(8):.3f} µs; if links lose 0.1 % of the frames, "
            f"{board_us(8, loss=0.001):.2f} µs on average, and {board_us(8, loss=0.01):.2f} µs at 1 %.",
            *([f"MPI was not measured: {problem}."] if problem else []),
            "Published latencies of MPI between machines and of SwitchML are not in this report.",
        ],
        losses,
    )


@experiment("E12", "Two levels", "What does a second level of aggregators cost?")
def levels(quick: bool) -> Finding:
    """E12: one level of aggregators and two."""
    rows: list[list[Cell]] = [
        ["boards", workers, 2 if racks else 1, board_us(workers, racks), Source.MODELLED]
        for workers, racks in ((4, 0), (4, 2), (8, 0), (8, 2), (32, 0), (32, 4), _LARGEST)
    ]
    cases = [(4, 0, 0.0), (4, 2, 0.0)] if quick else [(4, 0, 0.0), (4, 2, 0.0), (16, 0, 0.0), (16, 4, 0.0)]
    for (workers, racks, _), times in measure(cases, 200 if quick else 2000).items():
        rows.append(
            ["software aggregators, UDP", workers, 2 if racks else 1, statistics.median(times), Source.MEASURED]
        )
    medians = [float(row[3] or 0) for row in rows[-len(cases) :][:2]]
    chart = Chart("workers", "µs", "levels", {"network": "boards"}, log_x=True)
    return Finding(
        [Table("AllReduce of 8 values", ("network", "workers", "levels", "µs", "source"), rows, [chart])],
        [
            f"A second level takes an AllReduce of 4 workers from {medians[0]:.0f} to {medians[1]:.0f} µs (medians) "
            f"over UDP on this machine. Between boards 8 take {board_us(8):.2f} µs, in two racks {board_us(8, 2):.2f}, "
            "so it pays only where one aggregator has too few ports.",
            f"{_LARGEST[1]} racks of {MAX_WORKERS - 1} boards, the most that two levels join, take at most "
            f"{board_us(*_LARGEST):.2f} µs: cycles of the aggregators are simulated, cables and MACs as of one level.",
        ],
    )
