"""The script with which Vivado packs a kernel."""

from p4sgd.build.fpga.kernel import (
    FREE_CLOCK,
    LIBRARY,
    REFERENCE_CLOCK,
    TRANSCEIVERS,
    VENDOR,
    VERSION,
    BusKind,
    Kernel,
)
from p4sgd.build.generate.artifacts import header_comment
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.register_map import ADDRESS_BITS

__all__ = ["CROSSINGS", "PROCEDURES", "ip_file", "package_script"]


PROCEDURES = "package_kernel.tcl"
"""File with what the scripts have in common."""

_MEMORY = "64 16 16"
"""Most beats of a burst, and bursts under way to read and to write, as interconnects are made for.

With all stored planes read, a burst has up to 64 beats, and 16 cover any memory's latency. With fewer it is a group of
as many beats as planes, for which 16 may be too few to have the memory's full rate.
"""


CROSSINGS = "p4sgd_cmac.xdc"
"""File with the constraints of a MAC's kernel."""

_MAC_INTERFACES = (
    f"p4sgd::add_interface {TRANSCEIVERS} master gt {{GRX_P gt_rxp GRX_N gt_rxn GTX_P gt_txp GTX_N gt_txn}}",
    f"p4sgd::add_interface {REFERENCE_CLOCK} slave diff_clock {{CLK_P gt_refclk_p CLK_N gt_refclk_n}}",
    f"p4sgd::plain_clock {FREE_CLOCK}",
)


def ip_file(kernel: Kernel) -> str:
    """File that makes the vendor's IP in a kernel."""
    return f"{kernel.name}_ip.tcl"


def package_script(kernel: Kernel, part: str, command: str, *, for_vitis: bool = True) -> str:
    """The script that packs a kernel, for ``vivado -mode batch -source``.

    Parameters
    ----------
    kernel
        The kernel; its Verilog and its XML are files beside the script.
    part
        The FPGA.
    command
        Command that makes the file.
    for_vitis
        Whether v++ gets the kernel, and not IP Integrator.
    """
    (control,) = kernel.buses_of(BusKind.CONTROL)
    ctrl = kernel.control
    lines = [
        header_comment("# {}", command),
        f"source [file join [file dirname [file normalize [info script]]] {PROCEDURES}]",
        "",
        f"p4sgd::open_kernel {kernel.name} {kernel.verilog.top} {part}",
        *((f"p4sgd::ip {ip_file(kernel)}", f"p4sgd::constraints {CROSSINGS}") if kernel.ip else ()),
        f"p4sgd::make_core {VENDOR} {LIBRARY} {VERSION}",
        f"p4sgd::clock {10**9 // CLOCK_NS}",
        *(f"p4sgd::bus {bus.name}" for bus in kernel.buses_of(BusKind.STREAM)),
        *(f"p4sgd::memory {bus.name} {_MEMORY}" for bus in kernel.buses_of(BusKind.MEMORY)),
        *(_MAC_INTERFACES if kernel.ip else ()),
        f"p4sgd::control {control.name} {1 << ADDRESS_BITS}",
        f"set ctrl [p4sgd::register {ctrl.name} {ctrl.offset:#05x} 32 {{{ctrl.help}}}]",
        *(
            f"p4sgd::field $ctrl AP_{field.name.upper()} {field.low} {field.bits} {{{field.help}}}"
            for field in ctrl.fields
        ),
        *(
            f"p4sgd::pointer {bus.removeprefix('m_axi_')} {register.offset:#05x} {bus}"
            for bus, register in kernel.pointers.items()
        ),
        *(
            f"p4sgd::register {register.name.lower()} {register.offset:#05x} 32 {{{register.help}}}"
            for register in kernel.scalars
        ),
        f"p4sgd::write_kernel {kernel.name}.xml" if for_vitis else "p4sgd::write_core",
    ]
    return "\n".join(lines) + "\n"
