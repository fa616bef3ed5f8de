"""The folder from which Vitis makes a board's image.

Which part of a worker goes to which die, for the implementation that v++ runs.

What a generated folder says of itself.

The folder from which Vitis makes a board's image.
"""

from dataclasses import asdict, replace
from pathlib import Path

from p4sgd.build.fpga.cmac import crossing_constraints, ip_script
from p4sgd.build.fpga.kernel import Kernel, kernel_xml
from p4sgd.build.fpga.link import SHELLS, Image, aggregator_image, link_configuration, worker_image
from p4sgd.build.fpga.packaging import CROSSINGS, PROCEDURES, ip_file, package_script
from p4sgd.build.generate.artifacts import check_folder, header_comment, with_header_comment, write_folder
from p4sgd.build.generate.devices import DEVICES, Device
from p4sgd.build.generate.floorplan import kernel_placement
from p4sgd.hw.spec.config import PRESETS, WorkerConfig

__all__ = ["PLACE", "RULES", "build", "place_script", "readme", "vitis_files"]


PLACE = "place.tcl"
"""File that v++ has Vivado run before it places."""

_SCRIPT = """\
# Run by Vivado before place_design, as v++ was told: gives the worker's engines, the rest of it, and the register
# slices between it and its memory to dies, in the regions that the shell has for kernels on each. What is not found
# stays where the tool puts it.

set kernel [get_cells -quiet -hierarchical -filter {{NAME =~ */{unit}/inst}}]
foreach {{die cells}} {{
{cells}
}} {{
    set region [get_pblocks -quiet pblock_dynamic_SLR$die]
    foreach cell $cells {{
        set found [get_cells -quiet $kernel/$cell]
        if {{[llength $region] == 0 || [llength $found] == 0}} {{
            puts "p4sgd: $cell or the region of SLR$die is not there; the tool places it"
        }} else {{
            add_cells_to_pblock $region $found
        }}
    }}
}}
"""


def place_script(kernel: Kernel, config: WorkerConfig, device: Device, command: str) -> str:
    """The file `PLACE`.

    Parameters
    ----------
    kernel
        The worker's.
    config
        Size of the worker.
    device
        The FPGA.
    command
        Command that makes the file.
    """
    dies = kernel_placement(kernel.verilog, config, device)
    cells = "\n".join(f"    {die} {{{' '.join(names)}}}" for die, names in enumerate(dies))
    return f"{header_comment('# {}', command)}\n{_SCRIPT.format(unit=kernel.unit, cells=cells)}"


_TEXT = """\
# {image} for {platform}

From these files AMD's Vitis makes the image of the FPGA; {releases} support the shell. None of the vendor's
tools has seen them yet: `p4sgd build check` has, which finds what can be found without.

```sh
source <Vitis>/settings64.sh
make check          # are the tools and the shell there?
make                # out/hw/{image}.xclbin; hours
```

| target | links |
|---|---|
{targets}

`make TARGET=hw_emu` makes the second, with `emconfig.json` beside it. With `XCL_EMULATION_MODE=hw_emu` and
`EMCONFIG_PATH=$PWD/out/hw_emu` in the environment programs find it as the board `xrt:0`. `make PLATFORM=<file>.xpfm`
takes another shell. The MAC is IP that needs a licence (UltraScale+ Integrated 100G Ethernet), which AMD gives for
nothing. What the tools write goes to `out`; `make clean` removes it, and then the folder can be generated again.

| file | what it is |
|---|---|
| `link_<target>.cfg` | which kernels there are, which memory each port has, what is connected to what |
| `<kernel>.v`, `<kernel>.xml` | a kernel, and what Vitis and XRT have to know of it |
| `package_<kernel>.tcl` | packs it as `out/<kernel>.xo` |
{more}
| `*registers.*` | registers as Markdown, C header and JSON |

{memory}"""


def readme(image: Image, command: str) -> str:
    """The folder's ``README.md``."""
    shell = SHELLS[image.board]
    more = []
    if any(kernel.ip for kernel in image.kernels.values()):
        more.append(
            "| `p4sgd_cmac*_ip.tcl`, `p4sgd_cmac.xdc` | the vendor's MAC, and constraints of its clock crossings |"
        )
    if image.memory:
        more.append("| `place.tcl` | which engine goes to which die; Vivado runs it before it places |")
    return f"{header_comment('<!-- {} -->', command)}\n\n" + _TEXT.format(
        image=image.name,
        platform=shell.platform,
        releases=f"releases {shell.releases[0]} to {shell.releases[-1]}",
        targets="\n".join(f"| `{target}` | {summary} |" for target, summary in image.summaries.items()),
        more="\n".join(more),
        memory=_memory(image),
    )


def _memory(image: Image) -> str:
    if not image.memory:
        return ""
    bank, size = image.memory.bank_bytes >> 20, image.memory.image_bytes >> 20
    return (
        "**Memory.** Every memory port has pseudo channels of HBM to itself, since one that two masters read is no\n"
        f"faster. A bank of an engine has {bank} MiB, so the largest image of a worker is {size} MiB of lines and\n"
        "weights, padding included; labels are elsewhere.\n"
    )


RULES = "rules.mk"

_HERE = Path(__file__).parent
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
        RULES: with_header_comment(_HERE / "vitis_rules.mk", command),
        PROCEDURES: with_header_comment(_HERE / PROCEDURES, command),
    }
    for target, design in image.designs.items():
        found[f"link_{target}.cfg"] = link_configuration(design, shell, image.summaries[target], command)
    macs = iter(shell.macs)
    for kernel in image.kernels.values():
        found[f"{kernel.name}.v"] = f"{header_comment('// {}', command)}\n{kernel.verilog.text}"
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
        header_comment("# {}", command),
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
