"""The command `p4sgd switch deploy`."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from p4sgd.host.cli.commands.switch.reaching import cluster_option
from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.switch.cluster_file import AggregatorAddress
    from p4sgd.host.switch.tables import TableController

__all__ = ["deploy"]


@click.command()
@cluster_option
@common_options
def deploy(path: Path, as_json: bool, quiet: bool) -> None:
    """Load the program of a switch.

    The cluster file names the switch and, as program, the folder that p4sgd switch build has made. The switch forgets
    all jobs. Frames of other protocols go on between the ports that have workers behind them, and those of
    [[aggregator.ports]]: to the one that the file says a station is behind, otherwise to all but their own.

    A Tofino's program is loaded when its bf_switchd starts, and its jobs stay; here it is seen whether it runs, and the
    rest is done, but for its ports: hw/switch/README.md says how they are added and enabled.
    """
    output = Output(as_json=as_json, quiet=quiet)
    from p4sgd.host.switch.cluster_file import read_cluster
    from p4sgd.hw.spec.packet import mac_text

    cluster = read_cluster(path)
    aggregator = cluster.aggregator
    ports = sorted({worker.port for worker in cluster.workers} | {there.port for there in aggregator.ports})
    stations = {station: there.port for there in aggregator.ports for station in there.stations}
    with output.working(f"loading {aggregator.control}"), contextlib.closing(_loaded(path, aggregator)) as controller:
        controller.set_forwarding(ports, stations)
        controller.set_mac(aggregator.mac)
        slots, jobs = controller.slots, controller.jobs
    output.document(
        {
            "switch": aggregator.control,
            "slots": slots,
            "jobs": jobs,
            "ports": ports,
            "stations": {mac_text(station): port for station, port in stations.items()},
        }
    )
    output.say(f"{aggregator.control} runs the program: {jobs} jobs of {slots:,} slots each")


def _loaded(path: Path, aggregator: "AggregatorAddress") -> "TableController":
    """The controller of a switch that runs the program."""
    if aggregator.kind == "tofino":
        from p4sgd.host.switch.bfruntime import open_bfruntime

        return open_bfruntime(aggregator)
    if aggregator.kind != "bmv2":
        raise UserError(f"{path}: aggregator.kind: one of kind {aggregator.kind} has no program to load")
    if aggregator.program is None:
        raise UserError(f"{path}: aggregator.program: is missing: the folder that p4sgd switch build has made")
    from p4sgd.host.switch.program import read_program

    program = read_program(aggregator.program, aggregator.kind)
    from p4sgd.host.switch.p4runtime import open_p4runtime

    controller = open_p4runtime(aggregator)
    controller.deploy(program)
    return controller
