"""The command line, in this process or in one of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
from click.testing import CliRunner, Result

from p4sgd.host.cli.app import main

PROGRAM = Path(sys.executable).with_name("p4sgd")


def commands(group=main):
    """The commands of a group, by name."""
    context = click.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def run(*words: object, status: int = 0, stdin: str | None = None) -> Result:
    """Run ``p4sgd`` in this process, and check its exit status."""
    done = CliRunner().invoke(main, list(map(str, words)), prog_name="p4sgd", input=stdin)
    assert done.exit_code == status, done.output
    return done


def heed_interrupts():
    """For ``preexec_fn``: a shell has jobs in the background ignore Ctrl-C, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def p4sgd(*arguments, **variables):
    """Run ``p4sgd`` with further environment variables, such as ``PYTHONHASHSEED`` for another order of sets."""
    command = [sys.executable, "-c", "from p4sgd.host.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, check=False)
