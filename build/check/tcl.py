"""Do the scripts run, and is what they name there?"""

from collections.abc import Iterator

from p4sgd.build.check.cells import check_cells
from p4sgd.build.check.folder import Folder
from p4sgd.build.check.ip import check_parameters
from p4sgd.build.check.packaging import check_package
from p4sgd.build.check.report import Problem
from p4sgd.build.check.scripts import Call

__all__ = ["check_scripts"]


def check_scripts(folder: Folder) -> Iterator[Problem]:
    """Tcl runs to its end; files, parameters of IP, what kernels are packed with, and cells in constraints are there.

    Raises
    ------
    NoTclError
        If there is no Tcl here.
    """
    for script, run in folder.runs.items():
        yield from run.problems
        for call in run.calls:
            yield from _files(folder, call)
        yield from check_parameters(run.calls)
        kernel = script.removeprefix("package_").removesuffix(".tcl")
        if kernel in folder.kernels:
            yield from check_package(folder, kernel, run)
    yield from check_cells(folder)


def _files(folder: Folder, call: Call) -> Iterator[Problem]:
    name = call.file_read
    if call.command == "package_xo":
        name = (call.option("kernel_xml") or "").rpartition("/")[2]
    if name is not None and name not in folder.ending(""):
        yield Problem(call.file, f"{call.command} names {name}, which is no file of the folder", call.line)
