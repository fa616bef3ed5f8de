"""A generated folder, as the checks read it: its manifest, and the calls in its scripts."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from p4sgd.build.check.sandbox import Run, run_script
from p4sgd.build.generate.artifacts import ForeignFolderError, read_manifest
from p4sgd.build.generate.boards import BOARDS, Board
from p4sgd.hw.spec.registry import choices


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
