"""Check of constraints: what they name is there, pins and clocks are those of the board, exceptions are safe."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amaranth.build import DiffPairs, Pins, Subsignal

from p4sgd.build.check.folder import Folder, read_ports
from p4sgd.build.check.links import Link
from p4sgd.build.check.problem import Problem
from p4sgd.build.check.sandbox import Call
from p4sgd.build.fpga.cmac import crossing_constraints
from p4sgd.build.fpga.kernel import SETTINGS
from p4sgd.build.fpga.packaging import CROSSINGS, SETTLE_CYCLES
from p4sgd.build.fpga.vitis import PLACE
from p4sgd.build.fpga.vivado import BOARD_PINS, FLOORPLAN, PINS, board_constraints
from p4sgd.hw.spec.selftest import KERNEL as SELFTEST
from p4sgd.hw.spec.timing import MAC_CLOCK_NS
from p4sgd.hw.verilog import instances, modules
from p4sgd.hw.worker.worker import WORKER

_UNIT = re.compile(r"NAME =~ \*/(\w+)/inst")
"""Filter for the cell of a kernel's top in a design linked by Vitis."""

_CLOCKS = {"clk", "ap_clk"}
"""Clocks of modules that are implemented on their own."""

_REGISTER_PINS = {"C", "CE", "CLR", "D", "PRE", "Q", "R", "S"}


def check_constraints(folder: Folder) -> Iterator[Problem]:
    """Constraints fit the top module of the script that reads them, placement scripts the kernel with memory."""
    unread = set(folder.ending(".xdc"))
    for script, run in folder.runs.items():
        read = [name for call in run.calls if (name := call.file_read)]
        unread -= set(read)
        texts = [folder.text(name) for name in read if name in folder.ending(".v")]
        if not texts:
            continue  # a project of IP: check_block_design looks at its constraints
        synthesized = [call.option("top") for call in run.calls if call.command == "synth_design"]
        top = run.properties.get(("current_fileset ", "top")) or (synthesized or [None])[0]
        design = _Design("\n".join(texts), str(top))
        if top not in design.modules:
            yield Problem(script, f"the top module is {top}, which its Verilog has not")
            continue
        for name in read:
            if name in folder.runs:
                yield from _paths(design, folder.runs[name].calls)
                yield from _clocks(folder, name, _periods(folder, design, run.calls))
    for script in (PLACE, FLOORPLAN):
        if script in folder.runs:
            kernel = _placed(folder)
            yield from _paths(_Design(folder.verilog[kernel], folder.kernels[kernel]), folder.runs[script].calls)
            yield from _units(folder, folder.runs[script].calls)
    yield from _pins(folder)
    for name in folder.ending(".xdc"):
        if name == BOARD_PINS:
            clocks = re.findall(r"-period (\S+) .*get_ports (\w+)\]", board_constraints(folder.manifest["board"], ""))
            yield from _clocks(folder, name, {port: float(period) for period, port in clocks})
        yield from _exceptions(folder.runs[name].calls, SETTINGS.get(name.removesuffix(".xdc"), ""))
        if name == CROSSINGS:
            yield from _skews(folder.runs[name].calls)
    for name in sorted(unread):
        yield Problem(name, "is read by no script")


def _placed(folder: Folder) -> str:
    """The kernel whose cells are placed."""
    return SELFTEST if SELFTEST in folder.kernels else WORKER


@dataclass(frozen=True)
class _Design:
    """Verilog with its top module."""

    text: str
    top: str

    @cached_property
    def modules(self) -> dict[str, str]:
        return modules(self.text)

    @cached_property
    def ports(self) -> set[str]:
        return {port.name for port in read_ports(self.text, self.top)}

    def has(self, names: Sequence[str], *, is_pin: bool) -> bool:
        """Whether there is such a register or instance, or such a pin of one; names may have asterisks."""
        *path, cell = names[:-1] if is_pin else names
        bodies = [self.modules[self.top]]
        for name in path:
            bodies = [self.modules[module] for module in _called(bodies, name) if module in self.modules]
        if not is_pin or names[-1] in _REGISTER_PINS:
            # Vivado names the flip-flop of a register a_reg; those of a register of several bits a_reg[0], a_reg[1], …
            register = re.fullmatch(r"(.+)_reg(\[\*\])?", cell)
            if register:
                width = r"\[\d+:0\] +" if register[2] else ""
                declared = re.compile(rf"^ *(?:output +)?reg +{width}{_pattern(register[1])}(?!\w)", re.MULTILINE)
                if any(declared.search(body) for body in bodies):
                    return True
        if not is_pin:
            return bool(_called(bodies, cell))
        pin = re.compile(rf"^  \S+ +{_pattern(cell)} \([^;]*\.{_pattern(names[-1])}\(", re.MULTILINE)
        return any(pin.search(body) for body in bodies)


def _called(bodies: Sequence[str], name: str) -> list[str]:
    """Modules of the instances of a name."""
    pattern = re.compile(_pattern(name))
    return [module for body in bodies for module, each in instances(body) if pattern.fullmatch(each)]


def _pattern(name: str) -> str:
    return re.escape(name).replace(r"\*", r"[\w*]+")


def _paths(design: _Design, calls: Sequence[Call]) -> Iterator[Problem]:
    for call in calls:
        if call.command not in ("get_ports", "get_cells", "get_pins") or not call.others:
            continue
        for path in call.others[0].removeprefix(f"{call.command} ").split():
            if call.command == "get_ports":
                is_there = path in design.ports
            else:
                names = path.removeprefix("/").split("/")
                is_there = design.has(names, is_pin=call.command == "get_pins")
            if not is_there:
                yield Problem(call.file, f"the Verilog has no {path}", call.line)


def _periods(folder: Folder, design: _Design, calls: Sequence[Call]) -> dict[str, float]:
    """Clocks that a module's constraints should define, by their ports, in ns; those of kernels come from elsewhere."""
    if megahertz := re.findall(r" --megahertz (\d+)", folder.manifest["generated_by"]):
        alone = any(call.option("mode") == "out_of_context" for call in calls)
        return dict.fromkeys(design.ports & _CLOCKS, 1000 / int(megahertz[0])) if alone else {}
    if folder.kernels:
        return {}
    resources = PINS[folder.manifest["board"]].platform().resources.items()
    clocks = ((f"{name}_{number}", each) for (name, number), each in resources if each.clock)
    pins = {pin: 1e9 / each.clock.frequency for name, each in clocks for pin, _ in _pins_of(name, each.ios)}
    return {pin: period for pin, period in pins.items() if pin in design.ports and not pin.endswith("__n")}


def _clocks(folder: Folder, file: str, wanted: dict[str, float]) -> Iterator[Problem]:
    """A file of constraints defines these clocks and no others."""
    for call in (call for call in folder.runs[file].calls if call.command == "create_clock"):
        port, given = (call.others or ("-",))[0].split()[-1], call.option("period")
        period = wanted.pop(port, None)
        if period is None or abs(float(given or 0) - period) >= _LAST_DIGIT_NS:
            should = "there should be none" if period is None else f"it should have {period:.3f}"
            yield Problem(file, f"a clock at {port} has a period of {given} ns; {should}", call.line)
    for port, period in wanted.items():
        yield Problem(file, f"there is no clock at {port}; it should have a period of {period:.3f} ns")


_LAST_DIGIT_NS = 0.001
"""To which periods are written."""


def _exceptions(calls: Sequence[Call], settings: str) -> Iterator[Problem]:
    """Timing is relaxed only for ``settings``, asynchronous resets and clock crossings, and no waiver is for all."""
    setups: dict[str, Call] = {}  # of multicycle paths, by their ends
    holds: dict[str, Call] = {}
    for call in calls:
        ends = {way: given for way in ("from", "to", "through") if (given := call.option(way)) is not None}
        kind, _, to = ends.get("to", "").partition(" ")
        text = ""
        match call.command:
            case "set_multicycle_path":
                cycles, hold = int(call.others[0]), "-hold" in call.arguments
                if kind != "get_cells" or not all(re.fullmatch(_pattern(settings), cell) for cell in to.split() or "-"):
                    text = f"only paths to {settings or 'nothing'} may take more than a cycle, not to {to or 'others'}"
                elif cycles > SETTLE_CYCLES - hold:
                    text = f"{cycles} cycles for {to}, which has {SETTLE_CYCLES - hold}"
                else:
                    (holds if hold else setups)[to] = call
            case "set_false_path":
                resets = kind == "get_pins" and to and all(re.search("/(PRE|CLR)$", pin) for pin in to.split())
                if not resets and ends.get("from") != "get_ports pcie_perst_n":
                    text = f"a false path to {to or 'everything'}, which is no asynchronous reset"
            case "set_max_delay" | "set_bus_skew":
                if float(call.others[0]) > MAC_CLOCK_NS:
                    text = f"{call.others[0]} ns are more than a cycle of the MAC, {MAC_CLOCK_NS:.3f} ns"
                elif len(ends) < len(("from", "to")):
                    text = f"{call.command} needs -from and -to"
                elif call.command == "set_max_delay" and "-datapath_only" not in call.arguments:
                    text = "a delay between clocks needs -datapath_only"
            case "create_waiver":
                if call.option("id") is None or not any(
                    re.match(r"get_(pins|cells) \w+/", each) for each in ends.values()
                ):
                    text = "a waiver needs -id, and a path of pins or cells in -from or -to"
        if text:
            yield Problem(call.file, text, call.line)
    for to, call in setups.items():
        if to not in holds:
            yield Problem(call.file, f"paths to {to} need set_multicycle_path -hold {int(call.others[0]) - 1}")
    for to, call in holds.items():
        if to not in setups or int(call.others[0]) != int(setups[to].others[0]) - 1:
            yield Problem(call.file, f"hold of {to} is not one cycle less than its setup", call.line)


def _skews(calls: Sequence[Call]) -> Iterator[Problem]:
    """The bits of every Gray pointer that crosses arrive within a cycle."""
    given = {(call.option("from"), call.option("to")) for call in calls if call.command == "set_bus_skew"}
    wanted = re.findall(r"-from \[get_cells \{(\S+)\}\] \\\n +-to \[get_cells \{(\S+)\}", crossing_constraints(""))
    for start, end in wanted:
        if (f"get_cells {start}", f"get_cells {end}") not in given:
            yield Problem(CROSSINGS, f"set_bus_skew is missing from {start} to {end}")


def _units(folder: Folder, calls: Sequence[Call]) -> Iterator[Problem]:
    """A filter for the kernel with memory names an instance that is linked."""
    units = {unit: kernel for file in folder.ending(".cfg") for unit, kernel in Link(folder, file).units.items()}
    for call in calls:
        wanted = call.option("filter")
        if wanted is None:
            continue
        match = _UNIT.fullmatch(wanted)
        if not match:
            yield Problem(call.file, f"no instance of a kernel is found by {wanted}", call.line)
        elif units.get(match[1]) != _placed(folder):
            yield Problem(call.file, f"no instance of {_placed(folder)} is called {match[1]}", call.line)


def _pins(folder: Folder) -> Iterator[Problem]:
    """Ports of a design without a shell are at the board's pins."""
    for file in folder.ending(".xdc"):
        calls = [call for call in folder.runs[file].calls if call.others[:1] in (("LOC",), ("PACKAGE_PIN",))]
        given = {call.others[2].removeprefix("get_ports "): call for call in calls}
        if not given and file != BOARD_PINS:
            continue
        board = folder.manifest["board"]
        if file == BOARD_PINS:
            pins = re.findall(r"PACKAGE_PIN (\w+) \[get_ports (\w+)\]", board_constraints(board, ""))
            known = wanted = {port: pin for pin, port in pins}
        else:
            ports = [port for top, name in folder.tops.items() for port in read_ports(folder.text(name), top)]
            resources = PINS[board].platform().resources.items()
            known = dict(pin for (name, number), each in resources for pin in _pins_of(f"{name}_{number}", each.ios))
            wanted = {port.name: "" for port in ports if port.name in known}
        for port in sorted({*wanted, *given}):
            call = given.get(port)
            pin = call.others[1] if call else "nowhere"
            if pin != known.get(port):
                text = f"port {port} is at {pin}; an {folder.board.name} has it at pin {known.get(port, 'none')}"
                yield Problem(file, text, call.line if call else None)


def _pins_of(name: str, ios: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Ports as Amaranth names those of a resource, with the pin of each."""
    for each in ios:
        if isinstance(each, Subsignal):
            yield from _pins_of(f"{name}__{each.name}", each.ios)
        elif isinstance(each, Pins):
            yield f"{name}__io", each.names[0]
        elif isinstance(each, DiffPairs):
            yield from ((f"{name}__{half}", getattr(each, half).names[0]) for half in ("p", "n"))
