"""Options that say how data are to be read, for every command that reads some."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

import click

from p4sgd.host.cli.options import NameFrom
from p4sgd.host.errors import UserError

__all__ = ["check_reading", "reading_options", "take_reading"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_NAMES = ("file_format", "label_column", "ignore_columns", "header", "delimiter", "zero_based")


def _formats() -> Iterable[str]:
    from p4sgd.host.data.read import FORMATS

    return FORMATS


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--format",
        "file_format",
        type=NameFrom("format", _formats),
        help="Format of the data files; if not given, seen from the name or the first bytes.",
    ),
    click.option(
        "--label-column",
        metavar="COLUMN",
        help="Label column of a table: its header, or its number from 1 (-1 is the last); "
        "if not given, a column called label, target, class or y, else the last.",
    ),
    click.option(
        "--ignore-column",
        "ignore_columns",
        metavar="COLUMN",
        multiple=True,
        help="Column of a table that is no feature, such as a number of the sample, named likewise; may be given more "
        "than once.",
    ),
    click.option(
        "--header/--no-header", default=None, help="Whether the first line of a CSV file has names; seen if not given."
    ),
    click.option(
        "--delimiter", metavar="CHARACTER", help="What separates the fields of a CSV file; seen if not given."
    ),
    click.option(
        "--zero-based/--one-based",
        default=None,
        help="Number of the first feature of a LIBSVM file; if not given, that of the training data, or 0 if there is "
        "a feature 0.",
    ),
)


def reading_options(command: _Command) -> _Command:
    """Add the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_reading(choices: MutableMapping[str, Any]) -> dict[str, Any]:
    """Take the options' values out of a command's; returns arguments for `p4sgd.host.data.read_dataset`."""
    return {name: choices.pop(name) for name in _NAMES}


def check_reading(reading: Mapping[str, Any], sources: Iterable[str | None]) -> None:
    """Refuse options that say nothing about any of the data.

    Parameters
    ----------
    reading
        Arguments of `p4sgd.host.data.read_dataset`.
    sources
        The data that are read with them, as the user names them; ``None`` is none.

    Raises
    ------
    UserError
        If an option is for other formats; or if there is no such file, or its format is not to be seen.
    """
    from p4sgd.host.data.read import HEEDED, find_format, is_builtin

    given = [name for name, value in reading.items() if name != "file_format" and (value or value is False)]
    if not given:
        return
    heeded: set[str] = set()
    kinds = []
    for source in sources:
        if source is None:
            continue
        if reading["file_format"] is None and is_builtin(source):
            kinds.append(f"{source} is built in")
        elif Path(source).is_dir():
            kinds.append(f"{source} is prepared already")
        else:
            file_format, _ = find_format(source, reading["file_format"])
            heeded.update(HEEDED[file_format])
            kinds.append(f"{source} is {file_format}")
    for name in given:
        if name not in heeded:
            formats = ", ".join(each for each, names in HEEDED.items() if name in names)
            raise UserError(f"{_option(name)} is for {formats}, but {' and '.join(kinds)}: leave it out")


def _option(name: str) -> str:
    """An argument of `read_dataset` as the user gives it."""
    params = {param.name: param for param in click.get_current_context().command.params}
    return "/".join([*params[name].opts, *params[name].secondary_opts])
