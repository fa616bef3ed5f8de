"""Options that several commands share: output, devices, faults, reading, and the file that options are read from."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError
from p4sgd.host.training.options import names_in

if TYPE_CHECKING:
    from p4sgd.hw.spec.config import WorkerConfig

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS_FILE = "p4sgd.options_file"


class NameFrom(click.ParamType):
    """The type of an option with a fixed set of values that is looked up only when needed, because of its imports.

    Parameters
    ----------
    what
        What the values name, for messages: ``loss``.
    where
        Where the values are, for `names_in`.
    """

    def __init__(self, what: str, where: str) -> None:
        self.name = what
        self._where = where

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The values, for ``--help``."""
        return f"[{'|'.join(names_in(self._where))}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse any other value and list the known ones."""
        known = list(names_in(self._where))
        if value not in known:
            from p4sgd.host.losses import ELSEWHERE

            here = f", which is {ELSEWHERE[value]} here" if self.name == "loss" and value in ELSEWHERE else ""
            text = f"there is no {self.name} {value!r}{here}: choose one of {', '.join(known)}"
            # Click calls an argument by its metavar, which is the whole list of values.
            hint = f"'{param.human_readable_name}'" if isinstance(param, click.Argument) else None
            raise click.BadParameter(text, ctx, param, hint)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The values that begin with what is typed."""
        return [CompletionItem(name) for name in names_in(self._where) if name.startswith(incomplete)]


class _Data(click.ParamType):
    """The type of a data set: a file, a folder or the name of a built-in data set."""

    name = "data"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The built-in data sets that begin with what is typed; if there are none, the shell completes files."""
        from p4sgd.host.data.builtin import BUILTIN

        names = [name for name in BUILTIN if incomplete and name.startswith(incomplete)]
        return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


data_name = _Data()
"""The type of an argument or an option that names data."""


hardware_configuration = NameFrom("configuration", "p4sgd.hw.spec.config:PRESETS")
"""The type of an option that names a configuration of hardware."""

configuration = NameFrom("configuration", "p4sgd.hw.spec.config:CONFIGURATIONS")
"""The type of an option that names a worker's configuration."""


def configured(name: str, slots: int | None) -> "WorkerConfig":
    """A worker's configuration by its name, with other slots if ``--slots`` says so."""
    from p4sgd.hw.spec.config import CONFIGURATIONS

    config = CONFIGURATIONS[name]()
    if slots is None:
        return config
    try:
        return dataclasses.replace(config, slots=slots)
    except ValueError as error:
        raise UserError(f"--{error}") from error


def configuration_option(command: _Command) -> _Command:
    """Add ``--config`` for commands that train."""
    return click.option(
        "--config",
        type=configuration,
        help="Configuration of each worker, which does not change the weights; by default small in simulation, on the "
        "emulator u280, and sparse for sparse data.",
    )(command)


class _Fault(click.ParamType):
    """``NAME=CHANCE``: a fault and its probability; ``where`` the names of the faults are, see `names_in`."""

    name = "NAME=CHANCE"

    def __init__(self, where: str) -> None:
        self._where = where

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Refuse unknown faults and values that are no probability."""
        from p4sgd.host.devices.faults import simulated_faults

        name, _, text = str(value).partition("=")
        if name not in (known := names_in(self._where)):
            self.fail(
                f"there is no fault {name!r}: choose one of {', '.join(known)}",
                param,
                ctx,
            )
        try:
            chance = float(text)
            simulated_faults({name: chance})
        except ValueError:
            self.fail(f"{name} needs a chance, as in {name}=0.01, not {text!r}", param, ctx)
        except UserError as error:
            self.fail(str(error), param, ctx)
        return name, chance


def _refuse_twice(
    ctx: click.Context, param: click.Parameter, values: tuple[tuple[str, float], ...]
) -> tuple[tuple[str, float], ...]:
    """Refuse a fault that is given twice."""
    names = [name for name, _ in values]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name} is given more than once: give it once", ctx, param)
    return values


_FRAMES = (
    "loss, duplication and reordering are of frames: in both directions (link_loss), only from the workers (up_loss), "
    "or only to them (down_loss); likewise burst_begin, burst_end and burst_loss, for bursts of losses."
)


def _faults(where: str, what: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--fault",
        type=_Fault(where),
        multiple=True,
        callback=_refuse_twice,
        help=f"Inject a fault {what} {_FRAMES}",
    )


fault_option = _faults(
    "p4sgd.host.devices.faults:faults",
    "with a probability, as in link_loss=0.01; may be repeated. memory_stall and link_stall stop a channel of a memory "
    "or of the network for a cycle, worker_pause a worker for up to 4096 cycles.",
)
"""Adds ``--fault``, a tuple of names and probabilities, for commands that simulate a cluster."""


def link_fault_option(command: _Command) -> _Command:
    """Add ``--fault``, a tuple of names and probabilities, and ``--seed``, for commands that start workers."""
    command = click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Seed of the random numbers of --fault.",
    )(command)
    what = "of the network with a probability, as in link_loss=0.02; may be repeated."
    return _faults("p4sgd.host.links.faulty:FAULTS", what)(command)


build_id_option = click.option(
    "--build-id",
    type=click.IntRange(0, (1 << 32) - 1),
    default=0,
    show_default=True,
    help="Value of the BUILD_ID registers.",
)
"""Adds ``--build-id`` for commands that make hardware."""

folder_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder to write.",
)
"""Adds ``--out`` for commands that write a folder."""


def overwrite_option(command: _Command) -> _Command:
    """Add ``--overwrite`` for commands that write models, or what cannot be told from a file of the user's."""
    return click.option("--overwrite", is_flag=True, help="Replace the file of --out if it exists.")(command)


device_kind = NameFrom("device", "p4sgd.host.devices:DEVICES")
"""The type of an option that names a kind of device."""


def output_options(*, json: bool = True, quiet: bool = True, file: bool = True) -> Callable[[_Command], _Command]:
    """Add ``--json``, ``--quiet`` and ``--options``, and give the command an `Output` as ``output``."""

    def add(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*, as_json: bool = False, quiet: bool = False, **values: Any) -> Any:
            return command(output=Output(as_json=as_json, quiet=quiet), **values)

        options = []
        if quiet:
            text = "Print only results, warnings and errors, no progress and no remarks."
            options.append(click.option("-q", "--quiet", is_flag=True, help=text))
        if json:
            text = "Print one JSON document on standard output."
            options.append(click.option("--json", "as_json", is_flag=True, help=text))
        if file:
            options.append(_options_option)
        for option in reversed(options):
            run = option(run)
        return run  # type: ignore[return-value]

    return add


common_options = output_options()
"""Adds all three."""


def _take_options_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Make the values in an options file the command's defaults."""
    if path is not None:
        ctx.meta[_OPTIONS_FILE] = path
        ctx.default_map = {**(ctx.default_map or {}), **_read_options(ctx, path)}


_options_option = click.option(
    "--options",
    type=click.Path(dir_okay=False, path_type=Path),
    expose_value=False,
    callback=_take_options_file,
    metavar="FILE.toml",
    help="Read options from this command's table in a TOML file; options on the command line take precedence.",
)


def options_file() -> Path | None:
    """The options file of the running command, if one was given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_OPTIONS_FILE)


def _read_options(ctx: click.Context, path: Path) -> Mapping[str, Any]:
    """The values that a file has for the parameters of the running command; errors name file and key."""
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read the options file: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error
    words = _words(ctx)
    _refuse_unknown_tables(ctx.find_root().command, document, path)
    table: Any = document
    for depth, word in enumerate(words):
        if word not in table:
            raise UserError(f"{path}: has no table [{'.'.join(words)}]")
        table = table[word]
        if not isinstance(table, dict):
            raise UserError(f"{path}: {'.'.join(words[: depth + 1])} must be a table")
    place = f"{path}: [{'.'.join(words)}]"
    known = {_key(param): param for param in ctx.command.params if param.expose_value}
    values = {}
    for key, value in table.items():
        param = known.get(key.replace("_", "-"))
        if param is None or param.name is None:
            raise UserError(f"{place} {key}: unknown option; there are {', '.join(sorted(known))}")
        values[param.name] = _check(ctx, param, value, f"{place} {key}")
    return values


def _words(ctx: click.Context) -> list[str]:
    """The words of the running command, without the program: ``["data", "synth"]``."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.command.name or "")
        ctx = ctx.parent
    return words


def _refuse_unknown_tables(command: click.Command, document: Mapping[str, Any], path: Path, prefix: str = "") -> None:
    """Refuse tables of no command: a file may serve several commands, but a misspelt table must not go unnoticed."""
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    commands = {name: each for name in command.list_commands(context) if (each := command.get_command(context, name))}
    takers = [name for name, each in commands.items() if _takes_options(each)]
    for name, table in document.items():
        if name not in takers:
            kind = "table" if isinstance(table, dict) else "key outside a table"
            known = ", ".join(f"[{prefix}{each}]" for each in takers)
            raise UserError(f"{path}: unknown {kind} {prefix}{name}; there are {known}")
        if isinstance(table, dict):
            _refuse_unknown_tables(commands[name], table, path, f"{prefix}{name}.")


def _takes_options(command: click.Command) -> bool:
    return isinstance(command, click.Group) or any(param.name == "options" for param in command.params)


def _key(param: click.Parameter) -> str:
    """A parameter's key in a file: the long option without its dashes, or the argument's name."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len).lstrip("-")
    return (param.name or "").replace("_", "-")


def _check(ctx: click.Context, param: click.Parameter, value: Any, place: str) -> Any:
    """The value as it would stand on the command line; its conversion is tried, so that errors name the file."""
    if isinstance(param, click.Option) and param.is_flag:
        if not isinstance(value, bool):
            raise UserError(f"{place}: must be true or false, not {value!r}")
        return value
    if param.multiple:
        return [_check_one(ctx, param, each, place) for each in (value if isinstance(value, list) else [value])]
    return _check_one(ctx, param, value, place)


def _check_one(ctx: click.Context, param: click.Parameter, value: Any, place: str) -> str:
    if isinstance(value, bool | dict | list):
        raise UserError(f"{place}: must be a text or a number, not {value!r}")
    text = str(value)
    try:
        param.type.convert(text, param, ctx)
    except click.BadParameter as error:
        raise UserError(f"{place}: {error.message}") from error
    return text


def cluster_option(command: _Command) -> _Command:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help="With --device cluster: the file with the addresses of its workers and its aggregator (see "
        "host/aggregators/README.md), by default that of the local cluster (p4sgd cluster up).",
    )(command)


_READING_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "file_format": click.option(
        "--format",
        "file_format",
        type=NameFrom("format", "p4sgd.host.data.read:FORMATS"),
        help="Format of the data files; by default it is found out from the name or the first bytes.",
    ),
    "label_column": click.option(
        "--label-column",
        metavar="COLUMN",
        multiple=True,
        help="Label column of a table: its header, or its number from 1 (-1 is the last); by default a column called "
        "label, target, class or y, else the last one. May be repeated for several targets, of which each becomes a "
        "row of the model.",
    ),
    "weight_column": click.option(
        "--weight-column",
        metavar="COLUMN",
        help="Column of a table with the weights of samples, at least 0: its header or its number. Vowpal Wabbit's "
        "importance and the array weights of an NPZ file are weights without it.",
    ),
    "ignore_columns": click.option(
        "--ignore-column",
        "ignore_columns",
        metavar="COLUMN",
        multiple=True,
        help="Column of a table that is not a feature, such as an ID: its header or its number; may be repeated.",
    ),
    "header": click.option(
        "--header/--no-header",
        default=None,
        help="Whether the first line of a CSV file has the names of the columns; by default it is found out.",
    ),
    "delimiter": click.option(
        "--delimiter",
        metavar="CHARACTER",
        help="Character between the fields of a CSV file; by default it is found out.",
    ),
    "zero_based": click.option(
        "--zero-based/--one-based",
        default=None,
        help="Whether the first feature of a LIBSVM file has the number 0 or 1; by default as in the training data, "
        "or 0 if there is a feature 0.",
    ),
    "hash_bits": click.option(
        "--hash-bits",
        type=int,
        metavar="N",
        help="Hash features to 2^N columns: the names of a Vowpal Wabbit file (by default as in the training data, or "
        "to 2^18), or the numbers of a LIBSVM file, modulo 2^N.",
    ),
}
"""Options that say how data files are read, by argument of `p4sgd.host.data.read_dataset`."""


def reading_options(command: _Command) -> _Command:
    """Add the options that say how data files are read."""
    for option in reversed(_READING_OPTIONS.values()):
        command = option(command)
    return command


def take_reading(choices: MutableMapping[str, Any]) -> dict[str, Any]:
    """Remove the values of `reading_options` from a command's; returns arguments of `p4sgd.host.data.read_dataset`."""
    reading = {name: choices.pop(name) for name in _READING_OPTIONS}
    columns = reading["label_column"]
    reading["label_column"] = columns[0] if len(columns) == 1 else list(columns) or None
    return reading


def is_given(name: str) -> bool:
    """Whether a parameter of the running command was given, on the command line or in an options file."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's values that were given; the others are defaults."""
    return {name: value for name, value in values.items() if is_given(name)}
