"""Check that the XML of a kernel, its Verilog and its register map agree."""

from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import Problem
from p4sgd.build.check.registers import CONTROL_BLOCK, pointer_register, register_map
from p4sgd.hw.bus.axi import (
    FRAME_BEAT_BYTES,
    LITE_DATA_BITS,
    MEMORY_ADDRESS_BITS,
    Axi4LiteSignature,
    Axi4Signature,
    FrameBeat,
)
from p4sgd.hw.bus.ports import Port, bus_ports
from p4sgd.hw.spec.register_map import ADDRESS_BITS

_INTERRUPTS = (0x004, 0x008, 0x00C)
"""Registers of a kernel with an interrupt: two enables and a status."""


def check_kernels(folder: Folder) -> Iterator[Problem]:
    """Name, width and direction of ports; port and offset of arguments; the protocol that the register map implies."""
    for name in folder.described:
        if name not in folder.xml:
            yield Problem(f"{name}.xml", "has no element kernel")
            continue
        kernel = folder.xml[name]
        ports = {port.name: port for port in folder.ports[name]}
        for bus in kernel.iter("port"):
            yield from _bus(f"{name}.xml", bus, ports)
        yield from _left_over(folder, name, ports)
        yield from _names(folder, name, kernel)
        yield from _protocol(folder, name, kernel)
        yield from _arguments(folder, name, kernel)


def _bus(file: str, bus: Element, ports: dict[str, Port]) -> Iterator[Problem]:
    """One port of the XML; removes its signals from ``ports``."""
    name, mode, width = bus.get("name", ""), bus.get("mode"), int(bus.get("dataWidth", "0"))
    if not any(port.startswith(f"{name}_") for port in ports):
        yield Problem(file, f"port {name}: the Verilog has no ports {name}_*")
        return
    is_master, is_stream, bits = mode in ("master", "write_only"), bus.get("portType") == "stream", width
    signature: wiring.Signature
    if is_stream:
        signature, bits = stream.Signature(FrameBeat), 8 * FRAME_BEAT_BYTES
    elif is_master:
        read, write = (f"{name}_{channel}valid" in ports for channel in ("ar", "aw"))
        signature = Axi4Signature(data_bits=width, read=read, write=write)
    else:
        signature, bits = Axi4LiteSignature(), LITE_DATA_BITS
    if width != bits:
        yield Problem(file, f"port {name}: its width is {width} bits, and should be {bits}")
    address_bits = MEMORY_ADDRESS_BITS if is_master else ADDRESS_BITS
    if not is_stream and int(bus.get("range", "0"), 16) != (1 << address_bits) - is_master:
        yield Problem(file, f"port {name}: its range is not that of {address_bits} bits")
    for wanted in bus_ports((Out if is_master else In)(signature), name):
        port = ports.pop(wanted.name, None)
        if port is None:
            yield Problem(file, f"port {name}: the Verilog has no {wanted.name}")
            continue
        if port.bits != wanted.bits:
            yield Problem(file, f"port {name}: {port.name} has {port.bits} bits in the Verilog, not {wanted.bits}")
        if port.direction != wanted.direction:
            yield Problem(file, f"port {name}: {port.name} is an {port.direction} in the Verilog; the mode is {mode}")


def _left_over(folder: Folder, name: str, ports: dict[str, Port]) -> Iterator[Problem]:
    """Ports of the Verilog that belong to no bus are declared by the script that packages the kernel."""
    script = f"package_{name}.tcl"
    known = {"ap_clk", "ap_rst_n"}
    for call in folder.runs[script].calls:
        if call.command == "set_property" and call.arguments[0] == "physical_name":
            known.add(call.arguments[1])
            if call.arguments[1] not in ports:
                yield Problem(script, f"the Verilog has no port {call.arguments[1]}")
        elif call.command == "ipx::remove_bus_interface":
            known.add(call.arguments[-2])
    for port in ports:
        if port not in known:
            yield Problem(f"{folder.kernels[name]}.v", f"port {port} is of no bus of {name}.xml")
    for port in ("ap_clk", "ap_rst_n"):
        if port not in ports:
            yield Problem(f"{folder.kernels[name]}.v", f"has no port {port}")


def _names(folder: Folder, name: str, kernel: Element) -> Iterator[Problem]:
    """The kernel has the same name and version in the XML and as IP."""
    file, script = f"{name}.xml", f"package_{name}.tcl"
    vendor, library, given, version = (kernel.get("vlnv", "") + ":::").split(":")[:4]
    said: dict[str, Any] = {"vendor": vendor, "library": library, "name": given, "version": version}
    if {kernel.get("name"), given} != {name}:
        yield Problem(file, f"the kernel is called {kernel.get('name')} and {kernel.get('vlnv')}, and the file {name}")
    for call in folder.runs[script].calls:
        if call.command == "ipx::package_project":
            for option in ("vendor", "library"):
                if call.option(option) != said[option]:
                    yield Problem(script, f"{option} is {call.option(option)}, but {said[option]} in {file}", call.line)
        elif call.command == "set_property" and said.get(call.arguments[0], call.arguments[1]) != call.arguments[1]:
            yield Problem(
                script, f"{call.arguments[0]} is {call.arguments[1]}, but {said[call.arguments[0]]} in {file}"
            )


def _protocol(folder: Folder, name: str, kernel: Element) -> Iterator[Problem]:
    """Control and interrupt registers are where UG1393 has them for ``ap_ctrl_hs``, or there are none."""
    registers = register_map(folder, name)
    first = registers.at(0)
    block = [(field.name, field.low, field.bits) for field in first.fields] if first else []
    wanted = {
        "hwControlProtocol": "ap_ctrl_hs" if block == CONTROL_BLOCK else "user_managed",
        "interrupt": "true" if any(map(registers.at, _INTERRUPTS)) else "false",
    }
    for attribute, value in wanted.items():
        if kernel.get(attribute) != value:
            yield Problem(f"{name}.xml", f"{attribute} is {kernel.get(attribute)}; by the registers it is {value}")


def _arguments(folder: Folder, name: str, kernel: Element) -> Iterator[Problem]:
    file = f"{name}.xml"
    registers = {register.name: register.offset for register in register_map(folder, name)}
    buses = {bus.get("name"): bus for bus in kernel.iter("port")}
    taken = []
    for number, argument in enumerate(kernel.iter("arg")):
        place = f"argument {argument.get('name')}"
        bus = buses.get(argument.get("port"))
        if argument.get("id") != str(number):
            yield Problem(file, f"{place}: its number is {argument.get('id')}, and should be {number}")
        if bus is None:
            yield Problem(file, f"{place}: there is no port {argument.get('port')}")
            continue
        taken.append(bus.get("name"))
        kind = argument.get("addressQualifier")
        wanted = {"0": "slave", "1": "master", "4": bus.get("mode")}.get(kind or "")
        if bus.get("mode") != wanted or (kind == "4") != (bus.get("portType") == "stream"):
            yield Problem(file, f"{place}: port {bus.get('name')} is not of its kind, {kind}")
        if kind == "4":
            continue
        offset = int(argument.get("offset", "0"), 16)
        register = argument.get("name", "").upper()
        if kind == "1":
            register = pointer_register(folder, name, argument.get("port", ""))
        if register not in registers:
            yield Problem(file, f"{place}: the register map has no {register}")
        elif registers[register] != offset:
            yield Problem(file, f"{place}: its offset is {offset:#05x}; {register} is at {registers[register]:#05x}")
        size = 8 if kind == "1" else 4
        if int(argument.get("size", "0"), 16) != size or argument.get("hostSize") != argument.get("size"):
            yield Problem(file, f"{place}: its size is not {size}")
    for bus_name, bus in buses.items():
        if bus.get("mode") != "slave" and taken.count(bus_name) != 1:
            yield Problem(file, f"port {bus_name}: is of {taken.count(bus_name)} arguments, not of one")
