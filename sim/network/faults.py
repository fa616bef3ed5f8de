"""A network with faults, and AllReduce operations across it."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from p4sgd.hw.spec.packet import Packet
from p4sgd.sim.network.aggregator import Aggregator
from p4sgd.sim.network.endpoint import Endpoint

__all__ = ["Faults", "FaultyNetwork", "StalledError", "all_reduce"]


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


def all_reduce(
    partials: Sequence[Sequence[Sequence[int]]],
    endpoints: Sequence[Endpoint],
    aggregator: Aggregator,
    faults: Faults,
    seed: int,
    *,
    time_limit: int = 1_000_000,
) -> list[list[tuple[int, ...]]]:
    """Run a sequence of AllReduce operations to its end.

    Parameters
    ----------
    partials
        For each worker, in order, its eight partials of each operation.
    endpoints
        The workers, by shard index.
    aggregator
        With shard i on port i.
    faults, seed
        What the network does. Workers begin operations at random times, too.
    time_limit
        Time after which the run counts as stalled.

    Returns
    -------
    list of lists of eight int
        For each worker the sums that it got, in order.

    Raises
    ------
    StalledError
        If not every worker has all sums and an idle endpoint by ``time_limit``.
    """
    network = FaultyNetwork(faults, seed)
    todo = [list(worker) for worker in partials]
    got: list[list[tuple[int, ...]]] = [[] for _ in endpoints]

    def to_aggregator(packet: Packet, port: int) -> None:
        answer = aggregator.receive(packet, port)
        if answer is not None:
            for worker in range(len(endpoints)):
                if answer.ports >> worker & 1:
                    network.send(partial(to_worker, answer.packet, worker))

    def to_worker(packet: Packet, worker: int) -> None:
        endpoint = endpoints[worker]
        acknowledgement = endpoint.receive(packet, network.now)
        if acknowledgement is not None:
            network.send(partial(to_aggregator, acknowledgement, worker))
        while endpoint.sums:
            got[worker].append(endpoint.sums.popleft())

    def work(worker: int) -> None:
        endpoint = endpoints[worker]
        for packet in endpoint.resend(network.now):
            network.send(partial(to_aggregator, packet, worker))
        if todo[worker] and endpoint.can_submit:
            first = endpoint.submit(todo[worker].pop(0), network.now)
            network.send(partial(to_aggregator, first, worker))
        network.after(network.rng.randint(1, 10), partial(work, worker))

    for worker in range(len(endpoints)):
        work(worker)
    while any(todo) or any(endpoint.busy for endpoint in endpoints):
        if network.now > time_limit:
            counts = [len(worker) for worker in got]
            raise StalledError(f"after {network.now}: {counts} of {[len(worker) for worker in partials]} sums")
        network.step()
    return got
