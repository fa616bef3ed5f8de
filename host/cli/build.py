"""The command `p4sgd build`: folders for the tools of an FPGA's vendor.

What the commands that write a folder for a board have in common.

The command `p4sgd build vitis`.

The command `p4sgd build vivado`.

The command `p4sgd build check`.

The command `p4sgd build demo`.

The command `p4sgd build`: folders for the tools of an FPGA's vendor.
"""

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from p4sgd.host.cli.options import NameFrom, common_options, configuration, json_option, quiet_option
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

__all__ = ["board_of", "board_options", "build", "check", "demo", "needed", "show", "vitis", "vivado", "written"]


_Command = TypeVar("_Command", bound=Callable[..., Any])

_NOT_DRIVEN = "p4sgd itself cannot train on a worker with UDP yet."


def _boards() -> Iterable[str]:
    from p4sgd.build.fpga.link import SHELLS

    return SHELLS


def board_options(command: _Command) -> _Command:
    """Add the options that say what is made, for which board, and where."""
    for option in (
        click.option(
            "--build-id",
            type=click.IntRange(0, (1 << 32) - 1),
            default=0,
            show_default=True,
            help="Number that the BUILD_ID registers give.",
        ),
        click.option(
            "--udp", is_flag=True, help=f"Have packets travel in UDP, for networks with routers. {_NOT_DRIVEN}"
        ),
        click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write."),
        click.option(
            "--board",
            type=NameFrom("board", _boards),
            help="Board; if not given, the one that the configuration is for.",
        ),
        click.option("--config", "name", type=configuration, help="Configuration of the worker."),
    ):
        command = option(command)
    return common_options(command)


def needed(name: str | None) -> str:
    """The configuration of a worker, which must be given.

    Raises
    ------
    click.MissingParameter
        If it is not.
    """
    if name is None:
        raise click.MissingParameter(param_hint="'--config'", param_type="option")
    return name


def board_of(name: str | None, board: str | None) -> str:
    """The board that is meant.

    Raises
    ------
    UserError
        If a configuration is for another board than there are shells for, or for none, and no board is named.
    """
    from p4sgd.build.generate.devices import BOARDS

    if name is None and board is None:
        raise UserError(f"for which board? name it with --board {'|'.join(_boards())}")
    found = board or BOARDS.get(name or "")
    if found is None:
        raise UserError(f"configuration {name} is for no board: name one with --board {'|'.join(_boards())}")
    if found not in _boards():
        raise UserError(f"configuration {name} is for {found}, for which there is no folder yet: name --board u280")
    return found


def written(out: Path, write: Callable[[], Any]) -> Any:
    """Carry out what writes a folder; what goes wrong is the user's to mend.

    Raises
    ------
    UserError
        If the folder is someone else's or cannot be written, or the worker does not fit the board.
    """
    from p4sgd.build.generate.artifacts import ForeignFolderError

    try:
        return write()
    except ForeignFolderError as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{out}: cannot write: {error.strerror or error}") from error


def show(
    output: Output, out: Path, files: list[Path], facts: dict[str, Any], commands: list[str], *, udp: bool
) -> None:
    """Say what was written, and what to do next."""
    commands = [f"p4sgd build check {shlex.quote(str(out))}", f"cd {shlex.quote(str(out))}", *commands]
    output.document({**facts, "out": str(out), "files": [file.name for file in files], "next": commands})
    output.table(["file", "bytes"], [(file.name, f"{file.stat().st_size:,}") for file in files])
    if udp:
        output.say(_NOT_DRIVEN)
    output.say("next:")
    for command in commands:
        output.say(f"  {command}")


@click.command()
@click.option("--aggregator", is_flag=True, help="Have the board be an aggregator between its ports, and no worker.")
@board_options
def vitis(
    name: str | None,
    board: str | None,
    out: Path,
    aggregator: bool,
    udp: bool,
    build_id: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the folder from which Vitis makes a board's image.

    Kernels with their descriptions and scripts, what v++ links, a Makefile and a README. DIR is written whole or not at
    all. An earlier output is replaced; a folder with other files in it is refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    if aggregator and name is not None:
        raise UserError("--config is of workers, and an aggregator is none: name the board with --board instead")
    board = board_of(name if aggregator else needed(name), board)
    with output.working(f"making the kernels for {board}"):
        from p4sgd.build.fpga.vitis import build

        files, image = written(out, lambda: build(name, out, board=board, udp=udp, build_id=build_id))
    facts = {"config": name, "board": board, "kernels": list(image.kernels)}
    if image.memory:
        facts["image_bytes"] = image.memory.image_bytes
    show(output, out, files, facts, ["make check", "make"], udp=udp)
    if image.memory:
        output.say(f"the largest image of a worker is {image.memory.image_bytes >> 20:,} MiB, labels apart")


@click.command()
@click.option(
    "--megahertz",
    type=click.IntRange(1, 1000),
    default=250,
    show_default=True,
    help="Clock that a worker and an engine alone are tried with; the board's image has 250 MHz.",
)
@board_options
def vivado(
    name: str | None,
    board: str | None,
    out: Path,
    megahertz: int,
    udp: bool,
    build_id: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the folder from which Vivado makes reports of a worker, and an image of a board without a shell.

    Scripts that try the worker and an engine alone, a project with PCI Express, HBM, the worker and a MAC, a Makefile
    and a README. DIR is written whole or not at all. An earlier output is replaced; a folder with other files in it is
    refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    config = needed(name)
    board = board_of(config, board)
    with output.working(f"making the project for {board}"):
        from p4sgd.build.fpga.vivado import build

        files = written(out, lambda: build(config, out, board=board, megahertz=megahertz, udp=udp, build_id=build_id))
    facts = {"config": config, "board": board, "megahertz": megahertz}
    show(output, out, files, facts, ["make check", "make engine", "make image"], udp=udp)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
@quiet_option
def check(folder: Path, as_json: bool, quiet: bool) -> None:
    """Check a folder made by `build vitis` or `build vivado`, without AMD's tools.

    The files are those that were generated, none names a path of this machine, kernel.xml conforms to its schema,
    Verilator accepts the Verilog without a warning, and the scripts run in a Tcl interpreter with stand-ins for the
    commands of Vivado. A check is skipped, with a message, if the program it needs is not installed.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"checking {folder}"):
        from p4sgd.build.fpga.check import NotGeneratedError, open_folder
        from p4sgd.build.fpga.check import check as check_folder

        try:
            report = check_folder(open_folder(folder))
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


@click.command()
@click.argument("name", type=click.Choice(["heartbeat", "loopback"]))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write.")
@common_options
def demo(name: str, out: Path, as_json: bool, quiet: bool) -> None:
    """Write a small design that tries out an Alveo U280 alone.

    heartbeat counts seconds by the card's serial port (USB, 115200 baud). loopback sends frames through the Ethernet
    MAC of the first QSFP28 cage and its transceivers back to itself, and tells by that port how many came. Both are
    for Vivado without Vitis: the card has no shell until it starts again.
    DIR is written whole or not at all. An earlier output is replaced; a folder with other files in it is refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"making the demonstration {name}"):
        from p4sgd.build.demos import demonstrations
        from p4sgd.build.generate.artifacts import ForeignFolderError

        try:
            files = demonstrations.generate(name, out)
        except ForeignFolderError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{out}: cannot write: {error.strerror or error}") from error
    commands = [f"sh build_{name}.sh", f"vivado -mode batch -source {demonstrations.PROGRAM}"]
    output.document({"demonstration": name, "out": str(out), "files": [file.name for file in files], "next": commands})
    output.table(["file", "bytes"], [(file.name, f"{file.stat().st_size:,}") for file in files])
    output.say(f"next, in {out}, with Vivado: {commands[0]}, then, with a card: {commands[1]}")


@click.group()
def build() -> None:
    """Write what AMD's tools make a board's image from, or check it."""


for _command in (vitis, vivado, check, demo):
    build.add_command(_command)
