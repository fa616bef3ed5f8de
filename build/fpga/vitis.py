"""The folder from which Vitis builds the xclbin of a board: kernels, link configurations, a Makefile and a README."""

from dataclasses import asdict
from pathlib import Path

from p4sgd.build.fpga.link import Xclbin, aggregator_xclbin, link_configuration, selftest_xclbin, worker_xclbin
from p4sgd.build.fpga.packaging import (
    GATES,
    PROCEDURES,
    RULES,
    command_flags,
    copies,
    describe,
    judge_command,
    kernel_files,
    source_command,
)
from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
from p4sgd.build.generate.boards import BOARDS
from p4sgd.build.generate.floorplan import kernel_placement
from p4sgd.hw.spec.config import NamedConfig
from p4sgd.hw.spec.selftest import KERNEL as SELFTEST

CLUSTER, PLACE, JUDGE = "hw_emu.toml", "place.tcl", "judge.tcl"
"""Cluster file of the design for the emulator, and scripts that Vivado runs before placement and after routing, because
v++ tells it to (UG1393, --vivado Options)."""

_TRAINING = """\
Its workers then train by this command, slowly, as their Verilog is simulated:

```sh
XCL_EMULATION_MODE=hw_emu EMCONFIG_PATH=$PWD/out/hw_emu p4sgd train digits:3 --device cluster --cluster hw_emu.toml
```
"""

_TESTING = """\
This command tests it, with fewer beats and frames than on the board:

```sh
XCL_EMULATION_MODE=hw_emu EMCONFIG_PATH=$PWD/out/hw_emu p4sgd doctor --self-test out/hw_emu/{name}.xclbin --board xrt:0
```
"""

_SCRIPT = """\
# Vivado runs this before place_design, because v++ tells it to. It assigns
# {parts}
# to dies, in the region that the shell has for kernels on each die. What is not found is left to the tool.

set kernel [get_cells -quiet -hierarchical -filter {{NAME =~ */{unit}/inst}}]
foreach {{die cells}} {{
{cells}
}} {{
    set region [get_pblocks -quiet pblock_dynamic_SLR$die]
    foreach cell $cells {{
        set found [get_cells -quiet $kernel/$cell]
        if {{[llength $region] == 0 || [llength $found] == 0}} {{
            puts "p4sgd: $cell or the region of SLR$die is not there; the tool places it"
        }} else {{
            add_cells_to_pblock $region $found
        }}
    }}
}}
"""


def _place_script(xclbin: Xclbin, command: str) -> str:
    """The file `PLACE`, which assigns the cells of the kernel with memory ports to dies."""
    kernel = xclbin.kernels[xclbin.name]
    assert xclbin.worker
    parts = "the worker's engines, the rest of the worker and its register slices"
    if kernel.name == SELFTEST:
        parts = "the tests of memory ports, and register slices,"
    dies = kernel_placement(kernel.verilog, xclbin.worker, xclbin.board)
    cells = "\n".join(f"    {die} {{{' '.join(names)}}}" for die, names in enumerate(dies))
    return f"{header_comment('# {}', command)}\n{_SCRIPT.format(parts=parts, unit=kernel.unit, cells=cells)}"


def _judge_script(xclbin: Xclbin, command: str) -> str:
    """The file `JUDGE`, which judges the design for the board."""
    return f"""\
{header_comment("# {}", command)}
# Vivado runs this after route_design, because v++ tells it to.

{source_command(GATES)}
{judge_command("hw gates", xclbin.designs["hw"].kernels, xclbin.board)}
"""


_README = Path(__file__).with_name("vitis_readme.md")

_SELFTEST_MEMORY = """\
**On the board:** `p4sgd doctor --self-test out/hw/{name}.xclbin` tells how fast and how right
each memory port and each MAC is. Ports have the memories, widths and dies of those of the worker.
"""

_WORKER_MEMORY = """\
**Memory.** No two memory ports of engines share a pseudo channel of HBM: it would be no faster for that.
A bank of an engine has {bank} MiB, so the largest memory image of a worker is {size} MiB of lines and
weights, padding included. Labels, which are few, are at the end of the last bank or in another memory.
"""


def _readme(xclbin: Xclbin, command: str) -> str:
    shell, kernels, name = xclbin.board.shell, xclbin.kernels.values(), xclbin.name
    commands = memory = ""
    more = []
    if any(kernel.ip for kernel in kernels):
        more.append("| `p4sgd_cmac*_ip.tcl`, `p4sgd_cmac.xdc` | makes AMD's MAC; constraints for its clock crossings |")
    if any(kernel.debug_script for kernel in kernels):
        cores = "of a MAC's link" if xclbin.worker is None else "of the worker's dots and sums, and of a MAC's link"
        more.append(f"| `<kernel>_debug.tcl` | makes debug cores: {cores}; `out/hw/{name}.ltx` names probes |")
    if xclbin.memory:
        more.append(f"| `{name}.xdc` | constraints for its settings, which may take some cycles to arrive |")
        more.append("| `place.tcl` | assigns parts of the kernel to dies; Vivado runs it before placement |")
        bank, size = xclbin.memory.bank_bytes >> 20, xclbin.memory.image_bytes >> 20
        memory = _WORKER_MEMORY.format(bank=bank, size=size)
    if xclbin.trains:
        more.append("| `hw_emu.toml` | cluster file of the design for the emulator |")
        commands = _TRAINING
    if name == SELFTEST:
        commands, memory = _TESTING.format(name=name), _SELFTEST_MEMORY.format(name=name)
    return f"{header_comment('<!-- {} -->', command)}\n\n" + _README.read_text(encoding="utf-8").format(
        name=name,
        platform=shell.platform,
        releases=f"{shell.releases[0]} to {shell.releases[-1]}",
        targets="\n".join(f"| `{target}` | {design.summary} |" for target, design in xclbin.designs.items()),
        watts=xclbin.board.watts,
        commands=commands,
        more="\n".join(more),
        memory=memory,
    )


_PATIENCE = """
[network]  # 1.4 ms until a worker gives up, which are 355,000 cycles to simulate; an answer takes some hundred
resend_us = 20
resends = 10
doublings = 3
"""
"""Lines of the file `CLUSTER`. The usual 12 s would take an emulator days."""


def _cluster(xclbin: Xclbin, command: str) -> str:
    """The file `CLUSTER`: the aggregator, and a worker behind each of its ports."""
    binary = f'xclbin = "out/hw_emu/{xclbin.name}.xclbin"'
    lines = [header_comment("# {}", command), "[aggregator]", 'kind = "fpga"', 'control = "xrt:0"', binary]
    assert xclbin.aggregator
    for port in range(xclbin.aggregator.ports):
        lines += ["", "[[workers]]", f'control = "xrt:0{f"/{port + 1}" if port else ""}"', binary, f"port = {port}"]
    return "\n".join([*lines, _PATIENCE])


def _makefile(xclbin: Xclbin, command: str) -> str:
    shell = xclbin.board.shell
    lines = [
        header_comment("# {}", command),
        f"NAME := {xclbin.name}",
        f"DEFAULT_PLATFORM := {shell.platform}",
        "PLATFORM ?= $(DEFAULT_PLATFORM)",
        f"RELEASES := {' '.join(shell.releases)}",
        *(
            f"KERNELS_{target} := {' '.join(kernel.name for kernel in design.kernels)}"
            for target, design in xclbin.designs.items()
        ),
        *([f"PLACE_hw := {PLACE}"] if xclbin.memory else []),
        f"JUDGE_hw := {JUDGE}",
        "",
        f"include {RULES}",
    ]
    return "\n".join(lines) + "\n"


def _vitis_files(xclbin: Xclbin, command: str, cable: str | None) -> dict[str, str]:
    board = xclbin.board
    found = {"README.md": _readme(xclbin, command), "Makefile": _makefile(xclbin, command)}
    found |= copies(command, "vitis_rules.mk", PROCEDURES, GATES)
    found[JUDGE] = _judge_script(xclbin, command)
    for target, design in xclbin.designs.items():
        found[f"link_{target}.cfg"] = link_configuration(design, board, command)
    cages = iter(board.cages)
    for kernel in xclbin.kernels.values():
        cage = next(cages) if kernel.ip else None
        found |= kernel_files(kernel, board, cage, board.shell.free_megahertz, command, cable=cable)
    if xclbin.trains:
        found[CLUSTER] = _cluster(xclbin, command)
    if xclbin.worker:
        found[PLACE] = _place_script(xclbin, command)
    return found


def build(
    named: NamedConfig | None,
    folder: Path,
    *,
    board: str,
    build_id: int = 0,
    cable: str | None = None,
    self_test: bool = False,
    debug: bool = False,
) -> tuple[list[Path], Xclbin]:
    """Write the folder for a worker, a self-test of its ports, or an aggregator, as `write_folder` does.

    ``named`` is the worker's configuration, or None for an aggregator; ``board`` is one of `BOARDS`, ``cable`` one of
    `p4sgd.build.fpga.cmac.CABLES`, or None for the IP's defaults.

    Returns the files, and the xclbin that they build. ValueError if the worker has more memory ports than the board or
    a self-test, or the board has no memory for the labels.
    """
    check_folder(folder)  # before the work
    what = "--aggregator" if named is None else " ".join(named.options)
    flags = f"--board {board} --build-id {build_id}{command_flags(cable, debug)}"
    command = f"p4sgd build {'selftest' if self_test else 'vitis'} {what} {flags} --out DIR"
    if named is None:
        xclbin = aggregator_xclbin(BOARDS[board], build_id=build_id, debug=debug)
    elif self_test:
        xclbin = selftest_xclbin(named.config, BOARDS[board], build_id=build_id)
    else:
        xclbin = worker_xclbin(named.config, BOARDS[board], build_id=build_id, debug=debug)
    sizes = {
        name: each and asdict(each) for name, each in (("worker", xclbin.worker), ("aggregator", xclbin.aggregator))
    }
    description = describe("vitis", board, named, sizes, xclbin.kernels.values(), PROCEDURES, GATES)
    return write_folder(folder, command, _vitis_files(xclbin, command, cable), description), xclbin
