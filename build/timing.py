"""The longest paths of a netlist from register to register, by a simple estimate.

Ports count as registers on both sides, and so do black boxes.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from p4sgd.build.delays import CLOCK_TO_OUT, DELAY, FLIP_FLOPS, ROUTE, SETUP, Arc, Kind, Start, ways
from p4sgd.build.netlist import Cell, Module, Netlist

__all__ = ["MAX_CARRY_BITS", "MAX_LUTS", "Path", "Timing", "analyse"]

MAX_LUTS = 3
"""LUTs that the design's paths may have in a row."""

MAX_CARRY_BITS = 48
"""Length of the one carry chain that they may have besides."""


class Path(NamedTuple):
    """A way from register to register; see `Kind` for what is on it.

    Attributes
    ----------
    start, end
        Names of the registers, with the instances that they are in.
    delay
        Nanoseconds from clock to clock.
    luts
        LUTs on it.
    multipliers
        DSP slices on it.
    chains
        Bits along each carry chain on it, from the start.
    """

    start: str
    end: str
    delay: float
    luts: int
    multipliers: int
    chains: tuple[int, ...]

    @property
    def keeps_rule(self) -> bool:
        """Whether it has at most one carry chain of `MAX_CARRY_BITS`, and `MAX_LUTS`."""
        return self.luts <= MAX_LUTS and len(self.chains) <= 1 and sum(self.chains) <= MAX_CARRY_BITS

    @property
    def megahertz(self) -> float:
        """Clock at which the signal just arrives."""
        return 1000 / self.delay


@dataclass(frozen=True)
class Timing:
    """The longest paths, worst first, and at how many inputs of registers, of all, the longest one breaks the rule."""

    paths: list[Path]
    ends: int
    breaking: int


class _State(NamedTuple):
    """The latest way to a net."""

    delay: float
    before: int | None
    kind: Kind
    """Of the last step."""
    luts: int
    multipliers: int
    chains: tuple[int, ...]

    @property
    def on_chain(self) -> bool:
        """Whether the last step was on a carry chain."""
        return self.kind in (Kind.ENTRY, Kind.CARRY)

    def wire(self, near: bool) -> float:
        """To a pin, which can be ``near``: see `Arc`."""
        inside = self.on_chain or self.kind in (Kind.LUT, Kind.MUX)
        return 0.0 if near and inside else ROUTE


class _End(NamedTuple):
    net: int
    near: bool
    name: "_Name"


class _Name(NamedTuple):
    """A register, named when it is needed: most are not."""

    path: tuple[str, ...]
    module: Module
    net: int | None
    """The net whose name is the register's; None if it goes by that of its cell."""
    cell: Cell | None
    """None for a port of the top."""
    pin: str
    """Where a path ends."""


@dataclass
class _Graph:
    """A netlist with its hierarchy dissolved."""

    arcs: dict[int, list[Arc]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[int, tuple[float, _Name]] = field(default_factory=dict)
    ends: list[_End] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, netlist: Netlist, name: str, path: tuple[str, ...], nets: dict[int, int]) -> None:
        """Add an instance of a module; ``nets`` are those of its ports, and become those of all in it."""
        module = netlist.modules[name]

        def here(net: int) -> int:
            if net not in nets:
                nets[net] = next(self.numbers)
            return nets[net]

        for cell in module.cells:
            if cell.type in netlist.modules:
                inside: dict[int, int] = {}
                # Inputs first: an output that is the same net is a wire through the module.
                for pin, port in sorted(netlist.modules[cell.type].ports.items(), key=lambda item: item[1].output):
                    for net, outer in zip(port.bits, cell.pins[pin].bits, strict=True):
                        if net is None or outer is None:
                            continue
                        if port.output and net in inside:
                            self.arcs[here(outer)].append(Arc(inside[net], here(outer), Kind.WIRE, True))
                        else:
                            inside[net] = here(outer)
                self.add(netlist, cell.type, (*path, cell.name), inside)
                continue
            register: int | None = None
            for way in ways(cell):
                if isinstance(way, Arc):
                    target = here(way.target)
                    self.arcs[target].append(Arc(here(way.source), target, way.kind, way.near))
                elif isinstance(way, Start):
                    register = way.net
                    self.starts[here(way.net)] = (way.delay, _Name(path, module, way.net, cell, ""))
                else:
                    net = register if cell.type in FLIP_FLOPS else None
                    self.ends.append(_End(here(way.net), way.near, _Name(path, module, net, cell, way.pin)))


def analyse(netlist: Netlist, count: int = 10) -> Timing:
    """Find the longest paths.

    Parameters
    ----------
    netlist
        The design.
    count
        How many to give, at most. Registers whose names differ only in numbers count as one, with its longest path.
    """
    graph = _Graph()
    top = netlist.modules[netlist.top]
    nets: dict[int, int] = {}
    graph.add(netlist, netlist.top, (), nets)
    for name, port in top.ports.items():
        for net in {net for net in port.bits if net in nets}:
            label = _Name((), top, None, None, name)
            if port.output:
                graph.ends.append(_End(nets[net], False, label))
            else:
                graph.starts[nets[net]] = (CLOCK_TO_OUT, label)
    latest = _propagate(graph)

    paths: dict[str, Path] = {}
    breaking = 0
    reached = [
        (latest[end.net].delay + latest[end.net].wire(end.near) + SETUP, end) for end in graph.ends if end.net in latest
    ]
    for delay, end in sorted(reached, key=lambda item: -item[0]):
        state = latest[end.net]
        path = Path("", "", delay, state.luts, state.multipliers, state.chains)
        breaking += not path.keeps_rule
        if len(paths) < count:
            name = _text(end.name)
            alike = re.sub(r"\d+", "#", name)
            if alike not in paths:
                paths[alike] = path._replace(start=_start(graph, latest, end.net), end=name)
    return Timing(list(paths.values()), len(reached), breaking)


def _propagate(graph: _Graph) -> dict[int, _State]:
    """The latest way to each net that one leads to.

    Raises
    ------
    ValueError
        If there is a loop without a register.
    """
    latest: dict[int, _State] = {
        net: _State(delay, None, Kind.WIRE, 0, 0, ()) for net, (delay, _) in graph.starts.items()
    }
    entered: set[int] = set()
    done: set[int] = set()
    for end in graph.ends:
        waiting = [end.net]
        while waiting:
            net = waiting[-1]
            if net in done:
                waiting.pop()
                continue
            missing = [arc.source for arc in graph.arcs.get(net, ()) if arc.source not in done]
            entered.add(net)
            if missing:
                if not entered.isdisjoint(missing):
                    raise ValueError("the netlist has a loop without a register")
                waiting += missing
                continue
            waiting.pop()
            done.add(net)
            ways = [_step(latest[arc.source], arc) for arc in graph.arcs.get(net, ()) if arc.source in latest]
            if net in latest:
                ways.append(latest[net])
            if ways:
                latest[net] = max(ways, key=lambda state: state.delay)
    return latest


def _step(state: _State, arc: Arc) -> _State:
    """The way on through a cell."""
    if arc.kind is Kind.WIRE:
        return state._replace(before=arc.source)
    chains = state.chains
    if arc.kind is Kind.ENTRY or (arc.kind is Kind.CARRY and not state.on_chain):
        chains = (*chains, 1)
    elif arc.kind is Kind.CARRY:
        chains = (*chains[:-1], chains[-1] + 1)
    luts = state.luts + (arc.kind is Kind.LUT)
    multipliers = state.multipliers + (arc.kind is Kind.DSP)
    delay = state.delay + state.wire(arc.near) + DELAY[arc.kind]
    return _State(delay, arc.source, arc.kind, luts, multipliers, chains)


def _start(graph: _Graph, latest: dict[int, _State], net: int) -> str:
    while (before := latest[net].before) is not None:
        net = before
    return _text(graph.starts[net][1])


def _text(name: _Name) -> str:
    if name.cell is None:
        return f"port {name.pin}"
    known = name.module.names.get(name.net) if name.net is not None else None
    text = ".".join((*name.path, known or name.cell.name))
    return text if not name.pin or (known and name.pin == "D") else f"{text} {name.pin}"
