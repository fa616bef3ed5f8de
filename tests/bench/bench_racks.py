"""Time of an AllReduce with two levels of software aggregators beside one, over UDP on this machine.

    PYTHONPATH=tests python tests/bench/bench_racks.py [--racks 2] [--workers 2] [--operations 2000]
        [--micro-batches 0 8]

This process plays all workers, one operation after the other: all PARTIALs go out, and the time is from the last of
them to the last FULL. One aggregator with all workers, and racks with so many each below another aggregator, take
turns, a hundred operations at a time, so that both meet the same load.
"""

import select
import statistics
import tempfile
import time
from contextlib import ExitStack, closing

from support.loopback import loopback
from support.script import parser_of, show
from support.switch import serving

from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, RackAddress, UdpAddress, WorkerAddress
from p4sgd.host.aggregators.membership import GROUP_MAC
from p4sgd.host.aggregators.seats import seats_of
from p4sgd.host.aggregators.tree import Tree
from p4sgd.host.links import open_link
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import VALUES, Packet, PacketType
from p4sgd.hw.spec.udp import address_of

KEY, TURN = 0x0123_4567_89AB_CDEF, 100


class Player:
    """All workers of a job that an aggregator, or a tree of them, serves."""

    def __init__(self, stack: ExitStack, base: int, workers: int, racks: int, merged: int) -> None:
        hosts = [loopback(base + index) for index in range(1 + racks + workers)]
        macs = [UdpAddress(address_of(host)) for host in hosts]
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(1 + racks)]
        parts = [
            stack.enter_context(serving(None, folder, [f"udp:{host}"]))[1]
            for folder, host in zip(folders, hosts, strict=False)
        ]
        self._links = [stack.enter_context(closing(open_link(f"udp:{host}"))) for host in hosts[1 + racks :]]
        own = macs[1 + racks :]
        behind = [worker * racks // workers if racks else None for worker in range(workers)]
        cluster = Cluster(
            AggregatorAddress("socket", "unix:top", udp=macs[0]),
            tuple(
                WorkerAddress(0, f"unix:{index}", udp=mac, rack=rack)
                for index, (mac, rack) in enumerate(zip(own, behind, strict=True))
            ),
            racks=tuple(
                RackAddress(kind="socket", control=f"unix:rack{rack}", udp=macs[1 + rack], port=0, uplink=0)
                for rack in range(racks)
            ),
        )
        tree = Tree(cluster, parts[0], parts[1:])
        tree.set_mac(macs[0])
        key = KEY if merged else None
        tree.begin(0, Job(1, tuple(Member(mac, 0) for mac in own), GROUP_MAC, 1, key), 1)
        self._values = {PacketType.PARTIAL: tuple(range(VALUES * max(1, merged))), PacketType.ACK: (0,) * VALUES}
        self._key, self._round = key, 0
        if key is not None:
            self._values[PacketType.ACK] = ()
        self._who = [
            (seat, macs[0] if seat.rack is None else macs[1 + seat.rack], mac)
            for seat, mac in zip(seats_of(behind), own, strict=True)
        ]

    def _exchange(self, kind: PacketType) -> float:
        """All send a packet and get an answer; microseconds from the last packet to the last answer."""
        version = () if self._key is None else (2, self._key)
        frames = []
        for seat, peer, mac in self._who:
            where = 1, 0, self._round % 65536, seat.shard, seat.workers, 1 << seat.shard
            frames.append(Packet(kind, *where, self._values[kind], peer, mac, *version).to_bytes())
        for link, frame in zip(self._links, frames, strict=True):
            link.send(frame)
        begin = time.perf_counter()
        for link in self._links:
            while link.receive() is None:
                assert select.select([link], [], [], 5.0)[0], "an answer is missing"
        return (time.perf_counter() - begin) * 1e6

    def play(self, operations: int) -> list[float]:
        """Microseconds of each operation."""
        found = []
        for _ in range(operations):
            self._round += 1
            found.append(self._exchange(PacketType.PARTIAL))
            self._exchange(PacketType.ACK)
        return found


def main() -> None:
    """Print one table."""
    options = parser_of(__doc__, racks=2, workers=2, operations=2000, micro_batches=[0, 8]).parse_args()
    workers, rows = options.racks * options.workers, []
    for merged in options.micro_batches:
        with ExitStack() as stack:
            players = [Player(stack, 100, workers, 0, merged), Player(stack, 150, workers, options.racks, merged)]
            times: list[list[float]] = [[], []]
            for _ in range(options.operations // TURN):
                for player, found in zip(players, times, strict=True):
                    found += player.play(TURN)
        medians = [statistics.median(found) for found in times]
        rows.append([f"{merged or 'version 1'}", *(f"{each:.0f}" for each in (*medians, medians[1] - medians[0]))])
    title = f"{workers} workers, medians of {options.operations} operations, µs"
    show(title, ("micro-batches", "one level", f"{options.racks} racks", "more"), rows)


if __name__ == "__main__":
    main()
