"""Check of scripts: the files that they name, and the kernels that they package."""

from collections.abc import Iterator, Mapping

from p4sgd.build.check.constraints import check_constraints
from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import Problem
from p4sgd.build.check.registers import CONTROL_BLOCK, argument_names, pointer_register, register_map
from p4sgd.build.check.sandbox import Call, Run
from p4sgd.build.fpga.kernel import BusKind
from p4sgd.hw.spec.register_map import ADDRESS_BITS
from p4sgd.hw.verilog import instances, modules


def check_scripts(folder: Folder) -> Iterator[Problem]:
    """Scripts run to their end; files, declarations of kernels and cells in constraints are right."""
    for script, run in folder.runs.items():
        yield from run.problems
        for call in run.calls:
            yield from _files(folder, call)
        kernel = script.removeprefix("package_").removesuffix(".tcl")
        if kernel in folder.kernels:
            yield from _check_package(folder, kernel, run)
    yield from check_constraints(folder)


def _files(folder: Folder, call: Call) -> Iterator[Problem]:
    name = call.file_read
    if call.command == "package_xo":
        name = (call.option("kernel_xml") or "").rpartition("/")[2]
    if name is not None and name not in folder.ending(""):
        yield Problem(call.file, f"{call.command} names {name}, which is no file of the folder", call.line)


_SIGNALS = {
    "gt": {"GRX_P": False, "GRX_N": False, "GTX_P": True, "GTX_N": True},
    "diff_clock": {"CLK_P": True, "CLK_N": True},
}
"""Signals of interfaces other than AXI, by kind, and whether the master drives them."""


def _check_package(folder: Folder, kernel: str, run: Run) -> Iterator[Problem]:
    """The packaging script declares clocks, buses, interfaces and pointer registers as the kernel has them."""
    script = f"package_{kernel}.tcl"
    yield from _interfaces(folder, kernel, script, run)
    yield from _registers(folder, kernel, script, run)
    yield from _ip(folder, kernel, script, run)
    buses = {bus.name for bus in folder.buses(kernel)}
    clocks = {name: call.option("clock") for call in run.calls if (name := call.option("busif"))}
    if clocks != dict.fromkeys(buses, "ap_clk"):
        yield Problem(script, f"clocks of buses are {clocks}, and should be ap_clk for {sorted(buses)}")


def _interfaces(folder: Folder, kernel: str, script: str, run: Run) -> Iterator[Problem]:
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


def _registers(folder: Folder, kernel: str, script: str, run: Run) -> Iterator[Problem]:
    """Registers and their fields are where the register map has them, all that are arguments among them."""
    offsets: dict[str, int | None] = {}
    name = ""
    for call in run.calls:
        match call.command, call.arguments:
            case "ipx::add_register", (*_, name, _):
                offsets[name] = None
            case "set_property", ("address_offset", offset, _):
                offsets[name] = int(offset, 16)
    known = register_map(folder, kernel)
    registers = {register.name: register.offset for register in known}
    wanted = {bus.name.removeprefix("m_axi_"): bus.name for bus in folder.buses(kernel, BusKind.MEMORY)}
    names = dict.fromkeys([*offsets, *wanted, *argument_names(folder, kernel)])
    for name in names:
        register = pointer_register(folder, kernel, wanted[name]) if name in wanted else name.upper()
        if register not in registers:
            yield Problem(script, f"register {name}: the register map has no {register}")
        elif offsets.get(name) != registers[register]:
            at = offsets.get(name)
            found = "missing" if at is None else f"at {at:#05x}"
            yield Problem(script, f"register {name} is {found}; {register} is at {registers[register]:#05x}")
    for field, low, bits in CONTROL_BLOCK:
        owner = f"ipx::add_field AP_{field.upper()}"
        given = [run.properties.get((owner, name)) for name in ("bit_offset", "bit_width")]
        if given != [str(low), str(bits)]:
            yield Problem(script, f"field AP_{field.upper()} has bit and width {given}, and should have {low}, {bits}")
    size = run.properties.get(("ipx::add_address_block reg0", "range"))
    if size != str(1 << ADDRESS_BITS):
        yield Problem(script, f"the registers take {size} bytes, and should take {1 << ADDRESS_BITS}")


def _ip(folder: Folder, kernel: str, script: str, run: Run) -> Iterator[Problem]:
    """The script makes IP for every module that the Verilog instantiates without defining it; cells need none."""
    bodies = modules(folder.verilog[kernel])
    missing = {module for body in bodies.values() for module, _ in instances(body)} - {*bodies, "DSP48E2"}
    made = {each.name: each.call for each in run.made}
    for module in sorted(missing - set(made)):
        yield Problem(script, f"nothing makes {module}, of which the Verilog has an instance")
    for module, call in made.items():
        if module not in missing:
            yield Problem(call.file, f"the Verilog has no instance of {module}", call.line)
