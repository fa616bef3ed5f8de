"""The command `p4sgd generate`."""

from pathlib import Path

import click

from p4sgd.host.cli.options import common_options, configuration
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

__all__ = ["generate"]


@click.command()
@click.option("--config", "name", type=configuration, required=True, help="Configuration of the worker.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write.")
@click.option(
    "--ports",
    type=click.IntRange(1, 32),
    default=1,
    show_default=True,
    help="Ethernet ports of the aggregator; one may have a switch with many workers behind it.",
)
@click.option(
    "--build-id",
    type=click.IntRange(0, (1 << 32) - 1),
    default=0,
    show_default=True,
    help="Number that the BUILD_ID registers give.",
)
@click.option("--udp", is_flag=True, help="Have packets travel in UDP, for networks with routers.")
@common_options
def generate(name: str, out: Path, ports: int, build_id: int, udp: bool, as_json: bool, quiet: bool) -> None:
    """Write the Verilog of worker and aggregator.

    With it come registers and packet as Markdown, C header and JSON, a list of the files for a simulator's -F and, for
    configurations of boards, a floor plan for Vivado.
    DIR is written whole or not at all. An earlier output is replaced; a folder with other files in it is refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"making Verilog for {name}"):
        from p4sgd.build import verilog
        from p4sgd.build.artifacts import ForeignFolderError

        try:
            files = verilog.generate(name, out, ports=ports, build_id=build_id, udp=udp)
        except ForeignFolderError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{out}: cannot write: {error.strerror or error}") from error
    output.document(
        {
            "config": name,
            "out": str(out),
            "files": [file.name for file in files],
            "tops": verilog.TOPS,
            "file_list": str(out / verilog.FILE_LIST),
        }
    )
    output.table(["file", "bytes"], [(file.name, f"{file.stat().st_size:,}") for file in files])
    output.say(f"tops {' and '.join(verilog.TOPS)}; files listed in {out / verilog.FILE_LIST}")
