"""Which part of a worker goes to which die, for the implementation that v++ runs."""

from p4sgd.build.devices import Device
from p4sgd.build.floorplan import placement
from p4sgd.build.marking import mark
from p4sgd.build.vitis.kernel import Kernel
from p4sgd.hw.worker.verilog import ENGINE

__all__ = ["PLACE", "place_script"]

PLACE = "place.tcl"
"""File that v++ has Vivado run before it places."""

_PATH = ("component", "worker")
"""Instances from the kernel's top to the worker."""

_SCRIPT = """\
# Run by Vivado before place_design, as v++ was told: gives the worker's engines and the rest of it to dies, in the
# regions that the shell has for kernels on each. What is not found stays where the tool puts it.

set worker [get_cells -quiet -hierarchical -filter {{NAME =~ */{unit}/inst}}]
foreach {{die cells}} {{
{cells}
}} {{
    set region [get_pblocks -quiet pblock_dynamic_SLR$die]
    foreach cell $cells {{
        set found [get_cells -quiet $worker/{path}/$cell]
        if {{[llength $region] == 0 || [llength $found] == 0}} {{
            puts "p4sgd: $cell of the worker or the region of SLR$die is not there; the tool places it"
        }} else {{
            add_cells_to_pblock $region $found
        }}
    }}
}}
"""


def place_script(kernel: Kernel, device: Device, command: str) -> str:
    """The file `PLACE`.

    Parameters
    ----------
    kernel
        The worker's.
    device
        The FPGA.
    command
        Command that makes the file.
    """
    module = ".".join((f"\\{kernel.verilog.top}", *_PATH))
    dies = placement(kernel.verilog.text, module, ENGINE, device)
    cells = "\n".join(f"    {die} {{{' '.join(names)}}}" for die, names in enumerate(dies))
    return f"{mark('# {}', command)}\n{_SCRIPT.format(unit=kernel.unit, path='/'.join(_PATH), cells=cells)}"
