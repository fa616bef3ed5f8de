"""Check link configurations, in which every port of every kernel is connected once."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from p4sgd.build.fpga.check import Problem
from p4sgd.build.fpga.kernel import FREE_CLOCK, REFERENCE_CLOCK, TRANSCEIVERS
from p4sgd.build.generate.boards import BOARDS
from p4sgd.hw.spec.cmac import kernel_name
from support.vendor_checks.folder import VendorFolder

_OPTIONS = {
    "": {"platform", "kernel_frequency", "save-temps", "debug"},
    "connectivity": {"nk", "sp", "stream_connect", "connect", "slr"},
    "debug": {"chipscope", "protocol"},
}
"""Options of v++ (UG1393) that a link configuration may have, by section."""

_HBM = re.compile(r"HBM\[(\d+)(?::(\d+))?\]")


class _Line(NamedTuple):
    number: int
    section: str
    key: str
    value: str


def check_links(folder: VendorFolder) -> Iterator[Problem]:
    """All link configurations."""
    for file in folder.ending(".cfg"):
        yield from _Check(folder, file).problems()


def linked(folder: VendorFolder, file: str) -> dict[str, str]:
    """Kernel of each instance in a link configuration. Its name is the one that v++ chooses."""
    units: dict[str, str] = {}
    for line in _parse(folder.text(file)):
        if line.key == "nk":
            kernel, count = line.value.split(":")
            units |= {f"{kernel}_{number + 1}": kernel for number in range(int(count)) if kernel in folder.kernels}
    return units


class _Check:
    """The checks of one link configuration."""

    def __init__(self, folder: VendorFolder, file: str) -> None:
        self._folder = folder
        self._file = file
        self._lines = list(_parse(folder.text(file)))
        self._board = BOARDS[folder.manifest["board"]]
        self._units = linked(folder, file)

    def problems(self) -> Iterator[Problem]:
        for line in self._lines:
            if line.key not in _OPTIONS.get(line.section, ()):
                yield self._at(line, f"v++ has no option {line.key} in section [{line.section}]")
        yield from self._instances()
        yield from self._memories()
        yield from self._streams()
        yield from self._wires()
        yield from self._watched()

    def _of(self, key: str) -> list[_Line]:
        return [line for line in self._lines if line.key == key]

    def _at(self, line: _Line, text: str) -> Problem:
        return Problem(self._file, text, line.number)

    def _instances(self) -> Iterator[Problem]:
        """Instances are of kernels, and those that are placed are on dies."""
        for line in self._of("nk"):
            kernel, _ = line.value.split(":")
            if kernel not in self._folder.kernels:
                yield self._at(line, f"there is no kernel {kernel}")
        for line in self._of("slr"):
            unit, _, die = line.value.partition(":")
            if unit not in self._units:
                yield self._at(line, f"there is no instance {unit}")
            if die not in {f"SLR{number}" for number in range(self._board.dies)}:
                yield self._at(line, f"the FPGA has no {die}")

    def _ports(self, *modes: str) -> set[str]:
        """Ports of all instances with one of these modes."""
        return {
            f"{unit}.{bus.get('name')}"
            for unit, kernel in self._units.items()
            if kernel in self._folder.xml
            for bus in self._folder.xml[kernel].iter("port")
            if bus.get("mode") in modes
        }

    def _memories(self) -> Iterator[Problem]:
        masters = self._ports("master")
        given: Counter[str] = Counter()
        owners: dict[tuple[str, int], str] = {}  # by instance, as those in the emulator share channels
        for line in self._of("sp"):
            port, _, memory = line.value.partition(":")
            given[port] += 1
            if port not in masters:
                yield self._at(line, f"there is no memory port {port}")
            if memory and memory == self._board.shell.other_memory:
                continue
            match = _HBM.fullmatch(memory)
            last = int(match[2] or match[1]) if match else -1
            if match is None or not int(match[1]) <= last < self._board.hbm.channels:
                yield self._at(line, f"the board has no memory {memory}")
                continue
            for channel in range(int(match[1]), last + 1):
                place = port.partition(".")[0], channel
                if place in owners and channel != self._board.hbm.channels - 1:  # which is the labels', too
                    yield self._at(line, f"HBM[{channel}] is {owners[place]}'s already")
                owners[place] = port
        yield from self._each_once(masters, given, "memory", "sp")

    def _streams(self) -> Iterator[Problem]:
        sources, sinks = self._ports("write_only"), self._ports("read_only")
        given: Counter[str] = Counter()
        for line in self._of("stream_connect"):
            source, sink, *depth = line.value.split(":")
            given.update((source, sink))
            if source not in sources:
                yield self._at(line, f"no stream leaves a kernel at {source}")
            if sink not in sinks:
                yield self._at(line, f"no stream enters a kernel at {sink}")
            if len(depth) > 1 or not all(each.isdigit() for each in depth):
                yield self._at(line, f"{line.value} should be <from>:<to>:<depth>")
        yield from self._each_once(sources | sinks, given, "stream", "stream_connect")

    def _wires(self) -> Iterator[Problem]:
        ports = self._shell_ports()
        shell = {name for names in ports.values() for name in names.values()}
        wanted = {
            f"{unit}/{name}": ports.get(kernel, {}).get(name)
            for unit, kernel in self._units.items()
            for name in self._extra(kernel)
        }
        given: Counter[str] = Counter()
        for line in self._of("connect"):
            one, _, other = line.value.partition(":")
            inner, outer = (one, other) if one.partition("/")[0] in self._units else (other, one)
            given[inner] += 1
            if outer not in shell:
                yield self._at(line, f"the shell has no {outer}")
            elif inner not in wanted:
                yield self._at(line, f"no kernel has {inner} to be connected")
            elif outer != wanted[inner]:
                yield self._at(line, f"{inner} is connected to {outer}, and should be to {wanted[inner]}")
        yield from self._each_once(set(wanted), given, "port", "connect")

    def _shell_ports(self) -> dict[str, dict[str, str]]:
        """Names in the shell for a kernel's ports that are neither AXI nor its clock, by kernel and port."""
        return {
            kernel_name(number): {
                REFERENCE_CLOCK: cage.reference_clock,
                TRANSCEIVERS: cage.transceivers,
                FREE_CLOCK: self._board.shell.free_clock,
            }
            for number, cage in enumerate(self._board.cages)
        }

    def _extra(self, kernel: str) -> Iterator[str]:
        """Ports of a kernel besides AXI, clock and reset, as its packaging script declares them."""
        for call in self._folder.runs[f"package_{kernel}.tcl"].calls:
            if call.command == "ipx::add_bus_interface":
                yield call.arguments[0]
            elif call.command == "ipx::remove_bus_interface":
                yield call.arguments[-2]

    def _watched(self) -> Iterator[Problem]:
        memories = self._ports("master")
        buses = {"protocol": memories, "chipscope": memories | self._ports("write_only", "read_only")}
        for key, ports in buses.items():
            for line in self._of(key):
                if line.value.replace(":", ".") not in ports:
                    yield self._at(line, f"there is no port {line.value} for a debug core")

    def _each_once(self, wanted: set[str], given: Counter[str], what: str, key: str) -> Iterator[Problem]:
        for port in sorted(wanted):
            if given[port] != 1:
                yield Problem(self._file, f"{what} {port} has {given[port] or 'no'} lines {key}=, not one")


def _parse(text: str) -> Iterator[_Line]:
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if line.startswith("["):
            section = line.strip("[]")
        elif line:
            key, _, value = line.partition("=")
            yield _Line(number, section, key, value)
