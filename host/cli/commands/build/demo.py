"""The command `p4sgd build demo`."""

from pathlib import Path

import click

from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

__all__ = ["demo"]


@click.command()
@click.argument("name", type=click.Choice(["heartbeat", "loopback"]))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write.")
@common_options
def demo(name: str, out: Path, as_json: bool, quiet: bool) -> None:
    """Write a small design that tries out an Alveo U280 alone.

    heartbeat counts seconds by the card's serial port (USB, 115200 baud). loopback sends frames through the Ethernet
    MAC of the first QSFP28 cage and its transceivers back to itself, and tells by that port how many came. Both are
    for Vivado without Vitis: the card has no shell until it starts again.
    DIR is written whole or not at all. An earlier output is replaced; a folder with other files in it is refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"making the demonstration {name}"):
        from p4sgd.build.artifacts import ForeignFolderError
        from p4sgd.build.boards import demonstrations

        try:
            files = demonstrations.generate(name, out)
        except ForeignFolderError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{out}: cannot write: {error.strerror or error}") from error
    commands = [f"sh build_{name}.sh", f"vivado -mode batch -source {demonstrations.PROGRAM}"]
    output.document({"demonstration": name, "out": str(out), "files": [file.name for file in files], "next": commands})
    output.table(["file", "bytes"], [(file.name, f"{file.stat().st_size:,}") for file in files])
    output.say(f"next, in {out}, with Vivado: {commands[0]}, then, with a card: {commands[1]}")
