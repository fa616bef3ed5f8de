"""Check that the link configurations of a folder for Vitis name what kernels and board have, and that others agree."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import Problem
from p4sgd.build.fpga.kernel import Bus, BusKind
from p4sgd.hw.spec.cmac import kernel_name


@dataclass(frozen=True)
class Link:
    """A link configuration, for one target of v++."""

    folder: Folder
    file: str

    @property
    def target(self) -> str:
        """Target of v++ that it is for."""
        return self.file.removeprefix("link_").removesuffix(".cfg")

    @cached_property
    def lines(self) -> list[tuple[int, str, str]]:
        """Number, key and value of each line that sets something."""
        found = enumerate(self.folder.text(self.file).splitlines(), 1)
        pairs = ((number, line.partition("=")) for number, line in found if not re.match(r"\s*($|#|\[)", line))
        return [(number, key.strip(), value.strip()) for number, (key, _, value) in pairs]

    def values(self, key: str, parts: int) -> list[tuple[int, list[str]]]:
        """Number of each line with a key, and as many parts of its value, between colons."""
        found = ((number, value.split(":", parts - 1)) for number, each, value in self.lines if each == key)
        return [(number, [*words, *[""] * (parts - len(words))]) for number, words in found]

    @cached_property
    def units(self) -> dict[str, str]:
        """Kernel of each instance, by the names that are given, or those that v++ chooses."""
        units: dict[str, str] = {}
        for _, (kernel, count, names) in self.values("nk", 3):
            chosen = (f"{kernel}_{index}" for index in range(1, 1 + int(count if count.isdigit() else 1)))
            units |= dict.fromkeys(re.split(r"[.,]", names) if names else chosen, kernel)
        return units

    def bus(self, end: str) -> Bus | None:
        """Bus of an instance, ``<instance>.<bus>``; None if there is no such instance or bus."""
        unit, _, name = end.partition(".")
        buses = self.folder.buses(self.units[unit]) if self.units.get(unit) in self.folder.kernels else ()
        return next((bus for bus in buses if bus.name == name), None)

    def ends(self, kind: BusKind, is_master: bool) -> list[str]:
        """Buses of all instances, of a kind and direction."""
        units = ((unit, kernel) for unit, kernel in self.units.items() if kernel in self.folder.kernels)
        buses = ((unit, bus) for unit, kernel in units for bus in self.folder.buses(kernel, kind))
        return [f"{unit}.{bus.name}" for unit, bus in buses if bus.is_master == is_master]


def check_links(folder: Folder) -> Iterator[Problem]:
    """Instances, memories, streams, wires and dies of link configurations; Makefile and cluster file beside them."""
    links = [Link(folder, file) for file in folder.ending(".cfg")]
    used: set[str] = set()
    for link in links:
        used |= set(link.units.values())
        for check in (_memories, _streams, _dies):
            yield from check(link)
    for kernel in folder.described:
        if kernel not in used:
            yield Problem(f"{kernel}.xml", "no link configuration has an instance (nk) of this kernel")


def _memories(link: Link) -> Iterator[Problem]:
    """Every memory port has its memory."""
    given = Counter(port for _, (port, _) in link.values("sp", 2))
    ports = link.ends(BusKind.MEMORY, True)
    for number, (port, _) in link.values("sp", 2):
        if port not in ports:
            yield Problem(link.file, f"sp: no instance has a memory port {port}", number)
    for port in ports:
        if given[port] != 1:
            yield Problem(link.file, f"sp: {port} is given memory {given[port]} times, not once")


def _streams(link: Link) -> Iterator[Problem]:
    """Every stream goes from a source to a sink of its width, both of the same line, and back the same way."""
    streams = link.values("stream_connect", 3)
    joined = {(source, sink) for _, (source, sink, _) in streams}
    for number, (source, sink, depth) in streams:
        ends = link.bus(source), link.bus(sink)
        for end, bus, is_source in zip((source, sink), ends, (True, False), strict=True):
            if bus is None or bus.kind is not BusKind.STREAM:
                yield Problem(link.file, f"stream_connect: no instance has a stream {end}", number)
            elif bus.is_master != is_source:
                way = "sends and cannot be a sink" if bus.is_master else "receives and cannot be a source"
                yield Problem(link.file, f"stream_connect: {end} {way}", number)
        if ends[0] and ends[1] and ends[0].data_bits != ends[1].data_bits:
            text = f"stream_connect: {source} has {ends[0].data_bits} bits, {sink} {ends[1].data_bits}"
            yield Problem(link.file, text, number)
        if ends[0] and ends[1] and (_line(source) != _line(sink) or (_answer(sink), _answer(source)) not in joined):
            text = f"stream_connect: {source} and {sink} are not of the same Ethernet port, in both directions"
            yield Problem(link.file, text, number)
        if not depth.isdigit() or int(depth) < 1:
            yield Problem(link.file, f"stream_connect: a FIFO of {depth or 'no'} beats", number)
    for position, is_master in enumerate((True, False)):
        given = Counter(words[position] for _, words in streams)
        for end in link.ends(BusKind.STREAM, is_master):
            if given[end] != 1:
                yield Problem(link.file, f"stream_connect: {end} is connected {given[end]} times, not once")


def _line(end: str) -> int:
    """Number of the Ethernet port that an end of a stream belongs to, by its bus, its kernel or its instance."""
    unit, _, bus = end.partition(".")
    kernel, _, index = unit.rpartition("_")
    for name in (bus, kernel.replace(kernel_name(0), "mac")):
        if number := re.search(r"\d+$", name):
            return int(number[0])
    return int(index) - 1


def _answer(end: str) -> str:
    """Stream of the opposite direction at the same port."""
    return re.sub("_(tx|rx)", lambda match: "_rx" if match[1] == "tx" else "_tx", end)


def _macs(link: Link) -> dict[str, int]:
    """Cage of each instance of a MAC's kernel."""
    ports = {kernel_name(port): port for port in range(len(link.folder.board.cages))}
    return {unit: ports[kernel] for unit, kernel in link.units.items() if kernel in ports}


def _dies(link: Link) -> Iterator[Problem]:
    """Every MAC is on the die of the transceivers, and dies are those of the board."""
    board, macs = link.folder.board, _macs(link)
    given: dict[str, tuple[int | None, str]] = {}
    given |= {unit: (number, die) for number, (unit, die) in link.values("slr", 2)}
    for unit, (number, die) in given.items():
        if unit not in link.units:
            yield Problem(link.file, f"slr: there is no instance {unit}", number)
        elif die not in (f"SLR{index}" for index in range(board.dies)):
            yield Problem(link.file, f"slr: an {board.name} has no {die}", number)
    for unit in macs:
        number, die = given.get(unit, (None, "no die"))
        if die != f"SLR{board.network_die}":
            text = f"slr: {unit} is on {die}; transceivers of an {board.name} are on SLR{board.network_die}"
            yield Problem(link.file, text, number)
