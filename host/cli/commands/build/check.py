"""The command `p4sgd build check`."""

from pathlib import Path

import click

from p4sgd.host.cli.options import json_option, quiet_option
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

__all__ = ["check"]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
@quiet_option
def check(folder: Path, as_json: bool, quiet: bool) -> None:
    """Check a folder for AMD's tools, without these.

    Files, paths, the form of XML, Verilog (by Verilator), scripts (run by Tcl with stand-ins for the vendor's
    commands), ports and registers of the kernels, what is linked to what, and the Makefile. A check that needs
    something that is not here is skipped, and says so.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"checking {folder}"):
        from p4sgd.build.check import checks
        from p4sgd.build.check.folder import NotGeneratedError

        try:
            report = checks.check(folder)
        except NotGeneratedError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{error.filename or folder}: cannot read: {error.strerror or error}") from error
    output.document(
        {
            "folder": str(folder),
            "done": report.done,
            "skipped": report.skipped,
            "problems": [problem._asdict() for problem in report.problems],
        }
    )
    for name, reason in report.skipped.items():
        output.say(f"{name}: skipped: {reason}")
    for problem in report.problems:
        output.say(str(problem))
    if report.problems:
        raise UserError(f"{folder}: {len(report.problems)} problems: generate it again, or report this")
    output.say(f"nothing wrong: {', '.join(report.done)}")
