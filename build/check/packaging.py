"""Does the script that packs a kernel declare what the kernel has?"""

from collections.abc import Iterator, Mapping, Sequence

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.report import Problem
from p4sgd.build.check.scripts import Call, Run
from p4sgd.build.fpga.verilog_ports import find_buses
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.verilog import instances, modules

__all__ = ["check_package"]

_SIGNALS = {
    "gt": {"GRX_P": False, "GRX_N": False, "GTX_P": True, "GTX_N": True},
    "diff_clock": {"CLK_P": True, "CLK_N": True},
}
"""Signals of interfaces that are no AXI, by their kind, and whether the master drives them."""

_CLOCKS = {"ap_clk": "xilinx.com:signal:clock_rtl:1.0", "ap_rst_n": "xilinx.com:signal:reset_rtl:1.0"}
"""Clock and reset, and what they have to be declared as."""

_CORE = "ipx::current_core "
"""What stands for the kernel."""

_FOR_VITIS = {(_CORE, "sdx_kernel"): "true", (_CORE, "sdx_kernel_type"): "rtl"}
"""Properties of what v++ takes for a kernel."""


def check_package(folder: Folder, kernel: str, run: Run) -> Iterator[Problem]:
    """Clocks, buses, other interfaces and pointers' registers, and the vendor's IP inside."""
    script = f"package_{kernel}.tcl"
    yield from _clocks(script, run)
    yield from _buses(folder, kernel, script, run.calls)
    yield from _interfaces(folder, kernel, script, run)
    yield from _pointers(folder, kernel, script, run.calls)
    yield from _ip(folder, kernel, script, run.calls)
    wanted = {("ipx::add_bus_parameter FREQ_HZ", "value"): str(10**9 // CLOCK_NS)}
    if any(call.command == "package_xo" for call in run.calls):
        wanted |= _FOR_VITIS
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


def _buses(folder: Folder, kernel: str, script: str, calls: Sequence[Call]) -> Iterator[Problem]:
    """Every bus is declared with its clock, and no other."""
    buses = {bus.name for bus in find_buses(folder.ports[kernel])}
    declared = {name: call.option("clock") for call in calls if (name := call.option("busif"))}
    for name, clock in declared.items():
        if name not in buses:
            yield Problem(script, f"the Verilog of {kernel} has no bus {name}")
        if clock != "ap_clk":
            yield Problem(script, f"the clock of bus {name} is {clock}, and should be ap_clk")
    for name in sorted(buses - set(declared)):
        yield Problem(script, f"bus {name} is given no clock")


def _interfaces(folder: Folder, kernel: str, script: str, run: Run) -> Iterator[Problem]:
    """Interfaces of the vendor's kinds have all their signals, in the direction that their mode has."""
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


def _pointers(folder: Folder, kernel: str, script: str, calls: Sequence[Call]) -> Iterator[Problem]:
    """Registers of pointers are those of kernel.xml, with its offsets."""
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


def _ip(folder: Folder, kernel: str, script: str, calls: Sequence[Call]) -> Iterator[Problem]:
    """What the Verilog has instances of, and no module, the script makes of the vendor's IP."""
    bodies = modules(folder.verilog[kernel])
    missing = {module for body in bodies.values() for module, _ in instances(body)} - set(bodies)
    made = {call.option("module_name") for call in calls if call.command == "create_ip"}
    for module in sorted(missing - made):
        yield Problem(script, f"nothing makes {module}, of which the Verilog has an instance")
    for call in calls:
        if call.command == "create_ip" and call.option("module_name") not in missing:
            yield Problem(call.file, f"the Verilog has no instance of {call.option('module_name')}", call.line)
