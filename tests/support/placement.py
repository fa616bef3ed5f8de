"""What the script for placement of a folder for Vitis names."""

import re

from support.verilog_ports import instances_of, module_at


def placed(folder):
    """Cells by die, as place.tcl names them."""
    script = (folder / "place.tcl").read_text()
    return {int(die): cells.split() for die, cells in re.findall(r"^    (\d) \{([^}\n]*)\}$", script, re.MULTILINE)}


def every_cell_once(folder):
    """What place.tcl names is in the Verilog, all of the worker and every register slice, each once."""
    text, top = (folder / "p4sgd_worker_kernel.v").read_text(), "p4sgd_worker_kernel"
    cells = [cell for names in placed(folder).values() for cell in names]
    assert len(set(cells)) == len(cells)
    for cell in cells:
        module_at(text, top, cell)
    outer, inner = (instances_of(text, module) for module in (top, module_at(text, top, "worker")))
    there = (set(outer) - {"worker"}) | {f"worker/{name}" for name in inner}
    assert set(cells) == there
