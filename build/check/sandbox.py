"""Scripts for AMD's tools, run in a safe Tcl interpreter with stand-ins for the vendor's commands."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from p4sgd.build.check.commands import COMMANDS
from p4sgd.build.check.problem import NoToolError, Problem

_READERS = {"add_files", "read_verilog", "read_xdc"}
"""Commands whose last argument is a file."""


class Call(NamedTuple):
    """A call of one of the vendor's commands in a script."""

    places: tuple[tuple[str, int], ...]  # file and line, and those of the procedures' callers
    command: str
    arguments: tuple[str, ...]

    @property
    def file(self) -> str:
        """File of the call."""
        return self.places[0][0]

    @property
    def line(self) -> int:
        """Line of the call."""
        return self.places[0][1]

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


class Made(NamedTuple):
    """IP of the vendor's, or a cell of it in a block design, that a script makes."""

    kind: str
    name: str
    call: Call  # that made it
    parameters: dict[str, tuple[str, Call]]  # the last values, without braces, and the calls that set them

    def value(self, name: str) -> str:
        """Value of a parameter, ``not set`` if there is none."""
        return self.parameters[name][0] if name in self.parameters else "not set"

    def wrong(self, name: str, reason: str) -> Problem:
        """That a parameter is not what it should be."""
        call = self.parameters[name][1] if name in self.parameters else self.call
        return Problem(call.file, f"{name} of {self.name} is {self.value(name)}; {reason}", call.line)


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

    @property
    def made(self) -> list[Made]:
        """IP that the script makes."""
        found: dict[str, Made] = {}  # by what stands for it
        for call in self.calls:
            if call.command == "create_ip":
                name = call.option("module_name") or ""
                found[f"get_ips {name}"] = Made(call.option("name") or "", name, call, {})
            elif call.command == "create_bd_cell":
                name, vlnv = call.others[0], call.option("vlnv") or "::"
                found[f"create_bd_cell {name}"] = Made(vlnv.split(":")[2], name, call, {})
            elif call.command == "set_property" and call.others and call.others[-1] in found:
                settings = call.option("dict") or " ".join(call.others[:-1])
                given = re.findall(r"CONFIG\.(\w+) +(?:\{([^}]*)\}|(\S+))", settings)
                found[call.others[-1]].parameters.update({name: (a or b, call) for name, a, b in given})
        return list(found.values())


def run_script(folder: Path, script: str, *, seconds: int = 10) -> Run:
    """Run a script of a folder. It can read the folder's files and nothing else, and is stopped after some seconds.

    Every command that Tcl itself does not have must be one of `COMMANDS`, with the options listed there. `NoToolError`
    if no Tcl works, Python's or tclsh.
    """
    arguments = (str(folder), script, _command_table(), str(seconds))
    sandbox = str(Path(__file__).with_name("sandbox.tcl"))
    interpreter = _python_tcl()
    if interpreter is None:
        output = _run_tclsh(sandbox, *arguments)
    else:
        interpreter.call("source", sandbox)
        output = str(interpreter.call("sandbox::run", *arguments))
    calls, problems = [], []
    for record in filter(None, output.split(_RECORD)):
        kind, place, *rest = record.split(_FIELD)
        if kind == "call":
            words = place.split()
            places = zip(words[::2], map(int, words[1::2]), strict=True)
            calls.append(Call(tuple(places), rest[0], tuple(rest[1:])))
        else:
            line, *message = rest
            problems.append(Problem(place, " ".join(message).splitlines()[0], int(line) or None))
    return Run(calls, problems)


_FIELD, _RECORD = "\x1f", "\x1e"  # separators of `sandbox.tcl`


@cache
def _command_table() -> str:
    """`COMMANDS` as ``sandbox.tcl`` takes them."""
    words = []
    for name, command in COMMANDS.items():
        most = "" if command.most is None else str(command.most)
        words += [name, f"{{{command.flags}}}", f"{{{command.options}}}", str(command.least), f"{{{most}}}"]
    return " ".join(words)


def _python_tcl() -> Any:
    """Python's own Tcl interpreter; None if this Python has none, or none that works."""
    try:
        import tkinter
    except ImportError:
        return None
    try:
        return tkinter.Tcl()
    except (RuntimeError, tkinter.TclError):
        return None


def _run_tclsh(*words: str) -> str:
    interpreter = shutil.which("tclsh")
    if interpreter is None:
        raise NoToolError("needs Tcl: install tkinter for this Python, or tclsh (apt-get install tcl)")
    done = subprocess.run([interpreter, *words], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise NoToolError(f"{interpreter} does not work: {done.stderr.strip()}")
    return done.stdout
