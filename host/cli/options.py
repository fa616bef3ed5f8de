"""What the commands' options have in common: an options file, output modes, names that are looked up late.

What the commands' options have in common: an options file, output modes, names that are looked up late.

`--cluster`: which cluster a command is for.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.aggregators.cluster_file import Cluster

__all__ = [
    "CLUSTER",
    "NameFrom",
    "cluster_option",
    "common_options",
    "configuration",
    "configuration_option",
    "device_kind",
    "fault_option",
    "find_cluster",
    "is_given",
    "json_option",
    "options_file",
    "quiet_option",
]


_Command = TypeVar("_Command", bound=Callable[..., Any])


_OPTIONS_FILE = "p4sgd.options_file"


class NameFrom(click.ParamType):
    """One of a set of names that is looked up when needed, because knowing it means importing something.

    Parameters
    ----------
    what
        What the names stand for, for messages: ``loss``.
    names
        Gives the names.
    """

    def __init__(self, what: str, names: Callable[[], Iterable[str]]) -> None:
        self.name = what
        self._names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The names, for ``--help``."""
        return f"[{'|'.join(self._names())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse other names, saying which there are."""
        known = list(self._names())
        if value not in known:
            text = f"there is no {self.name} {value!r}; there are {', '.join(known)}"
            # Click would call an argument by its metavar, which is the whole list of names.
            hint = f"'{param.human_readable_name}'" if isinstance(param, click.Argument) else None
            raise click.BadParameter(text, ctx, param, hint)
        return str(value)


def _presets() -> Iterable[str]:
    from p4sgd.hw.spec.config import PRESETS

    return PRESETS


configuration = NameFrom("configuration", _presets)
"""Type of an option that names a worker's configuration."""


def _devices() -> Iterable[str]:
    from p4sgd.host.devices import DEVICES

    return DEVICES


def configuration_option(command: _Command) -> _Command:
    """Add ``--config`` for commands that train."""
    return click.option(
        "--config",
        type=configuration,
        help="Configuration of each worker; if not given, the largest of u280 (on the emulator), small and tiny "
        "in which every worker has features.",
    )(command)


class _Fault(click.ParamType):
    """``NAME=CHANCE``: a fault of the simulated cluster, and how often."""

    name = "NAME=CHANCE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Refuse other names, saying which there are, and what is no chance."""
        from p4sgd.host.devices.faults import faults, simulated_faults

        name, _, text = str(value).partition("=")
        if name not in faults():
            self.fail(f"there is no fault {name!r}; there are {', '.join(faults())}", param, ctx)
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
    """Refuse two chances of one fault."""
    names = [name for name, _ in values]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name} is given more than once: say it once", ctx, param)
    return values


def fault_option(command: _Command) -> _Command:
    """Add ``--fault``, whose value is a tuple of names and chances, for commands that simulate a cluster."""
    return click.option(
        "--fault",
        type=_Fault(),
        multiple=True,
        callback=_refuse_twice,
        help="Disturb memories, cables or workers by chance; may be given more than once. memory_stall and link_stall "
        "hold a channel for a cycle, worker_pause a worker for up to 4096; loss, duplication and reordering are of "
        "frames, on both ways (link_loss), from the workers only (up_loss), or to them (down_loss); burst_begin, "
        "burst_end and burst_loss likewise.",
    )(command)


def overwrite_option(command: _Command) -> _Command:
    """Add ``--overwrite`` for commands whose ``--out`` looks like any file of the user's."""
    return click.option("--overwrite", is_flag=True, help="Replace the file of --out if it is there.")(command)


device_kind = NameFrom("device", _devices)
"""Type of an option that names a kind of device."""


def json_option(command: _Command) -> _Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")(command)


def quiet_option(command: _Command) -> _Command:
    """Add ``--quiet``: nothing on standard error but errors; see `p4sgd.host.cli.output`."""
    return click.option("-q", "--quiet", is_flag=True, help="No progress and no remarks, only results and errors.")(
        command
    )


def common_options(command: _Command) -> _Command:
    """Add ``--json``, ``--quiet`` and ``--options``, which every command with options of its own has."""
    command = click.option(
        "--options",
        type=click.Path(dir_okay=False, path_type=Path),
        expose_value=False,
        callback=_take_options_file,
        metavar="FILE.toml",
        help="Take options from this command's table of a TOML file; the command line overrides them.",
    )(command)
    return quiet_option(json_option(command))


def _take_options_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Make the values of an options file the command's defaults."""
    if path is not None:
        ctx.meta[_OPTIONS_FILE] = path
        ctx.default_map = {**(ctx.default_map or {}), **_read_options(ctx, path)}


def options_file() -> Path | None:
    """The options file of the running command, if it has one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_OPTIONS_FILE)


def _read_options(ctx: click.Context, path: Path) -> Mapping[str, Any]:
    """Values for the parameters of the running command, by parameter name.

    Raises
    ------
    UserError
        If the file cannot be read, or a table, key or value is not the command's; the message names file and key.
    """
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
    """The command as the user names it, without the program: ``["data", "synth"]``."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.command.name or "")
        ctx = ctx.parent
    return words


def _refuse_unknown_tables(command: click.Command, document: Mapping[str, Any], path: Path, prefix: str = "") -> None:
    """A file may serve several commands, but a misspelt table must not go unnoticed."""
    if not isinstance(command, click.Group):
        return
    takers = [name for name, each in command.commands.items() if _takes_options(each)]
    for name, table in document.items():
        if name not in takers:
            kind = "table" if isinstance(table, dict) else "key outside a table"
            known = ", ".join(f"[{prefix}{each}]" for each in takers)
            raise UserError(f"{path}: unknown {kind} {prefix}{name}; there are {known}")
        if isinstance(table, dict):
            _refuse_unknown_tables(command.commands[name], table, path, f"{prefix}{name}.")


def _takes_options(command: click.Command) -> bool:
    return isinstance(command, click.Group) or any(param.name == "options" for param in command.params)


def _key(param: click.Parameter) -> str:
    """A parameter's key in a file: the long option without its dashes, an argument's name."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len).lstrip("-")
    return (param.name or "").replace("_", "-")


def _check(ctx: click.Context, param: click.Parameter, value: Any, place: str) -> Any:
    """The value as it could stand on the command line, after a trial conversion."""
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


CLUSTER = "cluster"
"""Name of the device that a cluster file describes."""


def cluster_option(command: _Command) -> _Command:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help="With --device cluster: where its workers and its aggregator are; see host/aggregators/README.md.",
    )(command)


def find_cluster(device: str, path: Path | None) -> "Cluster | None":
    """The cluster of a file, None if the device is another one.

    Raises
    ------
    UserError
        If the device needs a file and there is none, or as `read_cluster`.
    """
    from p4sgd.host.aggregators.cluster_file import read_cluster

    if device != CLUSTER:
        if path is not None and is_given("cluster"):
            raise UserError(f"--cluster {path} is of no use without --device {CLUSTER}")
        return None
    if path is None:
        raise UserError(f"--device {CLUSTER} needs --cluster FILE.toml, which says where workers and aggregator are")
    return read_cluster(path)


def is_given(name: str) -> bool:
    """Whether a parameter of the running command was given."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT
