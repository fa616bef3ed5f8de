"""Packets and values per second of the software aggregator, over virtual Ethernet interfaces or UDP.

    PYTHONPATH=tests python tests/bench/bench_switch.py [--udp] [--workers 1 2 4 8] [--slots 64] [--rounds 200]
        [--micro-batches 0 1 8 45] [--queued]

Another process plays all workers: it keeps the slots in flight, PARTIAL to FULL and ACK to CLEAR, with frames that were
made before, of version 1 (0 micro-batches) or 2. Beside what was reached, which depends on what else the machine does,
stands the processor time that a packet costs the aggregator, and so what one core has time for; the kernel's work for
its system calls is in it. Values are those of the sums that each worker gets. In UDP the aggregator has one port, and
sends what is for all to each worker by itself, as it does in a cluster without a multicast address.

One process that plays all workers is slower than the aggregator, which so finds few packets at a time. With
``--queued`` it is stopped while they are sent and then finds all, as it does where it is the bottleneck.

The peer is MPI_Allreduce of as many int32 as a packet has, between as many processes of this machine, in shared memory:
one after the other, or as many at a time as there are slots (MPI_Iallreduce), whichever is faster.
"""

import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from ipaddress import IPv4Address
from pathlib import Path

from support.mpi import MPIEXEC
from support.namespace import Namespace
from support.script import parser_of, show
from support.switch import MAC, from_worker, serving, worker_mac

from p4sgd.host.aggregators.membership import GROUP_MAC
from p4sgd.host.links import open_link
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import PacketType
from p4sgd.hw.spec.udp import address_of

KEY = 0x0123_4567_89AB_CDEF

TICKS = os.sysconf("SC_CLK_TCK")


def processor_time(pid: int) -> tuple[float, float]:
    """Seconds that a process has run, and of them those in the kernel, which are known to a tick only."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9, int(words[12]) / TICKS


def frames_of_round(
    kind: PacketType, round_: int, slots: int, macs: list[int], mac: int, merged: int
) -> list[list[bytes]]:
    """For each worker its frames of all slots."""
    values = range(100_000, 100_000 + 8 * max(1, merged)) if kind is PacketType.PARTIAL else None
    key = KEY if merged else None
    addresses = [mac.to_bytes(6, "big") + own.to_bytes(6, "big") for own in macs]
    return [
        [
            own + from_worker(kind, slot, round_, shard, len(macs), values, key=key).to_bytes()[12:]
            for slot in range(slots)
        ]
        for shard, own in enumerate(addresses)
    ]


def play(links, phases: list[list[list[bytes]]], stopped: int | None) -> int:
    """Send each phase's frames, and wait for an answer to every slot at every worker; how many answers came.

    Meanwhile a process may be ``stopped``.
    """
    received = 0
    for phase in phases:
        if stopped:
            os.kill(stopped, signal.SIGSTOP)
        for frames in zip(*phase, strict=True):
            for link, frame in zip(links, frames, strict=True):
                link.send(frame)
        if stopped:
            os.kill(stopped, signal.SIGCONT)
        for link, frames in zip(links, phase, strict=True):
            left = len(frames)
            while left:
                if link.receive() is not None:
                    left -= 1
                    received += 1
                elif not select.select([link], [], [], 5.0)[0]:
                    raise SystemExit(f"{left} answers are missing: a buffer is too small for so many slots")
    return received


def measure(
    workers: int, slots: int, rounds: int, merged: int, *, udp: bool, queued: bool
) -> tuple[float, float, float]:
    """Packets in per second; microseconds of a packet in the aggregator, and the share of the kernel."""
    mac, macs, ports = MAC, [worker_mac(shard) for shard in range(workers)], list(range(workers))
    texts, interfaces = [f"w{port}" for port in ports], [f"s{port}" for port in ports]
    if udp:
        hosts = [IPv4Address("127.0.1.0") + shard for shard in range(workers)]
        mac, macs, ports = address_of(IPv4Address("127.0.0.1")), list(map(address_of, hosts)), [0] * workers
        texts, interfaces = [f"udp:{host}" for host in hosts], ["udp:127.0.0.1"]
    with closing(Namespace()) as namespace, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if not udp:
            for name, peer in zip(interfaces, texts, strict=True):
                namespace.pair(name, peer)
        server, control = stack.enter_context(serving(namespace, folder, interfaces, "--slots", slots))
        links = [stack.enter_context(closing(namespace.call(open_link, text))) for text in texts]
        control.set_mac(mac)
        members = tuple(map(Member, macs, ports))
        control.begin(0, Job(1, members, GROUP_MAC, (1 << len(interfaces)) - 1, KEY if merged else None), 1)
        phases = [
            frames_of_round(kind, round_ % 65536, slots, macs, mac, merged)
            for round_ in range(1, rounds + 1)
            for kind in (PacketType.PARTIAL, PacketType.ACK)
        ]
        before, begin = processor_time(server.pid), time.perf_counter()
        packets = play(links, phases, server.pid if queued else None)
        seconds = time.perf_counter() - begin
        used, kernel = (after - then for after, then in zip(processor_time(server.pid), before, strict=True))
        assert control.counters()["FRAMES"] == packets == 2 * workers * slots * rounds, "none is lost"
    return packets / seconds, used / packets * 1e6, kernel / used


PEER = """
import sys, time
import numpy as np
from mpi4py import MPI
values, slots, rounds = map(int, sys.argv[1:])
world = MPI.COMM_WORLD
ours, sums = np.ones((slots, values), np.int32), np.zeros((slots, values), np.int32)
def one_by_one():
    for one, other in zip(ours, sums):
        world.Allreduce(one, other)
def at_a_time():
    MPI.Request.Waitall([world.Iallreduce(one, other) for one, other in zip(ours, sums)])
for way in (one_by_one, at_a_time):
    way()
    assert (sums == world.size).all()
    world.Barrier()
    begin, done = time.perf_counter(), 0
    while world.bcast(done < rounds and time.perf_counter() < begin + 2):
        way()
        done += 1
    if world.rank == 0:
        print((time.perf_counter() - begin) / done / slots)
"""


def measure_peer(workers: int, values: int, slots: int, rounds: int) -> float:
    """Seconds of an MPI_Allreduce of so many values, in as many rounds as there is time for; NaN without MPI."""
    if MPIEXEC is None:
        return math.nan
    command = [MPIEXEC, "-n", workers, sys.executable, "-c", PEER, values, slots, rounds]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"MPI_Allreduce: {done.stderr}")
    return min(map(float, done.stdout.split()))


def main() -> None:
    """Print one table."""
    defaults = {"workers": [1, 2, 4, 8], "micro_batches": [0, 1, 8, 45]}
    options = parser_of(__doc__, udp=False, queued=False, slots=64, rounds=200, **defaults).parse_args()
    slots, rounds, rows = options.slots, options.rounds, []
    for workers in options.workers:
        for merged in options.micro_batches:
            rate, each, kernel = measure(workers, slots, rounds, merged, udp=options.udp, queued=options.queued)
            values = 8 * max(1, merged)
            summed = rate / (2 * workers) * values  # a PARTIAL and an ACK of each worker
            peer = values / measure_peer(workers, values, slots, rounds)
            numbers = (
                f"{rate:,.0f}",
                f"{each:.2f}",
                f"{kernel:.0%}",
                f"{1e6 / each:,.0f}",
                f"{summed:,.0f}",
                f"{peer:,.0f}",
            )
            rows.append([f"{workers}", f"{merged or 'version 1'}", *numbers])
    packets = ("packets/s in, reached", "µs", "in the kernel", "packets/s in, a core has time for")
    columns = ("workers", "micro-batches", *packets, "values/s, reached", "values/s, MPI")
    show(f"{slots} slots in flight, an answer to all goes to every worker", columns, rows)


if __name__ == "__main__":
    main()
