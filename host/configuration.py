"""The configuration of a worker that a user names: one of ours or a TOML file, some sizes of which may be changed."""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from p4sgd.host.errors import UserError
from p4sgd.host.files import read_toml
from p4sgd.hw.spec.config import CONFIGURATIONS, PRESETS, SIZES, NamedConfig

_BASE = "small"  # gives the sizes that a file does not name, if it does not say which configuration does

_Keys: Any = msgspec.defstruct(
    "_Keys",
    [
        *((name, str | msgspec.UnsetType, msgspec.UNSET) for name in ("base", "board")),
        *((name, int | msgspec.UnsetType, msgspec.UNSET) for name in SIZES),
    ],
    forbid_unknown_fields=True,
)
"""Keys of a configuration file and of ``--set``."""


def named_config(text: str, settings: Iterable[str] = (), *, hardware: bool = False) -> NamedConfig:
    """The configuration that ``text`` names, with ``settings`` such as ``slots=16``.

    ``text`` is a name in `CONFIGURATIONS`, in `PRESETS` for ``hardware``, or that of a file, ``….toml``. A file has
    sizes of a `WorkerConfig`; ``base``, the configuration that has the others, by default small; and ``board``, for
    which the worker is made, by default that of the base. Each setting replaces one of these keys. `UserError` if
    there is no such configuration, file or key, or a value is out of range.
    """
    known, values, where = PRESETS if hardware else CONFIGURATIONS, {"base": text}, f"--config {text}"
    if text not in known and Path(text).suffix == ".toml":
        document = read_toml(Path(text), "configuration")
        values, where = {"base": _BASE} | _convert(document, text, strict=True), text
    origins = dict.fromkeys(values, where)
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise UserError(f"--set {setting}: a size needs a value, as in slots=16")
        found = _convert({key.replace("-", "_"): value}, f"--set {setting}", strict=False)
        values |= found
        origins |= dict.fromkeys(found, f"--set {setting}")
    base = values.pop("base")
    if base not in known:
        begin = "" if base == text else f"{origins['base']}: base: "
        raise UserError(
            f"{begin}there is no configuration {base!r}: choose one of {', '.join(known)}"
            f"{', or a file, FILE.toml' * (base == text)}"
        )
    try:
        return NamedConfig.of(base, board_from=origins.get("board", ""), **values)
    except ValueError as error:  # it begins with the size that is out of range, if it is one alone
        raise UserError(f"{origins.get(str(error).partition(' ')[0], where)}: {error}") from error


def _convert(values: Mapping[str, Any], where: str, *, strict: bool) -> dict[str, Any]:
    """Keys with their values, which are texts unless ``strict``."""
    try:
        found = msgspec.convert(values, _Keys, strict=strict)
    except msgspec.ValidationError as error:
        problem, _, key = str(error).partition(" - at `$.")
        if unknown := re.search("unknown field `(.*)`", problem):
            names = _Keys.__struct_fields__
            near = difflib.get_close_matches(unknown[1], names, 1)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise UserError(f"{where}: a configuration has no {unknown[1]!r}: {remedy}") from error
        raise UserError(f"{where}: {key.rstrip('`')}: {problem[0].lower()}{problem[1:]}") from error
    return {name: getattr(found, name) for name in values}
