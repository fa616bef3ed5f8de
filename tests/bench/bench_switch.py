"""Packets and values per second of the software aggregator, over virtual Ethernet interfaces.

    python tests/bench/bench_switch.py [--workers 1 2 4 8] [--slots 64] [--rounds 200] [--micro-batches 0 1 8 46]

Another process plays all workers: it keeps the slots in flight, PARTIAL to FULL and ACK to CLEAR, with frames that were
made before, of version 1 (0 micro-batches) or 2. Beside what was reached, which depends on what else the machine does,
stands the processor time that a packet costs the aggregator, and so what one core has time for; the kernel's work for
its system calls is in it. Values are those of the sums that each worker gets.

The peer is MPI_Allreduce of as many int32 as a packet has, between as many processes of this machine, in shared memory.
"""

import argparse
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from support.mpi import MPIEXEC
from support.namespace import Namespace
from support.switch import MAC, from_worker, job_of, serving

from p4sgd.host.links import open_link
from p4sgd.hw.spec.packet import PacketType

KEY = 0x0123_4567_89AB_CDEF

TICKS = os.sysconf("SC_CLK_TCK")


def processor_time(pid: int) -> tuple[float, float]:
    """Seconds that a process has run, in its own code and in the kernel."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) / TICKS, int(words[12]) / TICKS


def frames_of_round(kind: PacketType, round_: int, slots: int, workers: int, merged: int) -> list[list[bytes]]:
    """For each worker its frames of all slots."""
    values = range(100_000, 100_000 + 8 * max(1, merged)) if kind is PacketType.PARTIAL else None
    key = KEY if merged else None
    return [
        [from_worker(kind, slot, round_, shard, workers, values, key=key).to_bytes() for slot in range(slots)]
        for shard in range(workers)
    ]


def play(links, phases: list[list[list[bytes]]]) -> int:
    """Send each phase's frames, and wait for an answer to every slot at every worker; how many answers came."""
    received = 0
    for phase in phases:
        for frames in zip(*phase, strict=True):
            for link, frame in zip(links, frames, strict=True):
                link.send(frame)
        for link, frames in zip(links, phase, strict=True):
            left = len(frames)
            while left:
                if link.receive() is not None:
                    left -= 1
                    received += 1
                elif not select.select([link], [], [], 5.0)[0]:
                    raise SystemExit(f"{left} answers are missing: a buffer is too small for so many slots")
    return received


def measure(workers: int, slots: int, rounds: int, merged: int) -> tuple[float, float, float]:
    """Packets in per second; microseconds of a packet in the aggregator's own code, and in the kernel."""
    folder = tempfile.mkdtemp()
    with closing(Namespace()) as namespace:
        for port in range(workers):
            namespace.pair(f"s{port}", f"w{port}")
        with serving(namespace, folder, [f"s{port}" for port in range(workers)], "--slots", slots) as (server, control):
            links = [namespace.call(open_link, f"w{port}") for port in range(workers)]
            control.set_mac(MAC)
            control.begin(0, job_of(workers, key=KEY if merged else None), 1)
            kinds = PacketType.PARTIAL, PacketType.ACK
            phases = [
                frames_of_round(kind, round_ % 65536, slots, workers, merged)
                for round_ in range(1, rounds + 1)
                for kind in kinds
            ]
            before, begin = processor_time(server.pid), time.perf_counter()
            packets = play(links, phases)
            seconds = time.perf_counter() - begin
            own, kernel = (after - then for after, then in zip(processor_time(server.pid), before, strict=True))
            counted = control.counters()
            assert counted["FRAMES"] == packets == 2 * workers * slots * rounds, "none is lost"
            for link in links:
                link.close()
    shutil.rmtree(folder)
    return packets / seconds, own / packets * 1e6, kernel / packets * 1e6


PEER = """
import sys, time
import numpy as np
from mpi4py import MPI
ours, sums = np.ones(int(sys.argv[1]), np.int32), np.zeros(int(sys.argv[1]), np.int32)
MPI.COMM_WORLD.Barrier()
begin = time.perf_counter()
for _ in range(int(sys.argv[2])):
    MPI.COMM_WORLD.Allreduce(ours, sums)
if MPI.COMM_WORLD.rank == 0:
    print((time.perf_counter() - begin) / int(sys.argv[2]))
"""


def measure_peer(workers: int, values: int, times: int = 2000) -> float | None:
    """Seconds of an MPI_Allreduce of so many values; None without MPI."""
    if MPIEXEC is None:
        return None
    command = [MPIEXEC, "-n", workers, sys.executable, "-c", PEER, values, times]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)
    return None if done.returncode else float(done.stdout)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[0, 1, 8, 46])
    options = parser.parse_args()
    table = Table(title=f"{options.slots} slots in flight, an answer to all goes out of a port for every worker")
    columns = ("workers", "micro-batches", "packets/s in, reached", "µs own", "µs kernel")
    for column in (*columns, "packets/s in, a core has time for", "values/s", "values/s, MPI"):
        table.add_column(column, justify="right")
    for workers in options.workers:
        for merged in options.micro_batches:
            rate, own, kernel = measure(workers, options.slots, options.rounds, merged)
            values, most = 8 * max(1, merged), 1e6 / (own + kernel)
            summed = most / (2 * workers) * values  # a PARTIAL and an ACK of each worker
            peer = measure_peer(workers, values)
            table.add_row(
                f"{workers}",
                f"{merged or 'version 1'}",
                *(f"{rate:,.0f}", f"{own:.1f}", f"{kernel:.1f}", f"{most:,.0f}", f"{summed:,.0f}"),
                "" if peer is None else f"{values / peer:,.0f}",
            )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
