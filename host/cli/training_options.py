"""Command-line options of training runs: one for every field of `TrainingOptions`, as it is declared there."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from p4sgd.host.cli.options import NameFrom
from p4sgd.host.errors import flag
from p4sgd.host.training.options import TrainingOptions, declarations

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _options_of(names: Iterable[str]) -> Callable[[_Command], _Command]:
    """Add an option for each of these fields."""
    wanted = set(names)
    fields = [field for field in dataclasses.fields(TrainingOptions) if field.name in wanted]

    def add(command: _Command) -> _Command:
        for field in reversed(fields):
            declared = declarations()[field.name]
            kind: Any = typing.get_args(field.type)[0] if isinstance(field.type, types.UnionType) else field.type
            command = click.option(
                flag(field.name),
                field.name,
                type=kind
                if declared.choices is None
                else NameFrom("loss" if field.name == "loss" else "choice", declared.choices),
                default=field.default,
                show_default=field.default is not None and field.name != "workers",
                metavar=declared.metavar,
                help=declared.for_command(),
            )(command)
        return command

    return add


training_options = _options_of(declarations())
"""Adds an option for every field of `TrainingOptions`."""

tuning_options = _options_of(name for name, declared in declarations().items() if declared.tuned)
"""Adds an option for every field of `TrainingOptions` that is the same in all runs of a search."""


def preparation_options(command: _Command) -> _Command:
    """Add an option for every field of `TrainingOptions` that prepared data depend on."""
    from p4sgd.host.streaming import OPTIONS

    return _options_of(OPTIONS)(command)


def report_option(command: _Command) -> _Command:
    """Add ``--report``."""
    return click.option(
        "--report",
        type=click.Path(path_type=Path),
        metavar="FILE.html",
        help="HTML page to write in the end: curves of the epochs, how good the model is, its largest coefficients, "
        "and where cycles are counted, what they went for. Needs pip install 'p4sgd[report]'.",
    )(command)
