"""A generated folder for AMD's tools, as the checks read it: ports of its Verilog, its XML, the calls in its scripts.

Regular expressions find ports and cells in the Verilog. yosys could write them as JSON, but that takes 2.5 s and 16 MB
for the smallest worker, and there are a hundred planted faults, each in a folder of its own.
"""

import importlib.util
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from p4sgd.build.fpga.check import Folder, Problem, open_folder, run_tcl
from p4sgd.hw.kernel.verilog import Port
from support.vendor_checks.commands import COMMANDS
from support.verilog_ports import read_ports

NEEDS_TCL = pytest.mark.skipif(
    importlib.util.find_spec("_tkinter") is None and shutil.which("tclsh") is None, reason="needs tkinter or tclsh"
)

_READERS = {"add_files", "read_verilog", "read_xdc"}
"""Commands whose last argument is a file."""


class Call(NamedTuple):
    """A call of one of the vendor's commands in a script."""

    file: str
    line: int
    command: str
    arguments: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """Value of an option, None if it is not given."""
        try:
            return self.arguments[self.arguments.index(f"-{name}") + 1]
        except (ValueError, IndexError):
            return None

    @property
    def others(self) -> tuple[str, ...]:
        """Arguments that are neither options nor their values."""
        valued = COMMANDS[self.command].options.split()
        found, words = [], iter(self.arguments)
        for word in words:
            if not re.match("-[a-zA-Z]", word):
                found.append(word)
            elif word[1:] in valued:
                next(words, None)
        return tuple(found)

    @property
    def file_read(self) -> str | None:
        """Name of the file that the command reads, if it reads one."""
        return self.others[-1].rpartition("/")[2] if self.command in _READERS else None


class Run(NamedTuple):
    """Result of running a script."""

    calls: Sequence[Call]
    problems: Sequence[Problem]
    """The error that stopped it, if one did."""

    @property
    def properties(self) -> dict[tuple[str, str], str]:
        """Values of `set_property` by the object, as the sandbox names it, and the property."""
        calls = (call.others for call in self.calls if call.command == "set_property" and len(call.others) == 3)
        return {(owner, name): value for name, value, owner in calls}


def run_script(folder: Path, script: str, *, seconds: int = 10) -> Run:
    """Run a script in which every command must be one of `COMMANDS`, with the options listed there."""
    calls, problems = [], []
    for kind, file, line, *rest in run_tcl(folder, script, commands=command_table(), seconds=seconds):
        if kind == "call":
            calls.append(Call(file, int(line), rest[0], tuple(rest[1:])))
        else:
            problems.append(Problem(file, " ".join(rest).splitlines()[0], int(line) or None))
    return Run(calls, problems)


@cache
def command_table() -> str:
    """`COMMANDS` as ``sandbox.tcl`` takes them."""
    words = []
    for name, command in COMMANDS.items():
        most = "" if command.most is None else str(command.most)
        words += [name, f"{{{command.flags}}}", f"{{{command.options}}}", str(command.least), f"{{{most}}}"]
    return " ".join(words)


@dataclass(frozen=True)
class VendorFolder(Folder):
    """A folder with what its files say, read once."""

    @cached_property
    def verilog(self) -> dict[str, str]:
        """Verilog of each kernel."""
        return {name: self.text(f"{name}.v") for name in self.kernels}

    @cached_property
    def ports(self) -> dict[str, list[Port]]:
        """Ports of each kernel's top module."""
        return {name: read_ports(self.verilog[name], top) for name, top in self.kernels.items()}

    @cached_property
    def xml(self) -> dict[str, ElementTree.Element]:
        """Element ``kernel`` of each kernel's XML, where there is one."""
        found = {}
        for name in self.described:
            try:
                element = ElementTree.fromstring(self.text(f"{name}.xml")).find("kernel")
            except ElementTree.ParseError:
                element = None
            if element is not None:
                found[name] = element
        return found

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every script that a tool is started with, run."""
        return {name: run_script(self.path, name) for name in self.scripts}


def open_vendor_folder(path: Path) -> VendorFolder:
    """Open a folder; raises what `open_folder` does."""
    found = open_folder(path)
    return VendorFolder(found.path, found.manifest)
