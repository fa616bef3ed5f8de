"""The folder that `p4sgd switch build` made, as far as loading a switch needs it."""

import json
from dataclasses import dataclass
from pathlib import Path

from p4sgd.host.errors import UserError

__all__ = ["Program", "read_program"]

_COMPILED = ("p4sgd.json", "p4sgd.p4info.txtpb")


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes
    ----------
    config
        What the switch runs.
    p4info
        File that says what can be controlled of it.
    """

    config: bytes
    p4info: Path


def read_program(folder: Path, target: str) -> Program:
    """Read a folder with a program for a target.

    Raises
    ------
    UserError
        If it was not made by ``p4sgd switch build``, is for another target, or was not compiled.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        made_for = manifest["target"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: no folder that p4sgd switch build --target {target} has made") from error
    if made_for != target:
        raise UserError(f"{folder}: a program for {made_for}, the switch is a {target}: build one for it")
    missing = [name for name in _COMPILED if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder}: {missing[0]} is missing: compile the program as p4sgd switch build said")
    program, p4info = (folder / name for name in _COMPILED)
    return Program(program.read_bytes(), p4info)
