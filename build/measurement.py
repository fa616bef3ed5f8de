"""How big a worker is and how long its paths are: synthesised in two pieces, an engine and all that is there once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from p4sgd.build.devices import Device
from p4sgd.build.netlist import Netlist
from p4sgd.build.resources import Part, Resources, count_parts, total
from p4sgd.build.synthesis import check_yosys, synthesize
from p4sgd.build.timing import Timing, analyse
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.verilog import ENGINE, WORKER, engine_verilog, worker_verilog

__all__ = ["Unit", "measure"]


@dataclass(frozen=True)
class Unit:
    """What was found of a design.

    Attributes
    ----------
    name
        ``engine`` or ``worker``.
    parts, total
        What it takes of the FPGA; the engines are a part of the worker.
    timing
        Its paths; the worker's without those inside engines.
    """

    name: str
    parts: list[Part]
    total: Resources
    timing: Timing

    def document(self, device: Device) -> dict[str, object]:
        """All of it as plain data, for JSON."""
        return {
            "unit": self.name,
            "parts": [
                {"name": part.name, "instances": part.instances, **part.resources.table()} for part in self.parts
            ],
            "total": self.total.table(),
            "share": {name: number / getattr(device, name) for name, number in self.total.table().items()},
            "paths": [
                {**path._asdict(), "megahertz": path.megahertz, "keeps_rule": path.keeps_rule}
                for path in self.timing.paths
            ],
            "ends": self.timing.ends,
            "ends_breaking_rule": self.timing.breaking,
        }


class _Design(NamedTuple):
    unit: str
    top: str
    verilog: str
    black_boxes: str = ""

    def synthesize(self, scratch: Path, *, flat: bool) -> Netlist:
        """Twice for each design: with its hierarchy to count its parts, without to see the paths through them."""
        folder = scratch / (f"{self.top}_flat" if flat else self.top)
        return synthesize(self.verilog, self.top, folder, black_boxes=self.black_boxes, flat=flat)


def measure(config: WorkerConfig, unit: str) -> tuple[list[Unit], dict[str, str]]:
    """Synthesise an engine, and the rest of the worker if ``unit`` is ``worker``.

    Returns
    -------
    What was found, the engine first; and the Verilog that it was found in, by top module.

    Raises
    ------
    MissingYosysError, SynthesisError
        As :func:`p4sgd.build.synthesis.synthesize`.
    """
    check_yosys()  # before the work
    if unit == "engine":
        designs = [_Design("engine", ENGINE, engine_verilog(config))]
    else:
        worker, engine = worker_verilog(config)
        designs = [_Design("engine", ENGINE, engine), _Design("worker", WORKER, worker, black_boxes=engine)]
    units: list[Unit] = []
    boxes: dict[str, Resources] = {}
    with TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:  # yosys works on one core
        wholes = [pool.submit(design.synthesize, Path(scratch), flat=False) for design in designs]
        flats = [pool.submit(design.synthesize, Path(scratch), flat=True) for design in designs]
        for design, whole, flat in zip(designs, wholes, flats, strict=True):
            netlist = whole.result()
            parts, size = count_parts(netlist, boxes), total(netlist, boxes)
            units.append(Unit(design.unit, parts, size, analyse(flat.result())))
            boxes[design.top] = size
    return units, {design.top: design.verilog for design in designs}
