"""Resources and timing of a worker, synthesised in two pieces: an engine, and the rest with engines as black boxes."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from p4sgd.build.estimate.synthesis import Netlist, check_yosys, synthesize
from p4sgd.build.estimate.timing import FLIP_FLOPS, MAX_RESETTABLE, Loads, Timing, TimingGraph
from p4sgd.build.generate.boards import Board
from p4sgd.build.generate.floorplan import engines_by_die, shared_die
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.ultrascale import UltraScalePlus
from p4sgd.hw.worker.worker import ENGINE, WORKER, engine_verilog, worker_verilog


class Resources(NamedTuple):
    """Number of each kind of cell.

    The number of LUTs is an upper bound: a vendor's tool can put two small ones with common inputs into one LUT6.
    """

    lut: int = 0
    ff: int = 0
    carry4: int = 0
    dsp: int = 0
    bram18: int = 0
    uram: int = 0

    def plus(self, other: "Resources", times: int = 1) -> "Resources":
        """Sum of this and ``times`` the other."""
        return Resources(*(mine + times * its for mine, its in zip(self, other, strict=True)))

    def table(self) -> dict[str, float]:
        """Numbers by name, in the order of a report's columns: a CARRY8 is two of yosys' CARRY4, and a block RAM of 18
        Kbit half of one."""
        carry, bram = -(-self.carry4 // 2), self.bram18 / 2
        return {"lut": self.lut, "ff": self.ff, "carry": carry, "dsp": self.dsp, "bram": bram, "uram": self.uram}


_LUTS = {
    **{f"LUT{inputs}": 1 for inputs in range(1, 7)},
    "LUT6_2": 1,
    # In the slice of the LUTs that they select from.
    **dict.fromkeys(("MUXF7", "MUXF8", "MUXF9"), 0),
    # Absorbed by the LUT behind, and flip-flops can invert their set and reset (UG574).
    "INV": 0,
    # LUTs as memory (UG974): each LUT of a slice holds 64 × 1 or 32 × 2 bits, or a shift register of 32.
    **dict.fromkeys(("SRL16E", "SRLC32E", "RAM32X1S", "RAM64X1S"), 1),
    **dict.fromkeys(("RAM32X1D", "RAM64X1D", "RAM128X1S"), 2),
    **dict.fromkeys(("RAM128X1D", "RAM256X1S", "RAM32M", "RAM64M"), 4),
    **dict.fromkeys(("RAM256X1D", "RAM512X1S", "RAM32M16", "RAM64M8"), 8),
}

_PRIMITIVES = {
    **{name: Resources(lut=number) for name, number in _LUTS.items()},
    **dict.fromkeys(FLIP_FLOPS, Resources(ff=1)),
    "CARRY4": Resources(carry4=1),
    "CARRY8": Resources(carry4=2),
    "RAMB18E2": Resources(bram18=1),
    "RAMB36E2": Resources(bram18=2),
    "URAM288": Resources(uram=1),
    "DSP48E2": Resources(dsp=1),
}
"""Resources of every cell that `synth_xilinx` makes for UltraScale+."""


class Part(NamedTuple):
    """Submodules of one kind: ``dots0`` and ``dots1`` are two instances of ``dots``. Resources are of all together."""

    name: str
    instances: int
    resources: Resources


def count_parts(netlist: Netlist, boxes: Mapping[str, Resources]) -> tuple[list[Part], Resources]:
    """Resources of each submodule of the top, the largest first, and of the logic in the top itself; and of all.

    ``boxes`` are those of black boxes by type. ValueError if there is a cell of unknown size.
    """
    sizes = {**_PRIMITIVES, **boxes}

    def size(name: str) -> Resources:
        if name not in sizes:
            if name not in netlist.modules:
                raise ValueError(f"yosys made a cell {name}, whose size is not known")
            found = Resources()
            for kind, number in Counter(cell.type for cell in netlist.modules[name].cells).items():
                found = found.plus(size(kind), number)
            sizes[name] = found
        return sizes[name]

    total, own = size(netlist.top), Resources()
    parts: dict[str, Part] = {}
    for cell in netlist.modules[netlist.top].cells:
        if cell.type in _PRIMITIVES:
            own = own.plus(sizes[cell.type])
        else:
            name = re.sub(r"(\$\d+|\d)+$", "", cell.name)
            _, instances, resources = parts.get(name, Part(name, 0, Resources()))
            parts[name] = Part(name, instances + 1, resources.plus(sizes[cell.type]))
    order = sorted(parts.values(), key=lambda part: (-part.resources.lut - part.resources.ff, part.name))
    return [*order, Part("(own)", 1, own)], total


class Unit(NamedTuple):
    """Estimate of a design. The engines are a part of the worker, but its paths and loads are those outside them."""

    name: str  # ``engine`` or ``worker``
    parts: list[Part]
    total: Resources
    timing: Timing
    loads: Loads

    @property
    def keeps_rules(self) -> bool:
        """Whether all paths, nets and resets keep their rules."""
        nets = all(net.keeps_rule for net in self.loads.nets)
        return not self.timing.breaking and nets and self.loads.resettable <= MAX_RESETTABLE

    @property
    def advice(self) -> list[str]:
        """A sentence for each path, net and reset listed that breaks its rule: what is wrong, and what to do."""
        found = [path.advice for path in self.timing.paths if not path.keeps_rule]
        found += [net.advice for net in self.loads.nets if not net.keeps_rule]
        if self.loads.resettable > MAX_RESETTABLE:
            of = "an engine" if self.name == "engine" else "the rest of the worker"
            found.append(
                f"resets reach {self.loads.resettable:,} registers of {of}, more than {MAX_RESETTABLE:,}: declare "
                "registers whose first value does not matter with reset_less=True"
            )
        return found

    def document(self, board: Board) -> dict[str, object]:
        """The estimate as plain data for JSON."""
        left = {name: sum(of_dies) for name, of_dies in board.shell.left.items()}
        return {
            "unit": self.name,
            "parts": [
                {"name": part.name, "instances": part.instances, **part.resources.table()} for part in self.parts
            ],
            "total": self.total.table(),
            "share": {name: number / getattr(board, name) for name, number in self.total.table().items()},
            "share_beside_shell": {name: self.total.table()[name] / number for name, number in left.items()},
            "paths": [
                {**path._asdict(), "megahertz": path.megahertz, "keeps_rule": path.keeps_rule}
                for path in self.timing.paths
            ],
            "ends": self.timing.ends,
            "ends_breaking_rule": self.timing.breaking,
            "nets": [{**net._asdict(), "keeps_rule": net.keeps_rule} for net in self.loads.nets],
            "resettable": self.loads.resettable,
            "advice": self.advice,
        }


def shares_of_dies(config: WorkerConfig, board: Board, units: Sequence[Unit]) -> list[dict[str, float]]:
    """Engines of each die by the floor plan, and shares of what the shell leaves there; ``units`` are of `measure`.

    Nothing if the worker was not synthesised, or if it is not known what the shell leaves.
    """
    engine, *rest = (unit.total for unit in units)
    if not rest or not board.shell.left:
        return []
    found: list[dict[str, float]] = []
    for die, engines in enumerate(engines_by_die(config.engines, board)):
        here = Resources().plus(engine, len(engines))
        if die == shared_die(board):
            here = here.plus(rest[0]).plus(engine, -config.engines)
        shares = {name: number / board.shell.left[name][die] for name, number in here.table().items()}
        found.append({"die": die, "engines": len(engines), **shares})
    return found


def advice_for_dies(dies: Sequence[Mapping[str, float]]) -> list[str]:
    """A sentence for each die of `shares_of_dies` on which there is more than the shell leaves."""
    found = []
    for each in dies:
        full = [
            f"{share:.0%} of {name}" for name, share in each.items() if name not in ("die", "engines") and share > 1
        ]
        if full:
            found.append(
                f"die {each['die']:g} is full: {', '.join(full)} that the shell leaves: take fewer engines, or give "
                "each fewer chunks or a shorter line_fifo_depth (hw/spec/config.py)"
            )
    return found


def measure(config: WorkerConfig, unit: str) -> tuple[list[Unit], dict[str, str]]:
    """Synthesise an engine and, if ``unit`` is ``worker``, the rest of the worker; raises as `synthesize`.

    Returns the estimates, the engine's first, and the Verilog, by top module.
    """
    check_yosys()  # before the work
    if unit == "engine":
        designs = {ENGINE: engine_verilog(config, platform=UltraScalePlus())}
    else:
        worker, engine = worker_verilog(config, platform=UltraScalePlus())
        designs = {ENGINE: engine, WORKER: worker}
    units: list[Unit] = []
    boxes: dict[str, Resources] = {}
    with TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:  # yosys uses one core

        def netlist(top: str, flat: bool) -> Netlist:
            """With hierarchy to count the parts, flat to follow paths through them."""
            black_boxes = designs[ENGINE] if top == WORKER else ""
            folder = Path(scratch) / f"{top}{'_flat' * flat}"
            return synthesize(designs[top], top, folder, black_boxes=black_boxes, flat=flat)

        wholes = [pool.submit(netlist, top, False) for top in designs]
        flats = [pool.submit(netlist, top, True) for top in designs]
        for top, whole, flat in zip(designs, wholes, flats, strict=True):
            parts, boxes[top] = count_parts(whole.result(), boxes)
            graph = TimingGraph(flat.result())
            name = "engine" if top == ENGINE else "worker"
            units.append(Unit(name, parts, boxes[top], graph.timing(), graph.loads()))
    return units, designs
