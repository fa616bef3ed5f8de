"""The command `p4sgd data`: getting data to train on."""

import click

from p4sgd.host.cli.commands.data.fetch import fetch
from p4sgd.host.cli.commands.data.synth import synth

__all__ = ["data"]


@click.group()
def data() -> None:
    """Make or fetch data sets."""


data.add_command(synth)
data.add_command(fetch)
