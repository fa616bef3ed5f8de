"""What the commands that write a folder for a board have in common."""

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from p4sgd.host.cli.options import NameFrom, common_options, configuration
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

__all__ = ["board_of", "board_options", "needed", "show", "written"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_NOT_DRIVEN = "p4sgd itself cannot train on a worker with UDP yet."


def _boards() -> Iterable[str]:
    from p4sgd.build.vitis.shell import SHELLS

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
    from p4sgd.build.devices import BOARDS

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
    from p4sgd.build.artifacts import ForeignFolderError

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
