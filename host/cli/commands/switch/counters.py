"""The command `p4sgd switch counters`."""

from pathlib import Path

import click

from p4sgd.host.cli.commands.switch.reaching import cluster_option, controller_of
from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output

__all__ = ["counters"]


@click.command()
@cluster_option
@common_options
def counters(path: Path, as_json: bool, quiet: bool) -> None:
    """Show what an aggregator has counted.

    Counters count from its start on. The table leaves out those that are 0; --json has them all.
    """
    from p4sgd.hw.spec.aggregator import COUNTERS, job_counters

    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (_, controller):
        counted = controller.counters()
        meanings = dict(COUNTERS)
        for place in range(controller.jobs):
            meanings |= job_counters(place)
    output.document({"counters": counted})
    rows = [(name, f"{count:,}", meanings.get(name, "")) for name, count in counted.items() if count]
    output.table(["counter", "count", "what it counts"], rows, texts=3)
