"""The command `p4sgd cluster`: a cluster of processes on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.app import FAILED
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.hw.spec.config import NamedConfig


@click.group()
def cluster() -> None:
    """Start, show or end a cluster of processes on this machine."""


@cluster.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@options.count("--workers", 1, "Number of workers, without a FILE: up to 32, or 31 in each rack.", most=992, default=4)
@options.count("--racks", 1, "Racks of these workers, each with a switch of its own below the switch.", most=32)
@options.count(
    "--sparse-workers",
    0,
    "How many of the workers, the last ones, keep only features that are not 0.",
    most=32,
    default=0,
    metavar="N",
)
@options.worker_configuration(
    "Configuration of the other workers, whose slots all have.", hardware=False, default="u280"
)
@options.link_faults
@options.common
def up(
    file: Path | None,
    sparse_workers: int,
    config: "NamedConfig",
    fault: dict[str, float],
    output: Output,
    **choices: Any,
) -> None:
    """Start a cluster of processes on this machine.

    A switch and workers are started in the background, which needs no privileges: packets travel in UDP between
    loopback addresses, and only you may connect to the processes. Commands for a cluster then take this one, unless
    they are given another with --cluster. p4sgd cluster down ends it.

    With FILE, a cluster file, the processes get the addresses in it: udp, and control with unix:PATH.
    """
    for flag in ("workers", "racks"):
        if file is not None and options.is_given(flag):
            raise UserError(f"--{flag}: {file} says which {flag} there are: leave one of them out")
    choices["racks"] = choices["racks"] or 0
    if choices["racks"] > choices["workers"]:
        raise UserError(f"--racks {choices['racks']}: there are only {choices['workers']} workers")
    with output.working("starting the processes"):
        from p4sgd.host.serve.local_cluster import ClusterRequest, start_local_cluster

        faults = tuple(f"{name}={chance}" for name, chance in fault.items())
        path = None if file is None else str(file.absolute())
        request = ClusterRequest(file=path, sparse=sparse_workers, config=config, faults=faults, **choices)
        state = start_local_cluster(request)
    output.document(state)
    count = sum(member["config"] is not None for member in state["members"])
    output.say(f"a cluster of {count} worker{'s' * (count > 1)} is running; next:")
    kept = " --scaling maxabs" if sparse_workers else ""  # zeros stay zeros
    output.say(f"  p4sgd train breast_cancer --device cluster{kept}")
    output.say("  p4sgd cluster down")


@cluster.command()
@options.common
def down(output: Output) -> None:
    """End the cluster that p4sgd cluster up has started."""
    with output.working("ending the processes"):
        from p4sgd.host.serve.local_cluster import end_local_cluster

        state = end_local_cluster()
    output.document({"ended": state is not None})
    if state is None:
        output.say("no local cluster is running")
        return
    for member in state["members"]:
        if member["ended"]:
            output.say(f"{member['name']} {member['ended']} before")
    output.say(f"the cluster has ended; logs stay in {state['folder']}")


@cluster.command()
@options.common
def status(output: Output) -> None:
    """Show the processes of the local cluster.

    Exit status: 1 if some of them have ended. p4sgd switch status shows what their job does.
    """
    from p4sgd.host.serve.local_cluster import find_local_cluster

    state: dict[str, Any] = find_local_cluster() or {"file": None, "folder": None, "members": []}
    output.document(state)
    if not state["members"]:
        output.say("no local cluster is running: p4sgd cluster up starts one")
        return
    keys = ("name", "config", "pid", "control")
    rows = [[*(str(each[key] or "") for key in keys), each["ended"] or "runs"] for each in state["members"]]
    output.table(["process", "config", "pid", "control", "state"], rows, texts=5, wraps=True)
    output.say(f"cluster file {state['file']}, logs in {state['folder']}")
    if ended := [each for each in state["members"] if each["ended"]]:
        for each in ended:
            output.say(f"start {each['name']} again: {each['command']}", whole=True)
        output.say("or p4sgd cluster down ends the others, and p4sgd cluster up starts all anew")
        raise click.exceptions.Exit(FAILED)
