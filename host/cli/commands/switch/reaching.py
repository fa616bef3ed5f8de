"""What the commands that ask an aggregator have in common: the cluster file, and the controller that it leads to."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from p4sgd.host.switch.cluster_file import Cluster
    from p4sgd.host.switch.controller import Controller
    from p4sgd.hw.spec.job import Job

__all__ = ["cluster_option", "control_of", "controller_of"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def cluster_option(command: _Command) -> _Command:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        required=True,
        metavar="FILE.toml",
        help="File that says where the aggregator and the workers are.",
    )(command)


@contextlib.contextmanager
def controller_of(path: Path) -> "Iterator[tuple[Cluster, Controller]]":
    """What a cluster file says, and the controller of its aggregator as long as the block lasts."""
    from p4sgd.host.switch.cluster_file import read_cluster
    from p4sgd.host.switch.opening import open_controller

    cluster = read_cluster(path)
    with contextlib.closing(open_controller(cluster)) as controller:
        yield cluster, controller


def control_of(cluster: "Cluster", job: "Job", shard: int) -> str | None:
    """The control address of a shard's worker; None if it is none of the cluster file's."""
    known = {(worker.local_mac, worker.port): worker.control for worker in cluster.workers}
    member = job.members[shard]
    return known.get((member.mac, member.port))
