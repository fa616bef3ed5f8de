"""The folder from which Vivado builds the bitstream of a worker without a shell, and reports of its parts."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amaranth.vendor import XilinxPlatform

from p4sgd.build.fpga.alveo_u280 import CONFIGURATION, AlveoU280Platform
from p4sgd.build.fpga.kernel import Kernel, cmac, memory_bus, worker
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
from p4sgd.build.generate.boards import BOARDS, Board, map_memories
from p4sgd.build.generate.floorplan import floorplan, kernel_placement
from p4sgd.hw.spec.config import NamedConfig, WorkerConfig
from p4sgd.hw.worker.worker import ENGINE


@dataclass(frozen=True)
class BoardPins:
    """Where the ports of the block design are on a board that has no shell."""

    platform: type[XilinxPlatform]  # with the resources ``pcie`` and ``hbm_cattrip``, and those of ``clocks``
    configuration: str  # XDC constraints of every design for the board
    clocks: Mapping[str, tuple[str, int]]  # resource of each differential clock of the block design, by its name
    host_quad: str  # transceiver quad of lane 0 of PCI Express
    host_block: str  # the PCI Express block beside it


CAGE_CLOCK = "qsfp0_refclk"
"""Reference clock of the first cage's transceivers. Its frequency is a setting of the MAC's IP (`Cage`), whose
constraints define the clock; a second definition would hide that one."""

PINS = {
    "u280": BoardPins(
        AlveoU280Platform,
        CONFIGURATION,
        # HBM gets one of the two clocks for DDR4.
        {"pcie_refclk": ("pcie_refclk", 1), "hbm_refclk": ("ddr4_refclk", 0), CAGE_CLOCK: ("qsfp28_refclk", 0)},
        "GTY_Quad_227",  # UG1314; AMD's board files
        "PCIE4C_X1Y0",
    )
}
"""Pins by the name of the board. ``block_design.tcl`` sets up the HBM of a U280: two stacks, 8 GB, 32 channels."""


def board_constraints(board: str, command: str) -> str:
    """XDC: pins of the block design's ports on one of the boards in `PINS`, and the board's configuration.

    Transceivers need no pins here: their IP places them.
    """
    pins = PINS[board]
    platform = pins.platform()
    lines = [header_comment("# {}", command)]
    for name, (resource, number) in pins.clocks.items():
        found = platform.lookup(resource, number)
        pair = found.ios[0]
        for letter, half in (("p", pair.p), ("n", pair.n)):
            lines += _pin(f"{name}_clk_{letter}", half.names[0], found.attrs)
        if name != CAGE_CLOCK:  # which the MAC's IP defines
            period = 1e9 / found.clock.frequency
            lines.append(f"create_clock -period {period:.3f} -name {name} [get_ports {name}_clk_p]")
    reset = next(each for each in platform.lookup("pcie", 0).ios if each.name == "rst")
    lines += _pin("pcie_perst_n", reset.ios[0].names[0], reset.attrs)
    too_hot = platform.lookup("hbm_cattrip", 0)
    lines += _pin("hbm_cattrip", too_hot.ios[0].names[0], too_hot.attrs)
    lines.append("set_false_path -from [get_ports pcie_perst_n]")
    return "\n".join(lines) + "\n" + pins.configuration


def _pin(port: str, pin: str, attributes: Any) -> list[str]:
    return [
        f"set_property PACKAGE_PIN {pin} [get_ports {port}]",
        *(f"set_property {name} {value} [get_ports {port}]" for name, value in attributes.items()),
    ]


FLOORPLAN, BOARD_PINS, ADDRESS_MAP = "floorplan.tcl", "board.xdc", "address_map.json"
_OUT_OF_CONTEXT, _BLOCK_DESIGN = "out_of_context.tcl", "block_design.tcl"

_PROCEDURES = (PROCEDURES, GATES, _OUT_OF_CONTEXT, _BLOCK_DESIGN)  # files that scripts source

_PROJECT = "p4sgd_board"

FREE_MEGAHERTZ, _REGISTERS = 100, 0x1000
"""Frequency of the board's clock for HBM and the MAC; bytes of address space for the registers of a kernel."""


def vivado_files(
    config: WorkerConfig, board_name: str, command: str, *, megahertz: int, build_id: int, cable: str | None = None
) -> tuple[dict[str, str], tuple[Kernel, ...]]:
    """All files by name, and their kernels; the same arguments give the same bytes.

    ``board_name`` is one of `PINS`, ``megahertz`` the clock for modules that are implemented on their own, as the
    bitstream has 250 MHz, and ``cable`` one of `p4sgd.build.fpga.cmac.CABLES`, or None for the IP's defaults.
    ValueError if the worker has more banks than there are channels.
    """
    pins, board = PINS[board_name], BOARDS[board_name]
    channels = map_memories(config, board.hbm).channels  # before the work
    kernels = engine, _ = worker(config, board, build_id), cmac(0, build_id)
    found = {
        "README.md": _readme(board, command),
        "Makefile": _makefile(kernels, board, command),
        **copies(command, "vivado_rules.mk", *_PROCEDURES),
        "project.tcl": _project(channels, kernels, board, pins, command),
        BOARD_PINS: board_constraints(board_name, command),
        ADDRESS_MAP: _address_map(channels, kernels, board, command),
    }
    for kernel in kernels:
        cage = board.cages[0]
        found |= kernel_files(kernel, board, cage, FREE_MEGAHERTZ, command, cable=cable, for_vitis=False)
    header = header_comment("# {}", command)
    for name, module, clock in (("worker", engine.verilog.top, "ap_clk"), ("engine", ENGINE, "clk")):
        found[f"{name}_clock.xdc"] = f"""\
{header}
create_clock -period {1000 / megahertz:.3f} -name clock [get_ports {clock}]
"""
        found[f"{name}.tcl"] = f"""\
{header}
{source_command(_OUT_OF_CONTEXT)}

p4sgd::out_of_context {name} {module} {board.part} {engine.verilog.top}.v {name}_clock.xdc
"""
    cells = kernel_placement(engine.verilog, config, board)
    found[FLOORPLAN] = floorplan(cells, board, command, what="the worker's kernel")
    return found, kernels


def _address_map(channels: tuple[range, ...], kernels: tuple[Kernel, ...], board: Board, command: str) -> str:
    """Where the host finds registers and memory (`p4sgd.host.boards.xdma`)."""
    size = board.hbm.channel_bytes
    memories = [{"address": size * each[0], "bytes": size * len(each)} for each in channels]
    found = {
        kernel.name: {"registers": _REGISTERS * i, "memories": [] if i else memories}
        for i, kernel in enumerate(kernels)
    }
    return json.dumps({"generated_by": command, "kernels": found}, indent=2) + "\n"


def _words(channels: Iterable[int]) -> str:
    return " ".join(map(str, channels))


def _project(
    channels: tuple[range, ...], kernels: tuple[Kernel, ...], board: Board, pins: BoardPins, command: str
) -> str:
    engine, mac = kernels
    masters: dict[int, list[str]] = {}  # of the port of each channel, with what they reach
    for number, each in enumerate(channels):
        masters.setdefault(each[0], []).append(f"{engine.unit}/{memory_bus(number)} {{{_words(each)}}}")
    host = next((channel for channel in range(board.hbm.channels) if channel not in masters), channels[-1][0])
    masters.setdefault(host, []).append(f"xdma/M_AXI {{{_words(range(board.hbm.channels))}}}")
    lines = [
        header_comment("# {}", command),
        source_command(GATES),
        "",
        source_command(_BLOCK_DESIGN),
        "",
        f"p4sgd::open_project {_PROJECT} {board.part} {{{' '.join(kernel.name for kernel in kernels)}}}",
        f"p4sgd::add_host {pins.host_quad} {pins.host_block}",
        f"p4sgd::add_memory {{{_words(sorted(masters))}}}",
        *(f"p4sgd::add_kernel {kernel.unit} {kernel.vlnv} {_REGISTERS * i:#x}" for i, kernel in enumerate(kernels)),
        *(f"p4sgd::connect_memory {channel} {{{' '.join(masters[channel])}}}" for channel in sorted(masters)),
        f"p4sgd::stream_between {engine.unit}/axis_tx {mac.unit}/axis_tx",
        f"p4sgd::stream_between {mac.unit}/axis_rx {engine.unit}/axis_rx",
        f"p4sgd::connect_port {mac.unit}",
        f"p4sgd::make_bitstream {BOARD_PINS} 8",
        judge_command("gates", kernels, board),
    ]
    return "\n".join(lines) + "\n"


def _makefile(kernels: tuple[Kernel, ...], board: Board, command: str) -> str:
    return f"""\
{header_comment("# {}", command)}
RELEASES := {" ".join(board.shell.releases)}
KERNELS := {" ".join(kernel.name for kernel in kernels)}
BITSTREAM := out/{_PROJECT}/{_PROJECT}.runs/impl_1/board_wrapper.bit

include {RULES}
"""


_README = Path(__file__).with_name("vivado_readme.md")


def _readme(board: Board, command: str) -> str:
    text = _README.read_text(encoding="utf-8").format(
        board=board.name, project=_PROJECT, worker=0, mac=_REGISTERS, watts=board.watts
    )
    return f"{header_comment('<!-- {} -->', command)}\n\n{text}"


def build(
    named: NamedConfig,
    folder: Path,
    *,
    board: str,
    megahertz: int = 250,
    build_id: int = 0,
    cable: str | None = None,
) -> list[Path]:
    """Write the folder for a worker's configuration, as `write_folder` and `vivado_files`."""
    config = named.config
    check_folder(folder)  # before the work
    flags = f"--megahertz {megahertz} --build-id {build_id}{command_flags(cable)}"
    command = f"p4sgd build vivado {' '.join(named.options)} --board {board} {flags} --out DIR"
    texts, kernels = vivado_files(config, board, command, megahertz=megahertz, build_id=build_id, cable=cable)
    description = describe("vivado", board, named, {"worker": asdict(config)}, kernels, *_PROCEDURES)
    return write_folder(folder, command, texts, description)
