"""A generated folder, as the checks read it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from p4sgd.build.check.scripts import Run, run_script
from p4sgd.build.fpga.verilog_ports import read_ports
from p4sgd.build.generate.artifacts import read_manifest
from p4sgd.hw.kernel.verilog import Port

__all__ = ["Folder", "NotGeneratedError", "open_folder"]


class NotGeneratedError(ValueError):
    """The folder is none that can be checked."""


@dataclass(frozen=True)
class Folder:
    """A folder that `p4sgd build` made.

    Attributes
    ----------
    path
        Where it is.
    manifest
        What it was made from.
    """

    path: Path
    manifest: dict[str, Any]

    @property
    def files(self) -> list[str]:
        """Names of its files; those that tools have written since are not among them."""
        return list(self.manifest["files"])

    @property
    def kernels(self) -> dict[str, str]:
        """Top module of each kernel by its name."""
        return dict(self.manifest.get("kernels", {}))

    @property
    def described(self) -> list[str]:
        """Kernels that there is XML of; Vivado alone needs none."""
        return [name for name in self.kernels if f"{name}.xml" in self.files]

    def ending(self, *endings: str) -> Iterable[str]:
        """Files whose names end so, and that are there."""
        return [name for name in self.files if name.endswith(endings) and (self.path / name).is_file()]

    def text(self, name: str) -> str:
        """A file's text."""
        return (self.path / name).read_text(encoding="utf-8")

    @cached_property
    def verilog(self) -> dict[str, str]:
        """Verilog of each kernel."""
        return {name: self.text(f"{name}.v") for name in self.kernels}

    @cached_property
    def ports(self) -> dict[str, list[Port]]:
        """Ports of each kernel's top."""
        return {name: read_ports(self.verilog[name], top) for name, top in self.kernels.items()}

    @cached_property
    def xml(self) -> dict[str, ElementTree.Element]:
        """The element ``kernel`` of each kernel's XML, if that is XML and has one."""
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
        """Every script that tools are started with, run in the sandbox.

        Raises
        ------
        NoTclError
            If there is no Tcl here.
        """
        started = [name for name in self.ending(".tcl", ".xdc") if name not in self.manifest.get("sourced", ())]
        return {name: run_script(self.path, name) for name in started}


def open_folder(path: Path) -> Folder:
    """Read a folder's manifest.

    Raises
    ------
    NotGeneratedError
        If it has none of a folder for the vendor's tools.
    """
    if not path.is_dir():
        raise NotGeneratedError(f"{path}: there is no such folder")
    manifest = read_manifest(path)
    if manifest is None or manifest.get("kind") not in ("vitis", "vivado"):
        raise NotGeneratedError(f"{path} was not made by `p4sgd build vitis` or `p4sgd build vivado`")
    return Folder(path, manifest)
