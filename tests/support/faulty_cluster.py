"""Simulated network: AllReduce between workers and an aggregator over faulty links."""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from p4sgd.host.aggregators.seats import seats_of
from p4sgd.hw.spec.job import JOB_NUMBERS, Job, Member, Parent
from p4sgd.hw.spec.packet import GROUP_BIT, KEY_BITS, Packet
from p4sgd.sim.network.endpoint import Endpoint
from support.aggregator_model import Aggregator
from support.lines import Faults, Line, between


@dataclass(frozen=True)
class Pauses:
    """Random pauses of workers, which neither send nor receive; packets that arrive wait.

    Time from one pause to the next, and of a pause: from the shortest to the longest.
    """

    every: tuple[int, int]
    length: tuple[int, int]


@dataclass(frozen=True)
class Restart:
    """Restart of a worker at a time of the run: it loses its state. After ``notice`` the host restarts the job."""

    worker: int
    time: int
    notice: int


@dataclass(frozen=True)
class Schedule:
    """All faults of a cluster: of the links to the aggregator and back, of workers, and restarts in order of time.

    A restart waits until the job has been restarted after the last one.
    """

    up: Faults = field(default_factory=Faults)
    down: Faults = field(default_factory=Faults)
    pauses: Pauses | None = None
    restarts: tuple[Restart, ...] = ()


class EventQueue:
    """Event queue of a discrete-event simulation; time is an integer."""

    def __init__(self) -> None:
        self.now = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Schedule an event. Events of the same time happen in the order in which they were scheduled."""
        self._scheduled += 1
        heapq.heappush(self._queue, (time, self._scheduled, action))

    def step(self) -> None:
        """Advance to the next event and carry it out."""
        self.now, _, action = heapq.heappop(self._queue)
        action()


_NOTICE = (1, 1000)
"""Range of the time until the host notices that a worker has given up, and restarts the job."""

_STAND_IN = 0.3
"""Chance with which a worker sends the partials of the one that it stands in for when it checks its timers."""

_SUBMIT = (1, 10)
"""Range of the time that a worker takes to begin an operation."""


class StalledError(RuntimeError):
    """Workers have waited longer than any fault explains."""


class FaultyCluster:
    """Workers and an aggregator with faulty links between them. The same seed gives the same run.

    Packets that are in flight when a run ends arrive during the next one, as in a real network. Shard i is on port i.
    With ``racks``, aggregators of these below ``aggregator``, worker i is behind that of number ``behind[i]``, or None,
    and its endpoint has the shard of `seats_of`; links between aggregators are as faulty. An end is a worker, or its
    number behind those of the workers a rack.
    With ``stand_ins``, of a cluster without racks, each worker stands in for the next, at any time that it may.
    If ``keyed``, packets are of version 2: each job has a new key, and one that is restarted keeps its number, so that
    its key alone tells its packets from those before. The seed also decides when workers submit and check their timers.

    ``counts``: fates of packets (see `Line`), packets ``resent``, and how often workers have ``given up``; ``got``:
    sums that each worker has received in this run, in order; ``discarded``: sums that a worker had received of
    operations that a restart of the job repeats.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        aggregator: Aggregator,
        schedule: Schedule,
        seed: int,
        *,
        keyed: bool = False,
        racks: Sequence[Aggregator] = (),
        behind: Sequence[int | None] = (),
        stand_ins: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.got: list[list[tuple[int, ...]]] = [[] for _ in endpoints]
        self.discarded: list[tuple[int, tuple[int, ...]]] = []
        self._endpoints = endpoints
        self._aggregators = [*racks, aggregator]
        self._seats = seats_of(behind or [None] * len(endpoints))
        self._schedule = schedule
        self._keyed = keyed
        self._rng = random.Random(seed)
        self._events = EventQueue()
        ends = len(endpoints) + len(racks)
        self._up = [Line(schedule.up, self._rng, self.counts) for _ in range(ends)]
        self._down = [Line(schedule.down, self._rng, self.counts) for _ in range(ends)]
        self._homes: dict[int, tuple[int, int]] = {}  # of each end the aggregator that it is behind, and its port there
        self._own_uplinks: dict[int, int] = {}  # by rack, its own port
        for worker, seat in enumerate(self._seats):
            self._homes[worker] = len(racks) if seat.rack is None else seat.rack, seat.shard
            if seat.rack is not None and seat.uplink is not None:
                self._homes[len(endpoints) + seat.rack] = len(racks), seat.uplink
                self._own_uplinks[seat.rack] = seat.workers
        self._ends = {home: end for end, home in self._homes.items()}
        self._job = self._first_round = 0
        self._partials: Sequence[Sequence[Sequence[int]]] = [()] * len(endpoints)
        self._stand_ins = stand_ins
        self._before = 0  # operations done before the first one of the job
        self._missing = 0
        self._progress_at = 0
        self._paused_until = [0] * len(endpoints)
        self._left: int | None = None  # a worker that has left the job, until the job is restarted
        for worker in range(len(endpoints)):
            self._check_timers(worker)
            if schedule.pauses is not None:
                self._after(schedule.pauses.every, partial(self._pause, worker))

    def begin_job(self, job: int, first_round: int) -> None:
        """Reset all state, and begin a job in round ``first_round``."""
        self._job, self._first_round = job, first_round
        key = self._rng.getrandbits(KEY_BITS) if self._keyed else None
        top = len(self._aggregators) - 1
        for index in reversed(range(top + 1)):
            ports = sorted(port for home, port in self._ends if home == index)
            members = tuple(Member(0, port) for port in ports)  # all have address 0, and are told by their ports
            if self._stand_ins:
                members = tuple(replace(member, stand_in=members[port - 1]) for port, member in enumerate(members))
            parent = None
            if index < top:
                _, uplink = self._homes[len(self._endpoints) + index]
                shards = sum(home == top for home, _ in self._ends)
                parent = Parent(0, self._own_uplinks[index], uplink, shards)
            everyone = (1 << len(members)) - 1
            self._aggregators[index].begin(0, Job(job, members, 1 << GROUP_BIT, everyone, key, parent), first_round)
        for endpoint in self._endpoints:
            endpoint.job, endpoint.key = job, key
            endpoint.join(first_round)

    def all_reduce(
        self, partials: Sequence[Sequence[Sequence[int]]], *, time_limit: int = 1_000_000
    ) -> list[list[tuple[int, ...]]]:
        """Run AllReduce operations until all are complete: of each worker its partials, and then its sums, in order.

        A `StalledError` is raised after ``time_limit`` without progress.
        """
        self._partials = partials
        self.got = [[] for _ in self._endpoints]
        self._begin_at(0)
        begun = self._progress_at = self._events.now
        restarts = deque(self._schedule.restarts)
        while self._missing or self._left is not None or any(endpoint.busy for endpoint in self._endpoints):
            if self._events.now > self._progress_at + time_limit:
                counts = [len(worker) for worker in self.got]
                wanted = [len(worker) for worker in partials]
                raise StalledError(f"no progress for a time of {time_limit}: {counts} of {wanted} sums")
            if restarts and self._left is None and self._events.now >= begun + restarts[0].time:
                self._restart(restarts.popleft())
            self._events.step()
        return self.got

    def _after(self, bounds: tuple[int, int], action: Callable[[], None]) -> None:
        self._events.at(self._events.now + between(self._rng, bounds), action)

    def _postponed(self, worker: int, action: Callable[[], None]) -> bool:
        """Whether a worker is paused; if so, schedule the action for the end of the pause."""
        time = self._paused_until[worker]
        if time <= self._events.now:
            return False
        self._events.at(time, action)
        return True

    # -- operations ----------------------------------------------------------------------------------------------

    def _begin_at(self, operation: int) -> None:
        """Have all workers do the operations from ``operation`` on."""
        self._before = operation - self._endpoints[0].next_operation
        self._missing = sum(len(worker) - operation for worker in self._partials)
        for worker in range(len(self._endpoints)):
            self._after(_SUBMIT, partial(self._submit, worker))

    def _submit(self, worker: int) -> None:
        """Begin the next operation if a slot is free. If not, CLEAR or sums will cause another attempt."""
        endpoint = self._endpoints[worker]
        if not self._has_next(worker) or worker == self._left:
            return
        if self._postponed(worker, partial(self._submit, worker)):
            return
        values = self._partials[worker][self._before + endpoint.next_operation]
        self._send_up(endpoint.submit(values, self._events.now), worker)
        self._after(_SUBMIT, partial(self._submit, worker))

    def _has_next(self, worker: int) -> bool:
        """Whether a worker can begin an operation."""
        endpoint = self._endpoints[worker]
        return endpoint.can_submit and self._before + endpoint.next_operation < len(self._partials[worker])

    def _stand_in(self, worker: int) -> None:
        """Send some of the next worker's partials, in operations that wait."""
        endpoint, other = self._endpoints[worker], (worker + 1) % len(self._endpoints)
        for operation in range(max(0, endpoint.next_operation - endpoint.slots), endpoint.next_operation):
            if endpoint.waits_for(operation) and self._rng.random() < _STAND_IN:
                self.counts["stand-ins"] += 1
                values = self._partials[other][self._before + operation]
                self._send_up(endpoint.packet_of(operation, other, tuple(values)), worker)

    def _check_timers(self, worker: int) -> None:
        """Resend what is due, and schedule the next check."""
        if self._postponed(worker, partial(self._check_timers, worker)):
            return
        endpoint = self._endpoints[worker]
        had_joined = endpoint.joined
        due = endpoint.resend(self._events.now)
        if had_joined and not endpoint.joined:
            self._give_up(worker)
        self.counts["resent"] += len(due)
        for packet in due:
            self._send_up(packet, worker)
        if self._stand_ins:
            self._stand_in(worker)
        self._after((1, endpoint.resend_after), partial(self._check_timers, worker))

    # -- packets -------------------------------------------------------------------------------------------------

    def _send_up(self, packet: Packet, end: int) -> None:
        for time in self._up[end].arrivals(self._events.now):
            self._events.at(time, partial(self._to_aggregator, packet, *self._homes[end]))

    def _to_aggregator(self, packet: Packet, index: int, port: int) -> None:
        answer = self._aggregators[index].receive(packet, port)
        if answer is None:
            return
        if index in self._own_uplinks and answer.ports == 1 << self._own_uplinks[index]:
            self._send_up(answer.packet, len(self._endpoints) + index)
            return
        for end, line in enumerate(self._down):
            home, its_port = self._homes[end]
            if home == index and answer.ports >> its_port & 1:
                for time in line.arrivals(self._events.now):
                    self._events.at(time, partial(self._to_end, answer.packet, end))

    def _to_end(self, packet: Packet, end: int) -> None:
        rack = end - len(self._endpoints)
        if rack < 0:
            self._to_worker(packet, end)
        else:
            self._to_aggregator(packet, rack, self._own_uplinks[rack])

    def _to_worker(self, packet: Packet, worker: int) -> None:
        if self._postponed(worker, partial(self._to_worker, packet, worker)):
            return
        endpoint = self._endpoints[worker]
        acknowledgement = endpoint.receive(packet, self._events.now)
        if acknowledgement is not None:
            self._send_up(acknowledgement, worker)
        while endpoint.sums:
            self.got[worker].append(endpoint.sums.popleft())
            self._missing -= 1
            self._progress_at = self._events.now
        if self._has_next(worker):
            self._after(_SUBMIT, partial(self._submit, worker))

    # -- faults of workers ---------------------------------------------------------------------------------------

    def _pause(self, worker: int) -> None:
        assert self._schedule.pauses is not None
        self.counts["pauses"] += 1
        length = between(self._rng, self._schedule.pauses.length)
        self._paused_until[worker] = self._events.now + length
        every = self._schedule.pauses.every
        self._after((length + every[0], length + every[1]), partial(self._pause, worker))

    def _restart(self, restart: Restart) -> None:
        """Reset a worker to its state after power-up: in job 0, without any operation."""
        self.counts["restarts"] += 1
        self._left = restart.worker
        self._endpoints[restart.worker].job = 0
        self._endpoints[restart.worker].join(0)
        self._events.at(self._events.now + restart.notice, self._restart_job)

    def _give_up(self, worker: int) -> None:
        """Note that a worker has given up, and schedule a restart of the job unless one is scheduled already."""
        self.counts["given up"] += 1
        if self._left is None:
            self._left = worker
            self._after(_NOTICE, self._restart_with_more_resends)

    def _restart_with_more_resends(self) -> None:
        """Restart the job with twice as many resends, because with too few it might never end."""
        for endpoint in self._endpoints:
            endpoint.resends *= 2
        self._restart_job()

    def _restart_job(self) -> None:
        """Restart the job from the first operation that some have not done, under a new number or a new key.

        Packets of the old job are still in flight.
        """
        self._left = None
        done = min(map(len, self.got))
        for got in self.got:
            self.discarded += enumerate(got[done:], done)
            del got[done:]
        self.begin_job(self._job if self._keyed else (self._job + 1) % JOB_NUMBERS, self._first_round)
        self._begin_at(done)
