"""The folder from which Vitis makes a board's image."""

from dataclasses import asdict, replace
from pathlib import Path

from p4sgd.build.artifacts import check_folder, write_folder
from p4sgd.build.cmac import crossing_constraints, ip_script
from p4sgd.build.devices import DEVICES
from p4sgd.build.marking import mark, marked_file
from p4sgd.build.vitis.images import Image, aggregator_image, worker_image
from p4sgd.build.vitis.kernel_xml import kernel_xml
from p4sgd.build.vitis.link import link_configuration
from p4sgd.build.vitis.packaging import CROSSINGS, PROCEDURES, ip_file, package_script
from p4sgd.build.vitis.place import PLACE, place_script
from p4sgd.build.vitis.readme import readme
from p4sgd.build.vitis.shell import SHELLS
from p4sgd.hw.spec.config import PRESETS

__all__ = ["RULES", "build", "vitis_files"]

RULES = "rules.mk"
"""File with the rules of the Makefile."""


def vitis_files(image: Image, command: str) -> dict[str, str]:
    """All files by name; the same arguments give the same bytes.

    Parameters
    ----------
    image
        What the board is to be loaded with.
    command
        Command that makes the files, for their first lines.
    """
    shell = SHELLS[image.board]
    found = {
        "README.md": readme(image, command),
        "Makefile": _makefile(image, command),
        **{name: marked_file("p4sgd.build.vitis", name, command) for name in (RULES, PROCEDURES)},
    }
    for target, design in image.designs.items():
        found[f"link_{target}.cfg"] = link_configuration(design, shell, image.summaries[target], command)
    macs = iter(shell.macs)
    for kernel in image.kernels.values():
        found[f"{kernel.name}.v"] = f"{mark('// {}', command)}\n{kernel.verilog.text}"
        found[f"{kernel.name}.xml"] = kernel_xml(kernel, command)
        found[f"package_{kernel.name}.tcl"] = package_script(kernel, shell.part, command)
        found |= kernel.documents.files(command, kernel.prefix)
        if kernel.ip:
            found[ip_file(kernel)] = ip_script(kernel.ip, next(macs), shell.free_megahertz, command)
            found[CROSSINGS] = crossing_constraints(command)
    if image.worker:
        found[PLACE] = place_script(image.kernels[image.name], image.worker, DEVICES[image.board], command)
    return found


def _makefile(image: Image, command: str) -> str:
    shell = SHELLS[image.board]
    lines = [
        mark("# {}", command),
        f"IMAGE := {image.name}",
        f"DEFAULT_PLATFORM := {shell.platform}",
        "PLATFORM ?= $(DEFAULT_PLATFORM)",
        f"RELEASES := {' '.join(shell.releases)}",
        *(
            f"KERNELS_{target} := {' '.join(kernel.name for kernel in design.kernels)}"
            for target, design in image.designs.items()
        ),
        *([f"PLACE_hw := {PLACE}"] if image.memory else []),
        "",
        f"include {RULES}",
    ]
    return "\n".join(lines) + "\n"


def build(
    name: str | None, folder: Path, *, board: str, udp: bool = False, build_id: int = 0
) -> tuple[list[Path], Image]:
    """Write the folder for a worker or an aggregator, whole or not at all.

    Parameters
    ----------
    name
        Name of the worker's configuration in `PRESETS`; ``None`` has the board be an aggregator.
    folder
        Where; an earlier output is replaced, anything else is refused.
    board
        One of `SHELLS`.
    udp
        Whether packets travel in UDP.
    build_id
        Number that the BUILD_ID registers give.

    Returns
    -------
    The files, and what they make.

    Raises
    ------
    KeyError
        If there is no such configuration or board.
    ValueError
        If the worker has more memory ports than the board.
    ForeignFolderError
        If the folder holds files that were not generated.
    OSError
        If the folder cannot be written.
    """
    config = None if name is None else replace(PRESETS[name](), udp=udp)
    check_folder(folder)  # before the work
    what = "--aggregator" if name is None else f"--config {name}"
    command = f"p4sgd build vitis {what} --board {board} --build-id {build_id}{' --udp' * udp} --out DIR"
    image = (
        aggregator_image(board, udp=udp, build_id=build_id)
        if config is None
        else worker_image(config, board, build_id=build_id)
    )
    description = {
        "generated_by": command,
        "kind": "vitis",
        "board": board,
        "config": name,
        "worker": asdict(image.worker) if image.worker else None,
        "aggregator": asdict(image.aggregator),
        "kernels": {kernel.name: kernel.verilog.top for kernel in image.kernels.values()},
        "sourced": [PROCEDURES, *(ip_file(kernel) for kernel in image.kernels.values() if kernel.ip)],
    }
    return write_folder(folder, vitis_files(image, command), description), image
