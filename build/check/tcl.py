"""Do the scripts run, and is what they name there?"""

import re
from collections.abc import Iterator

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.report import Problem
from p4sgd.build.check.scripts import Call
from p4sgd.build.verilog_ports import find_buses
from p4sgd.build.vitis.packaging import CROSSINGS
from p4sgd.hw.verilog import modules as modules_of

__all__ = ["check_scripts"]

_READERS = {"add_files", "read_verilog", "read_xdc"}
"""Commands whose last argument is a file."""

_MAC = "p4sgd_cmac"
"""Kernel that the constraints of clock crossings are for; those of other ports are the same."""


def check_scripts(folder: Folder) -> Iterator[Problem]:
    """Tcl runs to its end; files, buses, pointers' ports, and cells in constraints are there.

    Raises
    ------
    NoTclError
        If there is no Tcl here.
    """
    for script, run in folder.runs.items():
        yield from run.problems
        for call in run.calls:
            yield from _files(folder, call)
        kernel = script.removeprefix("package_").removesuffix(".tcl")
        if kernel in folder.kernels:
            yield from _buses(folder, kernel, run.calls)
    if CROSSINGS in folder.runs:
        modules = {name.removeprefix("\\"): body for name, body in modules_of(folder.verilog[_MAC]).items()}
        for call in folder.runs[CROSSINGS].calls:
            yield from _cells(modules, folder.kernels[_MAC], call)


def _files(folder: Folder, call: Call) -> Iterator[Problem]:
    named = call.arguments[-1:] if call.command in _READERS else ()
    if call.command == "package_xo":
        named = (call.option("kernel_xml") or "",)
    for path in named:
        name = path.rsplit("/", 1)[-1]
        if name not in folder.ending(""):
            yield Problem(call.file, f"{call.command} names {name}, which is no file of the folder", call.line)


def _buses(folder: Folder, kernel: str, calls: list[Call]) -> Iterator[Problem]:
    """Every bus is declared with its clock, and no other."""
    buses = {bus.name for bus in find_buses(folder.ports[kernel])}
    declared = [name for call in calls if (name := call.option("busif")) and call.command.endswith("bus_interfaces")]
    script = f"package_{kernel}.tcl"
    for name in declared:
        if name not in buses:
            yield Problem(script, f"the Verilog of {kernel} has no bus {name}")
    for name in sorted(buses - set(declared)):
        yield Problem(script, f"bus {name} is given no clock")
    yield from _pointers(folder, kernel, calls)


def _pointers(folder: Folder, kernel: str, calls: list[Call]) -> Iterator[Problem]:
    """Registers of pointers are those of kernel.xml, with its offsets."""
    if kernel not in folder.xml:
        return
    script = f"package_{kernel}.tcl"
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


def _cells(found: dict[str, str], top: str, call: Call) -> Iterator[Problem]:
    """Registers and pins that constraints name by their path are in the Verilog, whose modules are ``found``."""
    if call.command not in ("get_cells", "get_pins") or not call.arguments:
        return
    for path in call.arguments[-1].split():
        *instances, last = path.split("/")
        if call.command == "get_pins" and last == "PRE":
            last = instances.pop()
            last = last.removesuffix("_reg")
        pattern = re.escape(".".join((top, *instances))).replace(r"\*", "[^.]+")
        bodies = [body for name, body in found.items() if re.fullmatch(pattern, name)]
        name = re.escape(last.removesuffix("[*]").removesuffix("_reg")).replace(r"\*", r"\w+")
        register = re.compile(rf"^ *(?:output +)?reg +(?:\[\d+:0\] +)?{name}\b", re.MULTILINE)
        if bodies:
            is_there = any(register.search(body) for body in bodies)
        else:  # a pin of an instance whose module is not ours
            owner = ".".join((top, *instances[:-1]))
            instance = re.compile(rf"^  \S+ {re.escape(instances[-1])} \(.*?\.{re.escape(last)}\(", re.M | re.S)
            is_there = owner in found and bool(instance.search(found[owner]))
        if not is_there:
            yield Problem(call.file, f"the Verilog has no {path}", call.line)
