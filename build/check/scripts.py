"""Tcl scripts, run without the vendor's tools: what Tcl finds, unknown commands and options, missing files."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from p4sgd.build.check.commands import COMMANDS
from p4sgd.build.check.report import NoToolError, Problem

__all__ = ["Call", "NoTclError", "Run", "run_script"]

_SANDBOX = Path(__file__).with_name("sandbox.tcl")

_READERS = {"add_files", "read_verilog", "read_xdc"}
"""Commands whose last argument is a file."""

_FIELD, _RECORD = "\x1f", "\x1e"


class NoTclError(NoToolError):
    """There is no Tcl on this machine; the message says what to install."""


class Call(NamedTuple):
    """One of the vendor's commands as a script gave it."""

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
        """Name of the file that it reads, if it is one of the commands that read one."""
        return self.others[-1].rpartition("/")[2] if self.command in _READERS else None


class Run(NamedTuple):
    """A script that was run."""

    calls: list[Call]
    problems: list[Problem]
    """What it ended with, if not with its last line."""

    @property
    def properties(self) -> dict[tuple[str, str], str]:
        """Values that the script sets, by object, as its stand-in is called, and name."""
        calls = (call.others for call in self.calls if call.command == "set_property" and len(call.others) == 3)
        return {(owner, name): value for name, value, owner in calls}


def run_script(folder: Path, script: str) -> Run:
    """Run a script of a folder, with stand-ins for the vendor's commands.

    Raises
    ------
    NoTclError
        If there is no Tcl here.
    """
    calls, problems = [], []
    for kind, file, line, *rest in _records(folder, script):
        if kind == "call":
            calls.append(Call(file, int(line), rest[0], tuple(rest[1:])))
        else:
            problems.append(Problem(file, " ".join(rest).splitlines()[0], int(line) or None))
    return Run(calls, problems)


def _records(folder: Path, script: str) -> Iterator[list[str]]:
    arguments = (str(folder), script, _table())
    tcl = _interpreter()
    if tcl is None:
        output = _within_tclsh(arguments)
    else:
        tcl.call("source", str(_SANDBOX))
        output = str(tcl.call("sandbox::run", *arguments))
    return (record.split(_FIELD) for record in output.split(_RECORD) if record)


def _interpreter() -> Any:
    """Python's own Tcl; None if it has none, or none that works."""
    try:
        import tkinter
    except ImportError:
        return None
    try:
        return tkinter.Tcl()
    except (RuntimeError, tkinter.TclError):
        return None


def _within_tclsh(arguments: tuple[str, ...]) -> str:
    interpreter = shutil.which("tclsh")
    if not interpreter:
        raise NoTclError("needs Tcl: install tkinter for this Python, or tclsh (apt-get install tcl)")
    command = [interpreter, str(_SANDBOX), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise NoTclError(f"{interpreter} does not work: {done.stderr.strip()}")
    return done.stdout


@cache
def _table() -> str:
    """The vendor's commands as `sandbox.tcl` takes them."""
    words = []
    for name, command in COMMANDS.items():
        most = "" if command.most is None else str(command.most)
        words += [name, f"{{{command.flags}}}", f"{{{command.options}}}", str(command.least), f"{{{most}}}"]
    return " ".join(words)
