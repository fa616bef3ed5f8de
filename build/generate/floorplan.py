"""Floor plan for Vivado, which assigns the parts of a worker to the dies of an FPGA.

At 250 MHz a signal can cross one boundary between dies in a cycle, but not two. Each engine is on a single die: all its
signals to and from the rest of the worker have a register on either side. The rest of the worker is on a die that no
engine is more than one boundary away from. A memory port whose memory is on another die has a register slice on every
die on the way, the first and the last included, so that every crossing is from register to register.
"""

from collections.abc import Sequence
from itertools import pairwise

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.build.generate.boards import Board
from p4sgd.hw.kernel.kernels import slice_name
from p4sgd.hw.kernel.selftest import port_test_name
from p4sgd.hw.kernel.verilog import SELFTEST_KERNEL, KernelVerilog
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import instances, modules
from p4sgd.hw.worker.worker import ENGINE

_HEAD = """\
# Floor plan of {what} on the {dies} dies of an {board}, to be sourced in Vivado before place_design. Synthesis
# must have kept the hierarchy, as -flatten_hierarchy rebuilt does. If {what} is not the top of the design,
# first set p4sgd_top to the path to it, with a slash at the end.
#
# Engines are distributed evenly. The parts that a worker has once, less than an engine together, are on SLR{shared},
# from where no engine is more than one boundary away: at 250 MHz a signal crosses one boundary in a cycle, and each
# signal between an engine and the rest has a register on either side. Memory ports have none: those of engines and
# labels that are not on SLR{memory}, beside the memory, need AXI register slices, one on each die of the way{slices}.
# tx and rx need slices too if the MAC is on another die than the rest; the transceivers are on SLR{network}.

if {{![info exists p4sgd_top]}} {{set p4sgd_top ""}}
"""

_SLICES = {"the worker": "", "the worker's kernel": ": these are in the kernel"}
"""Ends of a sentence of the head, by what is placed."""


def shared_die(board: Board) -> int:
    """Die of the parts that a worker has once: the one in the middle; of two, the one nearer to the network."""
    return min(range(board.dies), key=lambda die: (max(die, board.dies - 1 - die), abs(die - board.network_die)))


def engines_by_die(engines: int, board: Board) -> list[range]:
    """Engines of each die, evenly; dies near the memory get what is left over, that of the rest of the worker last."""
    each, left = divmod(engines, board.dies)
    order = sorted(range(board.dies), key=lambda die: (die == shared_die(board), abs(die - board.memory_die)))
    ends = [0]
    for die in range(board.dies):
        ends.append(ends[-1] + each + (die in order[:left]))
    return [range(*both) for both in pairwise(ends)]


def slice_dies(config: WorkerConfig, board: Board) -> list[range]:
    """Dies of the register slices of each memory port, numbered as in `WorkerConfig.memories`: all on the way from the
    worker to the memory, both ends included, or none if the port is on the memory's die."""
    end = board.memory_die
    steps = [(die, 1 if die < end else -1) for die in _master_dies(config, board)]
    return [range(die, end + step, step) if die != end else range(0) for die, step in steps]


def _master_dies(config: WorkerConfig, board: Board) -> list[int]:
    """Die of the worker's part that uses each memory port."""
    dies = enumerate(engines_by_die(config.engines, board))
    return [die for die, engines in dies for _ in range(len(engines) * config.ports)] + [shared_die(board)]


def placement(worker: str, top: str, engine: str, board: Board) -> list[list[str]]:
    """Cells of a worker for each die, the lowest first: those in module ``top`` of its Verilog, and its ``engine``s."""
    found = instances(modules(worker)[top])
    # Verilog has engine10 before engine2.
    engines = sorted((name for module, name in found if module == engine), key=lambda name: (len(name), name))
    cells = [[engines[number] for number in numbers] for numbers in engines_by_die(len(engines), board)]
    cells[shared_die(board)] += [name for module, name in found if module != engine]
    return cells


def kernel_placement(kernel: KernelVerilog, config: WorkerConfig, board: Board) -> list[list[str]]:
    """Cells of a worker's or a self-test's kernel for each die, as paths from its top, with the register slices."""
    if kernel.top == SELFTEST_KERNEL:
        cells: list[list[str]] = [[] for _ in range(board.dies)]
        for memory, die in enumerate(_master_dies(config, board)):
            cells[die].append(port_test_name(memory))
    else:
        dies = placement(kernel.text, f"\\{kernel.top}.worker", ENGINE, board)
        cells = [[f"worker/{name}" for name in names] for names in dies]
    for memory, way in enumerate(slice_dies(config, board)):
        for number, die in enumerate(way):
            cells[die].append(slice_name(memory, number))
    return cells


def floorplan(cells: Sequence[Sequence[str]], board: Board, command: str, *, what: str = "the worker") -> str:
    """Tcl script with a pblock for every die, given the cells of each; ``what`` is one of `_SLICES`."""
    facts = {"dies": board.dies, "board": board.name, "memory": board.memory_die, "network": board.network_die}
    lines = [
        header_comment("# {}", command),
        _HEAD.format(**facts, shared=shared_die(board), what=what, slices=_SLICES[what]),
    ]
    for die, names in enumerate(cells):
        pblock = f"p4sgd_slr{die}"
        lines += [
            f"create_pblock {pblock}",
            f"resize_pblock [get_pblocks {pblock}] -add {{SLR{die}:SLR{die}}}",
            *(f"add_cells_to_pblock [get_pblocks {pblock}] [get_cells ${{p4sgd_top}}{name}]" for name in names),
            "",
        ]
    return "\n".join(lines)
