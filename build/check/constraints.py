"""Check of constraints and floor plans: the cells, pins, ports and dies that they name are there."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from p4sgd.build.check.folder import Folder, read_ports
from p4sgd.build.check.problem import Problem
from p4sgd.build.check.sandbox import Call
from p4sgd.build.fpga.vitis import PLACE
from p4sgd.build.fpga.vivado import FLOORPLAN
from p4sgd.hw.spec.selftest import KERNEL as SELFTEST
from p4sgd.hw.verilog import instances, modules
from p4sgd.hw.worker.worker import WORKER

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
    for script in (PLACE, FLOORPLAN):
        if script in folder.runs:
            kernel, calls = SELFTEST if SELFTEST in folder.kernels else WORKER, folder.runs[script].calls
            yield from _paths(_Design(folder.verilog[kernel], folder.kernels[kernel]), calls)
            yield from _dies(folder, calls)
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


def _dies(folder: Folder, calls: Sequence[Call]) -> Iterator[Problem]:
    """Cells are placed on dies that the board has."""
    for call in calls:
        for die in re.findall(r"SLR(\d+)", " ".join(call.arguments)):
            if int(die) >= folder.board.dies:
                yield Problem(call.file, f"an {folder.board.name} has no SLR{die}", call.line)
