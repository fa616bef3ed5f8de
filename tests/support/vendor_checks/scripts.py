"""Check that scripts and constraints fit the Verilog: files, IP parameters, packaged kernels, ports, cells and pins."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from p4sgd.build.fpga.check import Problem
from p4sgd.build.fpga.kernel import BusKind, find_buses
from p4sgd.build.fpga.vitis import PLACE
from p4sgd.build.fpga.vivado import FLOORPLAN
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.selftest import KERNEL as SELFTEST
from p4sgd.hw.verilog import instances, modules
from p4sgd.hw.worker.worker import WORKER
from support.vendor_checks.commands import IPS, is_one_of
from support.vendor_checks.folder import Call, Run, VendorFolder
from support.verilog_ports import read_ports


def check_scripts(folder: VendorFolder) -> Iterator[Problem]:
    """Scripts run to their end; files, parameters of IP, declarations of kernels and cells in constraints are right."""
    for script, run in folder.runs.items():
        yield from run.problems
        for call in run.calls:
            yield from _files(folder, call)
        yield from _check_parameters(run.calls)
        kernel = script.removeprefix("package_").removesuffix(".tcl")
        if kernel in folder.kernels:
            yield from _check_package(folder, kernel, run)
    yield from _check_cells(folder)


def _files(folder: VendorFolder, call: Call) -> Iterator[Problem]:
    name = call.file_read
    if call.command == "package_xo":
        name = (call.option("kernel_xml") or "").rpartition("/")[2]
    if name is not None and name not in folder.ending(""):
        yield Problem(call.file, f"{call.command} names {name}, which is no file of the folder", call.line)


def _check_parameters(calls: Iterable[Call]) -> Iterator[Problem]:
    """The vendor's IP is known and has the parameters that are set."""
    kinds = {}  # by what stands for the IP
    for call in calls:
        if call.command == "create_ip":
            kinds[f"get_ips {call.option('module_name')}"] = call.option("name") or ""
        elif call.command == "create_bd_cell" and (call.option("vlnv") or "").startswith("xilinx.com:"):
            kinds[f"create_bd_cell {call.others[0]}"] = (call.option("vlnv") or "").split(":")[2]
        elif call.command == "set_property" and (settings := call.option("dict")):
            ip = kinds.get(call.others[0])
            for name in re.findall(r"CONFIG\.(\w+)", settings):
                if ip not in IPS or not is_one_of(name, IPS[ip].parameters):
                    yield Problem(call.file, f"{ip} has no parameter {name}", call.line)


_SIGNALS = {
    "gt": {"GRX_P": False, "GRX_N": False, "GTX_P": True, "GTX_N": True},
    "diff_clock": {"CLK_P": True, "CLK_N": True},
}
"""Signals of interfaces other than AXI, by kind, and whether the master drives them."""

_CLOCKS = {"ap_clk": "xilinx.com:signal:clock_rtl:1.0", "ap_rst_n": "xilinx.com:signal:reset_rtl:1.0"}
"""Clock and reset, and the interface each must be declared as."""

_CORE = "ipx::current_core "
"""The kernel, as the sandbox names it."""

_FOR_VITIS = {(_CORE, "sdx_kernel"): "true", (_CORE, "sdx_kernel_type"): "rtl"}
"""Properties by which v++ recognises a kernel."""


def _check_package(folder: VendorFolder, kernel: str, run: Run) -> Iterator[Problem]:
    """The packaging script declares clocks, buses, interfaces and pointer registers as the kernel has them."""
    script = f"package_{kernel}.tcl"
    yield from _clocks(script, run)
    yield from _interfaces(folder, kernel, script, run)
    yield from _pointers(folder, kernel, script, run.calls)
    yield from _ip(folder, kernel, script, run.calls)
    buses = {bus.name for bus in find_buses(folder.ports[kernel])}
    clocks = {name: call.option("clock") for call in run.calls if (name := call.option("busif"))}
    if clocks != dict.fromkeys(buses, "ap_clk"):
        yield Problem(script, f"clocks of buses are {clocks}, and should be ap_clk for {sorted(buses)}")
    wanted = {("ipx::add_bus_parameter FREQ_HZ", "value"): str(10**9 // CLOCK_NS)}
    if any(call.command == "package_xo" for call in run.calls):
        wanted |= _FOR_VITIS
    if any(bus.kind is BusKind.MEMORY for bus in find_buses(folder.ports[kernel])):
        wanted |= {("ipx::add_bus_parameter SUPPORTS_NARROW_BURST", "value"): "0"}
    for (owner, name), value in wanted.items():
        given = run.properties.get((owner, name))
        if given != value:
            yield Problem(script, f"{name} of {owner.strip()} is {given or 'not set'}, and should be {value}")


def _clocks(script: str, run: Run) -> Iterator[Problem]:
    declared = {call.others[0]: call.others[1] for call in run.calls if call.command == "ipx::infer_bus_interface"}
    for port, kind in _CLOCKS.items():
        if declared.get(port) != kind:
            yield Problem(script, f"{port} is declared as {declared.get(port, 'nothing')}, and should be as {kind}")
    resets = {call.option("reset"): call.option("clock") for call in run.calls if call.option("reset")}
    if resets != {"ap_rst_n": "ap_clk"}:
        yield Problem(script, "ap_rst_n does not go with ap_clk")


def _interfaces(folder: VendorFolder, kernel: str, script: str, run: Run) -> Iterator[Problem]:
    """Interfaces other than AXI have all their signals, in the direction of their mode."""
    directions = {port.name: port.direction for port in folder.ports[kernel]}
    for call in run.calls:
        if call.command != "ipx::add_bus_interface":
            continue
        name, owner = call.others[0], f"ipx::add_bus_interface {call.others[0]}"
        kind, mode = ((run.properties.get((owner, each)) or "") for each in ("bus_type_vlnv", "interface_mode"))
        signals = _SIGNALS.get(kind.removeprefix("xilinx.com:interface:").removesuffix(":1.0"))
        if signals is None or run.properties.get((owner, "abstraction_type_vlnv")) != kind.replace(":1.0", "_rtl:1.0"):
            yield Problem(script, f"{name} is of no known kind: {kind}")
            continue
        yield from _signals(script, run, directions, f"{mode} {name}", signals)


def _signals(
    script: str, run: Run, directions: Mapping[str, str], interface: str, signals: Mapping[str, bool]
) -> Iterator[Problem]:
    for signal, from_master in signals.items():
        port = run.properties.get((f"ipx::add_port_map {signal}", "physical_name"), "")
        wanted = "output" if from_master == interface.startswith("master ") else "input"
        if directions.get(port) != wanted or not port.endswith(signal[-1].lower()):
            found = f"is {port}, an {directions.get(port)} of the Verilog" if port in directions else "is no port"
            yield Problem(script, f"{signal} of {interface} {found}: it should be an {wanted} whose name ends so")


def _pointers(folder: VendorFolder, kernel: str, script: str, calls: Sequence[Call]) -> Iterator[Problem]:
    """Pointer registers have the offsets of the kernel's XML."""
    if kernel not in folder.xml:
        return
    registers, offset, name = {}, "", ""
    for call in calls:
        match call.command, call.arguments:
            case "ipx::add_register", (*_, name, _):
                pass
            case "set_property", ("address_offset", offset, _):
                registers[name] = int(offset, 16)
    for argument in folder.xml[kernel].iter("arg"):
        if argument.get("addressQualifier") == "4":
            continue
        name, wanted = argument.get("name", ""), int(argument.get("offset", "0"), 16)
        if registers.get(name) != wanted:
            found = f"at {registers[name]:#05x}" if name in registers else "missing"
            yield Problem(script, f"register {name} is {found}; {kernel}.xml has it at {wanted:#05x}")


def _ip(folder: VendorFolder, kernel: str, script: str, calls: Sequence[Call]) -> Iterator[Problem]:
    """The script makes IP for every module that the Verilog instantiates without defining it; cells need none."""
    bodies = modules(folder.verilog[kernel])
    missing = {module for body in bodies.values() for module, _ in instances(body)} - {*bodies, "DSP48E2"}
    made = {call.option("module_name") for call in calls if call.command == "create_ip"}
    for module in sorted(missing - made):
        yield Problem(script, f"nothing makes {module}, of which the Verilog has an instance")
    for call in calls:
        if call.command == "create_ip" and call.option("module_name") not in missing:
            yield Problem(call.file, f"the Verilog has no instance of {call.option('module_name')}", call.line)


_UNIT = re.compile(r"NAME =~ \*/(\w+)/inst")
"""Filter for the cell of a kernel's top in a design linked by Vitis."""

_REGISTER_PINS = {"C", "CE", "CLR", "D", "PRE", "Q", "R", "S"}


def _check_cells(folder: VendorFolder) -> Iterator[Problem]:
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
    for script in (PLACE, FLOORPLAN):
        if script in folder.runs:
            kernel = _placed(folder)
            yield from _paths(_Design(folder.verilog[kernel], folder.kernels[kernel]), folder.runs[script].calls)
            yield from _units(folder, folder.runs[script].calls)
    for name in sorted(unread):
        yield Problem(name, "is read by no script")


def _placed(folder: VendorFolder) -> str:
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
    return re.escape(name).replace(r"\*", r"\w+")


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


def linked(folder: VendorFolder, file: str) -> dict[str, str]:
    """Kernel of each instance in a link configuration. Its name is the one that v++ chooses."""
    lines = re.findall(r"^nk=(\w+):(\d+)$", folder.text(file), re.MULTILINE)
    return {f"{kernel}_{number + 1}": kernel for kernel, count in lines for number in range(int(count))}


def _units(folder: VendorFolder, calls: Sequence[Call]) -> Iterator[Problem]:
    """A filter for the kernel with memory names an instance that is linked."""
    units = {unit: kernel for file in folder.ending(".cfg") for unit, kernel in linked(folder, file).items()}
    for call in calls:
        wanted = call.option("filter")
        if wanted is None:
            continue
        match = _UNIT.fullmatch(wanted)
        if not match:
            yield Problem(call.file, f"no instance of a kernel is found by {wanted}", call.line)
        elif units.get(match[1]) != _placed(folder):
            yield Problem(call.file, f"no instance of {_placed(folder)} is called {match[1]}", call.line)
