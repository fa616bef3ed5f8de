"""The controller of a software aggregator, and what is said over its control socket.

What is said over the control socket of a software aggregator: a line of JSON, and a line in return.

A request is an object with ``do`` and what that needs; the answer has either ``ok`` or ``error``.

============  =========================================  ================================================
``do``        with                                       ``ok``
============  =========================================  ================================================
``size``                                                 version, slots, jobs, mac, and links in ports' order
``set_mac``   mac                                        null
``begin``     place, which is free, job, first_round     null
``end``       place                                      null
``served``                                               lists [place, job]
``counters``                                             an object, by names of hw/spec/aggregator.py
``read_slots``      place, first, count (at most `MOST_SLOTS`) lists [round, aggregated, acknowledged]
============  =========================================  ================================================

A job is an object: number, members (lists [mac, port], in the order of shards), group_mac, ports.

The controller of a software aggregator.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from p4sgd.host.aggregators.controller import SlotView, why_not_begin, why_not_readdress
from p4sgd.host.errors import P4sgdError
from p4sgd.host.links.link import Link
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import ROUND_BITS, mac_text
from p4sgd.sim.network.aggregator import Aggregator, SlotState

__all__ = [
    "MOST_SLOTS",
    "VERSION",
    "RequestError",
    "Requests",
    "SoftwareAggregator",
    "job_from_json",
    "job_to_json",
    "whole",
]


VERSION = 2
"""Changes whenever the meaning of a request does."""

MOST_SLOTS = 4096
"""Most slots that one request looks at: packets wait meanwhile."""


class RequestError(Exception):
    """A request that is not carried out; the text says why, to whoever sent it."""


def whole(value: Any, what: str, low: int, high: int) -> int:
    """A whole number within its bounds.

    Raises
    ------
    RequestError
        If it is anything else.
    """
    if type(value) is not int or not low <= value <= high:
        raise RequestError(f"{what} must be a whole number, {low} to {high}")
    return value


def job_to_json(job: Job) -> dict[str, Any]:
    """A job as plain data."""
    members = [[member.mac, member.port] for member in job.members]
    return {"number": job.number, "members": members, "group_mac": job.group_mac, "ports": job.ports}


def job_from_json(content: Any) -> Job:
    """A job from plain data.

    Raises
    ------
    RequestError
        If it is none.
    """
    if not isinstance(content, dict) or set(content) != {"number", "members", "group_mac", "ports"}:
        raise RequestError("a job must have number, members, group_mac and ports, and nothing else")
    listed = content["members"]
    if not isinstance(listed, list) or not all(isinstance(each, list) and len(each) == 2 for each in listed):
        raise RequestError("members must be a list of [mac, port]")
    numbers = [content["number"], content["group_mac"], content["ports"], *(part for each in listed for part in each)]
    if not all(type(number) is int for number in numbers):
        raise RequestError("what a job has must be whole numbers")
    try:
        members = tuple(Member(mac, port) for mac, port in listed)
        return Job(content["number"], members, content["group_mac"], content["ports"])
    except ValueError as error:
        raise RequestError(str(error)) from None


class Requests:
    """Carries requests out.

    Parameters
    ----------
    aggregator
        The state machine.
    links
        Its ports, and what they are called.
    slots, places
        Its size.
    """

    def __init__(self, aggregator: Aggregator, links: Mapping[str, Link], *, slots: int, places: int) -> None:
        self._aggregator = aggregator
        self._links = links
        self._slots = slots
        self._places = places
        self._known: dict[str, tuple[Sequence[str], Callable[..., Any]]] = {
            "size": ((), self._size),
            "set_mac": (("mac",), self._set_mac),
            "begin": (("place", "job", "first_round"), self._begin),
            "end": (("place",), self._end),
            "served": ((), self._served),
            "counters": ((), self.counters),
            "read_slots": (("place", "first", "count"), self._look),
        }

    def carry_out(self, request: Any) -> Any:
        """Do what a request says; returns what is ``ok``.

        Raises
        ------
        RequestError
            If it is no request, or cannot be carried out. Then nothing has changed.
        """
        if not isinstance(request, dict) or not isinstance(request.get("do"), str):
            raise RequestError('a request is an object with "do"')
        do = request["do"]
        if do not in self._known:
            raise RequestError(f"nothing is called {do[:40]!r}; there are {', '.join(self._known)}")
        names, act = self._known[do]
        if set(request) != {"do", *names}:
            raise RequestError(f"{do} needs {', '.join(names) or 'nothing'} beside do, and nothing else")
        return act(*(request[name] for name in names))

    def counters(self) -> dict[str, int]:
        """All counters."""
        return self._aggregator.counters() | {"OVERRUNS": sum(link.lost for link in self._links.values())}

    def _size(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "slots": self._slots,
            "jobs": self._places,
            "mac": self._aggregator.mac,
            "links": list(self._links),
        }

    def _set_mac(self, mac: Any) -> None:
        wanted, known = whole(mac, "mac", 0, (1 << 48) - 1), self._aggregator.mac
        if wanted != known and self._aggregator.jobs:  # their workers would not be heard any more
            raise RequestError(why_not_readdress(known, wanted))
        self._aggregator.mac = wanted

    def _begin(self, place: Any, content: Any, first_round: Any) -> None:
        at = self._place(place)
        job = job_from_json(content)
        known = (1 << len(self._links)) - 1
        if job.ports & ~known or any(member.port >= len(self._links) for member in job.members):
            raise RequestError(f"the job needs a port that is not there: there are {len(self._links)}, from 0 on")
        self._check_addresses(job)
        first = whole(first_round, "first_round", 0, (1 << ROUND_BITS) - 1)
        others = [(place_of_other, other.number) for place_of_other, other in self._aggregator.jobs.items()]
        if (problem := why_not_begin(at, job, others)) is not None:
            raise RequestError(problem)
        self._aggregator.begin(at, job, first)

    def _check_addresses(self, job: Job) -> None:
        """Refuse a job of which every answer would be lost: its workers would take that for a network that is down."""
        links = list(self._links.items())
        wanted = [(port, job.group_mac) for port in range(len(links)) if job.ports >> port & 1]
        wanted += [(member.port, member.mac) for member in job.members]
        for port, mac in wanted:
            name, link = links[port]
            if not link.reaches(mac):
                raise RequestError(
                    f"port {port}, {name}, cannot send to {mac_text(mac)}, which stands for no IPv4 address: p4sgd "
                    "train and doctor need an aggregator with Ethernet interfaces; to others 10.0.0.1 is "
                    "02:00:0a:00:00:01, and the group 239.1.2.3 is 03:00:ef:01:02:03"
                )

    def _end(self, place: Any) -> None:
        self._aggregator.end(self._place(place))

    def _served(self) -> list[list[Any]]:
        return [[place, job_to_json(job)] for place, job in sorted(self._aggregator.jobs.items())]

    def _look(self, place: Any, first: Any, count: Any) -> list[list[int]]:
        at = self._place(place)
        begin = whole(first, "first", 0, self._slots - 1)
        end = begin + whole(count, "count", 1, min(MOST_SLOTS, self._slots - begin))
        seen = self._aggregator.slots[at][begin:end] or [SlotState()] * (end - begin)  # no job has begun there yet
        return [[slot.round, slot.aggregated, slot.acknowledged] for slot in seen]

    def _place(self, place: Any) -> int:
        return whole(place, "place", 0, self._places - 1)


_TIMEOUT_S = 10.0


class SoftwareAggregator:
    """Access to the aggregator of ``p4sgd switch serve``. Every request has a connection of its own.

    Parameters
    ----------
    address
        Of its control socket.

    Raises
    ------
    P4sgdError
        If nobody answers there, or a program of another version.
    """

    def __init__(self, address: ControlAddress) -> None:
        self._address = address
        size = self._ask("size")
        if not isinstance(size, dict) or size.get("version") != VERSION:
            raise self._strange("it is no aggregator of this version of p4sgd")
        self.slots = int(size["slots"])
        self.jobs = int(size["jobs"])

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address."""
        self._ask("set_mac", mac=mac)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a free place from this round on, with all slots fresh."""
        self._ask("begin", place=place, job=job_to_json(job), first_round=first_round)

    def end(self, place: int) -> None:
        """Serve what is in a place no longer."""
        self._ask("end", place=place)

    def served(self) -> dict[int, Job]:
        """The jobs that are served, by place."""
        try:
            return {int(place): job_from_json(job) for place, job in self._ask("served")}
        except (RequestError, TypeError, ValueError) as error:
            raise self._strange(str(error)) from error

    def counters(self) -> dict[str, int]:
        """All counters."""
        return dict(self._ask("counters"))

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry. Of many slots not all are of one moment."""
        views: list[SlotView] = []
        for first in slots[::MOST_SLOTS]:
            count = min(MOST_SLOTS, slots.stop - first)
            views += [SlotView(*view) for view in self._ask("read_slots", place=place, first=first, count=count)]
        return views

    def close(self) -> None:
        """Nothing is to be done: no connection is open."""

    def _ask(self, do: str, **what: Any) -> Any:
        request = json.dumps({"do": do} | what).encode() + b"\n"
        try:
            with self._address.connect(_TIMEOUT_S) as connection, connection.makefile("rb") as lines:
                with contextlib.suppress(BrokenPipeError):  # it has hung up, and may have said why
                    connection.sendall(request)
                line = lines.readline()
        except OSError as error:
            raise P4sgdError(
                f"the aggregator at {self._address} does not answer ({error.strerror or error}): "
                f"see whether p4sgd switch serve runs"
            ) from error
        if not line:
            raise self._strange("it hangs up without an answer")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise self._strange("what it says is no JSON") from error
        if not isinstance(answer, dict) or not {"ok", "error"} & set(answer):
            raise self._strange("it answers something else than it was asked")
        if "error" in answer:
            raise P4sgdError(f"the aggregator at {self._address} refuses: {answer['error']}")
        return answer["ok"]

    def _strange(self, what: str) -> P4sgdError:
        return P4sgdError(f"{self._address} is not understood: {what}")
