"""RTLIL of components as Amaranth writes it, but with names for all ports of modules, and with a map of the modules."""

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import amaranth
from amaranth.back import rtlil
from amaranth.hdl import Fragment
from amaranth.hdl import Value as Expression
from amaranth.hdl._ast import SignalDict
from amaranth.hdl._ir import PortDirection, build_netlist
from amaranth.hdl._nir import Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Place", "Rtlil", "convert"]

_ROOTS = {Path(str(amaranth.__file__)).resolve().parent: "amaranth/", Path(__file__).resolve().parents[1]: ""}
"""Folders of sources, and what stands for them where a file is named."""


class Place(NamedTuple):
    """Where a module of a design comes from."""

    path: tuple[str, ...]  # names of the instances that lead to it, the top first
    source: str  # class of the component, with its module
    line: str  # file and line of the class, below the folder of P4SGD or of Amaranth


class Rtlil(NamedTuple):
    """RTLIL of a design; the path to a module, joined by dots, is the module's name."""

    text: str
    places: tuple[Place, ...]  # of all modules


def convert(component: wiring.Component, name: str, platform: object, *, sources: bool) -> Rtlil:
    """As Amaranth's ``rtlil.convert``. With ``sources`` there are attributes ``src``, of files named as in `Place`."""
    directions = {In: PortDirection.Input, Out: PortDirection.Output}
    ports = {
        "__".join(map(str, path)): (Expression.cast(value), directions[member.flow])
        for path, member, value in component.signature.flatten(component)
    }
    prepared = Fragment.get(component, platform).prepare(ports=ports, hierarchy=(name,))
    netlist = build_netlist(prepared)
    _name_ports(netlist)
    empty = rtlil.EmptyModuleChecker(netlist)
    design = rtlil.Design(emit_src=sources)
    names = SignalDict()
    for index, module in enumerate(netlist.modules):
        if not empty.is_empty(index):
            builder = design.module(".".join(module.name))
            _ModuleEmitter(builder, netlist, module, names, empty).emit()
    text = _SOURCE.sub(lambda found: found[1] + _shown(found[2]), str(design))
    return Rtlil(text, tuple(_places(prepared)))


class _ModuleEmitter(rtlil.ModuleEmitter):
    """As Amaranth's, but memories of zeros get no initial words: most of the time and memory of a conversion."""

    def emit_memory(self, cell_idx: int, cell: Any) -> None:
        if any(cell.init):
            super().emit_memory(cell_idx, cell)


_SOURCE = re.compile(r'^( *attribute \\src ")([^"\n]+)(?=:\d+"$)', re.MULTILINE)
"""An attribute that names a source. Groups: what is before, and the file."""


@cache
def _shown(file: str) -> str:
    """Name of a source file, the same on every machine."""
    path = Path(file).resolve()
    for root, name in _ROOTS.items():
        if path.is_relative_to(root):
            return name + path.relative_to(root).as_posix()
    return path.name


def _places(design: Any) -> Iterator[Place]:
    for fragment, info in design.fragments.items():
        components = [each for each in fragment.origins or () if isinstance(each, wiring.Component)]
        if components:
            kind = type(components[-1])
            line = f"{_shown(inspect.getfile(kind))}:{inspect.getsourcelines(kind)[1]}"
            yield Place(info.name, f"{kind.__module__}.{kind.__qualname__}", line)


_NUMBERED = "port$"
"""Start of the names that Amaranth gives to ports which are not exactly a signal."""


class _Known(NamedTuple):
    """A value with a name in a module."""

    name: str
    value: Any
    is_signal: bool = False  # of the module, which has the value's port then
    fields: Mapping[Any, Any] = {}  # parts of it by their paths


def _name_ports(netlist: Any) -> None:
    """Divide ports that Amaranth has numbered where signals begin and end, and name each part after its signal.

    It is ``<signal>``, ``<signal>__<field>``, or ``<signal>__<high>_<low>``. Where a module has no such signal, one of
    its submodules has, ``<submodule>__<port>``, or one of the modules around it.
    """
    around = {child: index for index, module in enumerate(netlist.modules) for child in module.submodules}
    for index in reversed(range(len(netlist.modules))):  # submodules first
        module = netlist.modules[index]
        numbered = {net for name, (value, _) in module.ports.items() if name.startswith(_NUMBERED) for net in value}
        places: dict[Any, list[tuple[_Known, int]]] = {}
        for known in _known(netlist, index, around):
            if not (missing := numbered - places.keys()):
                break
            for each in known:
                if missing.isdisjoint(each.value):
                    continue
                for bit, net in enumerate(each.value):
                    if net in missing:
                        places.setdefault(net, []).append((each, bit))
        if not numbered:
            continue
        used = {*module.signal_names.values(), *(netlist.modules[child].name[-1] for child in module.submodules)}
        used |= {getattr(netlist.cells[cell], "name", None) for cell in module.cells}
        ports: dict[str, Any] = {}
        for name, (value, flow) in module.ports.items():
            parts = _parts(value, places) if name.startswith(_NUMBERED) else [(name, value, True)]
            for own, part, is_signal in parts:
                free = own if is_signal else next(each for each in _numbers(own) if each not in used)
                used.add(free)
                ports[free] = (part, flow)
        module.ports = ports


def _known(netlist: Any, index: int, around: Mapping[int, int]) -> Iterator[list[_Known]]:
    """Values with a name in a module; those of ports of its submodules; those in the modules around it, one by one."""

    def signals(of: int, *, own: bool) -> list[_Known]:
        names = netlist.modules[of].signal_names.items()
        found = ((signal, name) for signal, name in names if not name.startswith("$"))
        return [_Known(name, netlist.signals[each], own, netlist.signal_fields[each]) for each, name in found]

    yield signals(index, own=True)
    children = [netlist.modules[child] for child in netlist.modules[index].submodules]
    yield [_Known(f"{each.name[-1]}__{name}", value) for each in children for name, (value, _) in each.ports.items()]
    while index in around:
        index = around[index]
        yield signals(index, own=False)


def _parts(value: Any, places: Mapping[Any, list[tuple[_Known, int]]]) -> Iterator[tuple[str, Any, bool]]:
    """Parts of a value, each as long as what is known allows: name, value, and whether it is a signal of the module."""
    at = 0
    while at < len(value):
        best, bit, length = _Known(f"{_NUMBERED}{value[at].cell}${value[at].bit}", ()), 0, 0
        for known, first in places.get(value[at], ()):
            pairs = zip(value[at:], known.value[first:], strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if same > length:
                best, bit, length = known, first, same
        if not length:
            length = next((end for end in range(1, len(value) - at) if value[at + end] in places), len(value) - at)
        part = Value(value[at : at + length])
        if part == best.value or not best.value:
            yield best.name, part, best.is_signal
        else:
            path = next((path for path, field in best.fields.items() if field.value == part), None)
            bits = f"{bit + length - 1}_{bit}" if length > 1 else f"{bit}"
            yield "__".join(map(str, (best.name, *(path or (bits,))))), part, False
        at += length


def _numbers(name: str) -> Iterator[str]:
    """A name, then the same with numbers."""
    yield name
    for number in itertools.count(1):
        yield f"{name}${number}"
