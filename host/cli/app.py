"""The command `p4sgd`: its subcommands, and their failures: one line on standard error, and an exit status."""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.sim.ending import discard, ending_signals, interrupt

FAILED, _USER_ERROR, INTERRUPTED = 1, 2, 130
"""Exit statuses: a failure of the device, a tool, the machine or P4SGD; an error that the user can correct, in input,
options or files; Ctrl-C (128 + SIGINT, as in shells)."""

_USER_ERRNOS = {
    *(errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EPERM),
    *(errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EROFS),
}
"""Errors of the operating system about a path that the user has named, or its disk."""

_COMMANDS = {
    "train": "train",
    "tune": "tune",
    "predict": "model",
    "evaluate": "model",
    "inspect": "model",
    "export": "model",
    "simulate": "simulate",
    "generate": "build",
    "build": "build",
    "resources": "build",
    "cluster": "cluster",
    "doctor": "doctor",
    "switch": "switch",
    "worker": "serve",
    "experiments": "experiments",
    "info": "info",
    "data": "data",
}
"""Module in this folder of each command, in the order of use; it is imported when the command is needed."""


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


class Application(click.Group):
    """A group that lists its commands in the order of use, and turns every failure into one line and an exit status.

    Exit status: 0 success, 1 a failure, 2 an error that the user can correct, 130 an interruption by Ctrl-C, by
    SIGTERM, with which batch systems end a program, or by SIGHUP, when the terminal is closed. ``modules`` are those in
    this folder of commands that are imported when needed, by name.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, str] = MappingProxyType({}), **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._modules, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"p4sgd.host.cli.{self._modules[cmd_name]}"), cmd_name)
        return command

    def _path(self, args: Sequence[str]) -> str:
        """The command that the arguments name, for messages: ``p4sgd data synth``."""
        words = ["p4sgd"]
        command: click.Group = self
        for word in args:
            found = command.get_command(click.Context(command), word)
            if found is not None:
                words.append(word)
            if not isinstance(found, click.Group):
                break
            command = found
        return " ".join(words)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; in stand-alone mode this always raises `SystemExit`."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        _open_closed_streams()
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in ending_signals():
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, interrupt)
        try:
            _check_environment()
            status = super().main(args, prog_name or "p4sgd", complete_var, standalone_mode=False, **extra)
            # Flushed here and not when Python exits, which would report a full disk only as exit status 120.
            sys.stdout.flush()
        except BrokenPipeError:
            status = FAILED  # the reader, such as `head`, has read enough
        except (Exception, KeyboardInterrupt) as error:
            # Click makes an Abort of an interruption, whose notes are needed, and of an EOFError, which is ours.
            cause = error.__cause__ if isinstance(error, click.Abort) else None
            status = report(cause or error, self._path(sys.argv[1:] if args is None else args))
        _drop_unwritten_output()
        sys.exit(status if isinstance(status, int) else 0)


def _check_environment() -> None:
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if threads.isdecimal() and int(threads) == 0:
        raise UserError("NUMBA_NUM_THREADS is 0 in the environment: set it to at least 1")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise UserError("NUMBA_DISABLE_JIT is set in the environment: remove it, for the emulator's loops are compiled")
    if os.environ.get("P4SGD_PLUGINS"):
        from p4sgd.build.generate.boards import BOARDS
        from p4sgd.host.losses import LOSSES
        from p4sgd.hw.spec.registry import load_files

        try:
            load_files(LOSSES, BOARDS)
        except ImportError as error:
            raise UserError(f"P4SGD_PLUGINS: {error}: mend the file, or leave it out") from error


def _open_closed_streams() -> None:
    """Discard output to streams that the shell has closed (``>&-``), which are None in Python."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - stays open


def _drop_unwritten_output() -> None:
    """Discard what standard output cannot take, so that Python does not fail on it when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout)


@click.group(
    cls=Application,
    modules=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    epilog="p4sgd COMMAND --help explains a command.",
)
@click.version_option(None, "-V", "--version", package_name="p4sgd", message="%(prog)s %(version)s")
def main() -> None:
    """Train generalized linear models on FPGAs joined by a programmable switch, or on an exact emulation of them."""
