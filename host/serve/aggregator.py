"""The server of a software aggregator: the state machine between network links and a control socket."""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from p4sgd.host.aggregators.controller import why_not_begin, why_not_readdress
from p4sgd.host.aggregators.software import MOST_SLOTS
from p4sgd.host.links.batch import FrameBatch
from p4sgd.host.links.link import BatchLink, Link
from p4sgd.host.links.udp import udp_address_text
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.rpc.message import RefusedError
from p4sgd.host.rpc.server import LEASE_S, ControlServer, Methods
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import GROUP_BIT, ROUND_BITS, mac_text, most_micro_batches
from p4sgd.sim.compiled import compiled
from p4sgd.sim.network.batch import MEMBER_MAC, MEMBER_PORT, BatchAggregator
from p4sgd.sim.network.frames import (
    DESTINATION,
    JOB,
    PURPOSE,
    SHARD,
    Bytes,
    Numbers,
    check_of_values,
    load,
    put_check,
    store,
)

_Round = Annotated[int, Meta(ge=0, lt=1 << ROUND_BITS)]
_Mac = Annotated[int, Meta(ge=0, lt=1 << 48)]


class Requests:
    """The requests of controllers, as `p4sgd.host.aggregators.controller.Controller` has them.

    One that is refused changes nothing. ``links`` are the aggregator's ports in order, by name; ``caller`` tells which
    client asks. ``owners`` are, by place, those that began the jobs.
    """

    def __init__(
        self,
        aggregator: BatchAggregator,
        links: Mapping[str, Link],
        *,
        slots: int,
        places: int,
        caller: Callable[[], int] = lambda: 0,
    ) -> None:
        self._aggregator, self._links = aggregator, links
        self._slots, self._places, self._caller = slots, places, caller
        self.owners: dict[int, int] = {}
        self.methods = Methods(
            size=lambda: {"slots": slots, "jobs": places, "most": aggregator.most},
            set_mac=self._set_mac,
            begin=self._begin,
            promote=self._promote,
            end=self.end,
            served=lambda: msgspec.to_builtins(aggregator.jobs, str_keys=True),
            counters=self.counters,
            read_slots=self._read_slots,
        )

    def counters(self) -> dict[str, int]:
        return self._aggregator.counters() | {"OVERRUNS": sum(link.lost for link in self._links.values())}

    def _set_mac(self, mac: _Mac) -> None:
        known = self._aggregator.mac
        if mac != known and self._aggregator.jobs:  # packets of their workers would be dropped
            udp = any(link.address is not None for link in self._links.values())
            raise RefusedError(why_not_readdress(known, mac, udp=udp))
        self._aggregator.mac = mac

    def _begin(self, place: int, job: Job, first_round: _Round) -> None:
        # Of a job whose packets could not come or go, workers would report that the network is down.
        links = list(self._links.items())
        stand_ins = [member.stand_in for member in job.members if member.stand_in]
        others: list[Member | Parent] = [*job.members, *stand_ins, *([job.parent] if job.parent else [])]
        if job.ports >> len(links) or any(each.port >= len(links) for each in others):
            raise RefusedError(f"the job needs a port that does not exist: there are {len(links)}, from 0 on")
        for member in others:
            name, link = links[member.port]
            if not link.reaches(member.mac):
                raise RefusedError(
                    f"port {member.port}, {name}, cannot send to {mac_text(member.mac)}, which stands for no IPv4 "
                    "address: give each its udp in the cluster file"
                )
            if link.address not in (None, self._aggregator.mac):
                raise RefusedError(
                    f"port {member.port}, {name}, receives what is sent to {udp_address_text(link.address)}, not to "
                    f"{udp_address_text(self._aggregator.mac)}: the cluster file must have the former as the "
                    "aggregator's udp"
                )
        served = [(place_of_other, other.number) for place_of_other, other in self._aggregator.jobs.items()]
        if problem := why_not_begin(self._known(place), job, served, parents=True, stand_ins=True):
            raise RefusedError(problem)
        self._aggregator.begin(place, job, first_round)
        self.owners[place] = self._caller()

    def _promote(self, place: int, shard: int) -> None:
        job = self._aggregator.jobs.get(self._known(place))
        if job is None or not 0 <= shard < len(job.members) or job.members[shard].stand_in is None:
            raise RefusedError(f"place {place} has no job in which somebody stands in for shard {shard}")
        self._aggregator.promote(place, shard)

    def end(self, place: int) -> None:
        self._aggregator.end(self._known(place))
        self.owners.pop(place, None)

    def _read_slots(self, place: int, first: int, count: int) -> list[list[int]]:
        if not (first >= 0 and 1 <= count <= MOST_SLOTS and first + count <= self._slots):
            raise RefusedError(f"there are no {count} slots from {first} on: each place has {self._slots}")
        return self._aggregator.read_slots(self._known(place), range(first, first + count))

    def _known(self, place: int) -> int:
        if not 0 <= place < self._places:
            raise RefusedError(f"place must be 0 to {self._places - 1}, not {place}")
        return place


_MOST_CLIENTS = 128

_BATCH = 256  # most frames taken from a port in one turn: a millisecond at most, in UDP to many workers a few
_POLL_S = 1.0  # how often to read from links without an event: one that was down may be up again
_STRANGERS = 1000  # probes of strangers that are answered in this time: an answer may go to whom it does not concern


class SoftwareAggregatorServer:
    """Sums up the packets from links, sends the answers, and serves controllers.

    ``links`` are the ports in order, by name; the caller closes them. ``control`` and ``token`` are those of a
    `ControlListener`. Each of at most ``jobs`` jobs has so many ``slots``. A job whose controller has been gone for
    `LEASE_S` is ended. ``tell`` gets remarks on that, and on controllers without the token.
    """

    def __init__(
        self,
        links: Mapping[str, BatchLink],
        control: ControlAddress,
        *,
        slots: int,
        jobs: int,
        token: bytes | None = None,
        tell: Callable[[str], None] = lambda remark: None,
    ) -> None:
        most = min((most_micro_batches(link.most_bytes) for link in links.values()), default=0)
        self.aggregator = BatchAggregator(slots, jobs=jobs, most=most)
        self._came, self._answers, self._copies = FrameBatch(_BATCH), FrameBatch(_BATCH), FrameBatch(_BATCH)
        self._ports, self._all_rows = np.zeros(_BATCH, np.int64), np.arange(_BATCH)
        self.requests = Requests(self.aggregator, links, slots=slots, places=jobs, caller=lambda: self._control.caller)
        self._seen: dict[int, float] = {}  # when the controllers of jobs were seen last
        self._tell = tell
        self._links = list(links.values())
        self._control = ControlServer(
            ControlListener(control, token),
            "aggregator",
            self.requests.methods,
            most_clients=_MOST_CLIENTS,
            busy=f"is in use by {_MOST_CLIENTS} other programs, which is the most: try again in a moment",
            tell=tell,
        )
        for port, link in enumerate(self._links):
            self._control.watch(link, partial(self._take, port))
        self._waker, self._alarm = socket.socketpair()
        self._control.watch(self._alarm, lambda: self._alarm.recv(1))
        self._is_running = True
        self.aggregator.limit_echoes(_STRANGERS)

    def run(self) -> None:
        """Serve until `stop`."""
        poll_at = time.monotonic() + _POLL_S
        while self._is_running:
            self._control.turn(poll_at - time.monotonic())
            if time.monotonic() >= poll_at:
                poll_at = time.monotonic() + _POLL_S
                self.aggregator.limit_echoes(_STRANGERS)
                self._end_orphans()
                for port in range(len(self._links)):
                    self._take(port)

    def stop(self) -> None:
        """Have `run` return; may be called by a signal's handler."""
        self._is_running = False
        with contextlib.suppress(OSError):  # a second signal, while this closes or has closed
            self._waker.send(b"\0")

    def close(self) -> None:
        self._control.close()
        self._waker.close()
        self._alarm.close()

    def _end_orphans(self) -> None:
        """End the jobs whose controllers are gone, as their workers end the runs."""
        now, owners = time.monotonic(), self.requests.owners
        clients = self._control.clients
        self._seen = {each: now if each in clients else self._seen.get(each, now) for each in owners.values()}
        for place, owner in list(owners.items()):
            if now >= self._seen[owner] + LEASE_S:
                self._tell(f"job {self.aggregator.jobs[place].number} is ended: the program that began it is gone")
                self.requests.end(place)

    def _take(self, port: int) -> None:
        came, answers = self._came, self._answers
        if count := self._links[port].receive_batch(came):
            written = self.aggregator.receive_batch(
                came.frames, came.sizes, count, port, answers.frames, answers.sizes, self._ports
            )
            if written:
                self._send(self._ports[:written])

    def _send(self, ports: Numbers) -> None:
        """Send the first answers, each through the ports of its bitmap."""
        for port, link in enumerate(self._links):
            (rows,) = (ports >> port & 1).nonzero()
            for place, job in self.aggregator.jobs.items():
                if rows.size and not link.reaches(job.group_mac):
                    rows = self._send_to_each(port, place, job, rows)
            if rows.size:
                link.send_batch(self._answers, rows)

    def _send_to_each(self, port: int, place: int, job: Job, rows: Numbers) -> Numbers:
        """Send what is for all of a job without a group to each of its workers behind a port; returns other rows."""
        answers, copies = self._answers, self._copies
        divided: tuple[Numbers, Numbers] = _divide(answers.frames, rows, job.number)
        to_all, others = divided
        members = self.aggregator.members[place, : len(job.members)]
        step = copies.rows // len(members)
        for first in range(0, to_all.size, step):
            some = to_all[first : first + step]
            count = _copy(answers.frames, answers.sizes, some, members, port, copies.frames, copies.sizes)
            self._links[port].send_batch(copies, self._all_rows[:count])
        return others


def warm_up() -> None:
    """Compile the loops, or load what was compiled before."""
    batch, nothing = FrameBatch(2), np.zeros(0, np.int64)  # of one row, all arrays would seem to be contiguous
    batch.warm_up()
    BatchAggregator(1).receive_batch(batch.frames, batch.sizes, 0, 0, batch.frames, batch.sizes, nothing)
    _divide(batch.frames, nothing, 0)
    _copy(batch.frames, batch.sizes, nothing, np.zeros((0, 2), np.int64), 0, batch.frames, batch.sizes)


@compiled(PURPOSE)
def _divide(frames: Bytes, rows: Numbers, job: int) -> tuple[Numbers, Numbers]:
    to_all, others = np.empty_like(rows), np.empty_like(rows)
    to_all_count = other_count = 0
    for row in rows:
        if load(frames[row], JOB) == job and load(frames[row], DESTINATION) >> GROUP_BIT & 1:
            to_all[to_all_count] = row
            to_all_count += 1
        else:
            others[other_count] = row
            other_count += 1
    return to_all[:to_all_count], others[:other_count]


@compiled(PURPOSE)
def _copy(
    frames: Bytes, sizes: Numbers, rows: Numbers, members: Numbers, port: int, copies: Bytes, copy_sizes: Numbers
) -> int:
    """Copy rows for each member of a job behind a port, with its address and shard; returns the number of copies."""
    count = 0
    for row in rows:
        of_values = check_of_values(frames[row], sizes[row])
        for shard in range(len(members)):
            if members[shard, MEMBER_PORT] != port:
                continue
            size, copy = sizes[row], copies[count]
            copy[:size] = frames[row, :size]
            store(copy, DESTINATION, members[shard, MEMBER_MAC])
            store(copy, SHARD, shard)
            put_check(copy, of_values)
            copy_sizes[count] = size
            count += 1
    return count
