"""How big a worker is and how long its paths are: synthesised in two pieces, an engine and all that is there once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from p4sgd.build.devices import Device
from p4sgd.build.resources import Part, Resources, count_parts, total
from p4sgd.build.synthesis import synthesize
from p4sgd.build.timing import Timing, analyse
from p4sgd.build.verilog import ENGINE, WORKER_TOP, engine_verilog, worker_verilog
from p4sgd.hw.spec.config import WorkerConfig

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


def measure(config: WorkerConfig, unit: str) -> tuple[list[Unit], dict[str, str]]:
    """Synthesise an engine, and the rest of the worker if ``unit`` is ``worker``.

    Returns
    -------
    What was found, the engine first; and the files that it was found in, Verilog and netlists, by name.

    Raises
    ------
    MissingYosysError, SynthesisError
        As :func:`p4sgd.build.synthesis.synthesize`.
    """
    if unit == "engine":
        designs = [("engine", ENGINE, engine_verilog(config), "")]
    else:
        worker, engine = worker_verilog(config)
        designs = [("engine", ENGINE, engine, ""), ("worker", WORKER_TOP, worker, engine)]
    units: list[Unit] = []
    files: dict[str, str] = {}
    boxes: dict[str, Resources] = {}
    with TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        # yosys works on one core.
        folders = [Path(scratch, name) for name, *_ in designs]
        netlists = pool.map(
            lambda folder, design: synthesize(design[2], design[1], folder, black_boxes=design[3]), folders, designs
        )
        for (name, top, verilog, _), netlist, folder in zip(designs, netlists, folders, strict=True):
            units.append(Unit(name, count_parts(netlist, boxes), total(netlist, boxes), analyse(netlist)))
            boxes[top] = units[-1].total
            files |= {f"{top}.v": verilog, f"{top}.json": (folder / "netlist.json").read_text()}
    return units, files
