"""A cluster of workers, by default emulated, whose network is a queue of frames: faults by seed, time in cycles."""

import heapq
import itertools
import math
import random
from collections import Counter
from dataclasses import replace

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.stand_in import StandInWorker
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import MOST_MICRO_BATCHES
from p4sgd.sim.emulator.networked import NetworkedWorker
from support.aggregator_model import Aggregator
from support.lines import Faults, Line
from support.recording_device import BareDevice

_GROUP = 1 << 40
_LIMIT = 2_000_000
"""Cycles of a run after which it will not end any more."""


class _Worker:
    """A worker whose owner looks after it at every call."""

    def __init__(self, cluster, inner):
        self._cluster = cluster
        self.inner = inner
        self.config = inner.config
        self.write_memory, self.read_memory = inner.write_memory, inner.read_memory

    def read_register(self, offset):
        self._cluster.run(20)  # the host is slow
        return self.inner.read_register(offset)

    def write_register(self, offset, word):
        self.inner.write_register(offset, word)
        if offset == registers.JOIN.offset:
            self._cluster.joined(self)


class PacketCluster(BareDevice):
    """Worker i is behind port i of an aggregator; the job begins when the last worker joins.

    ``configs`` are those of the workers, ``make(config, send)`` makes one, by default of this ``speed``. ``up`` and
    ``down`` are `Faults` of the ways, ``cut`` a set of workers whose links are cut. The aggregator, of class
    ``switch``, takes packets of version 2 with up to ``most`` micro-batches. With ``stand_ins`` each worker stands in
    for the next, and workers pause at random: they neither act nor take packets for ``pause`` cycles, in a fraction of
    the time.
    """

    name = "packets"

    def __init__(
        self,
        configs,
        *,
        make=None,
        speed=math.inf,
        seed=0,
        up=None,
        down=None,
        most=MOST_MICRO_BATCHES,
        stand_ins=False,
        pause=0,
        switch=Aggregator,
    ):
        rng = random.Random(seed)
        make = make or (lambda config, send: NetworkedWorker(config, send, lambda: self.now, speed=speed))
        self.counts = Counter()
        self.cut = set()
        self._rng, self._stand_ins, self._pause = rng, stand_ins, pause
        self._paused_until = [0] * len(configs)
        self.silent = False
        self.lost = set()
        self.now = 0
        self._arrivals = []  # heap of (time, order, action)
        self._order = itertools.count()
        self._up, self._down = ([Line(faults or Faults(), rng, self.counts) for _ in configs] for faults in (up, down))
        self.switch = switch(max(config.slots for config in configs), most=most)
        self.workers = [
            _Worker(self, make(config, lambda frame, i=index: self._send(i, frame)))
            for index, config in enumerate(configs)
        ]

    def joined(self, worker):
        if worker is self.workers[-1]:
            clients = [client_of(each.inner) for each in self.workers]
            self.switch.mac = clients[0].read_pair(registers.PEER_MAC)
            members = [Member(client.read_pair(registers.LOCAL_MAC), port) for port, client in enumerate(clients)]
            if self._stand_ins and len(members) > 1:
                members = [replace(member, stand_in=members[port - 1]) for port, member in enumerate(members)]
            number = clients[0].read(registers.JOB)["job"]
            keys = {client.read_pair(registers.JOB_KEY) for client in clients if client.read(registers.MERGE)["value"]}
            assert len(keys) <= 1
            self.switch.begin(0, Job(number, tuple(members), _GROUP, (1 << len(members)) - 1, min(keys, default=None)))

    def wait(self, timeout_s=None):
        limit = self.now + _LIMIT
        while not all(worker.inner.idle for index, worker in enumerate(self.workers) if index not in self.lost):
            self.run(1000)
            assert self.now < limit, "the run does not end"

    def run(self, cycles):
        """Let time pass."""
        end = self.now + cycles
        while self.now < end:
            due = [time for worker in self._awake() if (time := worker.inner.next_work) is not None]
            self.now = max(self.now + 1, min([end, *due]))
            if self._arrivals and self._arrivals[0][0] <= self.now:
                self.now, _, action = heapq.heappop(self._arrivals)
                action()
            for worker in self._awake():
                worker.inner.work()

    def pause_worker(self, index, cycles):
        """Have a worker neither act nor take packets for a while."""
        self._paused_until[index] = self.now + cycles

    def lose_worker(self, index, notice):
        """Have a worker lose its power for good; after a while its stand-in takes its place."""
        self._paused_until[index] = math.inf
        self.lost.add(index)

        def replace_it():
            self.switch.promote(0, index)
            StandInWorker(self.workers[index - 1].inner).write_register(registers.JOIN.offset, 0)

        self._at(self.now + notice, replace_it)

    def _awake(self):
        """The workers that do not pause now."""
        for index, until in enumerate(self._paused_until):
            if self._pause and until <= self.now and self._rng.random() < 0.02:
                self._paused_until[index] = self.now + self._rng.randint(1, self._pause)
        return [worker for worker, until in zip(self.workers, self._paused_until, strict=True) if until <= self.now]

    def _at(self, time, action):
        heapq.heappush(self._arrivals, (time, next(self._order), action))

    def _send(self, index, frame):
        for time in self._up[index].arrivals(self.now):
            self._at(time, lambda: self._arrive(index, frame))

    def _arrive(self, index, frame):
        answer = None if index in self.cut or self.silent else self.switch.receive_frame(frame, index)
        if answer is None:
            return
        for port, line in enumerate(self._down):
            if answer.ports >> port & 1:
                for time in line.arrivals(self.now):
                    self._at(time, lambda p=port: self._deliver(p, answer.packet.to_bytes()))

    def _deliver(self, port, frame):
        if port in self.lost:
            return
        if self._paused_until[port] > self.now:
            self._at(self._paused_until[port], lambda: self._deliver(port, frame))
        elif port not in self.cut:
            self.workers[port].inner.receive(frame)


class Readless(BareDevice):
    """A cluster of which the aggregator cannot be read."""

    def __init__(self, cluster):
        self.name, self.workers, self.wait = cluster.name, cluster.workers, cluster.wait
