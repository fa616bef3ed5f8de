"""Check that the link configurations of a folder for Vitis name what kernels and board have, and that others agree."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import Problem
from p4sgd.build.fpga.kernel import Bus, BusKind
from p4sgd.build.fpga.link import memory_names, wires
from p4sgd.build.fpga.vitis import CLUSTER
from p4sgd.build.generate.boards import map_memories
from p4sgd.hw.spec.cmac import kernel_name
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.worker.worker import WORKER

_KEYS = {"platform", "kernel_frequency", "save-temps", "debug", "nk", "sp", "stream_connect", "connect", "slr"}
_KEYS |= {"protocol", "chipscope"}
"""Options of v++ in these files (UG1393, v++ Command Configuration File)."""


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
        """Kernel of each instance, whose name is the one that v++ chooses."""
        counts = ((kernel, int(count or "1")) for _, (kernel, count) in self.values("nk", 2))
        return {f"{kernel}_{index + 1}": kernel for kernel, count in counts for index in range(count)}

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
        for check in (_settings, _kernels, _memories, _streams, _wires, _dies, _watched):
            yield from check(link)
    for kernel in folder.described:
        if kernel not in used:
            yield Problem(f"{kernel}.xml", "no link configuration has an instance (nk) of this kernel")
    if links:
        yield from _makefile(folder, links)
    if CLUSTER in folder.files:
        yield from _cluster(folder, links)


def _settings(link: Link) -> Iterator[Problem]:
    """The platform is the board's, the clock that of the kernels."""
    board = link.folder.board
    wanted = {"platform": board.shell.platform, "kernel_frequency": str(1000 // CLOCK_NS)}
    given = {key: (number, value) for number, key, value in link.lines}
    for key, value in wanted.items():
        number, found = given.get(key, (None, "not set"))
        if found != value:
            yield Problem(link.file, f"{key} is {found}; for an {board.name} it should be {value}", number)
    for number, key, _ in link.lines:
        if key not in _KEYS:
            yield Problem(link.file, f"{key} is no option of these configurations: {', '.join(sorted(_KEYS))}", number)


def _kernels(link: Link) -> Iterator[Problem]:
    """Instances are of the folder's kernels, as many as other files name."""
    named = [kernel for _, (kernel, _) in link.values("nk", 2)]
    for number, (kernel, count) in link.values("nk", 2):
        if kernel not in link.folder.kernels:
            yield Problem(link.file, f"nk: the folder has no kernel {kernel}", number)
        elif named.count(kernel) > 1:
            yield Problem(link.file, f"nk: {kernel} is named {named.count(kernel)} times", number)
        elif kernel == WORKER and link.target != "hw" and int(count) != link.folder.aggregator.ports:
            ports = link.folder.aggregator.ports
            yield Problem(link.file, f"nk: there are {count} {kernel}, and the aggregator has {ports} ports", number)


def _memories(link: Link) -> Iterator[Problem]:
    """Every memory port has the memory that the board's map gives it."""
    given = Counter(port for _, (port, _) in link.values("sp", 2))
    ports = link.ends(BusKind.MEMORY, True)
    board = link.folder.board
    names = memory_names(map_memories(link.folder.worker, board.hbm), board) if ports else []
    for number, (port, memory) in link.values("sp", 2):
        if port not in ports:
            yield Problem(link.file, f"sp: no instance has a memory port {port}", number)
            continue
        wanted = names[int(port.rpartition("gmem")[2])]
        if memory != wanted:
            text = f"sp: {port} has {memory}; this worker has {wanted} there, by build/generate/boards.py"
            yield Problem(link.file, text, number)
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


def _wires(link: Link) -> Iterator[Problem]:
    """Transceivers and clocks of every MAC are those of its cage in the shell, and nothing else is connected."""
    board = link.folder.board
    wanted: dict[frozenset[str], str] = {}
    for unit, port in _macs(link).items():
        wanted |= {frozenset(pair): ":".join(pair) for pair in wires(unit, board, port)}
    given = {frozenset(words): (number, ":".join(words)) for number, words in link.values("connect", 2)}
    for pair, (number, text) in given.items():
        if pair not in wanted:
            yield Problem(link.file, f"connect: {text} is no wire of a cage of an {board.name}", number)
    for pair, text in wanted.items():
        if pair not in given:
            yield Problem(link.file, f"connect: {text} is missing")


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


def _watched(link: Link) -> Iterator[Problem]:
    for key in ("protocol", "chipscope"):
        for number, (unit, bus) in link.values(key, 2):
            if link.bus(f"{unit}.{bus}") is None:
                yield Problem(link.file, f"{key}: no instance has a bus {unit}:{bus}", number)


def _makefile(folder: Folder, links: list[Link]) -> Iterator[Problem]:
    """Kernels, platform and releases of the Makefile are those of the link configurations and the board."""
    given = dict(re.findall(r"^(\w+) :=[ \t]*(.*?)[ \t]*$", folder.text("Makefile"), re.MULTILINE))
    shell = folder.board.shell
    wanted = {"DEFAULT_PLATFORM": shell.platform, "RELEASES": " ".join(shell.releases)}
    for link in links:
        wanted[f"KERNELS_{link.target}"] = " ".join(dict.fromkeys(link.units.values()))
    for name, value in wanted.items():
        if given.get(name, "").split() != value.split():
            yield Problem("Makefile", f"{name} is {given.get(name, 'not set')}, and should be {value}")
    if given.get("NAME") not in folder.kernels:
        yield Problem("Makefile", f"NAME is {given.get('NAME', 'not set')}, which is no kernel of the folder")


def _cluster(folder: Folder, links: list[Link]) -> Iterator[Problem]:
    """The cluster file has every worker of the emulator, each behind a port of the aggregator."""
    cluster: Mapping[str, list[dict[str, object]]] = tomllib.loads(folder.text(CLUSTER))
    units = [unit for link in links if link.target == "hw_emu" for unit in link.units if link.units[unit] == WORKER]
    names = [f"xrt:0{f'/{number}' if number > 1 else ''}" for number in range(1, len(units) + 1)]
    wanted = list(enumerate(names))
    given = [(each.get("port"), each.get("control")) for each in cluster.get("workers", ())]
    if given != wanted:
        yield Problem(CLUSTER, f"workers have port and control {given}; the emulator has {wanted}")
    for each in [cluster.get("aggregator", {}), *cluster.get("workers", ())]:
        if each.get("xclbin") != f"out/hw_emu/{WORKER}.xclbin":
            yield Problem(CLUSTER, f"xclbin is {each.get('xclbin')}, and should be out/hw_emu/{WORKER}.xclbin")
