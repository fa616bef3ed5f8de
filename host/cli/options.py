"""Options that several commands share, those of training runs among them, and the file that options are read from."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError, flag
from p4sgd.host.files import read_toml
from p4sgd.host.training.options import Fact, TrainingOptions, declarations, names_in, options_with

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]

_OPTIONS_FILE = "p4sgd.options_file"


class NameFrom(click.ParamType):
    """The type of an option with a fixed set of ``names``, or where they are: to look them up may import much.

    Messages call a value by ``what`` it names: ``loss``.
    """

    def __init__(self, what: str, names: str | tuple[str, ...]) -> None:
        self.name = what
        self._names = names

    def _known(self) -> list[str]:
        return list(names_in(self._names))

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self._known())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in (known := names_in(self._names)):
            from p4sgd.host.losses import ELSEWHERE
            from p4sgd.hw.spec.registry import choices

            here = f", which is {ELSEWHERE[value]} here" if self.name == "loss" and value in ELSEWHERE else ""
            text = f"there is no {self.name} {value!r}{here}: {choices(known)}"
            # Click calls an argument by its metavar, which is the whole list of values.
            hint = f"'{param.human_readable_name}'" if isinstance(param, click.Argument) else None
            raise click.BadParameter(text, ctx, param, hint)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._known() if name.startswith(incomplete)]


class _ConfigName(NameFrom):
    """The type of a configuration: a name, or a file that `named_config` reads."""

    def __init__(self, *, hardware: bool) -> None:
        super().__init__("configuration", f"p4sgd.hw.spec.config:{'PRESETS' if hardware else 'CONFIGURATIONS'}")

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self._known())}|FILE.toml]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value) if str(value).endswith(".toml") else super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin with what is typed; if there are none, the shell completes files."""
        return super().shell_complete(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


class _Data(click.ParamType):
    """The type of a data set: a file, a folder or the name of a built-in data set."""

    name = "data"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The built-in data sets that begin with what is typed; if there are none, the shell completes files."""
        from p4sgd.host.data.builtin import BUILTIN

        names = [name for name in BUILTIN if incomplete and name.startswith(incomplete)]
        return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


def together(*options: Callable[[Any], Any]) -> _Decorator[Any]:
    """A decorator that adds several options, in this order."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


def path(flag: str, metavar: str, help: str, **more: Any) -> _Decorator[Any]:
    """Add an option for a file or a folder."""
    return click.option(flag, type=click.Path(path_type=Path), metavar=metavar, help=help, **more)


def count(flag: str, least: int, help: str, *, most: int | None = None, **more: Any) -> _Decorator[Any]:
    """Add an option for a whole number, from ``least`` to ``most``."""
    return click.option(flag, type=click.IntRange(least, most), help=help, **more)


data_name = _Data()
data = click.argument("data", type=data_name)
device_kind = NameFrom("device", "p4sgd.host.devices:DEVICES")

overwrite = click.option("--overwrite", is_flag=True, help="Replace the file of --out if it exists.")
"""Adds ``--overwrite`` for commands that write models, or what cannot be told from a file of the user's."""

folder = path(
    "--out",
    "DIR",
    "Folder to write, whole or not at all; an earlier output is replaced, a folder with other files is refused.",
    required=True,
)
build_id = count("--build-id", 0, "Value of the BUILD_ID registers.", most=(1 << 32) - 1, default=0)
cluster = path(
    "--cluster",
    "FILE.toml",
    "With --device cluster: the file with the addresses of its workers and its aggregator (see "
    "host/aggregators/README.md), by default that of the local cluster (p4sgd cluster up).",
)


def config_and_settings(help: str, *, hardware: bool = False, **more: Any) -> _Decorator[Any]:
    """Add ``--config`` and ``--set``: the arguments ``text`` and ``settings`` of `named_config`, as ``config`` and
    ``settings``. ``hardware`` is that of `named_config`."""
    return together(
        click.option("--config", type=_ConfigName(hardware=hardware), help=help, **more),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Change a key of the configuration, as in slots=16; may be repeated. Keys are those of a FILE.toml: "
            "engines; the powers of two ports (of memory, of each engine), lanes, chunks, line_fifo_depth, slots and "
            "table_segments; board; and base, the configuration that has the others.",
        ),
    )


def worker_configuration(help: str = "Configuration of the worker.", **more: Any) -> _Decorator[Any]:
    """Add ``--config`` and ``--set`` of a worker, by default of one that is made in hardware, as a `NamedConfig`; None
    if there is none."""
    hardware = more.setdefault("hardware", True)

    def add(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def run(*, config: str | None, settings: tuple[str, ...], **values: Any) -> Any:
            from p4sgd.host.configuration import named_config

            if settings and config is None:
                raise UserError(f"--set {settings[0]} changes a configuration: name it with --config")
            named = None if config is None else named_config(config, settings, hardware=hardware)
            return command(config=named, **values)

        return config_and_settings(help, **more)(run)

    return add


def is_given(name: str) -> bool:
    """Whether a parameter of the running command was given, on the command line or in an options file."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's values that were given; the others are defaults."""
    return {name: value for name, value in values.items() if is_given(name)}


def _faults(where: str, what: str) -> _Decorator[Any]:
    """``--fault NAME=CHANCE``, probabilities by name; ``where`` the names are, for `names_in`."""

    def take(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
        from p4sgd.host.devices.faults import simulated_faults

        chances: dict[str, float] = {}
        for name, _, text in (each.partition("=") for each in texts):
            if name not in (known := names_in(where)):
                raise click.BadParameter(f"there is no fault {name!r}: choose one of {', '.join(known)}", ctx, param)
            if name in chances:
                raise click.BadParameter(f"{name} is given more than once: give it once", ctx, param)
            try:
                simulated_faults({name: float(text)})
            except ValueError:
                problem = f"{name} needs a chance, as in {name}=0.01, not {text!r}"
                raise click.BadParameter(problem, ctx, param) from None
            except UserError as error:
                raise click.BadParameter(str(error), ctx, param) from error
            chances[name] = float(text)
        return chances

    frames = (
        "loss, duplication and reordering are of frames: in both directions (link_loss), only from the workers "
        "(up_loss), or only to them (down_loss); likewise burst_begin, burst_end and burst_loss, for bursts of losses."
    )
    help = f"Inject a fault {what} {frames}"
    return click.option("--fault", multiple=True, callback=take, metavar="NAME=CHANCE", help=help)


faults = _faults(
    "p4sgd.host.devices.faults:FAULTS",
    "with a probability, as in link_loss=0.01; may be repeated. memory_stall and link_stall stop a channel of a memory "
    "or of the network for a cycle, memory_gap a memory for up to 256, worker_pause a worker for up to 4096.",
)
"""Adds ``--fault``, probabilities by name, for commands that simulate a cluster."""

link_faults = together(
    _faults(
        "p4sgd.sim.network.faults:PROGRAM_FAULTS",
        "of the network with a probability, as in link_loss=0.02; repeatable. link_change flips bits of packets where "
        "no checksum of the network is: of those that have their own, between programs.",
    ),
    count("--seed", 0, "Seed of the random numbers of --fault.", default=0),
)
"""Adds ``--fault``, probabilities by name, and ``--seed``, for commands that start workers."""


def _options_of(names: Iterable[str]) -> _Decorator[Any]:
    options, wanted = [], set(names)
    for field in dataclasses.fields(TrainingOptions):
        if field.name not in wanted:
            continue
        declared = declarations()[field.name]
        kind: Any = typing.get_args(field.type)[0] if isinstance(field.type, types.UnionType) else field.type
        if declared.choices is not None:
            kind = NameFrom("loss" if field.name == "loss" else "choice", declared.choices)
        options.append(
            click.option(
                flag(field.name),
                field.name,
                type=kind,
                default=field.default,
                show_default=field.name != "workers",
                metavar=declared.metavar,
                help=declared.for_command(),
            )
        )
    return together(*options)


training = _options_of(declarations())

tuning = _options_of(declarations().keys() - options_with(Fact.NOT_TUNED))
"""Adds an option for every field of `TrainingOptions` that is the same in all runs of a search."""

preparation = _options_of(options_with(Fact.PREPARED))
"""Adds an option for every field of `TrainingOptions` that prepared data depend on."""

results = together(
    click.option(
        "--test", type=data_name, metavar="DATA", help="Data to measure the model on after every epoch; not trained on."
    ),
    path("--out", "MODEL", "Model file to write."),
    overwrite,
    path(
        "--report",
        "FILE.html",
        "HTML page to write in the end: curves of the epochs, how good the model is, its largest coefficients, and "
        "where cycles are counted, what they went for. Needs pip install 'p4sgd[report]'.",
    ),
)
"""Adds the options of ``train`` and ``simulate`` for test data and results."""

reading = together(
    click.option(
        "--format",
        "file_format",
        type=NameFrom("format", "p4sgd.host.data.read:FORMATS"),
        help="Format of the data files; by default it is found out from the name or the first bytes.",
    ),
    click.option(
        "--label-column",
        metavar="COLUMN",
        multiple=True,
        help="Label column of a table: its header, or its number from 1 (-1 is the last); by default a column called "
        "label, target, class or y, else the last one. May be repeated for several targets, of which each becomes a "
        "row of the model.",
    ),
    click.option(
        "--weight-column",
        metavar="COLUMN",
        help="Column of a table with the weights of samples, at least 0: its header or its number. Vowpal Wabbit's "
        "importance and the array weights of an NPZ file are weights without it.",
    ),
    click.option(
        "--offset-column",
        metavar="COLUMN",
        help="Column of a table with a known addend of each prediction: with the losses poisson, gamma and tweedie of "
        "its logarithm, of two classes of the logarithm of the odds. Vowpal Wabbit's base and the array offset of an "
        "NPZ file are offsets without it.",
    ),
    click.option(
        "--exposure-column",
        metavar="COLUMN",
        help="Column of a table to which each target is in proportion, above 0, such as the time in which events were "
        "counted, for the losses poisson, gamma and tweedie. The array exposure of an NPZ file is one without it.",
    ),
    click.option(
        "--ignore-column",
        "ignore_columns",
        metavar="COLUMN",
        multiple=True,
        help="Column of a table that is not a feature, such as an ID: its header or its number; may be repeated.",
    ),
    click.option(
        "--categorical",
        metavar="COLUMN",
        multiple=True,
        help="Column of a CSV or Parquet file whose numbers are categories, such as codes: its header or its number; "
        "may be repeated.",
    ),
    click.option(
        "--header/--no-header",
        default=None,
        help="Whether the first line of a CSV file has the names of the columns; by default it is found out.",
    ),
    click.option(
        "--delimiter", metavar="CHARACTER", help="Character between the fields of a CSV file; by default found out."
    ),
    click.option("--decimal", metavar="CHARACTER", help="Character before the decimals in a CSV file: . or a comma."),
    click.option(
        "--thousands", metavar="CHARACTER", help="Character between groups of digits in a CSV file: , . ' _ or a blank."
    ),
    click.option(
        "--missing-values",
        metavar="TEXT",
        multiple=True,
        help="Text that means a missing value in a CSV file, besides empty fields, NA, nan, null, ? and the like; may "
        "be repeated.",
    ),
    click.option(
        "--encoding",
        metavar="NAME",
        help="Encoding of a CSV file, such as cp1252 or utf-16; by default it is found out whether it is UTF-8, has a "
        "byte order mark, or is cp1252.",
    ),
    click.option(
        "--zero-based/--one-based",
        default=None,
        help="Whether the first feature of a LIBSVM file has the number 0 or 1; by default as in the training data, "
        "or 0 if there is a feature 0.",
    ),
    click.option(
        "--hash-bits",
        type=int,
        metavar="N",
        help="Hash features to 2^N columns: the names of a Vowpal Wabbit file (by default as in the training data, or "
        "to 2^18), or the numbers of a LIBSVM file, modulo 2^N.",
    ),
)
"""Adds the options that say how data files are read, which are arguments of `p4sgd.host.data.read_dataset`."""


def take_reading(choices: MutableMapping[str, Any]) -> dict[str, Any]:
    """Remove the values of `reading` from a command's; returns arguments of `p4sgd.host.data.read_dataset`."""
    from p4sgd.host.data.read import FORMATS

    names = {"file_format"}.union(*(each.arguments for each in FORMATS.values())) & choices.keys()
    reading = {name: choices.pop(name) for name in sorted(names)}
    columns = reading["label_column"]
    reading["label_column"] = columns[0] if len(columns) == 1 else list(columns) or None
    return reading


def output(*, json: bool = True, quiet: bool = True, file: bool = True) -> _Decorator[Any]:
    """Add ``--json``, ``--quiet`` and ``--options``, and give the command an `Output` as ``output``."""

    def add(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def run(*, as_json: bool = False, quiet: bool = False, **values: Any) -> Any:
            return command(output=Output(as_json=as_json, quiet=quiet), **values)

        wanted = ((quiet, _quiet_option), (json, _json_option), (file, _options_option))
        return together(*(option for is_wanted, option in wanted if is_wanted))(run)

    return add


def _take_options_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
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
_quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Print only results, warnings and errors, no progress and no remarks."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")

common = output()
"""Adds all three."""


def options_file() -> Path | None:
    """The options file of the running command, if one was given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_OPTIONS_FILE)


def _read_options(ctx: click.Context, path: Path) -> dict[str, Any]:
    """The values that a file has for the parameters of the running command; errors name file and key."""
    table: Any = read_toml(path, "options file")
    _refuse_unknown_tables(ctx.find_root().command, table, path)
    words = ctx.command_path.split()[1:]
    for word in words:
        table = table.get(word)
        if not isinstance(table, dict):
            raise UserError(f"{path}: has no table [{'.'.join(words)}]")
    # Keys are long options without their dashes, and names of arguments.
    params = (param for param in ctx.command.params if param.expose_value)
    known = {max(param.opts, key=len).lstrip("-").replace("_", "-"): param for param in params}
    values = {}
    for key, value in table.items():
        where = f"{path}: [{'.'.join(words)}] {key}"
        param = known.get(key.replace("_", "-"))
        if param is None or param.name is None:
            raise UserError(f"{where}: unknown option; there are {', '.join(sorted(known))}")
        values[param.name] = _check(ctx, param, value, where)
    return values


def _refuse_unknown_tables(group: click.Command, document: Mapping[str, Any], path: Path, prefix: str = "") -> None:
    """Refuse tables that no command reads: a file may serve several, but a misspelt one must not go unnoticed."""
    assert isinstance(group, click.Group)
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    known = {
        name: command
        for name, command in commands.items()
        if isinstance(command, click.Group) or (command and any(param.name == "options" for param in command.params))
    }
    for name, table in document.items():
        if name not in known:
            kind = "table" if isinstance(table, dict) else "key outside a table"
            tables = ", ".join(f"[{prefix}{each}]" for each in known)
            raise UserError(f"{path}: unknown {kind} {prefix}{name}; there are {tables}")
        if isinstance(table, dict) and isinstance(known[name], click.Group):
            _refuse_unknown_tables(known[name], table, path, f"{prefix}{name}.")


def _check(ctx: click.Context, param: click.Parameter, value: Any, where: str) -> Any:
    """The value as it would stand on the command line; its conversion is tried, so that errors name the file."""
    is_flag = isinstance(param, click.Option) and param.is_flag
    values = value if param.multiple and isinstance(value, list) else [value]
    for each in values:
        if isinstance(each, dict | list) or isinstance(each, bool) != is_flag:
            raise UserError(f"{where}: must be {'true or false' if is_flag else 'a text or a number'}, not {each!r}")
    if is_flag:
        return value
    texts = list(map(str, values)) if param.multiple else str(value)
    try:
        param.process_value(ctx, texts)
    except click.BadParameter as error:
        raise UserError(f"{where}: {error.message}") from error
    return texts
