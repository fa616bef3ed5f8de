"""The command `p4sgd build vivado`."""

from pathlib import Path

import click

from p4sgd.host.cli.commands.build.boards import board_of, board_options, needed, show, written
from p4sgd.host.cli.output import Output

__all__ = ["vivado"]


@click.command()
@click.option(
    "--megahertz",
    type=click.IntRange(1, 1000),
    default=250,
    show_default=True,
    help="Clock that a worker and an engine alone are tried with; the board's image has 250 MHz.",
)
@board_options
def vivado(
    name: str | None,
    board: str | None,
    out: Path,
    megahertz: int,
    udp: bool,
    build_id: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the folder from which Vivado makes reports of a worker, and an image of a board without a shell.

    Scripts that try the worker and an engine alone, a project with PCI Express, HBM, the worker and a MAC, a Makefile
    and a README. DIR is written whole or not at all. An earlier output is replaced; a folder with other files in it is
    refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    config = needed(name)
    board = board_of(config, board)
    with output.working(f"making the project for {board}"):
        from p4sgd.build.vivado.folder import build

        files = written(out, lambda: build(config, out, board=board, megahertz=megahertz, udp=udp, build_id=build_id))
    facts = {"config": config, "board": board, "megahertz": megahertz}
    show(output, out, files, facts, ["make check", "make engine", "make image"], udp=udp)
