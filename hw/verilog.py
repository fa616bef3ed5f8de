"""Conversion of components to Verilog, the same bytes every time, and black boxes."""

import contextlib
import gc
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from amaranth.back import verilog
from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal, Value, ValueLike
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from p4sgd.hw.netlist import Place, convert

__all__ = [
    "WAIVERS",
    "BlackBox",
    "CoreKind",
    "DebugCore",
    "Written",
    "add_debug_core",
    "instances",
    "modules",
    "share_modules",
    "to_verilog",
    "write_verilog",
]

WAIVERS = Path(__file__).with_name("p4sgd.vlt")
"""Control file for Verilator that leaves out messages about generated Verilog, in files named ``p4sgd_*.v``."""

_MODULE = re.compile(r"^(?:\(\* [^\n]* \*\)\n)*module +(\S+) *(\(.*?^endmodule\n)\n?", re.MULTILINE | re.DOTALL)
"""A module with its attributes and the empty line after it. Groups: its name, and its text from the ports on."""

_INSTANCE = re.compile(r"^  (\\\S+)(?= +\S+ +\($)", re.MULTILINE)
"""An instance in a module. Group: the name of its module, escaped because Amaranth forms it from the path to it."""

_NAMED_INSTANCE = re.compile(r"^  (\S+) +(?:#\(\n(?:    .*\n)+  \) )?(\w+) \($", re.MULTILINE)
"""An instance in a module, perhaps with parameters. Groups: its module, and its own name."""

_START = re.compile(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ (?: = 0;$)?", re.MULTILINE)
"""The register that triggers a module's `always @*` blocks in simulation, with its initial value where it is declared.
yosys gives each its own number, which would make equal modules differ."""

_GENERATOR = re.compile(r"^\(\* generator = .*\n", re.MULTILINE)
"""An attribute of every module that Amaranth writes."""

_UNTRIGGERED = re.compile(r"^(  always @\*)\n(    .*;\n)", re.MULTILINE)
"""A block in which yosys drives part of a register, and forgets the trigger. Groups: its first line, and the other."""


class Written(NamedTuple):
    """Verilog of a component."""

    text: str
    places: tuple[Place, ...]  # of its modules, with the paths to them

    def modules_of_places(self) -> dict[tuple[str, ...], str]:
        """Name of the module at the end of each path; equal modules have one name."""
        bodies = modules(self.text)
        inside = {name: {own: module for module, own in instances(body)} for name, body in bodies.items()}
        found = {}
        for top, *rest in (place.path for place in self.places):
            module: str | None = top
            for name in rest:
                module = inside.get(str(module), {}).get(name)
            if module is not None:
                found[top, *rest] = module.removeprefix("\\")
        return found


def to_verilog(component: wiring.Component, name: str, *, platform: object = None) -> str:
    """The text of `write_verilog`, without attributes that name sources."""
    return write_verilog(component, name, platform=platform).text


def write_verilog(component: wiring.Component, name: str, *, platform: object = None, sources: bool = False) -> Written:
    """Verilog of a component, in which equal modules are written once; ``name`` is that of the top module.

    Memories of zeros have no initial words. A platform may change how synchronizers and adders are built:
    `p4sgd.hw.ultrascale.UltraScalePlus` for AMD's tools; without one the text needs no vendor's cells. With ``sources``
    attributes ``src`` name lines of Python.
    """
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    with warnings.catch_warnings(), _rare_garbage_collection():
        warnings.simplefilter("error", category=SyntaxWarning)
        found = convert(component, name, platform, sources=sources)
        text = verilog._convert_rtlil_text(found.text, strip_internal_attrs=not sources)
    return Written(share_modules(_GENERATOR.sub("", text)), found.places)


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Search rarely for cycles in Amaranth's millions of tuples, which would take a third of a conversion's time."""
    usual = gc.get_threshold()
    gc.set_threshold(200_000, 5, 20)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def modules(text: str) -> dict[str, str]:
    """Modules of a text that `to_verilog` wrote, by name: each from its list of ports to its end."""
    return {match[1]: match[2] for match in _MODULE.finditer(text)}


def instances(body: str) -> list[tuple[str, str]]:
    """Instances in the text of one of the `modules`: pairs of the module's name and the instance's."""
    return [(match[1], match[2]) for match in _NAMED_INSTANCE.finditer(body)]


def share_modules(text: str) -> str:
    """Replace equal modules by the first of them, again and again, as others then differ no more in names of
    submodules.

    Amaranth writes a module for every instance.
    """
    text = _UNTRIGGERED.sub(r"\1 begin\n    if (\\$start ) begin end\n\2  end\n", _START.sub(_start, text))
    while True:
        first: dict[str, str] = {}
        shared = {name: first.setdefault(body, name) for name, body in modules(text).items()}
        if len(first) == len(shared):
            return text
        text = _MODULE.sub(lambda match: match[0] if shared[match[1]] == match[1] else "", text)  # noqa: B023
        text = _INSTANCE.sub(lambda match: f"  {shared.get(match[1], match[1])}", text)  # noqa: B023


def _start(found: re.Match[str]) -> str:
    """The same register under one name, which changes from x to 0 when all blocks wait for a change.

    An initial value changes nothing in SystemVerilog, where it is there before all blocks (IEEE 1800, 10.5): they would
    never run. In Verilog it is assigned among them (IEEE 1364, 6.2.1), perhaps before one waits.
    """
    return "\\$start ;\n  initial \\$start <= 0;" if found[0].endswith(";") else "\\$start "


class BlackBox(wiring.Component):
    """Stand-in for a component that is written once, as ``module``, however many instances there are.

    Vivado keeps the hierarchy of each (UG901, KEEP_HIERARCHY), to be placed by name, without registers in common. Its
    ports are those of ``signature``; it is in the clock domain ``sync`` and has a reset.
    """

    def __init__(self, signature: wiring.Signature, module: str) -> None:
        self._module = module
        super().__init__(signature)

    def elaborate(self, platform: object) -> Instance:
        """The instance, with its ports named as in Verilog."""
        ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, value in self.signature.flatten(self):
            ports[f"{'o' if member.flow is Out else 'i'}_{'__'.join(map(str, path))}"] = value
        return Instance(self._module, a_keep_hierarchy="yes", **ports)


class CoreKind(Enum):
    """Kind of a debug core; the value is the IP's name."""

    ANALYSER = "ila"  # integrated logic analyser (PG172): records its probes around a trigger
    STATUS = "vio"  # virtual input and output (PG159), here without outputs: shows its probes, and which of them move


@dataclass(frozen=True)
class DebugCore:
    """A debug core that a design has an instance of."""

    kind: CoreKind
    module: str  # name of the IP's module
    widths: tuple[int, ...]  # of the probes, in order


def add_debug_core(
    m: Module, platform: object, kind: CoreKind, module: str, clock: Value, probes: Sequence[ValueLike]
) -> None:
    """Add a debug core that samples ``probes`` at ``clock``, if the platform asks for debug cores.

    Such a platform has a list ``debug_cores``, which gets the core. Probes of a core of status may have other clocks.
    """
    cores: list[DebugCore] | None = getattr(platform, "debug_cores", None)
    if cores is None:
        return
    values = [Value.cast(value) for value in probes]
    port = "probe" if kind is CoreKind.ANALYSER else "probe_in"
    ports = {f"i_{port}{number}": value for number, value in enumerate(values)}
    m.submodules[kind.value] = Instance(module, i_clk=clock, **ports)
    cores.append(DebugCore(kind, module, tuple(map(len, values))))
