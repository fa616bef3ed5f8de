"""The errors that P4SGD reports in one line, in the words of who reports them, and helpers that keep messages short."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

_FLAGS = {
    "learning_rate": "--lr",
    "file_format": "--format",
    "ignore_columns": "--ignore-column",
    "bias": "--bias/--no-bias",
    "stand_ins": "--stand-ins/--no-stand-ins",
    "header": "--header/--no-header",
    "zero_based": "--zero-based/--one-based",
}

_python = ContextVar("python", default=False)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Within it, messages name parameters of functions in place of options of the command line."""
    before = _python.set(True)
    try:
        yield
    finally:
        _python.reset(before)


def flag(name: str) -> str:
    """The flag of an option on the command line: ``--validation-fraction``."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def option(name: str, value: Any = None) -> str:
    """An option for a message, with its value if there is one: ``--no-bias``, ``--l2 0.1``; in Python ``l2=0.1``."""
    if _python.get():
        return name if value is None else f"{name}={value!r}"
    if isinstance(value, bool):
        return flag(name).split("/")[not value]
    return flag(name) if value is None else f"{flag(name)} {value}"


def on_command_line(text: str, otherwise: str = "") -> str:
    """A part of a message that only users of the command line understand."""
    return otherwise if _python.get() else text


class UserError(Exception):
    """An error in the input, an option or a file that the user can correct: exit status 2.

    The message is one line that names the file, line or option and the remedy; with ``field`` it begins with the name
    of this option.
    """

    def __init__(self, problem: str = "", *, field: str | None = None) -> None:
        super().__init__(problem if field is None else f"{option(field)} {problem}")


class P4sgdError(Exception):
    """A failure of a device, a tool or the machine, in one line: exit status 1.

    ``lost_workers`` are the shards of the workers that caused it, if the other workers can go on.
    """

    def __init__(self, message: str = "", *, lost_workers: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.lost_workers = frozenset(lost_workers)


def listed(texts: Sequence[str], most: int) -> str:
    """The first ``most`` texts, separated by commas, with an ellipsis if there are more."""
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")


def shortened(text: str) -> str:
    """A text in quotes, cut after 30 characters with an ellipsis."""
    return repr(text if len(text) <= 30 else f"{text[:30]}…")
