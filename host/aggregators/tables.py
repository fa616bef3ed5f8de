"""The controller of a switch that runs a program of `hw/switch`: jobs are entries of its tables.

The folder that `p4sgd switch build` made, as far as loading a switch needs it.

What a switch is told of a job: entries of the tables of `hw/switch`, whatever way they are written.

The controller of a switch that runs a program of `hw/switch`: jobs are entries of its tables.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from p4sgd.host.aggregators.controller import SlotView, why_not_begin, why_not_readdress
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.aggregator import FLOOD_GROUP, GENERATION_BITS, group_of
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import ROUND_BITS

__all__ = [
    "Entry",
    "Program",
    "TableController",
    "forward",
    "generation_after",
    "members",
    "own",
    "read_program",
    "retire",
    "serve",
]


_COMPILED = ("p4sgd.json", "p4sgd.p4info.txtpb")


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes
    ----------
    config
        What the switch runs.
    p4info
        File that says what can be controlled of it.
    """

    config: bytes
    p4info: Path


def read_program(folder: Path, target: str) -> Program:
    """Read a folder with a program for a target.

    Raises
    ------
    UserError
        If it was not made by ``p4sgd switch build``, is for another target, or was not compiled.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        made_for = manifest["target"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: no folder that p4sgd switch build --target {target} has made") from error
    if made_for != target:
        raise UserError(f"{folder}: a program for {made_for}, the switch is a {target}: build one for it")
    missing = [name for name in _COMPILED if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder}: {missing[0]} is missing: compile the program as p4sgd switch build said")
    program, p4info = (folder / name for name in _COMPILED)
    return Program(program.read_bytes(), p4info)


@dataclass(frozen=True)
class Entry:
    """An entry of a table; without a key it is the action that the table takes by default."""

    table: str
    action: str
    key: Mapping[str, int] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)


def generation_after(last: int) -> int:
    """The generation of the switch's next job; 0 is that of slots that no job has used."""
    return last % ((1 << GENERATION_BITS) - 1) + 1


def own(mac: int) -> Entry:
    """The aggregator's own address."""
    return Entry("own", "set_mac", data={"mac": mac})


def serve(place: int, job: Job, first_round: int, generation: int) -> Entry:
    """A job that is served: all slots of which are fresh if no job of the switch had the generation that they keep."""
    return Entry(
        "jobs",
        "serve",
        _job_key(job.number),
        {
            "place": place,
            "generation": generation,
            "before": (first_round - 1) % (1 << ROUND_BITS),
            "workers": len(job.members),
            "everyone": job.everyone,
            "group_mac": job.group_mac,
        },
    )


def retire(number: int, generation: int) -> Entry:
    """A job that is not served any longer; it stays noted so that the next one takes another generation."""
    return Entry("jobs", "retire", _job_key(number), {"generation": generation})


def members(job: Job) -> list[Entry]:
    """The workers of a job."""
    return [
        Entry(
            "members",
            "member",
            {"job": job.number, "shard": shard},
            {"bitmap": 1 << shard, "mac": member.mac, "port_of_member": member.port},
        )
        for shard, member in enumerate(job.members)
    ]


def forward(station: int, port: int) -> Entry:
    """An address that frames of other protocols reach through a port."""
    return Entry("forwarding", "forward", {"destination": station}, {"port": port})


def _job_key(number: int) -> dict[str, int]:
    return {"job": number}


_T = TypeVar("_T")

_GENERATIONS = (1 << GENERATION_BITS) - 1
"""How many there are, without 0."""

_READS = 10
"""How often to read the tables until no job has begun or ended meanwhile."""


class TableController(ABC):
    """What controllers of switches have in common, whatever way they reach the tables.

    A job is served from the moment when its entry of the table ``jobs`` is written, which is done last, until it is
    retired, which is done first. Calls may be repeated: what an earlier one has left halfway is put right.
    """

    @property
    @abstractmethod
    def slots(self) -> int:
        """Slots of each job."""

    @property
    @abstractmethod
    def jobs(self) -> int:
        """Places."""

    @abstractmethod
    def read_entries(self, table: str) -> list[Entry]:
        """The entries of a table."""

    @abstractmethod
    def read_default(self, table: str) -> Entry:
        """The action that a table takes by default."""

    @abstractmethod
    def write_entry(self, entry: Entry, *, is_new: bool) -> None:
        """Write an entry: one of a new key, or over one of the same. One without a key is the table's default."""

    @abstractmethod
    def delete_entries(self, some: Iterable[Entry]) -> None:
        """Delete entries that there are."""

    @abstractmethod
    def read_groups(self) -> dict[int, frozenset[int]]:
        """Ports of the multicast groups."""

    @abstractmethod
    def write_group(self, group: int, ports: frozenset[int], *, is_new: bool) -> None:
        """Set the ports of a multicast group."""

    @abstractmethod
    def delete_group(self, group: int) -> None:
        """Delete a multicast group that there is."""

    @abstractmethod
    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """Counters by their names, without those that the switch lacks."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the switch, which serves on."""

    def change(self, act: Callable[[], _T]) -> _T:
        """Do what needs the right to write. If somebody else takes that meanwhile, it is done again from the start."""
        return act()

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address.

        Raises
        ------
        P4sgdError
            If it is another than it has, and jobs are served: their workers would not be heard any more.
        """
        self.change(partial(self._set_mac, own(mac)))

    def _set_mac(self, wanted: Entry) -> None:
        known = self.read_default(wanted.table)
        if known == wanted:
            return
        if any(map(_is_served, self.read_entries("jobs"))):
            raise P4sgdError(why_not_readdress(known.data["mac"], wanted.data["mac"]))
        self.write_entry(wanted, is_new=False)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a free place from this round on, with all slots fresh.

        Raises
        ------
        P4sgdError
            If there is no such place, it serves a job, or another place serves one of this number.
        """
        if not 0 <= place < self.jobs:
            raise P4sgdError(f"there is no place {place}: the switch has places for {self.jobs} jobs")
        self.change(partial(self._begin, place, job, first_round, []))

    def _begin(self, place: int, job: Job, first_round: int, own: list[Entry]) -> None:
        """``own`` is what an earlier call of this one may have written last: the job is served by it then."""
        noted = self.read_entries("jobs")
        served = [entry for entry in noted if _is_served(entry) and entry not in own]
        others = [(entry.data["place"], entry.key["job"]) for entry in served]
        if (problem := why_not_begin(place, job, others)) is not None:
            raise P4sgdError(problem)
        self._end(place, noted)
        numbers = {entry.key["job"] for entry in served}
        self.delete_entries([entry for entry in self.read_entries("members") if entry.key["job"] not in numbers])
        group = group_of(place)
        self.write_group(group, _ports_of(job.ports), is_new=group not in self.read_groups())
        for entry in members(job):
            self.write_entry(entry, is_new=True)
        is_new = all(entry.key["job"] != job.number for entry in noted)
        own.append(serve(place, job, first_round, generation_after(_newest(noted))))
        self.write_entry(own[-1], is_new=is_new)
        self.delete_entries(entry for entry in noted if entry.key["job"] not in {*numbers, job.number})

    def end(self, place: int) -> None:
        """Serve what is in a place no longer; nothing happens if nothing is."""
        self.change(lambda: self._end(place, self.read_entries("jobs")))

    def _end(self, place: int, noted: Iterable[Entry]) -> None:
        for entry in noted:
            if not _is_served(entry) or entry.data["place"] != place:
                continue
            number = entry.key["job"]
            self.write_entry(retire(number, entry.data["generation"]), is_new=False)
            self.delete_entries(member for member in self.read_entries("members") if member.key["job"] == number)
            if group_of(place) in self.read_groups():
                self.delete_group(group_of(place))

    def served(self) -> dict[int, Job]:
        """The jobs that are served, by place.

        Raises
        ------
        P4sgdError
            If jobs begin and end all the time, or the tables are not as P4SGD leaves them.
        """
        after = self._served_entries()
        for _ in range(_READS):
            before, members, groups = after, self.read_entries("members"), self.read_groups()
            after = self._served_entries()
            if before == after:
                return {entry.data["place"]: _job_of(entry, members, groups) for entry in after}
        raise P4sgdError("jobs begin and end so often that the switch's tables are never of one moment: try again")

    def _served_entries(self) -> list[Entry]:
        return [entry for entry in self.read_entries("jobs") if _is_served(entry)]

    def set_forwarding(self, ports: Iterable[int], stations: Mapping[int, int]) -> None:
        """Say where frames of other protocols go; what was said before is forgotten.

        Parameters
        ----------
        ports
            Where a frame is flooded to if its destination is no station.
        stations
            Port that an address is behind, by the address.
        """
        self.change(partial(self._set_forwarding, frozenset(ports), stations))

    def _set_forwarding(self, ports: frozenset[int], stations: Mapping[int, int]) -> None:
        self.set_flood_group(ports)
        known = {entry.key["destination"]: entry for entry in self.read_entries("forwarding")}
        self.delete_entries(entry for station, entry in known.items() if station not in stations)
        for station, port in stations.items():
            entry = forward(station, port)
            if known.get(station) != entry:
                self.write_entry(entry, is_new=station not in known)

    def set_flood_group(self, ports: frozenset[int]) -> None:
        """Say which ports frames of other protocols are flooded to; none goes back where it came from."""
        self.write_group(FLOOD_GROUP, ports, is_new=FLOOD_GROUP not in self.read_groups())


def _is_served(entry: Entry) -> bool:
    return entry.action == "serve"


def _job_of(entry: Entry, members: Iterable[Entry], groups: Mapping[int, frozenset[int]]) -> Job:
    """The job of an entry of ``jobs``, of which all that is read was written before and is deleted later."""
    number, place = entry.key["job"], entry.data["place"]
    by_shard = {
        member.key["shard"]: Member(member.data["mac"], member.data["port_of_member"])
        for member in members
        if member.key["job"] == number
    }
    if sorted(by_shard) != list(range(entry.data["workers"])) or group_of(place) not in groups:
        raise P4sgdError(
            f"the switch serves job {number} without all of its workers or their multicast group, as P4SGD never has "
            "it do: load the program anew (p4sgd switch deploy)"
        )
    ports = sum(1 << port for port in groups[group_of(place)])
    return Job(number, tuple(by_shard[shard] for shard in sorted(by_shard)), entry.data["group_mac"], ports)


def _newest(noted: Iterable[Entry]) -> int:
    """The generation that was given last, 0 if none was; right as long as no job lasts for half of all generations."""
    newest = 0
    for entry in noted:
        generation = entry.data["generation"]
        if newest == 0 or (generation - newest) % _GENERATIONS <= _GENERATIONS // 2:
            newest = generation
    return newest


def _ports_of(bitmap: int) -> frozenset[int]:
    return frozenset(port for port in range(bitmap.bit_length()) if bitmap >> port & 1)
