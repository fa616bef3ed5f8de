"""Failures of a command: one line on standard error, and an exit status."""

import errno
import os
import sys
import traceback

import click

from p4sgd.host.errors import P4sgdError, UserError

FAILED = 1
"""Exit status of a failure of the device, a tool, the machine or P4SGD itself."""

_USER_ERROR = 2
"""Exit status of an error that the user can correct: in input, options, files."""

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as in shells."""

_USER_ERRNOS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EFBIG,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""Errors of the operating system about a path that the user has named, or its disk."""


def describe(error: BaseException, command: str) -> tuple[int, str]:
    """The exit status and the line for an exception in a command, such as ``p4sgd train``."""
    if isinstance(error, click.UsageError):
        return _USER_ERROR, f"{_one_line(error.format_message())} (see {command} --help)"
    if isinstance(error, click.ClickException):
        return _USER_ERROR, _one_line(error.format_message())
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, UserError):
        return _USER_ERROR, _one_line(str(error))
    if isinstance(error, P4sgdError):
        return FAILED, _first_line(str(error))
    if isinstance(error, OSError) and error.strerror:
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return _USER_ERROR if error.errno in _USER_ERRNOS else FAILED, f"{place}{error.strerror}"
    if isinstance(error, MemoryError):
        return FAILED, f"out of memory{': ' if str(error) else ''}{_first_line(str(error))}"
    first = str(error).strip().partition("\n")[0]
    return FAILED, f"internal error, {type(error).__name__}: {first} (P4SGD_DEBUG=1 shows where)"


def report(error: BaseException, command: str) -> int:
    """Print an exception in a command and its notes, a line each; returns the exit status.

    A command group without a subcommand gets its help. With ``P4SGD_DEBUG=1`` in the environment the traceback is
    printed too.
    """
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return _USER_ERROR
    status, line = describe(error, command)
    if os.environ.get("P4SGD_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    for text in (line, *getattr(error, "__notes__", ())):
        click.echo(f"{command}: {text}", err=True)
    return status


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first_line(text: str) -> str:
    """The first line of a message; the others are a log."""
    lines = text.strip().splitlines()
    more = " (P4SGD_DEBUG=1 shows all of it)" if len(lines) > 1 else ""
    return f"{lines[0].rstrip(':')}{more}" if lines else ""
