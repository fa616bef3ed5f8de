"""A generated folder, as the checks read it: its manifest, ports of its Verilog, its XML, the calls in its scripts.

Regular expressions find ports in the Verilog. yosys could write them as JSON, but that takes 2.5 s and 16 MB for the
smallest worker.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from p4sgd.build.check.sandbox import Run, run_script
from p4sgd.build.fpga.kernel import Bus, BusKind, find_buses
from p4sgd.build.generate.artifacts import ForeignFolderError, read_manifest
from p4sgd.build.generate.boards import BOARDS, Board
from p4sgd.hw.bus.ports import Port
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registry import choices
from p4sgd.hw.verilog import modules

_PORT = re.compile(r"^ *(input|output|inout) +(?:wire +|reg +)?(?:\[(\d+):0\] +)?(\w+) *;", re.MULTILINE)

_COMMENT = re.compile(r"[ \t]*(/\*.*?\*/|//[^\n]*)", re.DOTALL)


def read_ports(text: str, top: str) -> list[Port]:
    """Ports of the module ``top`` of a Verilog text that yosys wrote, in the order of their declarations."""
    found = _PORT.findall(modules(_COMMENT.sub("", text))[top])
    return [Port(name, direction, int(high or 0) + 1) for direction, high, name in found]


@dataclass(frozen=True)
class Folder:
    """A folder made by `p4sgd generate` or `p4sgd build`, and its manifest; what its files say is read once."""

    path: Path
    manifest: dict[str, Any]
    original: "Folder | None" = None  # the same folder made anew, if files were edited

    @cached_property
    def changed(self) -> list[str]:
        """Names of the files that are there and were changed since they were generated."""
        sums = self.manifest["files"]
        hashes = {name: hashlib.sha256((self.path / name).read_bytes()).hexdigest() for name in self.ending("")}
        return [name for name, found in hashes.items() if found != sums[name]]

    @property
    def files(self) -> list[str]:
        """Names of the generated files, without those that tools have written since."""
        return list(self.manifest["files"])

    @property
    def kernels(self) -> dict[str, str]:
        """Top module of each kernel, by the kernel's name."""
        return dict(self.manifest.get("kernels", {}))

    @property
    def tops(self) -> dict[str, str]:
        """File of each top module that Verilator can read on its own."""
        return {**{top: f"{top}.v" for top in self.kernels.values()}, **self.manifest.get("tops", {})}

    @property
    def board(self) -> Board:
        """Board that the folder is for."""
        return BOARDS[self.manifest["board"]]

    @property
    def worker(self) -> WorkerConfig:
        """Sizes of the worker, or of the one whose ports a self-test has."""
        return WorkerConfig(**self.manifest["worker"])

    @property
    def aggregator(self) -> AggregatorConfig:
        """Sizes of the aggregator."""
        return AggregatorConfig(**self.manifest["aggregator"])

    @property
    def described(self) -> list[str]:
        """Kernels that have an XML file: Vitis needs it, Vivado does not."""
        return [name for name in self.kernels if f"{name}.xml" in self.files]

    @property
    def scripts(self) -> list[str]:
        """Tcl and XDC files that tools are started with; scripts that others source are left out."""
        return [name for name in self.ending(".tcl", ".xdc") if name not in self.manifest.get("sourced", ())]

    def ending(self, *endings: str) -> list[str]:
        """Files that are there and whose names have one of these endings."""
        return [name for name in self.files if name.endswith(endings) and (self.path / name).is_file()]

    def text(self, name: str) -> str:
        """Text of a file."""
        return (self.path / name).read_text(encoding="utf-8")

    @cached_property
    def verilog(self) -> dict[str, str]:
        """Verilog of each kernel, without comments."""
        return {name: _COMMENT.sub("", self.text(f"{top}.v")) for name, top in self.kernels.items()}

    @cached_property
    def ports(self) -> dict[str, list[Port]]:
        """Ports of each kernel's top module."""
        return {name: read_ports(self.verilog[name], top) for name, top in self.kernels.items()}

    def buses(self, kernel: str, *kinds: BusKind) -> list[Bus]:
        """Buses of a kernel's top module, those of some kinds or all."""
        return [bus for bus in find_buses(self.ports[kernel]) if not kinds or bus.kind in kinds]

    @cached_property
    def xml(self) -> dict[str, ElementTree.Element]:
        """Element ``kernel`` of each kernel's XML, where there is one."""
        found = {}
        for name in self.described:
            try:
                element = ElementTree.fromstring(self.text(f"{name}.xml")).find("kernel")
            except ElementTree.ParseError:
                element = None
            if element is not None:
                found[name] = element
        return found

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every script that a tool is started with, run."""
        return {name: run_script(self.path, name) for name in self.scripts}


def open_folder(path: Path) -> Folder:
    """Read the manifest of a folder.

    `ForeignFolderError` if it has none of `p4sgd generate` or `p4sgd build`, or is for a board that is not known here.
    """
    if not path.is_dir():
        raise ForeignFolderError(f"{path}: there is no such folder")
    manifest = read_manifest(path)
    if manifest is None or not {"kernels", "tops"} & set(manifest):
        raise ForeignFolderError(f"{path} was not made by `p4sgd generate` or `p4sgd build vitis|selftest|vivado|demo`")
    if (board := manifest.get("board")) is not None and board not in BOARDS:
        raise ForeignFolderError(f"{path} is for the board {board!r}, which is not known: {choices(BOARDS)}")
    return Folder(path, manifest)
