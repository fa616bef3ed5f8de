"""Commands `p4sgd generate` and `p4sgd resources`: Verilog with its documents, and estimates of its size and timing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.build import writing
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import P4sgdError

if TYPE_CHECKING:
    from p4sgd.build.estimate.resources import Unit
    from p4sgd.build.generate.boards import Board


@click.command()
@click.option(
    "--config", "name", type=options.hardware_configuration, required=True, help="Configuration of the worker."
)
@options.folder
@click.option(
    "--ports",
    type=click.IntRange(1, 32),
    default=1,
    help="Ethernet ports of the aggregator; a switch can connect many workers to one port.",
)
@options.build_id
@options.common
def generate(name: str, out: Path, ports: int, build_id: int, output: Output) -> None:
    """Write the Verilog of a worker and an aggregator.

    With it come registers and packet format as Markdown, C header and JSON, a list of the files for a simulator's -F
    and, for configurations of boards, a floor plan for Vivado.
    """
    with output.working(f"making Verilog for {name}"):
        from p4sgd.build.generate import verilog

        with writing(out):
            files = verilog.generate(name, out, ports=ports, build_id=build_id)
    output.document(
        {
            "config": name,
            "out": str(out),
            "files": [file.name for file in files],
            "tops": verilog.TOPS,
            "file_list": str(out / verilog.FILE_LIST),
        }
    )
    output.files(files)
    output.say(f"tops {' and '.join(verilog.TOPS)}; files listed in {out / verilog.FILE_LIST}")


@click.command()
@click.option(
    "--config", "name", type=options.hardware_configuration, required=True, help="Configuration of the worker."
)
@click.option(
    "--unit",
    type=options.NameFrom("unit", ("engine", "worker")),
    default="worker",
    help="What to synthesise: one engine, or the whole worker.",
)
@click.option(
    "--board",
    type=options.NameFrom("board", "p4sgd.build.generate.boards:BOARDS"),
    help="Board to compare with; by default the one that the configuration is for, or u280.",
)
@options.path("--out", "DIR", "Folder for Verilog and report.")
@options.common
def resources(name: str, unit: str, board: str | None, out: Path | None, output: Output) -> None:
    """Estimate the resources and the timing of the hardware.

    yosys synthesises a worker for UltraScale+, its engine once. LUTs, flip-flops and so on are counted for every part.
    The delays of the longest paths are estimated without placement: use them to compare paths, not to predict a clock.
    The loads of nets are counted, and the registers that resets reach.
    Takes some minutes for u280.
    """
    with output.working(f"synthesising {name}"):
        from p4sgd.build.estimate.resources import measure
        from p4sgd.build.estimate.synthesis import MissingYosysError, SynthesisError
        from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
        from p4sgd.build.generate.boards import BOARD_OF, BOARDS
        from p4sgd.hw.spec.config import PRESETS

        board_name = board or BOARD_OF.get(name, "u280")
        known = BOARDS[board_name]
        command = f"p4sgd resources --config {name} --unit {unit} --board {board_name} --out DIR"
        with writing(out or Path("scratch folder")):
            if out is not None:
                check_folder(out)  # before the work
            try:
                units, designs = measure(PRESETS[name](), unit)
            except (MissingYosysError, SynthesisError) as error:
                raise P4sgdError(str(error)) from error
            document = {
                "generated_by": command,
                "config": name,
                "device": {key: getattr(known, key) for key in ("name", *units[0].total.table(), "source")},
                "units": [each.document(known) for each in units],
            }
            if out is not None:
                first = header_comment("// {}", command)
                files = {f"{top}.v": f"{first}\n{verilog}" for top, verilog in designs.items()}
                files["resources.json"] = json.dumps(document, indent=2) + "\n"
                write_folder(out, command, files, {"config": name})
    output.document(document)
    for each in units:
        _show(output, each, known)
    if out is not None:
        output.say(f"Verilog and report in {out}")


def _show(output: Output, unit: "Unit", board: "Board") -> None:
    from p4sgd.build.estimate.timing import MAX_CARRY_BITS, MAX_LOADS, MAX_LUTS, MAX_RESETTABLE

    total = unit.total.table()
    rows = [[part.name, part.instances, *map(_number, part.resources.table().values())] for part in unit.parts]
    rows += [
        ["total", "", *map(_number, total.values())],
        [board.name, "", *(_number(getattr(board, key)) for key in total)],
        ["share", "", *(f"{number / getattr(board, key):.1%}" for key, number in total.items())],
    ]
    output.table([f"part of the {unit.name}", "×", "LUT", "FF", "CARRY8", "DSP", "BRAM36", "URAM"], rows)
    paths = []
    for path in unit.timing.paths:
        chains, delay, clock = " + ".join(map(str, path.chains)), f"{path.delay:.2f}", f"{path.megahertz:.0f}"
        rule = _RULE[path.keeps_rule]
        paths.append([path.start, path.end, path.luts, path.multipliers, chains, delay, clock, rule])
    output.table(["longest path from", "to", "LUTs", "DSP", "carry bits", "ns", "MHz", "rule"], paths, texts=2)
    loads = [[net.name, net.loads, _RULE[net.keeps_rule]] for net in unit.loads.nets]
    output.table(["most loads, but for clocks", "loads", "rule"], loads)
    timing, resettable = unit.timing, unit.loads.resettable
    output.say(
        f"rule: {MAX_LUTS} LUTs in a row and one carry chain of {MAX_CARRY_BITS} bits; "
        f"broken at {timing.breaking:,} of {timing.ends:,} inputs of registers"
    )
    limit = f", of {MAX_RESETTABLE:,} at most: {_RULE[resettable <= MAX_RESETTABLE]}" if unit.name == "engine" else ""
    output.say(f"rule: {MAX_LOADS:,} loads of a net; resets reach {resettable:,} registers{limit}\n")


_RULE = {True: "kept", False: "broken"}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
