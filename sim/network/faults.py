"""A network with faults, and AllReduce operations across it."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from p4sgd.hw.spec.packet import GROUP_BIT, Packet
from p4sgd.sim.network.aggregator import Aggregator, Job, Member
from p4sgd.sim.network.endpoint import Endpoint

__all__ = ["Faults", "FaultyCluster", "FaultyNetwork", "StalledError"]


@dataclass(frozen=True)
class Faults:
    """What the network does to every packet, independently of all others.

    Attributes
    ----------
    loss
        Chance that a packet is lost.
    duplication
        Chance that it comes twice; either may be lost, and both are delayed on their own.
    delay
        Shortest and longest time a packet takes: the wider apart, the more packets overtake each other.
    straggle
        Chance that it takes ``straggle_delay`` longer.
    straggle_delay
        Time, in the unit of ``delay``.
    """

    loss: float = 0.0
    duplication: float = 0.0
    delay: tuple[int, int] = (10, 10)
    straggle: float = 0.0
    straggle_delay: int = 1000

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "straggle"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be 0 to below 1, not {getattr(self, name)}")
        if not 0 < self.delay[0] <= self.delay[1]:
            raise ValueError(f"delay must be two ascending positive numbers, not {self.delay}")

    def arrivals(self, rng: random.Random) -> list[int]:
        """After how much time each copy of a packet arrives; empty if it is lost."""
        copies = 2 if rng.random() < self.duplication else 1
        times = []
        for _ in range(copies):
            late = self.straggle_delay if rng.random() < self.straggle else 0
            if rng.random() >= self.loss:
                times.append(rng.randint(*self.delay) + late)
        return times


class StalledError(RuntimeError):
    """Workers are still waiting after the time in which all should have finished."""


class FaultyNetwork:
    """Events in order of time; packets among them suffer `Faults`. The same seed gives the same run."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.rng = random.Random(seed)
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Have something happen ``delay`` from now. Events of one time happen in the order they were scheduled."""
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + delay, self._scheduled, action))

    def send(self, deliver: Callable[[], None]) -> None:
        """Send a packet: ``deliver`` happens for each copy that arrives."""
        for delay in self.faults.arrivals(self.rng):
            self.after(delay, deliver)

    def step(self) -> None:
        """Go to the next event and let it happen."""
        self.now, _, action = heapq.heappop(self._events)
        action()


class FaultyCluster:
    """Workers and an aggregator with a `FaultyNetwork` between them.

    What is under way when a run ends stays under way, as in a real network: it comes during the next one.

    Parameters
    ----------
    endpoints
        The workers, by shard index.
    aggregator
        With shard i on port i.
    faults, seed
        What the network does. Workers begin operations at random times, too.
    """

    def __init__(self, endpoints: Sequence[Endpoint], aggregator: Aggregator, faults: Faults, seed: int) -> None:
        self._endpoints = endpoints
        self._aggregator = aggregator
        self._network = FaultyNetwork(faults, seed)
        self._todo: list[list[Sequence[int]]] = [[] for _ in endpoints]
        self._got: list[list[tuple[int, ...]]] = [[] for _ in endpoints]
        for worker in range(len(endpoints)):
            self._work(worker)

    def begin_job(self, job: int, first_round: int) -> None:
        """Have everyone forget what it knows and serve a job from this round on."""
        members = tuple(Member(endpoint.local_mac, port) for port, endpoint in enumerate(self._endpoints))
        everyone = (1 << len(members)) - 1
        self._aggregator.begin(0, Job(job, members, 1 << GROUP_BIT, everyone), first_round)
        for endpoint in self._endpoints:
            endpoint.job = job
            endpoint.join(first_round)

    def all_reduce(
        self, partials: Sequence[Sequence[Sequence[int]]], *, time_limit: int = 1_000_000
    ) -> list[list[tuple[int, ...]]]:
        """Run a sequence of AllReduce operations to its end.

        Parameters
        ----------
        partials
            For each worker, in order, its eight partials of each operation.
        time_limit
            Time after which the run counts as stalled.

        Returns
        -------
        list of lists of eight int
            For each worker the sums that it got, in order.

        Raises
        ------
        StalledError
            If not every worker has all sums and an idle endpoint within ``time_limit``.
        """
        self._todo = [list(worker) for worker in partials]
        self._got = [[] for _ in self._endpoints]
        begun = self._network.now
        while any(self._todo) or any(endpoint.busy for endpoint in self._endpoints):
            if self._network.now > begun + time_limit:
                counts = [len(worker) for worker in self._got]
                raise StalledError(f"after {time_limit}: {counts} of {[len(worker) for worker in partials]} sums")
            self._network.step()
        return self._got

    def _work(self, worker: int) -> None:
        endpoint, todo = self._endpoints[worker], self._todo[worker]
        for packet in endpoint.resend(self._network.now):
            self._network.send(partial(self._to_aggregator, packet, worker))
        if todo and endpoint.can_submit:
            first = endpoint.submit(todo.pop(0), self._network.now)
            self._network.send(partial(self._to_aggregator, first, worker))
        self._network.after(self._network.rng.randint(1, 10), partial(self._work, worker))

    def _to_aggregator(self, packet: Packet, port: int) -> None:
        answer = self._aggregator.receive(packet, port)
        if answer is not None:
            for worker in range(len(self._endpoints)):
                if answer.ports >> worker & 1:
                    self._network.send(partial(self._to_worker, answer.packet, worker))

    def _to_worker(self, packet: Packet, worker: int) -> None:
        endpoint = self._endpoints[worker]
        acknowledgement = endpoint.receive(packet, self._network.now)
        if acknowledgement is not None:
            self._network.send(partial(self._to_aggregator, acknowledgement, worker))
        while endpoint.sums:
            self._got[worker].append(endpoint.sums.popleft())
