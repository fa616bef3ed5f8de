"""A hint for Vivado: which part of a worker goes to which die of the FPGA.

A signal may cross one boundary between dies in a cycle, at 250 MHz, and not two. An engine is whole on one die, as what
it exchanges with the rest of the worker leaves a register of the engine or enters one. The rest goes where no engine is
more than one boundary away.
"""

import re
from itertools import pairwise

from p4sgd.build.devices import Device
from p4sgd.build.marking import mark
from p4sgd.hw.verilog import modules

__all__ = ["deal", "floorplan", "home", "placement"]

_INSTANCE = re.compile(r"^  (\S+) +(\w+) \($", re.MULTILINE)
"""An instance in a module as yosys writes it: its module and its name."""

_HEAD = """\
# Where to place the worker on the {dies} dies of an {board}: to be sourced in Vivado after synthesis, which must
# keep the hierarchy (-flatten_hierarchy rebuilt does), and before place_design. If the worker is not the top of the
# design, first set p4sgd_worker to the path to it, with a slash at the end.
#
# Engines are dealt evenly. What there is once takes a fraction of an engine and goes to SLR{home}, from where no engine
# is more than one boundary away: a signal crosses one in a cycle of 250 MHz, and those between engines and the rest
# have a register at the engine. Memory ports have none: those of engines, and of the labels, that are not on
# SLR{memory}, where the memory is, need AXI register slices on the way. So do tx and rx if the MAC is on another die
# than the rest; the transceivers are on SLR{network}.

if {{![info exists p4sgd_worker]}} {{set p4sgd_worker ""}}
"""


def home(device: Device) -> int:
    """The die for what a worker has once: the one nearest to its farthest other; of two such the network's."""
    return min(
        range(device.dies),
        key=lambda die: (max(die, device.dies - 1 - die), abs(die - device.network_die)),
    )


def deal(engines: int, device: Device) -> list[range]:
    """Engines of each die; their numbers differ by one at most.

    Those that are left over go to the dies nearest to the memory, as most wires of an engine lead there, but to the one
    with the rest of the worker last.
    """
    each, left = divmod(engines, device.dies)
    order = sorted(range(device.dies), key=lambda die: (die == home(device), abs(die - device.memory_die)))
    ends = [0]
    for die in range(device.dies):
        ends.append(ends[-1] + each + (die in order[:left]))
    return [range(*both) for both in pairwise(ends)]


def placement(worker: str, top: str, engine: str, device: Device) -> list[list[str]]:
    """Cells of a worker for each die, the lowest first.

    Parameters
    ----------
    worker
        Verilog of the worker.
    top, engine
        Its modules: the one that has the engines, and the engine.
    device
        The FPGA.

    Raises
    ------
    KeyError
        If there is no such top.
    """
    instances = _INSTANCE.findall(modules(worker)[top])
    engines = [name for module, name in instances if module == engine]
    cells = [[engines[number] for number in numbers] for numbers in deal(len(engines), device)]
    cells[home(device)] += [name for module, name in instances if module != engine]
    return cells


def floorplan(worker: str, top: str, engine: str, device: Device, command: str) -> str:
    """A Tcl script with a pblock for every die.

    Parameters
    ----------
    worker, top, engine, device
        As in `placement`.
    command
        Command that makes the file.

    Raises
    ------
    KeyError
        If there is no such top.
    """
    facts = {"dies": device.dies, "board": device.name, "memory": device.memory_die, "network": device.network_die}
    lines = [mark("# {}", command), _HEAD.format(**facts, home=home(device))]
    for die, names in enumerate(placement(worker, top, engine, device)):
        pblock = f"p4sgd_slr{die}"
        lines += [
            f"create_pblock {pblock}",
            f"resize_pblock [get_pblocks {pblock}] -add {{SLR{die}:SLR{die}}}",
            *(f"add_cells_to_pblock [get_pblocks {pblock}] [get_cells ${{p4sgd_worker}}{name}]" for name in names),
            "",
        ]
    return "\n".join(lines)
