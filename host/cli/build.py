"""Commands that write or check folders: `p4sgd generate`, `p4sgd resources` and `p4sgd build`."""

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.app import FAILED
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import write_error
from p4sgd.host.training.options import names_in

if TYPE_CHECKING:
    from p4sgd.build.check.folder import Folder
    from p4sgd.hw.spec.config import NamedConfig

_SHELLS = "p4sgd.build.generate.boards:BOARDS"
"""Boards that `build vitis` makes folders for."""

_PINS = "p4sgd.build.fpga.vivado:PINS"
"""Boards that `build vivado` makes folders for."""


@contextmanager
def writing(out: Path, *refused: type[Exception]) -> Iterator[None]:
    """Tell the user if a folder cannot be written or holds files of others, and of errors that are ``refused``."""
    from p4sgd.build.generate.artifacts import ForeignFolderError

    reported: tuple[type[Exception], ...] = (ForeignFolderError, *refused)
    try:
        yield
    except reported as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise write_error(out, error) from error


@click.command()
@options.worker_configuration(required=True)
@options.folder
@options.count(
    "--ports",
    1,
    "Ethernet ports of the aggregator; a switch can connect many workers to one port.",
    most=32,
    default=1,
)
@options.build_id
@click.option(
    "--src",
    is_flag=True,
    help="Name lines of the Python source in the Verilog, and write names.json: class and file of every instance.",
)
@click.option(
    "--prefix",
    metavar="NAME",
    default="",
    help="Begin the names of all modules with this, such as left_, for a design with several configurations. Their C "
    "headers have the same names: a program can include those of one.",
)
@options.common
def generate(
    config: "NamedConfig", out: Path, ports: int, build_id: int, src: bool, prefix: str, output: Output
) -> None:
    """Write the Verilog of a worker and an aggregator.

    With it come a page about their ports, registers and packet format as Markdown, C header and JSON, registers also in
    SystemRDL, a list of the files for a simulator's -F (or -f, in the folder), waivers for Verilator, a core of FuseSoC
    and, for configurations of boards, a floor plan for Vivado.
    """
    with output.working(f"making Verilog for {config}"):
        from p4sgd.build.generate import verilog

        _board_of(config, None, _SHELLS)
        if not re.fullmatch("([A-Za-z][A-Za-z0-9_]*)?", prefix):
            raise UserError(f"--prefix {prefix}: name it by letters, digits and _, a letter first")
        with writing(out):
            files = verilog.generate(config, out, ports=ports, build_id=build_id, sources=src, prefix=prefix)
    tops = verilog.tops_of(prefix)
    listed = str(out / verilog.FILE_LIST)
    output.written({"config": str(config), "out": str(out), "tops": tops, "file_list": listed}, files)
    output.say(f"tops {' and '.join(tops)}; files listed in {listed}")


@click.command()
@options.worker_configuration(required=True)
@click.option(
    "--unit",
    type=options.NameFrom("unit", ("engine", "worker")),
    default="worker",
    help="What to synthesise: one engine, or the whole worker.",
)
@click.option(
    "--board",
    type=options.NameFrom("board", _SHELLS),
    help="Board to compare with; by default the one that the configuration is for, or u280.",
)
@options.path("--out", "DIR", "Folder for Verilog and report.")
@options.common
def resources(config: "NamedConfig", unit: str, board: str | None, out: Path | None, output: Output) -> None:
    """Estimate the resources and the timing of the hardware.

    yosys synthesises a worker for UltraScale+, its engine once. LUTs, flip-flops and so on are counted for every part.
    The delays of the longest paths are estimated without placement: use them to compare paths, not to predict a clock.
    The loads of nets are counted, and the registers that resets reach.
    Takes some minutes for u280.

    A sentence for each broken rule says what to do. Exit status 1 if a configuration that is made for a board breaks
    one of the rules for paths, loads, resets and dies. Smaller ones are for simulation, and break that for paths.
    """
    made_for = _board_of(config, None, _SHELLS)
    with output.working(f"synthesising {config}"):
        from p4sgd.build.estimate.resources import advice_for_dies, measure, shares_of_dies
        from p4sgd.build.estimate.synthesis import MissingYosysError, SynthesisError
        from p4sgd.build.estimate.timing import MAX_CARRY_BITS, MAX_LOADS, MAX_LUTS, MAX_RESETTABLE
        from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
        from p4sgd.build.generate.boards import BOARDS

        board_name = board or made_for or "u280"
        known = BOARDS[board_name]
        command = f"p4sgd resources {' '.join(config.options)} --unit {unit} --board {board_name} --out DIR"
        with writing(out or Path("scratch folder")):
            if out is not None:
                check_folder(out)  # before the work
            try:
                units, designs = measure(config.config, unit)
            except (MissingYosysError, SynthesisError) as error:
                raise P4sgdError(str(error)) from error
            dies = shares_of_dies(config.config, known, units)
            document = {
                "generated_by": command,
                "config": str(config),
                "device": {key: getattr(known, key) for key in ("name", *units[0].total.table(), "source")},
                "units": [each.document(known) for each in units],
                "dies": dies,
                "left_by_shell": known.shell.left_source,
                "advice": advice_for_dies(dies),
            }
            if out is not None:
                first = header_comment("// {}", command)
                files = {f"{top}.v": f"{first}\n{verilog}" for top, verilog in designs.items()}
                files["resources.json"] = json.dumps(document, indent=2) + "\n"
                write_folder(out, command, files, {"config": str(config)})
    output.document(document)
    limits = {key: getattr(known, key) for key in units[0].total.table()}
    for each in units:
        _show_unit(output, each.document(known), {"name": known.name, "instances": None, **limits})
    if dies:
        output.say(f"shares of what the shell leaves on each die ({known.shell.left_source}):")
        output.records(dies)
    output.say(
        f"rules: {MAX_LUTS} LUTs in a row and one carry chain of {MAX_CARRY_BITS} bits; {MAX_LOADS:,} loads of a net; "
        f"resets reach {MAX_RESETTABLE:,} registers of an engine and of the rest"
    )
    for advice in (*(advice for each in units for advice in each.advice), *advice_for_dies(dies)):
        output.say(f"- {advice}")
    if out is not None:
        output.say(f"Verilog and report in {out}")
    if made_for and (advice_for_dies(dies) or not all(each.keeps_rules for each in units)):
        raise click.exceptions.Exit(FAILED)


def _show_unit(output: Output, unit: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
    output.say(f"{unit['unit']}:")
    total, *shares = (
        {"name": name.replace("_", " "), "instances": None, **unit[name]}
        for name in ("total", "share", "share_beside_shell")
        if unit[name]
    )
    output.records([*unit["parts"], total, limits, *shares])
    output.records(unit["paths"], texts=2)
    output.records(unit["nets"])
    output.say(
        f"a rule is broken at {unit['ends_breaking_rule']:,} of {unit['ends']:,} inputs of registers; resets reach "
        f"{unit['resettable']:,} registers\n"
    )


def _board_options(boards: str, *, config_required: bool = True) -> Callable[[Any], Any]:
    """The options of commands that make folders for boards, whose names are in ``boards``, for `names_in`."""
    return options.together(
        options.common,
        options.worker_configuration(required=config_required),
        click.option(
            "--board",
            type=options.NameFrom("board", boards),
            help="Board; by default the one that the configuration is for.",
        ),
        options.folder,
        click.option(
            "--cable",
            type=options.NameFrom("cable", "p4sgd.build.fpga.cmac:CABLES"),
            help="What is plugged into the QSFP28 cage: the MAC's receivers are made for it. By default the IP's own "
            "setting, which is between the two.",
        ),
        options.build_id,
    )


def _board_of(config: "NamedConfig | None", board: str | None, where: str) -> str | None:
    """The board that is named, or that the configuration is for, one of those in ``where``; None if it is for none."""
    from p4sgd.build.generate.boards import board_of
    from p4sgd.hw.spec.registry import choices

    known, found = names_in(where), board or (None if config is None else board_of(config))
    if found is not None and found not in known:
        begin = f"{config.board_from}: " if config and config.board_from else ""
        raise UserError(f"{begin}there is no board {found!r}: {choices(known)}")
    return found


def _need_board(config: "NamedConfig | None", board: str | None, where: str) -> str:
    found = _board_of(config, board, where)
    if found is None:
        of = "for which board? name it" if config is None else f"configuration {config} is for no board: name one"
        raise UserError(f"{of} with --board {'|'.join(names_in(where))}")
    return found


def _show_folder(output: Output, out: Path, files: list[Path], facts: dict[str, Any], commands: list[str]) -> None:
    commands = [f"p4sgd build check {shlex.quote(str(out))}", f"cd {shlex.quote(str(out))}", *commands]
    output.written({**facts, "out": str(out), "next": commands}, files)
    for line in ("next:", *(f"  {command}" for command in commands)):
        output.say(line)


def _build_kernels(
    output: Output, config: "NamedConfig | None", board: str, out: Path, commands: list[str], **how: Any
) -> Any:
    """Have Vitis' folder made and print its files and the next commands; returns the description of the xclbin."""
    with output.working(f"making the kernels for {board}"):
        from p4sgd.build.fpga.vitis import build

        with writing(out, ValueError):
            files, xclbin = build(config, out, board=board, **how)
    facts: dict[str, Any] = {"config": config and str(config), "board": board, "kernels": list(xclbin.kernels)}
    if xclbin.memory and not how.get("self_test"):
        facts["image_bytes"] = xclbin.memory.image_bytes
    file = f"out/hw/{xclbin.name}.xclbin"
    _show_folder(output, out, files, facts, [command.format(xclbin=file) for command in commands])
    return xclbin


@click.group()
def build() -> None:
    """Write or check folders for AMD's tools."""


@build.command()
@click.option("--aggregator", is_flag=True, help="Build an aggregator between the board's ports instead of a worker.")
@click.option(
    "--debug",
    is_flag=True,
    help="Add debug cores: logic analysers of memory ports, streams, dots and sums, and the state of the link.",
)
@_board_options(_SHELLS, config_required=False)
def vitis(
    config: "NamedConfig | None", board: str | None, out: Path, aggregator: bool, output: Output, **how: Any
) -> None:
    """Write the folder from which Vitis builds the xclbin of a board.

    It has the kernels with their descriptions and scripts, link configurations for v++, a Makefile and a README.
    """
    if aggregator and config is not None:
        raise UserError("--config is for workers, not for --aggregator: name the board with --board instead")
    if not aggregator and config is None:
        raise click.MissingParameter(param_hint="'--config'", param_type="option")
    board = _need_board(config, board, _SHELLS)
    xclbin = _build_kernels(output, config, board, out, ["make check", "make"], **how)
    if xclbin.memory:
        output.say(f"largest memory image of a worker: {xclbin.memory.image_bytes >> 20:,} MiB")


@build.command()
@_board_options(_SHELLS)
def selftest(config: "NamedConfig", board: str | None, out: Path, output: Output, **how: Any) -> None:
    """Write the folder from which Vitis builds a test of a board.

    The xclbin has the memory ports of the configuration's worker, at the same memories and on the same dies, and the
    MACs of all cages. `p4sgd doctor --self-test` loads it, and says how fast and how right they are. It is much smaller
    than a worker, so build it first.
    """
    board = _need_board(config, board, _SHELLS)
    commands = ["make check", "make", "p4sgd doctor --self-test {xclbin}"]
    _build_kernels(output, config, board, out, commands, self_test=True, **how)


@build.command()
@options.count(
    "--megahertz",
    1,
    "Clock for reports of the worker and an engine on their own; the bitstream has 250 MHz.",
    most=1000,
    default=250,
)
@_board_options(_PINS)
def vivado(config: "NamedConfig", board: str | None, out: Path, megahertz: int, output: Output, **how: Any) -> None:
    """Write the folder from which Vivado alone builds a bitstream.

    There is no shell on the board: a project connects the worker to PCI Express, HBM and a MAC. Further scripts
    implement the worker and an engine on their own, for reports of size and timing.
    """
    board = _need_board(config, board, _PINS)
    with output.working(f"making the project for {board}"):
        from p4sgd.build.fpga.vivado import build

        with writing(out, ValueError):
            files = build(config, out, board=board, megahertz=megahertz, **how)
    facts: dict[str, Any] = {"config": str(config), "board": board, "megahertz": megahertz}
    _show_folder(output, out, files, facts, ["make check", "make engine", "make bitstream"])


@build.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--edited", is_flag=True, help="Files were edited on purpose: it is no problem in itself that a file was changed."
)
@options.output(file=False)
def check(folder: Path, edited: bool, output: Output) -> None:
    """Check a folder of `p4sgd generate` or `p4sgd build`.

    None of AMD's tools is needed. The files are unchanged, and no other of their kinds is there. If files were edited,
    the folder is made anew, and what the edits change is named, with its line and what was there: calls in scripts,
    lines of other files. What an engineer chooses may differ: where cells are placed, strategies, more reports, more
    cells and connections of a block design. No file names a path of this machine, the XML of the kernels conforms to
    its schema, Verilator accepts the Verilog without a warning, and the scripts run in a Tcl interpreter with stand-ins
    for Vivado's commands. Verilog, XML, registers, scripts, constraints, link configurations and address map agree with
    each other and the board: names, versions, offsets, ports, widths, memories, streams, cells, dies. A check is
    skipped if what it needs is not installed: a program, or the release of p4sgd that made the folder.
    """
    with output.working(f"checking {folder}"):
        from p4sgd.build.check import check as checks
        from p4sgd.build.check.folder import open_folder
        from p4sgd.build.generate.artifacts import ForeignFolderError

        wanted = {name: each for name, each in checks.CHECKS.items() if not (edited and name == "manifest")}
        try:
            opened = open_folder(folder)
            with TemporaryDirectory() as scratch:
                if opened.changed:
                    opened = replace(opened, original=_made_anew(opened, Path(scratch)))
                report = checks.check(opened, wanted)
        except ForeignFolderError as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"{error.filename or folder}: cannot read: {error.strerror or error}") from error
    problems = [problem._asdict() for problem in report.problems]
    changed = opened.changed if edited else []
    facts = {"folder": str(folder), "done": report.done, "skipped": report.skipped, "edited": changed}
    output.document({**facts, "problems": problems, "remedies": report.remedies})
    for name, reason in report.skipped.items():
        output.say(f"{name}: skipped: {reason}")
    for problem in report.problems:
        output.say(str(problem))
    for name, remedy in report.remedies.items():
        output.say(f"{name}: {remedy}")
    if problems:
        found = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        raise UserError(f"{folder}: {found}: mend what is said above, or generate the folder again")
    output.say(f"nothing wrong: {', '.join(report.done)}")
    if changed:
        what = "edited, as far as files may be" if "edits" in report.done else "edited, and not compared"
        output.say(f"{what}: {', '.join(changed)}")


def _made_anew(folder: "Folder", scratch: Path) -> "Folder | None":
    """The folder as the command in its manifest makes it; None if this release of p4sgd does not have the command."""
    from p4sgd.build.check.folder import open_folder

    makers = {"generate", *(f"build {name}" for name in build.commands if name != "check")}
    out = scratch / "out"
    try:
        words = shlex.split(str(folder.manifest.get("generated_by")))[1:]
        if not makers & {" ".join(words[:count]) for count in (1, 2)}:
            return None
        command = {"generate": generate, "build": build}[words[0]]
        with redirect_stdout(io.StringIO()):
            command.main([*words[1:-1], str(out)], standalone_mode=False)
    except (ValueError, click.ClickException, P4sgdError):
        return None
    return open_folder(out) if out.is_dir() else None


@build.command()
@click.argument("name", type=click.Choice(["heartbeat"]))
@options.folder
@options.common
def demo(name: str, out: Path, output: Output) -> None:
    """Write a small design that tests an Alveo U280.

    heartbeat sends the number of seconds over the card's serial port (USB, 115200 baud). It is built by Vivado alone
    and replaces the card's shell until it is started again.
    """
    with output.working(f"making the demonstration {name}"):
        from p4sgd.build.fpga import heartbeat

        with writing(out):
            files = heartbeat.generate(out)
    commands = [f"sh build_{name}.sh", f"vivado -mode batch -source {heartbeat.PROGRAM}"]
    output.written({"demonstration": name, "out": str(out), "next": commands}, files)
    output.say(f"next, in {out}, with Vivado: {commands[0]}, then, with a card: {commands[1]}")
