"""Every failure becomes one line on standard error and the right exit status."""

import errno
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from p4sgd.host.cli.app import Application, main
from p4sgd.host.errors import P4sgdError, UserError


def run(error=None, words=("fail",), env=None):
    """A command that prints something, and then fails with an error if there is one."""

    @click.group(cls=Application)
    def program():
        pass

    @program.command()
    @click.option("--count", type=int)
    def fail(count):
        click.echo("partial result")
        if error:
            raise error
        return "a value is no status"

    return CliRunner().invoke(program, words, env=env)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("a.csv:7: 'x' is not a number"), 2, "a.csv:7: 'x' is not a number"),
        (UserError("two\n  lines"), 2, "two lines"),
        (click.UsageError("choose\n one"), 2, "choose one (see p4sgd fail --help)"),
        (click.BadParameter("no"), 2, "Invalid value: no (see p4sgd fail --help)"),
        (OSError(errno.ENOSPC, "No space left on device", "out.npz"), 2, "out.npz: No space left on device"),
        (OSError(errno.EACCES, "Permission denied", b"out"), 2, "out: Permission denied"),
        (OSError(errno.EIO, "Input/output error"), 1, "Input/output error"),
        (P4sgdError("g++ is missing"), 1, "g++ is missing"),
        (P4sgdError("it failed:\nlog\nlog"), 1, "it failed (P4SGD_DEBUG=1 shows all of it)"),
        (MemoryError(), 1, "out of memory"),
        (MemoryError("8 GiB"), 1, "out of memory: 8 GiB"),
        (ZeroDivisionError("by zero"), 1, "internal error, ZeroDivisionError: by zero (P4SGD_DEBUG=1 shows where)"),
        (ValueError("no\nlog"), 1, "internal error, ValueError: no (P4SGD_DEBUG=1 shows where)"),
        (EOFError(), 1, "internal error, EOFError:  (P4SGD_DEBUG=1 shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_one_line(error, status, line):
    done = run(error)
    assert (done.exit_code, done.stderr.strip()) == (status, f"p4sgd fail: {line}")


def test_notes_follow_a_line_each_and_statuses_pass_through():
    error = P4sgdError("it failed")
    error.add_note("go on")
    done = run(error)
    assert (done.exit_code, done.stderr) == (1, "p4sgd fail: it failed\np4sgd fail: go on\n")
    assert run().exit_code == 0
    assert run(click.exceptions.Exit(130)).exit_code == 130
    done = run(ZeroDivisionError("by zero"), env={"P4SGD_DEBUG": "1"})
    assert (done.exit_code, "Traceback" in done.stderr, "raise error" in done.stderr) == (1, True, True)


@pytest.mark.parametrize("words", [[], ["data"]], ids=["p4sgd", "p4sgd data"])
def test_a_command_alone_shows_its_help(words):
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == CliRunner().invoke(main, [*words, "--help"]).stdout


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NUMBA_NUM_THREADS", "0", "NUMBA_NUM_THREADS is 0 in the environment: set it to at least 1"),
        ("P4SGD_PLUGINS", "no.py", "P4SGD_PLUGINS: no.py: there is no such file: mend the file"),
        (
            "P4SGD_PLUGINS",
            "broken.py",
            "P4SGD_PLUGINS: broken.py, line 2: ModuleNotFoundError: No module named 'nowhere'",
        ),
        ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT is set in the environment: remove it"),
    ],
)
def test_environments_that_cannot_work(name, value, says, own_folder):
    Path("broken.py").write_text("LOSSES = {}\nimport nowhere\n")
    done = CliRunner().invoke(main, ["info"], env={name: value})
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
