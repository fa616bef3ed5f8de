"""All checks of a folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

from p4sgd.build.check.block_design import check_block_design
from p4sgd.build.check.folder import Folder, open_folder
from p4sgd.build.check.kernels import check_kernels
from p4sgd.build.check.links import check_links
from p4sgd.build.check.manifest import check_manifest
from p4sgd.build.check.paths import check_paths
from p4sgd.build.check.report import Problem, Report
from p4sgd.build.check.schema import check_schema
from p4sgd.build.check.scripts import NoTclError
from p4sgd.build.check.tcl import check_scripts

__all__ = ["CHECKS", "check"]

CHECKS: dict[str, Callable[[Folder], Iterator[Problem]]] = {
    "manifest": check_manifest,
    "paths": check_paths,
    "schema": check_schema,
    "scripts": check_scripts,
    "kernels": check_kernels,
    "links": check_links,
    "block design": check_block_design,
}
"""Checks by name, in their order."""


def check(path: Path) -> Report:
    """Check a folder that `p4sgd build` made.

    A check that needs something this machine lacks is skipped, with the reason.

    Raises
    ------
    NotGeneratedError
        If the folder is none.
    OSError
        If a file cannot be read.
    """
    folder = open_folder(path)
    report = Report()
    for name, function in CHECKS.items():
        try:
            report.add(name, list(function(folder)))
        except NoTclError as error:
            report.skipped[name] = str(error)
        except ImportError as error:
            report.skipped[name] = f"needs the package {error.name}: pip install 'p4sgd[boards]'"
    return report
