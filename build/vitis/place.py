"""Which part of a worker goes to which die, for the implementation that v++ runs."""

from p4sgd.build.devices import Device
from p4sgd.build.floorplan import kernel_placement
from p4sgd.build.marking import mark
from p4sgd.build.vitis.kernel import Kernel
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["PLACE", "place_script"]

PLACE = "place.tcl"
"""File that v++ has Vivado run before it places."""

_SCRIPT = """\
# Run by Vivado before place_design, as v++ was told: gives the worker's engines, the rest of it, and the register
# slices between it and its memory to dies, in the regions that the shell has for kernels on each. What is not found
# stays where the tool puts it.

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


def place_script(kernel: Kernel, config: WorkerConfig, device: Device, command: str) -> str:
    """The file `PLACE`.

    Parameters
    ----------
    kernel
        The worker's.
    config
        Size of the worker.
    device
        The FPGA.
    command
        Command that makes the file.
    """
    dies = kernel_placement(kernel.verilog, config, device)
    cells = "\n".join(f"    {die} {{{' '.join(names)}}}" for die, names in enumerate(dies))
    return f"{mark('# {}', command)}\n{_SCRIPT.format(unit=kernel.unit, cells=cells)}"
