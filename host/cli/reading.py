"""Options that say how data are to be read, for every command that reads some."""

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TypeVar

import click

from p4sgd.host.cli.options import NameFrom

__all__ = ["reading_options", "take_reading"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_NAMES = ("file_format", "label_column", "header", "delimiter", "zero_based")


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
