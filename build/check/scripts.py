"""Check that scripts run, and that cells and dies that scripts and link configurations place are there."""

import re
from collections.abc import Iterator, Mapping, Sequence

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import Problem
from p4sgd.build.check.sandbox import Call
from p4sgd.build.fpga.vitis import PLACE
from p4sgd.build.fpga.vivado import FLOORPLAN
from p4sgd.hw.spec.cmac import kernel_name
from p4sgd.hw.spec.selftest import KERNEL as SELFTEST
from p4sgd.hw.verilog import instances, modules
from p4sgd.hw.worker.worker import WORKER


def check_scripts(folder: Folder) -> Iterator[Problem]:
    """Scripts run to their end; cells and instances that are placed are there, and so are their dies."""
    for run in folder.runs.values():
        yield from run.problems
    for script in (PLACE, FLOORPLAN):
        if script in folder.runs:
            kernel, calls = SELFTEST if SELFTEST in folder.kernels else WORKER, folder.runs[script].calls
            yield from _cells(modules(folder.text(f"{folder.kernels[kernel]}.v")), folder.kernels[kernel], calls)
            yield from _dies(folder, calls)
    yield from _units(folder)


def _cells(bodies: Mapping[str, str], top: str, calls: Sequence[Call]) -> Iterator[Problem]:
    """Cells are instances of the kernel."""
    for call in calls:
        if call.command != "get_cells" or not call.others:
            continue
        for path in call.others[0].removeprefix("get_cells ").split():
            module: str | None = top
            for name in path.removeprefix("/").split("/"):
                inside = {own: kind for kind, own in instances(bodies.get(module or "", ""))}
                module = inside.get(name)
            if module is None:
                yield Problem(call.file, f"the Verilog has no {path}", call.line)


def _dies(folder: Folder, calls: Sequence[Call]) -> Iterator[Problem]:
    """Cells are placed on dies that the board has."""
    for call in calls:
        for die in re.findall(r"SLR(\d+)", " ".join(call.arguments)):
            if int(die) >= folder.board.dies:
                yield Problem(call.file, f"an {folder.board.name} has no SLR{die}", call.line)


def _units(folder: Folder) -> Iterator[Problem]:
    """Instances in link configurations are on dies that the board has, MACs on that of the transceivers."""
    for file in folder.ending(".cfg"):
        board, units = folder.board, set[str]()
        placed: dict[str, tuple[int | None, str]] = {}
        for number, line in enumerate(folder.text(file).splitlines(), 1):
            key, _, value = line.replace(" ", "").partition("=")
            name, _, rest = value.partition(":")
            if key == "nk":
                units |= {f"{name}_{index + 1}" for index in range(int(rest))}
            elif key == "slr":
                placed[name] = number, rest
        for unit, (at, die) in placed.items():
            if unit not in units:
                yield Problem(file, f"slr: there is no instance {unit}", at)
            elif die not in (f"SLR{index}" for index in range(board.dies)):
                yield Problem(file, f"slr: an {board.name} has no {die}", at)
        for unit in sorted(units & {f"{kernel_name(port)}_1" for port in range(len(board.cages))}):
            at, die = placed.get(unit, (None, "no die"))
            if die != f"SLR{board.network_die}":
                where = f"transceivers of an {board.name} are on SLR{board.network_die}"
                yield Problem(file, f"slr: {unit} is on {die}; {where}", at)
