"""Are the ports, cells and pins that scripts and constraints name in the Verilog?"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.links import linked
from p4sgd.build.check.report import Problem
from p4sgd.build.check.scripts import Call
from p4sgd.build.fpga.verilog_ports import read_ports
from p4sgd.build.fpga.vitis import PLACE
from p4sgd.build.fpga.vivado import FLOORPLAN
from p4sgd.hw.verilog import instances, modules
from p4sgd.hw.worker.worker import WORKER

__all__ = ["check_cells"]

_UNIT = re.compile(r"NAME =~ \*/(\w+)/inst")
"""A filter for the instance that a kernel's top is in an image by Vitis."""

_REGISTER_PINS = {"C", "CE", "CLR", "D", "PRE", "Q", "R", "S"}


def check_cells(folder: Folder) -> Iterator[Problem]:
    """Constraints fit the module that the script which reads them makes, scripts for placement the worker's kernel."""
    unread = set(folder.ending(".xdc"))
    for script, run in folder.runs.items():
        read = [name for call in run.calls if (name := call.file_read)]
        unread -= set(read)
        texts = [folder.text(name) for name in read if name in folder.ending(".v")]
        if not texts:
            continue  # a project of IP, whose ports are the board's: the check of block designs is for it
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
            worker = _Design(folder.verilog[WORKER], folder.kernels[WORKER])
            yield from _paths(worker, folder.runs[script].calls)
            yield from _units(folder, folder.runs[script].calls)
    for name in sorted(unread):
        yield Problem(name, "is read by no script")


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
        """Whether a register or an instance is there, or a pin of one; names may have asterisks."""
        *path, cell = names[:-1] if is_pin else names
        bodies = [self.modules[self.top]]
        for name in path:
            bodies = [self.modules[module] for module in _called(bodies, name) if module in self.modules]
        if not is_pin or names[-1] in _REGISTER_PINS:
            # Vivado calls the flip-flops of a register a_reg, and of more than one bit a_reg[0], a_reg[1], …
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
    """Modules of the instances that have a name."""
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


def _units(folder: Folder, calls: Sequence[Call]) -> Iterator[Problem]:
    """A filter that finds the worker by its instance names one that is linked."""
    units = {unit: kernel for file in folder.ending(".cfg") for unit, kernel in linked(folder, file).items()}
    for call in calls:
        wanted = call.option("filter")
        if wanted is None:
            continue
        match = _UNIT.fullmatch(wanted)
        if not match:
            yield Problem(call.file, f"no instance of a kernel is found by {wanted}", call.line)
        elif units.get(match[1]) != WORKER:
            yield Problem(call.file, f"no instance of {WORKER} is called {match[1]}", call.line)
