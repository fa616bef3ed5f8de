"""The longest paths of a netlist from register to register, by a simple estimate.

Ports count as registers on both sides, and so do black boxes.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple, Self

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
        Names of the registers, below the instances that they are in; an end's pin if it is not the data of a flip-flop.
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
    """The longest paths.

    Attributes
    ----------
    paths
        The longest ones, and the longest of those that break the rule, worst first.
    ends
        Inputs of registers.
    breaking
        How many of these have a longest path that breaks the rule.
    """

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


class _Register(NamedTuple):
    """Where a path starts or ends; named when needed, for most are not."""

    cell: Cell | None
    """None for a port."""
    pin: str
    """Where a path ends; the name of a port."""
    net: int | None = None
    """What the register goes by if it has a name: the net that it drives."""

    def name(self, netlist: Netlist) -> str:
        """The name of the register, and the pin if it is not a flip-flop's data."""
        if self.cell is None:
            return f"port {self.pin}"
        known = netlist.modules[netlist.top].names.get(self.net) if self.net is not None else None
        pin = "" if known and self.pin == "D" else f" {self.pin}"
        return f"{known or self.cell.name}{pin}".strip()


class _End(NamedTuple):
    net: int
    near: bool
    register: _Register


@dataclass
class _Graph:
    """All ways of a netlist: between nets, out of registers, and into them."""

    arcs: dict[int, list[Arc]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[int, tuple[float, _Register]] = field(default_factory=dict)
    ends: list[_End] = field(default_factory=list)

    @classmethod
    def of(cls, top: Module) -> Self:
        """The ways of a module without modules in it."""
        graph = cls()
        for name, port in top.ports.items():
            for net in {net for net in port.bits if net is not None}:
                if port.output:
                    graph.ends.append(_End(net, False, _Register(None, name)))
                else:
                    graph.starts[net] = (CLOCK_TO_OUT, _Register(None, name))
        for cell in top.cells:
            driven: int | None = None
            for way in ways(cell):
                if isinstance(way, Arc):
                    graph.arcs[way.target].append(way)
                elif isinstance(way, Start):
                    driven = way.net
                    graph.starts[way.net] = (way.delay, _Register(cell, "", way.net))
                else:
                    register = _Register(cell, way.pin, driven if cell.type in FLIP_FLOPS else None)
                    graph.ends.append(_End(way.net, way.near, register))
        return graph


def analyse(netlist: Netlist, count: int = 10) -> Timing:
    """Find the longest paths.

    Parameters
    ----------
    netlist
        The design, without hierarchy.
    count
        How many to give, at most, and how many that break the rule. Registers whose names differ only in numbers count
        as one, with its longest path.

    Raises
    ------
    ValueError
        If the netlist has modules besides the top, or a loop without a register.
    """
    if len(netlist.modules) != 1:
        raise ValueError("paths are looked for in netlists without hierarchy")
    graph = _Graph.of(netlist.modules[netlist.top])
    latest = _propagate(graph)
    reached = [
        (latest[end.net].delay + latest[end.net].wire(end.near) + SETUP, end) for end in graph.ends if end.net in latest
    ]
    paths: dict[str, Path] = {}
    breaking = breaking_shown = 0
    for delay, end in sorted(reached, key=lambda item: -item[0]):
        state = latest[end.net]
        path = Path("", "", delay, state.luts, state.multipliers, state.chains)
        breaking += not path.keeps_rule
        if len(paths) < count or (not path.keeps_rule and breaking_shown < count):
            name = end.register.name(netlist)
            alike = re.sub(r"\d+", "#", name)
            if alike not in paths:
                breaking_shown += not path.keeps_rule
                paths[alike] = path._replace(start=_start(graph, latest, end.net).name(netlist), end=name)
    return Timing(list(paths.values()), len(reached), breaking)


def _propagate(graph: _Graph) -> dict[int, _State]:
    """The latest way to each net that one leads to."""
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


def _start(graph: _Graph, latest: dict[int, _State], net: int) -> _Register:
    """Where the latest way to a net starts."""
    while (before := latest[net].before) is not None:
        net = before
    return graph.starts[net][1]
