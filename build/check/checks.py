"""All checks of a folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

from p4sgd.build.check.block_design import check_block_design
from p4sgd.build.check.folder import Folder, open_folder
from p4sgd.build.check.kernels import check_kernels
from p4sgd.build.check.links import check_links
from p4sgd.build.check.lint import check_verilog
from p4sgd.build.check.makefile import check_makefile
from p4sgd.build.check.manifest import check_manifest
from p4sgd.build.check.paths import check_paths
from p4sgd.build.check.report import NoToolError, Problem, Report
from p4sgd.build.check.schema import check_schema
from p4sgd.build.check.tcl import check_scripts

__all__ = ["CHECKS", "check"]

CHECKS: dict[str, Callable[[Folder], Iterator[Problem]]] = {
    "manifest": check_manifest,
    "paths": check_paths,
    "schema": check_schema,
    "verilog": check_verilog,
    "scripts": check_scripts,
    "kernels": check_kernels,
    "links": check_links,
    "makefile": check_makefile,
    "block design": check_block_design,
}
"""Checks by name, in their order."""


def check(path: Path) -> Report:
    """Check a folder that `p4sgd build` made.

    A check that needs something this machine lacks is skipped, with the reason; so are all but the first if a file is
    missing.

    Raises
    ------
    NotGeneratedError
        If the folder is none.
    OSError
        If a file cannot be read.
    """
    folder = open_folder(path)
    report = Report()
    missing = [name for name in folder.files if not (folder.path / name).is_file()]
    for name, function in CHECKS.items():
        if missing and function is not check_manifest:
            report.skipped[name] = f"needs {missing[0]}, which is missing"
            continue
        found: list[Problem] = []
        try:
            for problem in function(folder):
                found.append(problem)
        except NoToolError as error:
            report.skipped[name] = str(error)
            continue
        except ImportError as error:
            report.skipped[name] = f"needs the package {error.name}: pip install 'p4sgd[boards]'"
            continue
        except (LookupError, ValueError) as error:
            # Of a file that was changed so much; the first check has told which.
            found.append(Problem(str(path), f"{name}: cannot be followed ({type(error).__name__}: {error})"))
        report.add(name, found)
    return report
