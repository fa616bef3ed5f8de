"""Static timing estimate: the longest register-to-register paths of a netlist of UltraScale+ cells.

Delays are in nanoseconds. The data sheet (DS923) has none for logic, so they are assumed, for speed grade -2 at 0.85 V,
that of the boards. In a real design most of a path's delay is routing, which depends on the placement: use the estimate
to compare paths, not to predict a clock. Ports and black boxes count as registers.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

from p4sgd.build.estimate.synthesis import Cell, Module, Netlist, Port

__all__ = [
    "CLOCK",
    "CLOCK_TO_OUT",
    "DELAY",
    "FLIP_FLOPS",
    "MAX_CARRY_BITS",
    "MAX_LUTS",
    "ROUTE",
    "SETUP",
    "Arc",
    "End",
    "Kind",
    "Path",
    "Start",
    "Timing",
    "analyse",
    "cell_arcs",
]


CLOCK_TO_OUT = 0.08
"""Clock to the output of a flip-flop."""

SETUP = 0.07
"""Input of a register to the clock."""

ROUTE = 0.35
"""From one cell to another. There is none within a slice, from a LUT to its carry chain, multiplexer or flip-flop."""

LUT_RAM = 0.5
"""Clock to the output of a LUT used as memory or shift register."""

BLOCK_RAM = 1.0
"""Clock to the output of a block RAM without its output register."""

ULTRA_RAM = 1.5
"""Clock to the output of an UltraRAM without its output register."""


class Kind(Enum):
    """Kind of a cell that a signal passes."""

    LUT = "LUT"
    MUX = "multiplexer"
    """Multiplexer of the LUTs of a slice."""
    ENTRY = "entry"
    """First bit of a carry chain."""
    CARRY = "carry"
    """Further bit of a carry chain."""
    DSP = "DSP"
    WIRE = "wire"


DELAY = {
    Kind.LUT: 0.05,
    Kind.MUX: 0.05,
    Kind.ENTRY: 0.015,
    Kind.CARRY: 0.015,
    # A multiplier without registers: yosys does not use those in the DSP slices of this family. DS923 has 544 MHz from
    # a slice's input register to its output register, without the one between: 1.84 ns with clock-to-out and setup.
    Kind.DSP: 1.5,
    Kind.WIRE: 0.0,
}
"""Delay of each kind, without the routing to it."""


class Arc(NamedTuple):
    """A timing arc through a cell, between nets of its module."""

    source: int
    target: int
    kind: Kind
    near: bool
    """Whether a LUT, multiplexer or carry chain in the same slice can drive ``source``, without routing."""


class Start(NamedTuple):
    """A net driven by a register."""

    net: int
    delay: float


class End(NamedTuple):
    """A net that ends at a register."""

    net: int
    pin: str
    near: bool


FLIP_FLOPS = ("FDRE", "FDSE", "FDCE", "FDPE")
_SHIFT_REGISTERS = ("SRL16E", "SRLC32E")
_MEMORIES = {"RAMB18E2": BLOCK_RAM, "RAMB36E2": BLOCK_RAM, "URAM288": ULTRA_RAM}
CLOCK = re.compile(r"C|W?CLK|CLK[AB]\w+CLK|(\w+_)?clk")
"""Pins of cells and black boxes that take a clock."""


def cell_arcs(cell: Cell) -> Iterator[Arc | Start | End]:
    """All timing arcs of a cell. A cell of unknown type has a register at every input and output."""
    inputs = {pin: port for pin, port in cell.pins.items() if not port.output and not CLOCK.fullmatch(pin)}
    outputs = {pin: port for pin, port in cell.pins.items() if port.output}
    if re.fullmatch(r"LUT\d", cell.type):
        yield from _through(inputs, outputs, Kind.LUT)
    elif cell.type == "LUT6_2":
        table = int(cell.parameters["INIT"], 2)
        low = table % (1 << 32)
        for out, port in outputs.items():
            function = table if out == "O6" else low << 32 | low
            used = {pin: net for pin, net in inputs.items() if _depends(function, int(pin.removeprefix("I")))}
            yield from _through(used, {out: port}, Kind.LUT)
    elif re.fullmatch(r"MUXF\d", cell.type):
        select = {"S": inputs.pop("S")}
        yield from _through(inputs, outputs, Kind.MUX, near=True)
        yield from _through(select, outputs, Kind.MUX)
    elif cell.type == "INV":
        yield from _through(inputs, outputs, Kind.WIRE)
    elif cell.type in ("CARRY4", "CARRY8"):
        yield from _carry(cell)
    elif cell.type == "DSP48E2" and not any(_is_register(*item) for item in cell.parameters.items()):
        yield from _through(inputs, outputs, Kind.DSP)
    elif cell.type in _SHIFT_REGISTERS or re.fullmatch(r"RAM\d+[XM].*", cell.type):
        yield from _starts(outputs, LUT_RAM)
        for pin, port in inputs.items():
            read = {out: port for out, port in outputs.items() if _reads(pin, out)}
            yield from _through({pin: port}, read, Kind.LUT) if read else _ends({pin: port})
    else:
        yield from _starts(outputs, _MEMORIES.get(cell.type, CLOCK_TO_OUT))
        yield from _ends(inputs, near="D" if cell.type in FLIP_FLOPS else "")


def _nets(ports: dict[str, Port]) -> Iterator[tuple[str, int]]:
    return ((pin, net) for pin, port in ports.items() for net in port.bits if net is not None)


def _through(inputs: dict[str, Port], outputs: dict[str, Port], kind: Kind, *, near: bool = False) -> Iterator[Arc]:
    targets = [target for _, target in _nets(outputs)]
    return (Arc(source, target, kind, near) for _, source in _nets(inputs) for target in targets)


def _starts(outputs: dict[str, Port], delay: float) -> Iterator[Start]:
    return (Start(net, delay) for _, net in _nets(outputs))


def _ends(inputs: dict[str, Port], *, near: str = "") -> Iterator[End]:
    return (End(net, pin, pin == near) for pin, net in _nets(inputs))


def _depends(table: int, pin: int) -> bool:
    """Whether the function of a LUT6, a table of 64 bits, depends on one of its inputs."""
    return any((table >> place ^ table >> (place ^ 1 << pin)) & 1 for place in range(64))


def _is_register(parameter: str, value: str) -> bool:
    """Whether a parameter of a DSP slice switches on a register."""
    return parameter.endswith("REG") and "1" in value


def _reads(pin: str, out: str) -> bool:
    """Whether an input of a LUT memory is the address of a read output."""
    if match := re.fullmatch(r"ADDR([A-H])", pin):  # ADDRH is the write address
        return out == f"DO{match[1]}"
    return bool(re.fullmatch(r"(DPR)?A\d?", pin)) and not (pin.startswith("DPR") and out == "SPO")


def _carry(cell: Cell) -> Iterator[Arc]:
    """Arcs of a carry chain: each sum and carry depends on the carry before and the inputs of its bit."""
    before = [
        (net, Kind.CARRY if pin == "CI" else Kind.ENTRY, pin == "CI")
        for pin in ("CI", "CYINIT")
        for net in (cell.pins[pin].bits if pin in cell.pins else [])
    ]
    carries = cell.pins["CO"].bits
    sums = cell.pins["O"].bits if "O" in cell.pins else [None] * len(carries)  # a comparison has none
    for data, select, out, carry in zip(cell.pins["DI"].bits, cell.pins["S"].bits, sums, carries, strict=True):
        here = [(select, Kind.ENTRY, True)]
        for target, sources in ((out, [*before, *here]), (carry, [*before, *here, (data, Kind.ENTRY, False)])):
            if target is not None:
                yield from (Arc(source, target, kind, near) for source, kind, near in sources if source is not None)
        before = [(carry, Kind.CARRY, True)]


MAX_LUTS = 3
"""Number of LUTs that a path of the design may have in a row."""

MAX_CARRY_BITS = 48
"""Length of the one carry chain that it may have besides."""


class Path(NamedTuple):
    """A path from register to register.

    Attributes
    ----------
    start, end
        Hierarchical names of the registers; the end has the name of its pin too, unless that is a flip-flop's data.
    delay
        Delay in nanoseconds, from clock to clock.
    luts
        Number of LUTs.
    multipliers
        Number of DSP slices.
    chains
        Length in bits of each carry chain, in the order of the path.
    """

    start: str
    end: str
    delay: float
    luts: int
    multipliers: int
    chains: tuple[int, ...]

    @property
    def keeps_rule(self) -> bool:
        """Whether the path has at most `MAX_LUTS` and one carry chain of `MAX_CARRY_BITS`."""
        return self.luts <= MAX_LUTS and len(self.chains) <= 1 and sum(self.chains) <= MAX_CARRY_BITS

    @property
    def megahertz(self) -> float:
        """Highest clock frequency for the path."""
        return 1000 / self.delay


@dataclass(frozen=True)
class Timing:
    """The longest paths.

    Attributes
    ----------
    paths
        The longest paths, and the longest of those that break the rule, worst first.
    ends
        Number of register inputs.
    breaking
        Number of register inputs whose longest path breaks the rule.
    """

    paths: list[Path]
    ends: int
    breaking: int


class _State(NamedTuple):
    """The longest path to a net."""

    delay: float
    before: int | None
    kind: Kind
    """Kind of the last cell."""
    luts: int
    multipliers: int
    chains: tuple[int, ...]

    @property
    def on_chain(self) -> bool:
        """Whether the last cell is on a carry chain."""
        return self.kind in (Kind.ENTRY, Kind.CARRY)

    def wire(self, near: bool) -> float:
        """Delay of the routing to a pin, which can be ``near``: see `Arc`."""
        inside = self.on_chain or self.kind in (Kind.LUT, Kind.MUX)
        return 0.0 if near and inside else ROUTE


class _Register(NamedTuple):
    """Start or end of a path. Its name is looked up only if the path is reported."""

    cell: Cell | None
    """None for a port."""
    pin: str
    """Pin where a path ends, or name of a port."""
    net: int | None = None
    """Net that the register drives, after which it is named."""

    def name(self, netlist: Netlist) -> str:
        """Name of the register, with the pin unless that is a flip-flop's data."""
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
    """Timing graph of a netlist: arcs between nets, and nets that start or end at registers."""

    arcs: dict[int, list[Arc]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[int, tuple[float, _Register]] = field(default_factory=dict)
    ends: list[_End] = field(default_factory=list)

    @classmethod
    def of(cls, top: Module) -> Self:
        """The graph of a module without submodules."""
        graph = cls()
        for name, port in top.ports.items():
            for net in {net for net in port.bits if net is not None}:
                if port.output:
                    graph.ends.append(_End(net, False, _Register(None, name)))
                else:
                    graph.starts[net] = (CLOCK_TO_OUT, _Register(None, name))
        for cell in top.cells:
            driven: int | None = None
            for way in cell_arcs(cell):
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
        Maximum number of paths, and of paths that break the rule. Registers whose names differ only in numbers are
        reported once, with the longest path.

    Raises
    ------
    ValueError
        If the netlist has submodules, or a combinational loop.
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
    """Longest path to each net that any path leads to."""
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
            candidates = [_step(latest[arc.source], arc) for arc in graph.arcs.get(net, ()) if arc.source in latest]
            if net in latest:
                candidates.append(latest[net])
            if candidates:
                latest[net] = max(candidates, key=lambda state: state.delay)
    return latest


def _step(state: _State, arc: Arc) -> _State:
    """Extend a path by an arc."""
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
    """Start of the longest path to a net."""
    while (before := latest[net].before) is not None:
        net = before
    return graph.starts[net][1]
