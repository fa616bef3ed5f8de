"""The controller of a software aggregator."""

import time
from typing import Any

import msgspec

from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.client import ControlClient
from p4sgd.hw.spec.job import Job

MOST_SLOTS = 4096
"""Most slots that one request reads, as packets wait in the meantime."""

_TIMEOUT_S = 10.0  # longest time without an answer

_CHECK_S = 1.0
"""Time between two looks whether its process has ended: workers go on to resend packets for up to minutes."""


class SoftwareAggregator:
    """The aggregator of ``p4sgd switch serve``; raises as `ControlClient`, here and in later calls.

    ``token`` is for a server over TCP; messages name ``interface`` as its link.
    """

    def __init__(self, address: ControlAddress, token: bytes | None = None, *, interface: str = "LINK") -> None:
        command = f"p4sgd switch serve --interface {interface} --control {address}"
        name = f"the aggregator at {address}"
        self._client = ControlClient(address, "aggregator", name, command, timeout_s=_TIMEOUT_S, token=token)
        size = self._call("size")
        self.slots: int = size["slots"]
        self.jobs: int = size["jobs"]
        self.most: int = size["most"]
        self._check_at = time.monotonic() + _CHECK_S

    def set_mac(self, mac: int) -> None:
        self._call("set_mac", mac=mac)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self._call("begin", place=place, job=job, first_round=first_round)

    def promote(self, place: int, shard: int) -> None:
        """Have the stand-in of a shard, which there must be, be its worker from now on."""
        self._call("promote", place=place, shard=shard)

    def end(self, place: int) -> None:
        self._call("end", place=place)

    def served(self) -> dict[int, Job]:
        return msgspec.convert(self._call("served"), dict[int, Job], strict=False)

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
        return self._client.call(do, **arguments)[0]
