"""The command `p4sgd build`: folders for the tools of an FPGA's vendor."""

import click

from p4sgd.host.cli.commands.build.check import check
from p4sgd.host.cli.commands.build.demo import demo
from p4sgd.host.cli.commands.build.vitis import vitis
from p4sgd.host.cli.commands.build.vivado import vivado

__all__ = ["build"]


@click.group()
def build() -> None:
    """Write what AMD's tools make a board's image from, or check it."""


for _command in (vitis, vivado, check, demo):
    build.add_command(_command)
