"""Control of a P4 switch that runs a program of `hw/switch`: jobs as table entries, whatever API writes them."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from p4sgd.host.aggregators.controller import Controller, shards_of, why_not_begin, why_not_readdress
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import parse_json
from p4sgd.hw.spec.aggregator import FLOOD_GROUP, GENERATION_BITS, group_of
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import ROUND_BITS


@dataclass(frozen=True)
class Entry:
    """An entry of a table. Without a key, it is the table's default action."""

    table: str
    action: str
    key: Mapping[str, int] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)


_GENERATIONS = (1 << GENERATION_BITS) - 1


def generation_after(last: int) -> int:
    """The generation of the switch's next job, 1 to 2^`GENERATION_BITS` - 1. Slots that no job has used have 0."""
    return last % _GENERATIONS + 1


def own_entry(mac: int) -> Entry:
    """The switch's own MAC address."""
    return Entry("own", "set_mac", data={"mac": mac})


def serve_entry(place: int, job: Job, first_round: int, generation: int) -> Entry:
    """A job that is served. All its slots are fresh, unless they still hold the same generation of an earlier job."""
    return Entry(
        "jobs",
        "serve",
        {"job": job.number},
        {
            "place": place,
            "generation": generation,
            "before": (first_round - 1) % (1 << ROUND_BITS),
            "workers": len(job.members),
            "everyone": job.everyone,
            "group_mac": job.group_mac,
        },
    )


def retire_entry(number: int, generation: int) -> Entry:
    """A job that has ended. Its entry stays, so that the next job takes another generation."""
    return Entry("jobs", "retire", {"job": number}, {"generation": generation})


def member_entries(job: Job) -> list[Entry]:
    """The members of a job, one entry each, and its parent, if it has one."""
    entries = [
        Entry(
            "members",
            "member",
            {"job": job.number, "shard": shard},
            {"bitmap": 1 << shard, "mac": member.mac, "port_of_member": member.port},
        )
        for shard, member in enumerate(job.members)
    ]
    if (parent := job.parent) is not None:
        own = {"bitmap": 1 << parent.shard, "shard": parent.shard}
        above = {"workers": parent.workers, "everyone": parent.everyone, "mac": parent.mac}
        entries.append(Entry("parents", "parent", {"job": job.number}, own | above | {"port_of_parent": parent.port}))
    return entries


_T = TypeVar("_T")

_READS = 10  # attempts to read the tables without a job beginning or ending meanwhile


class TableController(Controller):
    """A `Controller` in terms of reading and writing table entries, which subclasses implement.

    A job is served from when its entry of the table ``jobs`` is written, which comes last, until that entry is retired,
    which comes first. If a call fails half way, repeating it repairs the tables.
    """

    parents = False
    """Whether the program has the table ``parents``: jobs may have one."""

    @abstractmethod
    def read_entries(self, table: str) -> list[Entry]:
        """The entries of a table."""

    @abstractmethod
    def read_default(self, table: str) -> Entry:
        """The default action of a table."""

    @abstractmethod
    def write_entry(self, entry: Entry, *, is_new: bool) -> None:
        """Insert an entry with a new key, or modify the one with this key. Without a key, set the default action."""

    @abstractmethod
    def delete_entries(self, some: Iterable[Entry]) -> None:
        """Delete existing entries."""

    @abstractmethod
    def read_groups(self) -> dict[int, frozenset[int]]:
        """Ports of the multicast groups."""

    @abstractmethod
    def write_group(self, group: int, ports: frozenset[int], *, is_new: bool) -> None:
        """Set the ports of a multicast group."""

    @abstractmethod
    def delete_group(self, group: int) -> None:
        """Delete an existing multicast group."""

    def change(self, act: Callable[[], _T]) -> _T:
        """Call a function that writes to the switch, with the right to write, where a switch grants it to one client.

        If another client takes that right meanwhile, the function is called again: it must start from the beginning.
        """
        return act()

    def set_mac(self, mac: int) -> None:
        def act() -> None:
            known = self.read_default("own").data["mac"]
            if mac == known:
                return
            if self._served_entries():
                raise P4sgdError(why_not_readdress(known, mac, udp=False))
            self.write_entry(own_entry(mac), is_new=False)

        self.change(act)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        if not 0 <= place < self.jobs:
            raise P4sgdError(f"there is no place {place}: the switch serves {self.jobs} jobs at most")
        self.change(partial(self._begin, place, job, first_round, []))

    def _begin(self, place: int, job: Job, first_round: int, own: list[Entry]) -> None:
        """Begin a job. ``own`` collects the entries that earlier attempts have tried to write: they do not conflict."""
        noted = self.read_entries("jobs")
        served = [entry for entry in noted if _is_served(entry) and entry not in own]
        others = [(entry.data["place"], entry.key["job"]) for entry in served]
        if (problem := why_not_begin(place, job, others, parents=self.parents)) is not None:
            raise P4sgdError(problem)
        self._end(place, noted)
        numbers = {entry.key["job"] for entry in served}
        self.delete_entries([entry for entry in self._read_members() if entry.key["job"] not in numbers])
        group = group_of(place)
        self.write_group(group, frozenset(shards_of(job.ports)), is_new=group not in self.read_groups())
        for entry in member_entries(job):
            self.write_entry(entry, is_new=True)
        is_new = all(entry.key["job"] != job.number for entry in noted)
        own.append(serve_entry(place, job, first_round, generation_after(_newest(noted))))
        self.write_entry(own[-1], is_new=is_new)
        self.delete_entries(entry for entry in noted if entry.key["job"] not in {*numbers, job.number})

    def end(self, place: int) -> None:
        self.change(lambda: self._end(place, self.read_entries("jobs")))

    def _end(self, place: int, noted: Iterable[Entry]) -> None:
        for entry in noted:
            if _is_served(entry) and entry.data["place"] == place:
                number = entry.key["job"]
                self.write_entry(retire_entry(number, entry.data["generation"]), is_new=False)
                self.delete_entries(member for member in self._read_members() if member.key["job"] == number)
                if group_of(place) in self.read_groups():
                    self.delete_group(group_of(place))

    def served(self) -> dict[int, Job]:
        after = self._served_entries()
        for _ in range(_READS):
            before, members, groups = after, self._read_members(), self.read_groups()
            after = self._served_entries()
            if before == after:
                return {entry.data["place"]: _job_of(entry, members, groups) for entry in after}
        raise P4sgdError("jobs begin and end so often that the switch's tables cannot be read consistently: try again")

    def _served_entries(self) -> list[Entry]:
        return [entry for entry in self.read_entries("jobs") if _is_served(entry)]

    def _read_members(self) -> list[Entry]:
        """What `member_entries` has made."""
        return [entry for table in ("members", "parents")[: 1 + self.parents] for entry in self.read_entries(table)]

    def set_forwarding(self, ports: Iterable[int], stations: Mapping[int, int]) -> None:
        """Set where frames of other protocols go.

        Those for unknown destinations are flooded to ``ports``; ``stations`` has the ports of others, by MAC address.
        """
        self.change(partial(self._set_forwarding, frozenset(ports), stations))

    def _set_forwarding(self, ports: frozenset[int], stations: Mapping[int, int]) -> None:
        self.set_flood_group(ports)
        known = {entry.key["destination"]: entry for entry in self.read_entries("forwarding")}
        self.delete_entries(entry for station, entry in known.items() if station not in stations)
        for station, port in stations.items():
            entry = Entry("forwarding", "forward", {"destination": station}, {"port": port})
            if known.get(station) != entry:
                self.write_entry(entry, is_new=station not in known)

    def set_flood_group(self, ports: frozenset[int]) -> None:
        """Set the ports to which frames of other protocols are flooded; never back to the port they came from."""
        self.write_group(FLOOD_GROUP, ports, is_new=FLOOD_GROUP not in self.read_groups())


def _is_served(entry: Entry) -> bool:
    return entry.action == "serve"


def _job_of(entry: Entry, members: Iterable[Entry], groups: Mapping[int, frozenset[int]]) -> Job:
    """The job of an entry of ``jobs``. Its members and group are written before that entry, and deleted after it."""
    number, place = entry.key["job"], entry.data["place"]
    own = [member for member in members if member.key["job"] == number]
    by_shard = {
        member.key["shard"]: Member(member.data["mac"], member.data["port_of_member"])
        for member in own
        if member.table == "members"
    }
    above = next((member.data for member in own if member.table == "parents"), None)
    if sorted(by_shard) != list(range(entry.data["workers"])) or group_of(place) not in groups:
        raise P4sgdError(
            f"the switch serves job {number} without all of its workers or their multicast group, which P4SGD never "
            "does: load the program again (p4sgd switch deploy)"
        )
    ports = sum(1 << port for port in groups[group_of(place)])
    parent = None
    if above is not None:
        parent = Parent(above["mac"], above["port_of_parent"], above["shard"], above["workers"])
    shards = tuple(by_shard[shard] for shard in sorted(by_shard))
    return Job(number, shards, entry.data["group_mac"], ports, parent=parent)


def _newest(noted: Iterable[Entry]) -> int:
    """The latest generation, or 0 if there is none. Correct if no job outlives half of all generations."""
    newest = 0
    for entry in noted:
        generation = entry.data["generation"]
        if newest == 0 or (generation - newest) % _GENERATIONS <= _GENERATIONS // 2:
            newest = generation
    return newest


_COMPILED = ("p4sgd.json", "p4sgd.p4info.txtpb")


@dataclass(frozen=True)
class Program:
    """A compiled P4 program: the compiler's output for the switch, and the file with the P4Info message."""

    config: bytes
    p4info: Path


def read_program(folder: Path, target: str) -> Program:
    """Read a program from a folder that ``p4sgd switch build`` has made; raises UserError if it has not, or is for
    another target, or was not compiled."""
    try:
        manifest = parse_json((folder / "manifest.json").read_bytes())
        made_for = manifest["target"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: not made by p4sgd switch build --target {target}") from error
    if made_for != target:
        raise UserError(f"{folder}: the program is for {made_for}, but the switch is a {target}: build one for it")
    missing = [name for name in _COMPILED if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder}: {missing[0]} is missing: compile the program as p4sgd switch build has said")
    program, p4info = (folder / name for name in _COMPILED)
    return Program(program.read_bytes(), p4info)
