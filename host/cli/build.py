"""Commands `p4sgd build`: folders for AMD's tools, their check, and demonstrations for a card."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError
from p4sgd.host.training.options import names_in

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SHELLS = "p4sgd.build.generate.boards:BOARDS"
"""Boards that `build vitis` makes folders for."""

_PINS = "p4sgd.build.fpga.vivado:PINS"
"""Boards that `build vivado` makes folders for."""


def _board_options(boards: str, *, config_required: bool = True) -> Callable[[_Command], _Command]:
    """The options of commands that make folders for boards, whose names are in ``boards``, for `names_in`."""
    return options.together(
        options.common,
        click.option(
            "--config",
            "name",
            type=options.hardware_configuration,
            required=config_required,
            help="Configuration of the worker.",
        ),
        click.option(
            "--board",
            type=options.NameFrom("board", boards),
            help="Board; by default the one that the configuration is for.",
        ),
        options.folder,
        click.option(
            "--cable",
            type=options.NameFrom("cable", "p4sgd.build.fpga.cmac:CABLES"),
            help="What is plugged into the QSFP28 cage: the MAC's receivers are made for it. By default the IP's own "
            "setting, which is between the two.",
        ),
        options.build_id,
    )


def _board_of(name: str | None, board: str | None, where: str) -> str:
    """The board that is named, or that the configuration is for, one of those in ``where``."""
    from p4sgd.build.generate.boards import BOARD_OF

    boards = list(names_in(where))
    known, found = "|".join(boards), board or BOARD_OF.get(name or "")
    if found in boards:
        return str(found)
    if name is None:
        raise UserError(f"for which board? name it with --board {known}")
    if found is None:
        raise UserError(f"configuration {name} is for no board: name one with --board {known}")
    raise UserError(f"configuration {name} is for {found}, for which there is no folder yet: name --board {known}")


@contextmanager
def writing(out: Path, *refused: type[Exception]) -> Iterator[None]:
    """Tell the user if a folder cannot be written or holds files of others, and of errors that are ``refused``."""
    from p4sgd.build.generate.artifacts import ForeignFolderError

    reported: tuple[type[Exception], ...] = (ForeignFolderError, *refused)
    try:
        yield
    except reported as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{out}: cannot write: {error.strerror or error}") from error


def _build(output: Output, board: str, out: Path, facts: dict[str, Any], commands: list[str], **how: Any) -> Any:
    """Have Vitis' folder made and print its files and the next commands; returns the description of the xclbin."""
    with output.working(f"making the kernels for {board}"):
        from p4sgd.build.fpga.vitis import build

        with writing(out, ValueError):
            files, xclbin = build(facts["config"], out, board=board, **how)
    facts |= {"board": board, "kernels": list(xclbin.kernels)}
    if xclbin.memory and not how.get("self_test"):
        facts["image_bytes"] = xclbin.memory.image_bytes
    _show(output, out, files, facts, [command.format(xclbin=f"out/hw/{xclbin.name}.xclbin") for command in commands])
    return xclbin


def _show(output: Output, out: Path, files: list[Path], facts: dict[str, Any], commands: list[str]) -> None:
    commands = [f"p4sgd build check {shlex.quote(str(out))}", f"cd {shlex.quote(str(out))}", *commands]
    output.document({**facts, "out": str(out), "files": [file.name for file in files], "next": commands})
    output.files(files)
    for line in ("next:", *(f"  {command}" for command in commands)):
        output.say(line)


@click.command()
@click.option("--aggregator", is_flag=True, help="Build an aggregator between the board's ports instead of a worker.")
@click.option(
    "--debug",
    is_flag=True,
    help="Add debug cores: logic analysers of memory ports, streams, dots and sums, and the state of the link.",
)
@_board_options(_SHELLS, config_required=False)
def vitis(name: str | None, board: str | None, out: Path, aggregator: bool, output: Output, **how: Any) -> None:
    """Write the folder from which Vitis builds the xclbin of a board.

    It has the kernels with their descriptions and scripts, link configurations for v++, a Makefile and a README.
    """
    if aggregator and name is not None:
        raise UserError("--config is for workers, not for --aggregator: name the board with --board instead")
    if not aggregator and name is None:
        raise click.MissingParameter(param_hint="'--config'", param_type="option")
    board = _board_of(name, board, _SHELLS)
    xclbin = _build(output, board, out, {"config": name}, ["make check", "make"], **how)
    if xclbin.memory:
        output.say(f"largest memory image of a worker: {xclbin.memory.image_bytes >> 20:,} MiB")


@click.command()
@_board_options(_SHELLS)
def selftest(name: str, board: str | None, out: Path, output: Output, **how: Any) -> None:
    """Write the folder from which Vitis builds a test of a board.

    The xclbin has the memory ports of the configuration's worker, at the same memories and on the same dies, and the
    MACs of all cages. `p4sgd doctor --self-test` loads it, and says how fast and how right they are. It is much smaller
    than a worker, so build it first.
    """
    board = _board_of(name, board, _SHELLS)
    commands = ["make check", "make", "p4sgd doctor --self-test {xclbin}"]
    _build(output, board, out, {"config": name}, commands, self_test=True, **how)


@click.command()
@click.option(
    "--megahertz",
    type=click.IntRange(1, 1000),
    default=250,
    help="Clock for reports of the worker and an engine on their own; the bitstream has 250 MHz.",
)
@_board_options(_PINS)
def vivado(name: str, board: str | None, out: Path, megahertz: int, output: Output, **how: Any) -> None:
    """Write the folder from which Vivado alone builds a bitstream.

    There is no shell on the board: a project connects the worker to PCI Express, HBM and a MAC. Further scripts
    implement the worker and an engine on their own, for reports of size and timing.
    """
    board = _board_of(name, board, _PINS)
    with output.working(f"making the project for {board}"):
        from p4sgd.build.fpga.vivado import build

        with writing(out, ValueError):
            files = build(name, out, board=board, megahertz=megahertz, **how)
    facts = {"config": name, "board": board, "megahertz": megahertz}
    _show(output, out, files, facts, ["make check", "make engine", "make bitstream"])


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@options.output(file=False)
def check(folder: Path, output: Output) -> None:
    """Check a folder for Vitis or Vivado.

    None of AMD's tools is needed. The files are unchanged, none names a path of this machine, the XML of the kernels
    conforms to its schema, Verilator accepts the Verilog without a warning, and the scripts run in a Tcl interpreter
    with stand-ins for Vivado's commands. A check is skipped if the program that it needs is not installed.
    """
    with output.working(f"checking {folder}"):
        from p4sgd.build.fpga import check as checks

        try:
            report = checks.check(checks.open_folder(folder))
        except checks.NotGeneratedError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{error.filename or folder}: cannot read: {error.strerror or error}") from error
    problems = [problem._asdict() for problem in report.problems]
    output.document({"folder": str(folder), "done": report.done, "skipped": report.skipped, "problems": problems})
    for name, reason in report.skipped.items():
        output.say(f"{name}: skipped: {reason}")
    for problem in report.problems:
        output.say(str(problem))
    if problems:
        raise UserError(f"{folder}: {len(problems)} problems: generate the folder again, or report this")
    output.say(f"nothing wrong: {', '.join(report.done)}")


@click.command()
@click.argument("name", type=click.Choice(["heartbeat"]))
@options.folder
@options.common
def demo(name: str, out: Path, output: Output) -> None:
    """Write a small design that tests an Alveo U280.

    heartbeat sends the number of seconds over the card's serial port (USB, 115200 baud). It is built by Vivado alone
    and replaces the card's shell until it is started again.
    """
    with output.working(f"making the demonstration {name}"):
        from p4sgd.build.fpga import heartbeat

        with writing(out):
            files = heartbeat.generate(out)
    commands = [f"sh build_{name}.sh", f"vivado -mode batch -source {heartbeat.PROGRAM}"]
    output.document({"demonstration": name, "out": str(out), "files": [file.name for file in files], "next": commands})
    output.files(files)
    output.say(f"next, in {out}, with Vivado: {commands[0]}, then, with a card: {commands[1]}")


@click.group()
def build() -> None:
    """Write or check folders for AMD's tools."""


for _command in (vitis, vivado, selftest, check, demo):
    build.add_command(_command)
