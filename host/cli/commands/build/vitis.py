"""The command `p4sgd build vitis`."""

from pathlib import Path

import click

from p4sgd.host.cli.commands.build.boards import board_of, board_options, needed, show, written
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

__all__ = ["vitis"]


@click.command()
@click.option("--aggregator", is_flag=True, help="Have the board be an aggregator between its ports, and no worker.")
@board_options
def vitis(
    name: str | None,
    board: str | None,
    out: Path,
    aggregator: bool,
    udp: bool,
    build_id: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the folder from which Vitis makes a board's image.

    Kernels with their descriptions and scripts, what v++ links, a Makefile and a README. DIR is written whole or not at
    all. An earlier output is replaced; a folder with other files in it is refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    if aggregator and name is not None:
        raise UserError("--config is of workers, and an aggregator is none: name the board with --board instead")
    board = board_of(name if aggregator else needed(name), board)
    with output.working(f"making the kernels for {board}"):
        from p4sgd.build.vitis.folder import build

        files, image = written(out, lambda: build(name, out, board=board, udp=udp, build_id=build_id))
    facts = {"config": name, "board": board, "kernels": list(image.kernels)}
    if image.memory:
        facts["image_bytes"] = image.memory.image_bytes
    show(output, out, files, facts, ["make check", "make"], udp=udp)
    if image.memory:
        output.say(f"the largest image of a worker is {image.memory.image_bytes >> 20:,} MiB, labels apart")
