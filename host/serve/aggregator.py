"""The server of a software aggregator: the state machine between network links and a control socket."""

import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.aggregators.controller import why_not_begin, why_not_readdress
from p4sgd.host.aggregators.software import MOST_SLOTS, job_from_json, job_to_json
from p4sgd.host.links.batch import FrameBatch
from p4sgd.host.links.link import Link
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.rpc.server import ControlServer, Methods, whole
from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.packet import ROUND_BITS, mac_text, most_micro_batches
from p4sgd.sim.network.batch import BatchAggregator
from p4sgd.sim.rpc import RefusedError

__all__ = ["Requests", "SoftwareAggregatorServer"]


class Requests:
    """The requests of controllers. One that is refused changes nothing.

    Parameters
    ----------
    aggregator
        The state machine.
    links
        Its ports in order, by name.
    slots, places
        Its size.

    Attributes
    ----------
    methods : Methods
        The requests, with the arguments of `p4sgd.host.aggregators.software.SoftwareAggregator`'s methods.
    """

    def __init__(self, aggregator: BatchAggregator, links: Mapping[str, Link], *, slots: int, places: int) -> None:
        self._aggregator = aggregator
        self._links = links
        self._slots = slots
        self._places = places
        self.methods = Methods(
            size=lambda: {"slots": slots, "jobs": places, "most": aggregator.most},
            set_mac=self._set_mac,
            begin=self._begin,
            end=self._end,
            served=self._served,
            counters=self.counters,
            read_slots=self._read_slots,
        )

    def counters(self) -> dict[str, int]:
        """All counters."""
        return self._aggregator.counters() | {"OVERRUNS": sum(link.lost for link in self._links.values())}

    def _set_mac(self, mac: Any) -> None:
        wanted, known = whole(mac, "mac", 0, (1 << 48) - 1), self._aggregator.mac
        if wanted != known and self._aggregator.jobs:  # packets of their workers would be dropped
            raise RefusedError(why_not_readdress(known, wanted))
        self._aggregator.mac = wanted

    def _begin(self, place: Any, job: Any, first_round: Any) -> None:
        at = self._place(place)
        wanted = job_from_json(job)
        known = (1 << len(self._links)) - 1
        if wanted.ports & ~known or any(member.port >= len(self._links) for member in wanted.members):
            raise RefusedError(f"the job needs a port that does not exist: there are {len(self._links)}, from 0 on")
        self._check_addresses(wanted)
        first = whole(first_round, "first_round", 0, (1 << ROUND_BITS) - 1)
        others = [(place_of_other, other.number) for place_of_other, other in self._aggregator.jobs.items()]
        if (problem := why_not_begin(at, wanted, others)) is not None:
            raise RefusedError(problem)
        self._aggregator.begin(at, wanted, first)

    def _check_addresses(self, job: Job) -> None:
        """Refuse a job if no answer could reach its workers: they would report that the network is down."""
        links = list(self._links.items())
        wanted = [(port, job.group_mac) for port in range(len(links)) if job.ports >> port & 1]
        wanted += [(member.port, member.mac) for member in job.members]
        for port, mac in wanted:
            name, link = links[port]
            if not link.reaches(mac):
                raise RefusedError(
                    f"port {port}, {name}, cannot send to {mac_text(mac)}, which stands for no IPv4 address: p4sgd "
                    "train and doctor need an aggregator with Ethernet interfaces; to others 10.0.0.1 is "
                    "02:00:0a:00:00:01, and the group 239.1.2.3 is 03:00:ef:01:02:03"
                )

    def _end(self, place: Any) -> None:
        self._aggregator.end(self._place(place))

    def _served(self) -> list[list[Any]]:
        return [[place, job_to_json(job)] for place, job in sorted(self._aggregator.jobs.items())]

    def _read_slots(self, place: Any, first: Any, count: Any) -> list[list[int]]:
        at = self._place(place)
        begin = whole(first, "first", 0, self._slots - 1)
        end = begin + whole(count, "count", 1, min(MOST_SLOTS, self._slots - begin))
        seen = self._aggregator.read_slots(at, range(begin, end))
        return [[slot.round, slot.aggregated, slot.acknowledged] for slot in seen]

    def _place(self, place: Any) -> int:
        return whole(place, "place", 0, self._places - 1)


_MOST_CLIENTS = 32

_IDLE_S = 30.0
"""A client without a request for so long is disconnected, to make room for others."""

_BATCH = 256
"""Most frames taken from a port in one turn: a millisecond at most."""

_POLL_S = 1.0
"""How often to read from links without an event: one that was down may be up again."""


class SoftwareAggregatorServer:
    """Sums up the packets from links, sends the answers, and serves controllers.

    Parameters
    ----------
    links
        The ports in order, by name. The caller closes them.
    control
        Where controllers connect.
    slots
        Slots of each job.
    jobs
        Most jobs at a time.
    owner
        User and group that own a Unix socket; None for this process's.

    Attributes
    ----------
    aggregator : BatchAggregator
        The state machine.
    requests : Requests
        What controllers may request.

    Raises
    ------
    UserError
        If it cannot listen there.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        control: ControlAddress,
        *,
        slots: int,
        jobs: int,
        owner: tuple[int, int] | None = None,
    ) -> None:
        most = min(most_micro_batches(link.most_bytes) for link in links.values())
        self.aggregator = BatchAggregator(slots, jobs=jobs, most=most)
        self.aggregator.warm_up()
        self._came, self._answers = FrameBatch(_BATCH), FrameBatch(_BATCH)
        self._ports = np.zeros(_BATCH, np.int64)
        self.requests = Requests(self.aggregator, links, slots=slots, places=jobs)
        self._links = list(links.values())
        self._control = ControlServer(
            ControlListener(control, owner),
            "aggregator",
            self.requests.methods,
            most_clients=_MOST_CLIENTS,
            busy=f"is in use by {_MOST_CLIENTS} other programs, which is the most: try again in a moment",
            idle_s=_IDLE_S,
        )
        for port, link in enumerate(self._links):
            self._control.watch(link, partial(self._take, port))
        self._waker, self._alarm = socket.socketpair()
        self._control.watch(self._alarm, lambda: self._alarm.recv(1))
        self._is_running = True

    def run(self) -> None:
        """Serve until `stop`."""
        poll_at = time.monotonic() + _POLL_S
        while self._is_running:
            self._control.turn(poll_at - time.monotonic())
            if time.monotonic() >= poll_at:
                poll_at = time.monotonic() + _POLL_S
                for port in range(len(self._links)):
                    self._take(port)

    def stop(self) -> None:
        """Have `run` return; may be called by a signal's handler."""
        self._is_running = False
        self._waker.send(b"\0")

    def close(self) -> None:
        """Disconnect all clients, and listen no longer."""
        self._control.close()
        self._waker.close()
        self._alarm.close()

    def _take(self, port: int) -> None:
        came, answers = self._came, self._answers
        if count := self._links[port].receive_batch(came):
            written = self.aggregator.receive_batch(
                came.frames, came.sizes, count, port, answers.frames, answers.sizes, self._ports
            )
            if written:
                self._send(self._ports[:written])

    def _send(self, ports: npt.NDArray[np.int64]) -> None:
        """Send the first answers, each through the ports of its bitmap."""
        for port, link in enumerate(self._links):
            (rows,) = (ports >> port & 1).nonzero()
            if rows.size:
                link.send_batch(self._answers, rows)
