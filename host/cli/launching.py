"""`--launcher`: a command that several processes carry out together, and how it fails."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click

from p4sgd.host.cli.failures import describe, report
from p4sgd.host.cli.options import CLUSTER, NameFrom
from p4sgd.host.distributed.communicator import Communicator, SingleProcess
from p4sgd.host.errors import UserError

__all__ = ["check_distributed", "launcher_option", "part_of_job", "run_ranks", "started_alike"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


_RANKS = "p4sgd.ranks"


def _launchers() -> Iterable[str]:
    from p4sgd.host.distributed import LAUNCHERS

    return LAUNCHERS


def launcher_option(command: _Command) -> _Command:
    """Add ``--launcher``."""
    return click.option(
        "--launcher",
        type=NameFrom("launcher", _launchers),
        show_default="none",
        help="What has started this process beside others: with mpi each of them, `mpiexec -n 4 p4sgd train …`, reads "
        "its share of the data and has a worker.",
    )(command)


@contextlib.contextmanager
def run_ranks(launcher: str | None) -> Iterator[Communicator]:
    """The processes that carry out the running command together.

    What fails in all of them alike is told once, else every process that fails tells its rank; then all end, with the
    status of the failure.

    Raises
    ------
    UserError
        As `p4sgd.host.distributed.open_communicator`.
    """
    from p4sgd.host.distributed import open_communicator

    ranks = open_communicator(launcher)
    if isinstance(ranks, SingleProcess):
        yield ranks
        return
    context = click.get_current_context()
    context.meta[_RANKS] = ranks.size
    try:
        yield ranks
    except click.exceptions.Exit:
        raise
    except (Exception, KeyboardInterrupt) as error:
        command = context.command_path
        status, line = describe(error, command)
        failures = ranks.fail(line)
        if failures is None or len(set(failures)) > 1:
            command = f"{command}, rank {ranks.rank}"
        if failures is None or failures.index(line) == ranks.rank:
            report(error, command)
        if failures is None:
            ranks.abort(status)
        raise click.exceptions.Exit(status) from error


def started_alike(command: Sequence[str]) -> list[str]:
    """The words of a command with what starts it as the running command was started."""
    ranks = click.get_current_context().meta.get(_RANKS)
    return list(command) if ranks is None else ["mpiexec", "-n", str(ranks), *command, "--launcher", "mpi"]


def check_distributed(device: str) -> None:
    """Refuse a device whose workers must all be in one process.

    Raises
    ------
    UserError
        If it is such a one.
    """
    from p4sgd.host.devices import DEVICES

    if not DEVICES[device].distributed:
        able = ", ".join(name for name, kind in DEVICES.items() if kind.distributed)
        raise UserError(f"the device {device} is for one process: leave --launcher out, or take {able}")


def part_of_job(device: str, workers: int, ranks: Communicator) -> tuple[int, dict[str, Any]]:
    """How many workers to open a device with, and more arguments for it, where every rank opens a part of it."""
    if ranks.size == 1:
        return workers, {}
    if device == CLUSTER:
        return workers, {"ranks": ranks}
    from p4sgd.sim.emulator import RemoteWorkers

    return workers // ranks.size, {"remote": RemoteWorkers(first=ranks.rank, workers=workers, add=ranks.all_sum)}
