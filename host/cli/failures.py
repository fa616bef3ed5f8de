"""Failures of a command: one line on standard error, and an exit status."""

import errno
import os
import sys
import traceback

import click

from p4sgd.host.errors import P4sgdError, UserError

FAILED, _USER_ERROR, INTERRUPTED = 1, 2, 130
"""Exit statuses: a failure of the device, a tool, the machine or P4SGD; an error that the user can correct, in input,
options or files; Ctrl-C (128 + SIGINT, as in shells)."""

_USER_ERRNOS = {
    *(errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EPERM),
    *(errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EROFS),
}
"""Errors of the operating system about a path that the user has named, or its disk."""


def describe(error: BaseException, command: str) -> tuple[int, str]:
    """The exit status and the line for an exception in a command, such as ``p4sgd train``."""
    text, _, log = str(error).strip().partition("\n")
    if isinstance(error, click.ClickException):
        text = " ".join(error.format_message().split())
        return _USER_ERROR, f"{text} (see {command} --help)" if isinstance(error, click.UsageError) else text
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, UserError):
        return _USER_ERROR, " ".join(str(error).split())
    if isinstance(error, P4sgdError):
        return FAILED, f"{text.rstrip(':')} (P4SGD_DEBUG=1 shows all of it)" if log else text.rstrip(":")
    if isinstance(error, OSError) and error.strerror:
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return _USER_ERROR if error.errno in _USER_ERRNOS else FAILED, f"{place}{error.strerror}"
    if isinstance(error, MemoryError):
        return FAILED, f"out of memory: {text}" if text else "out of memory"
    return FAILED, f"internal error, {type(error).__name__}: {text} (P4SGD_DEBUG=1 shows where)"


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
