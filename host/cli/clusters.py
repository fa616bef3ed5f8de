"""`--cluster`: which cluster a command is for."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.switch.cluster_file import Cluster

__all__ = ["CLUSTER", "cluster_option", "find_cluster", "is_given"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

CLUSTER = "cluster"
"""Name of the device that a cluster file describes."""


def cluster_option(command: _Command) -> _Command:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help="With --device cluster: where its workers and its aggregator are; see host/switch/README.md.",
    )(command)


def find_cluster(device: str, path: Path | None) -> "Cluster | None":
    """The cluster of a file, None if the device is another one.

    Raises
    ------
    UserError
        If the device needs a file and there is none, or as `read_cluster`.
    """
    from p4sgd.host.switch.cluster_file import read_cluster

    if device != CLUSTER:
        if path is not None and is_given("cluster"):
            raise UserError(f"--cluster {path} is of no use without --device {CLUSTER}")
        return None
    if path is None:
        raise UserError(f"--device {CLUSTER} needs --cluster FILE.toml, which says where workers and aggregator are")
    return read_cluster(path)


def is_given(name: str) -> bool:
    """Whether a parameter of the running command was given."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT
