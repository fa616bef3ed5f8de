"""`p4sgd build check`: all checks of a generated folder, made without AMD's tools.

They tell within seconds what AMD's tools would find after minutes or hours, also in a folder that somebody has edited.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from p4sgd.build.check.block_design import check_block_design
from p4sgd.build.check.edits import check_edits
from p4sgd.build.check.files import check_manifest, check_paths, check_schema, check_verilog
from p4sgd.build.check.folder import Folder
from p4sgd.build.check.kernels import check_kernels
from p4sgd.build.check.links import check_links
from p4sgd.build.check.problem import NoToolError, Problem
from p4sgd.build.check.registers import check_ports
from p4sgd.build.check.scripts import check_scripts


@dataclass
class Report:
    """Result of the checks of a folder: problems in their order, checks that were made, and why others were not.

    ``remedies`` are what to do, by the names of the checks that have found something.
    """

    problems: list[Problem] = field(default_factory=list)
    remedies: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


class Check(NamedTuple):
    """A check of a `Folder`, and what to do about what it finds."""

    function: Callable[[Folder], Iterator[Problem]]
    remedy: str


CHECKS: Mapping[str, Check] = {
    "manifest": Check(check_manifest, "if the changes are meant, check with --edited; else generate the folder again"),
    "edits": Check(check_edits, "undo these edits, or change options or the source and generate the folder again"),
    "paths": Check(check_paths, "name files relative to the folder"),
    "schema": Check(check_schema, "give the element what UG1393 has for kernel.xml"),
    "verilog": Check(check_verilog, "mend the line, or change the component and generate the folder again"),
    "ports": Check(check_ports, "change the component and generate the folder again"),
    "scripts": Check(check_scripts, "make script and constraints fit the Verilog, the board and the kernel's XML"),
    "kernels": Check(check_kernels, "make the kernel's XML, packaging script and Verilog say the same"),
    "links": Check(check_links, "make link configuration, Makefile and cluster file name what kernels and board have"),
    "block design": Check(check_block_design, "make project.tcl and address_map.json connect every kernel alike"),
}
"""Checks in their order, by the names that a report has for them."""


def check(folder: Folder, checks: Mapping[str, Check] = CHECKS) -> Report:
    """Check a folder; OSError if a file cannot be read.

    A check that needs a program or package that is not installed is skipped. If a file is missing, which is always a
    problem, all checks but the one called ``manifest`` are.
    """
    missing = [name for name in folder.files if not (folder.path / name).is_file()]
    report = Report([Problem(name, "is missing") for name in missing])
    if missing:
        report.remedies["files"] = "generate the folder again"
    for name, (function, remedy) in checks.items():
        if missing and name != "manifest":
            report.skipped[name] = f"needs {missing[0]}, which is missing"
            continue
        try:
            found = list(function(folder))
        except NoToolError as error:
            report.skipped[name] = str(error)
            continue
        except ImportError as error:
            report.skipped[name] = f"needs the package {error.name}: pip install 'p4sgd[boards]'"
            continue
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # a file was changed beyond recognition
            text = f"{name}: cannot be followed ({type(error).__name__}: {error})"
            found = [Problem(str(folder.path), text)]
        report.done.append(name)
        report.problems += found
        if found:
            report.remedies[name] = remedy
    return report
