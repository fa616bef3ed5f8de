"""The command `p4sgd switch`: aggregators of all kinds."""

import click

from p4sgd.host.cli.commands.switch.build import build
from p4sgd.host.cli.commands.switch.clear import clear
from p4sgd.host.cli.commands.switch.counters import counters
from p4sgd.host.cli.commands.switch.deploy import deploy
from p4sgd.host.cli.commands.switch.serve import serve
from p4sgd.host.cli.commands.switch.slots import slots
from p4sgd.host.cli.commands.switch.status import status

__all__ = ["switch"]


@click.group()
def switch() -> None:
    """Build, load or be a switch, or see what one does."""


for _command in (build, deploy, serve, status, slots, counters, clear):
    switch.add_command(_command)
