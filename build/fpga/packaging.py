"""Common parts of the folders for Vitis and Vivado: a kernel's files, their manifest, and the judging of a design.

Vivado packages a kernel as IP by a script (``package_<kernel>.tcl``).
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from p4sgd.build.fpga.cmac import create_ip, crossing_constraints, ip_script
from p4sgd.build.fpga.kernel import (
    FREE_CLOCK,
    LIBRARY,
    REFERENCE_CLOCK,
    TRANSCEIVERS,
    VENDOR,
    VERSION,
    BusKind,
    Kernel,
    kernel_xml,
)
from p4sgd.build.generate.artifacts import header_comment, with_header_comment
from p4sgd.build.generate.boards import Board, Cage
from p4sgd.hw.datapath.strided_reader import OUTSTANDING_READS
from p4sgd.hw.spec.config import CLOCK_NS, NamedConfig
from p4sgd.hw.spec.register_map import ADDRESS_BITS
from p4sgd.hw.verilog import CoreKind, DebugCore

PROCEDURES, GATES, RULES, CROSSINGS = "package_kernel.tcl", "gates.tcl", "rules.mk", "p4sgd_cmac.xdc"
"""Files with procedures that all packaging scripts use, with those that report on a routed design and judge it, with
the rules of a folder's Makefile, and with the constraints of a MAC's kernel."""

_HERE = Path(__file__).parent

MEMORY_LIMITS = {"MAX_BURST_LENGTH": 64, "NUM_READ_OUTSTANDING": OUTSTANDING_READS, "NUM_WRITE_OUTSTANDING": 1}
"""Longest burst in beats, and reads and writes outstanding, for which interconnects are built: what the readers of
engines and labels ask for, and the storer of weights, which waits for each response."""

SETTLE_CYCLES = 4
"""Cycles in which a setting reaches the engines. It takes longer to start a run after the last setting was written: a
register takes 4 cycles (`p4sgd.hw.bus.register_file`), and `p4sgd.hw.worker.sequencer.RunSizes` at least as many."""


_SETTING_CONSTRAINTS = f"""
# Settings of a run cross dies from the registers to the engines, and are stable long before they are used (UG903).

set settings [get_cells {{{{{{settings}}}}}}]
set_multicycle_path -setup {SETTLE_CYCLES} -to $settings
set_multicycle_path -hold {SETTLE_CYCLES - 1} -to $settings
"""
"""XDC constraints for the ``settings`` of a `Kernel`, to be read for each instance of it."""


_MAC_INTERFACES = (
    f"p4sgd::add_interface {TRANSCEIVERS} master gt {{GRX_P gt_rxp GRX_N gt_rxn GTX_P gt_txp GTX_N gt_txn}}",
    f"p4sgd::add_interface {REFERENCE_CLOCK} slave diff_clock {{CLK_P gt_refclk_p CLK_N gt_refclk_n}}",
    f"p4sgd::plain_clock {FREE_CLOCK}",
)


def source_command(file: str) -> str:
    """Tcl that sources a file beside the script."""
    return f"source [file join [file dirname [file normalize [info script]]] {file}]"


def copies(command: str, rules: str, *names: str) -> dict[str, str]:
    """Files that are beside this module, each with its first line; ``rules`` becomes `RULES`."""
    sources = {RULES: rules} | {name: name for name in names}
    return {name: with_header_comment(_HERE / source, command) for name, source in sources.items()}


def command_flags(cable: str | None, debug: bool = False) -> str:
    """Options of the command that makes a folder, as far as they are not the default."""
    return f"{f' --cable {cable}' if cable else ''}{' --debug' * debug}"


def kernel_files(
    kernel: Kernel,
    board: Board,
    cage: Cage | None,
    free_megahertz: int,
    command: str,
    *,
    cable: str | None = None,
    for_vitis: bool = True,
) -> dict[str, str]:
    """All files of a kernel for a board, by name.

    If it has a MAC, ``cage``, ``free_megahertz`` and ``cable`` are those of `ip_script`. A kernel for v++ also needs
    its XML, one for IP Integrator does not.
    """
    found = {f"{kernel.verilog.top}.v": f"{header_comment('// {}', command)}\n{kernel.verilog.text}"}
    if for_vitis:
        found[f"{kernel.name}.xml"] = kernel_xml(kernel, command)
    found[f"package_{kernel.name}.tcl"] = _package_script(kernel, board.part, command, for_vitis=for_vitis)
    found |= kernel.documents.files(command)
    if kernel.settings:
        constraints = _SETTING_CONSTRAINTS.format(settings=kernel.settings)
        found[f"{kernel.name}.xdc"] = header_comment("# {}", command) + constraints
    if kernel.ip and cage:
        found[_ip_file(kernel)] = ip_script(kernel.ip, cage, free_megahertz, command, cable)
        found[CROSSINGS] = crossing_constraints(command, debug=kernel.debug_script is not None)
    if kernel.debug_script:
        found[kernel.debug_script] = _debug_script(kernel.verilog.debug_cores, command)
    return found


_ANALYSER = {"C_DATA_DEPTH": 1024, "C_INPUT_PIPE_STAGES": 2, "C_EN_STRG_QUAL": 1, "C_ADV_TRIGGER": "true"}

_CORES: Mapping[CoreKind, tuple[Mapping[str, object], str, str]] = {
    CoreKind.ANALYSER: ({**_ANALYSER, "ALL_PROBE_SAME_MU_CNT": 2}, "C_NUM_OF_PROBES", "C_PROBE{}_WIDTH"),
    CoreKind.STATUS: ({"C_NUM_PROBE_OUT": 0, "C_EN_SYNCHRONIZATION": 1}, "C_NUM_PROBE_IN", "C_PROBE_IN{}_WIDTH"),
}
"""Parameters of debug cores (PG172, PG159), as github.com/vortexgpgpu/vortex has them; those for the number of probes,
and for the width of each. 1,024 cycles of the probes of a worker take some 25 block RAMs."""


def _debug_script(cores: Iterable[DebugCore], command: str) -> str:
    """Tcl that adds debug cores to the open project, synthesised with it as in the vendor's rtl_vadd_hw_debug."""
    lines = [header_comment("# {}", command)]
    for core in cores:
        common, number, width = _CORES[core.kind]
        probes = {width.format(index): bits for index, bits in enumerate(core.widths)}
        lines += [
            *create_ip(core.kind.value, core.module, {**common, number: len(core.widths), **probes}),
            f"generate_target {{instantiation_template}} [get_files {core.module}.xci]",
            f"set_property generate_synth_checkpoint false [get_files {core.module}.xci]",
        ]
    return "\n".join(lines) + "\n"


def _ip_file(kernel: Kernel) -> str:
    return f"{kernel.name}_ip.tcl"


def describe(
    kind: str,
    board: str,
    config: NamedConfig | None,
    sizes: Mapping[str, object],
    kernels: Collection[Kernel],
    *scripts: str,
) -> dict[str, object]:
    """Manifest of a folder for AMD's tools, which `p4sgd.build.check` reads.

    ``kind`` is ``vitis`` or ``vivado``, ``config`` the worker's configuration; ``scripts`` are those that
    others source, besides those that make IP.
    """
    return {
        "kind": kind,
        "board": board,
        "config": None if config is None else str(config),
        **sizes,
        "kernels": {kernel.name: kernel.verilog.top for kernel in kernels},
        "sourced": [
            *scripts,
            *(_ip_file(kernel) for kernel in kernels if kernel.ip),
            *(kernel.debug_script for kernel in kernels if kernel.debug_script),
        ],
    }


def judge_command(folder: str, kernels: Iterable[Kernel], board: Board) -> str:
    """The command of `GATES` for a design with one instance of each kernel; AMD's MAC is not judged.

    ``folder`` is that of the reports in ``out``, its parts separated by spaces.
    """
    cells = (f"*/{kernel.unit}/inst{'/adapter' * bool(kernel.ip)}" for kernel in kernels)
    return f"p4sgd::judge {{{folder}}} {board.watts} {{{' '.join(cells)}}}"


def _package_script(kernel: Kernel, part: str, command: str, *, for_vitis: bool) -> str:
    """The script that packages a kernel as IP, for ``vivado -mode batch -source``."""
    (control,) = kernel.buses_of(BusKind.CONTROL)
    ctrl, limits = kernel.control, " ".join(map(str, MEMORY_LIMITS.values()))
    lines = [
        header_comment("# {}", command),
        source_command(PROCEDURES),
        "",
        f"p4sgd::open_kernel {kernel.name} {kernel.verilog.top} {part}",
        *((f"p4sgd::ip {_ip_file(kernel)}", f"p4sgd::constraints {CROSSINGS}") if kernel.ip else ()),
        *((f"p4sgd::ip {kernel.debug_script}",) if kernel.debug_script else ()),
        *((f"p4sgd::constraints {kernel.name}.xdc",) if kernel.settings else ()),
        f"p4sgd::make_core {VENDOR} {LIBRARY} {VERSION}",
        f"p4sgd::clock {10**9 // CLOCK_NS}",
        *(f"p4sgd::bus {bus.name}" for bus in kernel.buses_of(BusKind.STREAM)),
        *(f"p4sgd::memory {bus.name} {limits}" for bus in kernel.buses_of(BusKind.MEMORY)),
        *(_MAC_INTERFACES if kernel.ip else ()),
        f"p4sgd::control {control.name} {1 << ADDRESS_BITS}",
        f"set ctrl [p4sgd::register {ctrl.name} {ctrl.offset:#05x} 32 {{{ctrl.help}}}]",
        *(f"p4sgd::field $ctrl AP_{f.name.upper()} {f.low} {f.bits} {{{f.help}}}" for f in ctrl.fields),
        *(f"p4sgd::pointer {bus.removeprefix('m_axi_')} {r.offset:#05x} {bus}" for bus, r in kernel.pointers.items()),
        *(f"p4sgd::register {r.name.lower()} {r.offset:#05x} 32 {{{r.help}}}" for r in kernel.scalars),
        f"p4sgd::write_kernel {kernel.name}.xml" if for_vitis else "p4sgd::write_core",
    ]
    return "\n".join(lines) + "\n"
