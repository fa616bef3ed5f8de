"""The controller of a software aggregator, and jobs as its control socket has them."""

import time
from typing import Any

from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.errors import P4sgdError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.client import ControlClient
from p4sgd.hw.spec.job import Job, Member
from p4sgd.sim.rpc import RefusedError

MOST_SLOTS = 4096
"""Most slots that one request reads, as packets wait in the meantime."""

_TIMEOUT_S = 10.0
"""Longest time without an answer."""

_CHECK_S = 1.0
"""Time between two looks whether its process has ended: workers go on to resend packets for up to minutes."""


def job_to_json(job: Job) -> dict[str, Any]:
    """A job as plain data: number, members as lists [mac, port] in the order of shards, group_mac, ports, key."""
    return {**vars(job), "members": [[member.mac, member.port] for member in job.members]}


def job_from_json(content: Any) -> Job:
    """A job from plain data; raises RefusedError if it is none."""
    if not isinstance(content, dict) or set(content) != {"number", "members", "group_mac", "ports", "key"}:
        raise RefusedError("a job must have number, members, group_mac, ports and key, and nothing else")
    listed = content["members"]
    if not isinstance(listed, list) or not all(isinstance(each, list) and len(each) == 2 for each in listed):
        raise RefusedError("members must be a list of [mac, port]")
    key = content["key"]
    numbers = [content["number"], content["group_mac"], content["ports"], 0 if key is None else key]
    numbers += (part for each in listed for part in each)
    if not all(type(number) is int for number in numbers):
        raise RefusedError("the fields of a job must be whole numbers")
    try:
        members = tuple(Member(mac, port) for mac, port in listed)
        return Job(content["number"], members, content["group_mac"], content["ports"], key)
    except ValueError as error:
        raise RefusedError(str(error)) from None


class SoftwareAggregator:
    """The aggregator of ``p4sgd switch serve``. It has few connections, so every request makes its own.

    ``token`` is for a server over TCP; messages name ``interface`` as its link.

    Raises
    ------
    UserError
        If it is not there, serves too many clients, or has another token.
    P4sgdError
        If it does not answer as it should, here or in later calls.
    """

    def __init__(self, address: ControlAddress, token: bytes | None = None, *, interface: str = "LINK") -> None:
        self._name = f"the aggregator at {address}"
        command = f"p4sgd switch serve --interface {interface} --control {address}"
        self._client = ControlClient(
            address, "aggregator", self._name, command, timeout_s=_TIMEOUT_S, token=token, timeout_is_final=False
        )
        size = self._call("size")
        if not (isinstance(size, dict) and all(isinstance(size.get(name), int) for name in ("slots", "jobs", "most"))):
            raise P4sgdError(f"{self._name} does not answer as it should: {size!r:.60} is not its size")
        self.slots: int = size["slots"]
        self.jobs: int = size["jobs"]
        self.most: int = size["most"]
        self._check_at = time.monotonic() + _CHECK_S

    def set_mac(self, mac: int) -> None:
        self._call("set_mac", mac=mac)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self._call("begin", place=place, job=job_to_json(job), first_round=first_round)

    def end(self, place: int) -> None:
        self._call("end", place=place)

    def served(self) -> dict[int, Job]:
        try:
            return {int(place): job_from_json(job) for place, job in self._call("served")}
        except (RefusedError, TypeError, ValueError) as error:
            raise P4sgdError(f"{self._name} does not answer as it should: {error}") from error

    def counters(self) -> dict[str, int]:
        return dict(self._call("counters"))

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """The state of slots of a place. Many slots are not read at one moment."""
        views: list[SlotView] = []
        for first in slots[::MOST_SLOTS]:
            count = min(MOST_SLOTS, slots.stop - first)
            views += [SlotView(*view) for view in self._call("read_slots", place=place, first=first, count=count)]
        return views

    def check_process(self) -> None:
        """See `ControlClient.check_process`; not more often than once a second, however often it is called."""
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._client.check_process()

    def close(self) -> None:
        self._client.close()

    def _call(self, do: str, **arguments: Any) -> Any:
        try:
            result, _ = self._client.call(do, **arguments)
        finally:
            self._client.close()
        return result
