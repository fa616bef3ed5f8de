"""The emulator needs no folder that it can write."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_without_a_cache_for_compiled_code(tmp_path):
    """A file in the place of a folder keeps out even the superuser, whom permissions do not."""
    package = tmp_path / "p4sgd"
    for room in ("hw", "sim", "host"):
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "sim" / "__pycache__").write_text("")
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "PYTHONPATH": str(tmp_path)}
    program = "from p4sgd.sim import kernels; print(kernels.__file__); from p4sgd.host.cli import main; main()"
    command = [sys.executable, "-c", program, "train", "iris:1", "--epochs", "1", "--config", "tiny"]
    done = subprocess.run(command, env=os.environ | nowhere, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(str(package)), "the copy is meant"
    assert "best model: epoch 1" in done.stdout
