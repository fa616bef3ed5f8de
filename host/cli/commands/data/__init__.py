"""The command `p4sgd data`: getting data to train on."""

import click

from p4sgd.host.cli.commands.data.fetch import fetch
from p4sgd.host.cli.commands.data.prepare import prepare
from p4sgd.host.cli.commands.data.synth import synth

__all__ = ["data"]


@click.group()
def data() -> None:
    """Make, fetch or prepare data sets."""


data.add_command(synth)
data.add_command(fetch)
data.add_command(prepare)
