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


class Run(NamedTuple):
    """Result of running a script."""

    calls: Sequence[Call]
    problems: Sequence[Problem]
    """The error that stopped it, if one did."""


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
