"""Running the command with mpiexec, for tests that skip where there is none."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_BESIDE = Path(sys.executable).with_name("mpiexec")  # that of the package mpich, which mpi4py then finds too
MPIEXEC = str(_BESIDE) if _BESIDE.exists() else shutil.which("mpiexec")


def _missing():
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return None if MPIEXEC else "there is no mpiexec"


needs_mpi = pytest.mark.skipif(_missing() is not None, reason=str(_missing()))


def started(*words, ranks=None, **options):
    """Start ``p4sgd train`` with these words, as so many ranks or, with None, as a single process."""
    command = [sys.executable, Path(sys.executable).with_name("p4sgd"), "train", *map(str, words)]
    if ranks is not None:
        command = [MPIEXEC, "-n", str(ranks), *command, "--launcher", "mpi"]
    # Several ranks with several threads each would wait for each other's processors.
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def train(*words, ranks=None, **options):
    """Do so to the end: exit status, standard output, the lines of standard error."""
    with started(*words, ranks=ranks, **options) as process:
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    return process.returncode, out, err.splitlines()


def descendants(process, word):
    """Numbers of the processes below one that have a word in their command line, but not mpiexec's own."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            parents[int(status.parent.name)] = int(fields["PPid"])
        except (OSError, KeyError):
            continue  # ended meanwhile
    below, found = {process.pid}, []
    while new := {child for child, parent in parents.items() if parent in below and child not in below}:
        below |= new
        for child in sorted(new):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if words[0] == os.fsencode(sys.executable) and word.encode() in words:
                found.append(child)
    return found
