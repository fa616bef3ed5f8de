"""A software aggregator as a process or a thread, and a job for it."""

import contextlib
import random
import select
import subprocess
import threading
import time

from p4sgd.host.experiments import allreduce
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import GROUP_BIT, Packet
from p4sgd.sim.network.endpoint import Endpoint

MAC = 0x0250_0000_0001
"""The aggregator's address."""


def worker_mac(shard, number=1):
    """Address of a worker of a job."""
    return 0x0200_0000_0000 | number << 8 | shard


def job_of(workers, number=1, ports=None, key=None):
    """A job whose shard i is behind port i, or as said; with a key its packets are of version 2."""
    ports = list(range(workers)) if ports is None else ports
    members = tuple(Member(worker_mac(shard, number), port) for shard, port in enumerate(ports))
    return Job(number, members, 1 << GROUP_BIT | number, sum(1 << port for port in set(ports)), key)


def from_worker(kind, slot, round_, shard, workers, values=None, number=1, key=None):
    """A worker's PARTIAL or ACK."""
    if values is None:
        values = (0,) * 8 if key is None else ()
    where = number, slot, round_, shard, workers, 1 << shard
    version = 1 if key is None else 2
    return Packet(kind, *where, tuple(values), MAC, worker_mac(shard, number), version, key)


def serving(namespace, folder, interfaces, *options):
    """``p4sgd switch serve`` in a namespace, or where we are if it is None: the process, and its controller."""

    def start(words, **how):
        return subprocess.Popen(words, **how) if namespace is None else namespace.start(*words, **how)

    return allreduce.serving(folder, interfaces, *map(str, options), start=start)


@contextlib.contextmanager
def running(server):
    """Run a `SoftwareAggregatorServer` in a thread of this process, and close it in the end."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join(30)
        server.close()
    assert not thread.is_alive()


class Workers:
    """Models of a job's workers behind links, which lose a share of the frames, both ways."""

    def __init__(self, links, number=1, *, slots=4, seed=0, loss=0.0, macs=None, peer=MAC):
        self._links = links
        self._loss = loss
        self._rng = random.Random(seed)
        self._endpoints = [
            Endpoint(
                slots,
                job=number,
                shard=shard,
                workers=len(links),
                local_mac=macs[shard] if macs else worker_mac(shard, number),
                peer_mac=peer,
                resend_after=20_000,
            )
            for shard in range(len(links))
        ]

    def all_reduce(self, operations, seconds=60.0):
        """Sum random partials up; what came out at each worker, and what is right."""
        partials = [
            [[self._rng.randrange(-(1 << 24), 1 << 24) for _ in range(8)] for _ in range(operations)]
            for _ in self._endpoints
        ]
        right = [tuple(map(sum, zip(*each, strict=True))) for each in zip(*partials, strict=True)]
        got = [[] for _ in self._endpoints]
        end = time.monotonic() + seconds
        todo = [iter(each) for each in partials]
        left = [operations] * len(partials)
        while any(left) or any(endpoint.busy for endpoint in self._endpoints):
            assert time.monotonic() < end, f"the network has stalled: {left} operations are not begun"
            for index, endpoint in enumerate(self._endpoints):
                now = time.monotonic_ns() // 1000
                while left[index] and endpoint.can_submit:
                    left[index] -= 1
                    self._send(index, endpoint.submit(next(todo[index]), now))
                for packet in endpoint.resend(now):
                    self._send(index, packet)
                while (frame := self._links[index].receive()) is not None:
                    if self._rng.random() >= self._loss and (answer := endpoint.receive_frame(frame, now)) is not None:
                        self._send(index, answer)
                while endpoint.sums:
                    got[index].append(endpoint.sums.popleft())
            select.select(self._links, [], [], 0.005)
        return got, right

    def _send(self, index, packet):
        if self._rng.random() >= self._loss:
            self._links[index].send(packet.to_bytes())
