"""Resources and timing of a worker, synthesised in two pieces: an engine, and the rest with engines as black boxes."""

import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from p4sgd.build.estimate.loads import Loads, count_loads
from p4sgd.build.estimate.synthesis import Netlist, check_yosys, synthesize
from p4sgd.build.estimate.timing import FLIP_FLOPS, Timing, analyse
from p4sgd.build.generate.boards import Board
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.worker import ENGINE, WORKER, engine_verilog, worker_verilog

__all__ = ["Part", "Resources", "Unit", "count_parts", "measure", "total"]


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

    @property
    def carry(self) -> int:
        """Number of CARRY8; each is two of yosys' CARRY4."""
        return -(-self.carry4 // 2)

    @property
    def bram(self) -> float:
        """Number of block RAMs of 36 Kbit; one of 18 Kbit counts half."""
        return self.bram18 / 2

    def table(self) -> dict[str, float]:
        """Numbers by name, in the order of a report's columns."""
        names = ("lut", "ff", "carry", "dsp", "bram", "uram")
        return {name: getattr(self, name) for name in names}


_LUT = Resources(lut=1)
_FF = Resources(ff=1)
_NOTHING = Resources()

_PRIMITIVES = {
    **{f"LUT{inputs}": _LUT for inputs in range(1, 7)},
    "LUT6_2": _LUT,
    **dict.fromkeys(FLIP_FLOPS, _FF),
    # In the slice of the LUTs that they select from.
    **dict.fromkeys(("MUXF7", "MUXF8", "MUXF9"), _NOTHING),
    # Absorbed by the LUT behind, and flip-flops can invert their set and reset (UG574).
    "INV": _NOTHING,
    "CARRY4": Resources(carry4=1),
    "CARRY8": Resources(carry4=2),
    # LUTs as memory (UG974): each LUT of a slice holds 64 × 1 or 32 × 2 bits, or a shift register of 32.
    "SRL16E": _LUT,
    "SRLC32E": _LUT,
    "RAM32X1S": Resources(lut=1),
    "RAM64X1S": Resources(lut=1),
    "RAM32X1D": Resources(lut=2),
    "RAM64X1D": Resources(lut=2),
    "RAM128X1S": Resources(lut=2),
    "RAM128X1D": Resources(lut=4),
    "RAM256X1S": Resources(lut=4),
    "RAM256X1D": Resources(lut=8),
    "RAM512X1S": Resources(lut=8),
    "RAM32M": Resources(lut=4),
    "RAM64M": Resources(lut=4),
    "RAM32M16": Resources(lut=8),
    "RAM64M8": Resources(lut=8),
    "RAMB18E2": Resources(bram18=1),
    "RAMB36E2": Resources(bram18=2),
    "URAM288": Resources(uram=1),
    "DSP48E2": Resources(dsp=1),
}
"""Resources of every cell that `synth_xilinx` makes for UltraScale+."""


class Part(NamedTuple):
    """Submodules of one kind: ``dots0`` and ``dots1`` are two instances of ``dots``."""

    name: str
    instances: int
    resources: Resources
    """Resources of all instances together."""

    def plus(self, other: Self) -> "Part":
        """Both together, with the name of this one."""
        return Part(self.name, self.instances + other.instances, self.resources.plus(other.resources))


def total(netlist: Netlist, boxes: Mapping[str, Resources]) -> Resources:
    """Resources of a whole design.

    Parameters
    ----------
    netlist
        The design.
    boxes
        Resources of each black box, by type.

    Raises
    ------
    ValueError
        If the netlist has a cell of unknown size.
    """
    return _sizes(netlist, boxes)[netlist.top]


def count_parts(netlist: Netlist, boxes: Mapping[str, Resources]) -> list[Part]:
    """Resources of each submodule of the top, the largest first, and of the logic in the top itself.

    Parameters and errors are those of `total`.
    """
    sizes = _sizes(netlist, boxes)
    parts: dict[str, Part] = {}
    own = Part("(own)", 1, _NOTHING)
    for cell in netlist.modules[netlist.top].cells:
        if cell.type in _PRIMITIVES:
            own = own._replace(resources=own.resources.plus(sizes[cell.type]))
        else:
            name = re.sub(r"(\$\d+|\d)+$", "", cell.name)
            part = Part(name, 1, sizes[cell.type])
            parts[name] = parts[name].plus(part) if name in parts else part
    return [*sorted(parts.values(), key=lambda part: (-part.resources.lut - part.resources.ff, part.name)), own]


def _sizes(netlist: Netlist, boxes: Mapping[str, Resources]) -> dict[str, Resources]:
    """Resources of primitives, black boxes and modules, by type."""
    sizes = {**_PRIMITIVES, **boxes}

    def size(name: str) -> Resources:
        if name not in sizes:
            if name not in netlist.modules:
                raise ValueError(f"yosys made a cell {name}, whose size is not known")
            kinds = Counter(cell.type for cell in netlist.modules[name].cells)
            found = _NOTHING
            for kind, number in kinds.items():
                found = found.plus(size(kind), number)
            sizes[name] = found
        return sizes[name]

    size(netlist.top)
    return sizes


@dataclass(frozen=True)
class Unit:
    """Estimate of a design.

    Attributes
    ----------
    name
        ``engine`` or ``worker``.
    parts, total
        Resources by part, and in total. The engines are a part of the worker.
    timing
        The longest paths. Those of the worker do not include paths within engines.
    loads
        The nets with the most loads, and the registers that resets reach; likewise.
    """

    name: str
    parts: list[Part]
    total: Resources
    timing: Timing
    loads: Loads

    def document(self, board: Board) -> dict[str, object]:
        """The estimate as plain data for JSON."""
        return {
            "unit": self.name,
            "parts": [
                {"name": part.name, "instances": part.instances, **part.resources.table()} for part in self.parts
            ],
            "total": self.total.table(),
            "share": {name: number / getattr(board, name) for name, number in self.total.table().items()},
            "paths": [
                {**path._asdict(), "megahertz": path.megahertz, "keeps_rule": path.keeps_rule}
                for path in self.timing.paths
            ],
            "ends": self.timing.ends,
            "ends_breaking_rule": self.timing.breaking,
            "nets": [{**net._asdict(), "keeps_rule": net.keeps_rule} for net in self.loads.nets],
            "resettable": self.loads.resettable,
        }


class _Design(NamedTuple):
    unit: str
    top: str
    verilog: str
    black_boxes: str = ""

    def synthesize(self, scratch: Path, *, flat: bool) -> Netlist:
        """The netlist: with hierarchy to count the parts, flat to follow paths through them."""
        folder = scratch / (f"{self.top}_flat" if flat else self.top)
        return synthesize(self.verilog, self.top, folder, black_boxes=self.black_boxes, flat=flat)


def measure(config: WorkerConfig, unit: str) -> tuple[list[Unit], dict[str, str]]:
    """Synthesise an engine and, if ``unit`` is ``worker``, the rest of the worker.

    Returns
    -------
    The estimates, the engine's first, and the Verilog, by top module.

    Raises
    ------
    MissingYosysError, SynthesisError
        As in :func:`p4sgd.build.estimate.synthesis.synthesize`.
    """
    check_yosys()  # before the work
    if unit == "engine":
        designs = [_Design("engine", ENGINE, engine_verilog(config))]
    else:
        worker, engine = worker_verilog(config)
        designs = [_Design("engine", ENGINE, engine), _Design("worker", WORKER, worker, black_boxes=engine)]
    units: list[Unit] = []
    boxes: dict[str, Resources] = {}
    with TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:  # yosys uses one core
        wholes = [pool.submit(design.synthesize, Path(scratch), flat=False) for design in designs]
        flats = [pool.submit(design.synthesize, Path(scratch), flat=True) for design in designs]
        for design, whole, flat in zip(designs, wholes, flats, strict=True):
            netlist = whole.result()
            parts, size = count_parts(netlist, boxes), total(netlist, boxes)
            units.append(Unit(design.unit, parts, size, analyse(flat.result()), count_loads(flat.result())))
            boxes[design.top] = size
    return units, {design.top: design.verilog for design in designs}
