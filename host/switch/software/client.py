"""The controller of a software aggregator."""

import contextlib
import json
from typing import Any

from p4sgd.host.control.address import ControlAddress
from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.controller import SlotView
from p4sgd.host.switch.software.requests import MOST_SLOTS, VERSION, RequestError, job_from_json, job_to_json
from p4sgd.hw.spec.job import Job

__all__ = ["SoftwareAggregator"]

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

    def look(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry. Of many slots not all are of one moment."""
        views: list[SlotView] = []
        for first in slots[::MOST_SLOTS]:
            count = min(MOST_SLOTS, slots.stop - first)
            views += [SlotView(*view) for view in self._ask("look", place=place, first=first, count=count)]
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
