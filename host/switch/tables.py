"""The controller of a switch that runs a program of `hw/switch`: jobs are entries of its tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch import entries
from p4sgd.host.switch.controller import SlotView, why_not_readdress
from p4sgd.host.switch.entries import Entry
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.switch import FLOOD_GROUP, GENERATION_BITS, group_of

__all__ = ["TableController"]


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
    def look(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """Counters by their names, without those that the switch lacks."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the switch, which serves on."""

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Have the right to write within the block."""
        yield

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address.

        Raises
        ------
        P4sgdError
            If it is another than it has, and jobs are served: their workers would not be heard any more.
        """
        wanted = entries.own(mac)
        with self.changing():
            known = self.read_default(wanted.table)
            if known == wanted:
                return
            if any(map(_is_served, self.read_entries("jobs"))):
                raise P4sgdError(why_not_readdress(known.data["mac"], mac))
            self.write_entry(wanted, is_new=False)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a place from this round on, with all slots fresh. What was in the place ends.

        Raises
        ------
        P4sgdError
            If there is no such place, or another place serves a job of this number.
        """
        if not 0 <= place < self.jobs:
            raise P4sgdError(f"there is no place {place}: the switch has places for {self.jobs} jobs")
        with self.changing():
            noted = self.read_entries("jobs")
            if any(
                _is_served(entry) and entry.key["job"] == job.number and entry.data["place"] != place for entry in noted
            ):
                raise P4sgdError(f"job {job.number} is being served already")
            generation = entries.generation_after(_newest(noted))
            self._end(place, noted)
            stale = [entry for entry in self.read_entries("members") if entry.key["job"] == job.number]
            self.delete_entries(stale)
            group = group_of(place)
            self.write_group(group, _ports_of(job.ports), is_new=group not in self.read_groups())
            for entry in entries.members(job):
                self.write_entry(entry, is_new=True)
            is_new = all(entry.key["job"] != job.number for entry in noted)
            self.write_entry(entries.serve(place, job, first_round, generation), is_new=is_new)
            self.delete_entries(
                entry
                for entry in noted
                if entry.key["job"] != job.number and (not _is_served(entry) or entry.data["place"] == place)
            )

    def end(self, place: int) -> None:
        """Serve what is in a place no longer; nothing happens if nothing is."""
        with self.changing():
            self._end(place, self.read_entries("jobs"))

    def _end(self, place: int, noted: Iterable[Entry]) -> None:
        for entry in noted:
            if not _is_served(entry) or entry.data["place"] != place:
                continue
            number = entry.key["job"]
            self.write_entry(entries.retire(number, entry.data["generation"]), is_new=False)
            self.delete_entries(member for member in self.read_entries("members") if member.key["job"] == number)
            if group_of(place) in self.read_groups():
                self.delete_group(group_of(place))

    def served(self) -> dict[int, Job]:
        """The jobs that are served, by place."""
        members: dict[int, dict[int, Member]] = {}
        for entry in self.read_entries("members"):
            member = Member(entry.data["mac"], entry.data["port_of_member"])
            members.setdefault(entry.key["job"], {})[entry.key["shard"]] = member
        groups = self.read_groups()
        found = {}
        for entry in self.read_entries("jobs"):
            if _is_served(entry):
                number, place = entry.key["job"], entry.data["place"]
                found[place] = Job(
                    number,
                    tuple(member for _, member in sorted(members.get(number, {}).items())),
                    entry.data["group_mac"],
                    sum(1 << port for port in groups.get(group_of(place), ())),
                )
        return found

    def set_forwarding(self, ports: Iterable[int], stations: Mapping[int, int]) -> None:
        """Say where frames of other protocols go; what was said before is forgotten.

        Parameters
        ----------
        ports
            Where a frame is flooded to if its destination is no station.
        stations
            Port that an address is behind, by the address.
        """
        with self.changing():
            self.set_flood_group(frozenset(ports))
            known = {entry.key["destination"]: entry for entry in self.read_entries("forwarding")}
            self.delete_entries(entry for station, entry in known.items() if station not in stations)
            for station, port in stations.items():
                entry = entries.forward(station, port)
                if known.get(station) != entry:
                    self.write_entry(entry, is_new=station not in known)

    def set_flood_group(self, ports: frozenset[int]) -> None:
        """Say which ports frames of other protocols are flooded to; none goes back where it came from."""
        is_new = FLOOD_GROUP not in self.read_groups()
        self.write_group(FLOOD_GROUP, ports, is_new=is_new)


def _is_served(entry: Entry) -> bool:
    return entry.action == "serve"


def _newest(noted: Iterable[Entry]) -> int:
    """The generation that was given last: no other one is less than half of all before it. 0 if none was."""
    newest = 0
    half = 1 << (GENERATION_BITS - 1)
    for entry in noted:
        generation = entry.data["generation"]
        if newest == 0 or (generation - newest) % (2 * half) < half:
            newest = generation
    return newest


def _ports_of(bitmap: int) -> frozenset[int]:
    return frozenset(port for port in range(bitmap.bit_length()) if bitmap >> port & 1)
